"""Small programs and what must happen when they are run in the head."""

from __future__ import annotations

import textwrap
from pathlib import Path

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.events import (
    Clip,
    GraphCut,
    LoaderBuilt,
    LossCall,
    ManualUnderAutomatic,
    ModeChange,
    PartSet,
    SchedulerStep,
    StateDictUsed,
    Step,
)
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def traced(code: str, head: str = HEAD) -> Trace:
    text = head + textwrap.dedent(code)
    trace = run(lower_text("train.py", text), Project(()))
    assert not trace.silence.failed, trace.silence.failed
    return trace


def test_a_step_sees_the_gradients_of_the_iteration_before() -> None:
    trace = traced("""
        def train(loader):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    """)
    first, second = trace.steps
    assert not any(atom.applied for atom in first.before)
    assert any(atom.applied and atom.sites for atom in second.before)


def test_a_clear_between_steps_makes_gradients_clean_again() -> None:
    trace = traced("""
        def train(loader):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    """)
    assert not any(atom.applied for step in trace.steps for atom in step.before)


def test_parameters_may_be_cleared_by_hand() -> None:
    trace = traced("""
        def train(loader):
            for x, y in loader:
                for p in model.parameters():
                    p.grad = None
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    """)
    assert {clear.how for clear in trace.clears} == {"grad = None"}
    assert not any(atom.applied for step in trace.steps for atom in step.before)


def test_another_optimizer_does_not_clear_ours() -> None:
    trace = traced("""
        other = nn.Linear(4, 2)
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        def train(loader):
            for x, y in loader:
                second.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    """)
    assert any(atom.applied and atom.sites for step in trace.steps for atom in step.before)


def test_a_window_is_counted_exactly_with_a_witness() -> None:
    trace = traced("""
        def train(loader, k):
            for i, (x, y) in enumerate(loader):
                if i % k == 0:
                    optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                if (i + 1) % k == 0:
                    optimizer.step()
    """)
    assert len(trace.steps) == 2
    for step in trace.steps:
        assert [count for atom in step.before for _, count in atom.sites] == [2]
        assert not any(atom.applied for atom in step.before)


def test_a_flag_tested_twice_is_fixed_in_two_worlds() -> None:
    trace = traced("""
        def train(loader, fresh):
            for x, y in loader:
                if fresh:
                    optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                if not fresh:
                    optimizer.zero_grad()
    """)
    assert {step.scene.world for step in trace.steps} == {(("fresh", True),), (("fresh", False),)}
    assert not any(atom.applied and atom.sites for step in trace.steps for atom in step.before)


def test_a_kept_loss_is_a_store_and_a_detached_one_is_none() -> None:
    kept = traced("""
        def train(loader, history):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                history.append(loss)
    """)
    assert kept.stores and all(store.freed for store in kept.stores)
    detached = traced("""
        def train(loader, history):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                history.append(loss.detach())
    """)
    assert not detached.stores
    assert {cut.how for cut in detached.of(GraphCut)} == {"detach"}


def test_a_running_sum_grows_and_reading_the_last_value_does_not() -> None:
    grows = traced("""
        def train(loader):
            total = 0
            for x, y in loader:
                total = total + F.cross_entropy(model(x), y)
    """)
    assert [store.how for store in grows.stores] == ["chain"]
    last = traced("""
        def train(loader):
            best = None
            for x, y in loader:
                best = F.cross_entropy(model(x), y)
    """)
    assert not last.stores


def test_a_backward_consumes_what_was_kept_for_it() -> None:
    trace = traced("""
        def train(episodes):
            for episode in episodes:
                kept = []
                for x in episode:
                    kept.append(model(x))
                torch.stack(kept).sum().backward()
    """)
    assert trace.stores
    assert all(store.token in trace.consumed for store in trace.stores)


def test_no_grad_scopes_end_with_return() -> None:
    trace = traced("""
        def evaluate(loader):
            with torch.no_grad():
                for x, y in loader:
                    return model(x)
        def main(loader):
            evaluate(loader)
            for x, y in loader:
                model(x)
    """)
    modes = [forward.grad for forward in trace.forwards]
    assert modes[0] == {False}
    assert modes[-1] == {True}


def test_finally_also_runs_for_the_path_that_returned() -> None:
    trace = traced("""
        def evaluate(x):
            model.eval()
            try:
                with torch.no_grad():
                    return model(x)
            finally:
                model.train()
        def main(loader):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                evaluate(x)
    """)
    trained = [forward for forward in trace.forwards if forward.pass_ in trace.trained]
    assert {mode.name for forward in trained for mode in forward.modes} <= {"train", "new", "unknown"}


def test_a_context_manager_of_the_project_restores_the_mode() -> None:
    trace = traced("""
        from contextlib import contextmanager
        @contextmanager
        def evaluating(m):
            m.eval()
            yield
            m.train()
        def main(loader):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                with evaluating(model):
                    model(x)
    """)
    changes = [change.to for change in trace.of(ModeChange)]
    assert changes[:2] == ["eval", "train"]
    assert {m.name for f in trace.forwards if f.pass_ not in trace.trained for m in f.modes} == {"eval"}


def test_modes_are_looked_up_through_the_parent() -> None:
    trace = traced("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
            def forward(self, x):
                return self.body(x)
        net = Net()
        net.body.eval()
        net.train()
        net.body(torch.zeros(1, 4))
    """)
    change = trace.of(ModeChange)[-1]
    assert change.undone and change.to == "train"
    assert {mode.name for mode in trace.forwards[0].modes} == {"train"}


def test_a_state_dict_is_an_alias_until_copied() -> None:
    trace = traced("""
        import copy
        def train(loader):
            best = model.state_dict()
            safe = copy.deepcopy(model.state_dict())
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.load_state_dict(best)
            model.load_state_dict(safe)
    """)
    alias, copied = [use for use in trace.of(StateDictUsed) if use.how == "load"]
    assert alias.state.version < alias.current and not alias.state.copied
    assert copied.state.copied


def test_the_activation_before_a_loss_is_known_through_forward() -> None:
    trace = traced("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=1))
            def forward(self, x):
                return self.layers(x).view(-1, 2)
        net = Net()
        def train(loader):
            for x, y in loader:
                nn.CrossEntropyLoss()(net(x), y)
    """)
    losses = trace.of(LossCall)
    assert losses[0].name == "cross_entropy"
    assert losses[0].input is not None and losses[0].input.activation is not None
    assert losses[0].input.activation.name == "softmax"


def test_arithmetic_drops_the_activation() -> None:
    trace = traced("""
        def train(loader):
            for x, y in loader:
                F.cross_entropy(torch.softmax(model(x), 1) * 2, y)
    """)
    assert all(loss.input and loss.input.activation is None for loss in trace.of(LossCall))


def test_loaders_know_what_shards_them() -> None:
    trace = traced("""
        from torch.utils.data.distributed import DistributedSampler
        def main(data, rank, world_size, **kw):
            DataLoader(data, shuffle=True)
            DataLoader(data, sampler=DistributedSampler(data))
            DataLoader(torch.utils.data.Subset(data, range(rank, 100, world_size)))
            DataLoader(data, **kw)
    """)
    by = [built.sharding.by if built.sharding else None for built in trace.of(LoaderBuilt)]
    assert by == [None, "torch.utils.data.DistributedSampler", "rank", "unknown"]


def test_a_scaled_loss_scales_gradients_until_unscaled() -> None:
    trace = traced("""
        def train(loader):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
    """)
    assert all(atom.scaled for atom in trace.of(Step)[0].before) is False
    clipped = trace.of(Clip)[0]
    assert any(atom.scaled for atoms in clipped.before.values() for atom in atoms)


def test_accelerate_owns_the_window_of_a_prepared_optimizer() -> None:
    trace = traced("""
        from accelerate import Accelerator
        def train(loader):
            accelerator = Accelerator(gradient_accumulation_steps=4)
            net, opt, data = accelerator.prepare(model, optimizer, loader)
            for x, y in data:
                with accelerator.accumulate(net):
                    accelerator.backward(F.cross_entropy(net(x), y))
                    opt.step()
                    opt.zero_grad()
    """)
    assert all(backward.divides for backward in trace.backwards)
    assert trace.steps
    assert {count for step in trace.steps for atom in step.before for _, count in atom.sites} == {2}


def test_lightning_calls_hooks_and_trains_by_itself() -> None:
    for package in ("pytorch_lightning", "lightning"):
        trace = traced(f"""
            import {package} as pl
            class Lit(pl.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.net = nn.Linear(4, 2)
                def training_step(self, batch, index):
                    x, y = batch
                    return F.cross_entropy(self.net(x), y)
                def validation_step(self, batch, index):
                    x, y = batch
                    self.net(x)
        """)
        hows = {backward.how for backward in trace.backwards}
        assert hows == {"managed"}
        assert frozenset([False]) in {forward.grad for forward in trace.forwards}


def test_manual_step_inside_an_automatic_hook_is_recorded() -> None:
    trace = traced("""
        import lightning as L
        class Lit(L.LightningModule):
            def training_step(self, batch, index):
                loss = self.net(batch).mean()
                loss.backward()
                return loss
    """)
    assert {event.what for event in trace.of(ManualUnderAutomatic)} == {"backward"}


def test_closures_run_with_their_optimizer() -> None:
    trace = traced("""
        def fit(x, y):
            solver = torch.optim.LBFGS(model.parameters())
            def closure():
                solver.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss
            solver.step(closure)
    """)
    assert {step.via for step in trace.steps} == {"closure"}
    assert not any(atom.applied and atom.sites for step in trace.steps for atom in step.before)


def test_parts_of_modules_are_recorded_with_their_container() -> None:
    trace = traced("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = [nn.Linear(4, 4) for _ in range(3)]
        Net()
    """)
    assert [part.name for part in trace.of(PartSet)] == ["parts"]


def test_scheduler_steps_know_their_loops() -> None:
    trace = traced("""
        def train(loader):
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
            for epoch in range(10):
                for x, y in loader:
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                schedule.step()
    """)
    assert {len(event.loops) for event in trace.of(SchedulerStep)} == {1}
    assert {len(event.loops) for event in trace.steps} == {2}
    assert (
        trace.steps[0].loops[1].loop.kind is LoopKind.BATCHES or trace.steps[0].loops[1].loop.over == "loader"
    )


def test_generators_of_the_project_run_their_consumer() -> None:
    trace = traced("""
        def batches(loader):
            for x, y in loader:
                yield x.cuda(), y.cuda()
        def train(loader):
            for x, y in batches(loader):
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    """)
    assert len(trace.steps) == 2
    assert any(atom.applied and atom.sites for step in trace.steps for atom in step.before)


def test_decorators_of_the_project_are_run() -> None:
    trace = traced("""
        def smart():
            def decorate(fn):
                return torch.no_grad()(fn)
            return decorate
        @smart()
        def evaluate(loader):
            for x, y in loader:
                model(x)
    """)
    assert {forward.grad for forward in trace.forwards} == {frozenset([False])}


def test_properties_partials_and_lambdas_are_called() -> None:
    trace = traced("""
        from functools import partial
        class Holder:
            @property
            def net(self):
                return model
        def apply(fn, x):
            return fn(x)
        def main(x):
            apply(lambda v: Holder().net(v), x)
            partial(apply, model)(x)
    """)
    assert len(trace.forwards) == 2


def test_other_files_are_run_where_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("from .steps import update\n")
    (tmp_path / "pkg" / "steps.py").write_text(
        "def update(loss, opt):\n    loss.backward()\n    opt.step()\n"
    )
    main = tmp_path / "train.py"
    text = HEAD + "from pkg import update\ndef train(loader):\n    for x, y in loader:\n"
    main.write_text(text + "        update(F.cross_entropy(model(x), y), optimizer)\n")
    project = Project((str(tmp_path),))
    module = project.load(str(main))
    assert module is not None
    trace = run(module, project)
    assert {Path(step.place.path).name for step in trace.steps} == {"steps.py"}
    assert any(atom.applied and atom.sites for step in trace.steps for atom in step.before)


def test_arguments_are_believed_by_annotation_use_and_name() -> None:
    trace = traced(
        """
        import torch
        def a(thing: torch.nn.Module, x):
            thing(x)
        def b(thing, x):
            thing.state_dict()
            thing(x)
        def c(model, x):
            model(x)
    """,
        head="",
    )
    assert [forward.belief for forward in trace.forwards] == [False, True, True]


def test_clears_are_kept_apart_from_backwards() -> None:
    trace = traced("""
        def train(loader):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.zero_grad()
                optimizer.step()
    """)
    assert trace.clears and trace.backwards and trace.forwards and not trace.stores
    assert any(atom.lost for step in trace.steps for atom in step.before)


def _shuffle_of(first: bool, second: bool) -> bool | None:
    trace = traced(f"""
        def make(flag, data):
            options = dict(dataset=data, shuffle={first}) if flag() else dict(dataset=data, shuffle={second})
            return DataLoader(**options)
    """)
    (built,) = trace.of(LoaderBuilt)
    return built.shuffle


def test_keywords_of_several_dictionaries_are_joined() -> None:
    assert _shuffle_of(True, True) is True
    assert _shuffle_of(True, False) is None


def test_parameters_that_only_one_branch_freezes_still_learn() -> None:
    trace = traced("""
        def train(loader, flag):
            if flag():
                for p in model.parameters():
                    p.requires_grad_(False)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    """)
    assert all(backward.passes for backward in trace.backwards)


def test_a_forward_that_gives_a_dictionary_is_remembered() -> None:
    trace = traced("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 2)
                self.seen = []

            def forward(self, x):
                out = self.body(x)
                return {"logits": out, "parts": [{"out": out}]}

        net = Net()
        own = torch.optim.SGD(net.parameters(), lr=0.1)

        def train(loader):
            for epoch in range(3):
                for x, y in loader:
                    own.zero_grad()
                    F.cross_entropy(net(x)["parts"][0]["out"], y).backward()
                    own.step()
    """)
    # every backward reaches a pass of its own, also those whose forward was not run again
    assert len({frozenset(backward.passes) for backward in trace.backwards}) == len(trace.backwards)
    assert all(any(atom.sites for atom in one.before) for one in trace.steps)


def test_settings_of_a_configuration_that_a_call_gave_agree() -> None:
    trace = traced("""
        from somewhere import get_config

        def train(loader):
            config = get_config()
            for x, y in loader:
                if config.once > 1:
                    F.cross_entropy(model(x), y).backward()
                else:
                    optimizer.step()
    """)
    assert all(not atom.sites for one in trace.steps for atom in one.before)

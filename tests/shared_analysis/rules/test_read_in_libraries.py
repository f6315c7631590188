"""Kinds of correct code that a reader met in public libraries and the rules took for faults, each beside
programs that are faulty indeed.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.findings import Confidence, Finding, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def findings_of(rule: str, program: str) -> list[Finding]:
    file = SourceFile("/nowhere/program.py", program)
    assert file.module.problems == ()
    trace = run(file.module, Project([]), Limits())
    assert trace.silence.failed == ()
    return [finding for finding in judge(trace, file, Settings()).findings if finding.rule == rule]


def check(rule: str, text: str) -> None:
    program = textwrap.dedent(text)
    found = sorted(finding.place.span.line + 1 for finding in findings_of(rule, program))
    assert found == [n for n, line in enumerate(program.splitlines(), start=1) if line.endswith("# here")]


# --------------------------------------------------------------------------- one of several scalers

SCALED = """
import torch


def fit(model, loader, optimizer, device):
{made}
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

SCALERS = {
    "two spellings": """
    if device == "cuda":
        scaler = torch.cuda.amp.GradScaler()
    else:
        scaler = torch.amp.GradScaler(device)
""",
    "a conditional expression": """
    scaler = torch.amp.GradScaler("cuda") if torch.cuda.is_available() else torch.amp.GradScaler("cpu")
""",
    "of a backend that is a package of its own": """
    if device == "npu":
        scaler = torch.npu.amp.GradScaler()
    elif device == "xpu":
        scaler = torch.xpu.amp.GradScaler()
    else:
        scaler = torch.amp.GradScaler(device)
""",
    "an older release": """
    try:
        scaler = torch.amp.GradScaler("cuda")
    except AttributeError:
        scaler = torch.cuda.amp.GradScaler()
""",
}


@pytest.mark.parametrize(
    "rule", ["scaler-protocol", "missing-step", "clip-before-unscale", "missing-zero-grad"]
)
@pytest.mark.parametrize("made", SCALERS)
def test_one_of_several_scalers_acts_once(made: str, rule: str) -> None:
    check(rule, SCALED.format(made=SCALERS[made]))


@pytest.mark.parametrize("made", SCALERS)
def test_whichever_scaler_it_is_unscales_twice(made: str) -> None:
    again = "        scaler.unscale_(optimizer)\n        scaler.unscale_(optimizer)  # here\n"
    text = SCALED.format(made=SCALERS[made]).replace("        scaler.unscale_(optimizer)\n", again)
    check("scaler-protocol", text)


def test_update_is_for_all_optimizers_of_a_list() -> None:
    check(
        "scaler-protocol",
        """
        import torch


        def fit(losses, loaders, steps, optimizer_class=torch.optim.AdamW):
            scaler = torch.amp.GradScaler("cuda")
            optimizers = []
            for loss_model in losses:
                optimizers.append(optimizer_class(loss_model.parameters()))
            for step in range(steps):
                for i in range(len(losses)):
                    loss_model, optimizer = losses[i], optimizers[i]
                    x, y = next(loaders[i])
                    scaler.scale(loss_model(x, y)).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(loss_model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """,
    )


# --------------------------------------------------------------------------- models out of a table

AGENT = """
import torch


class Agent:
    def __init__(self, models, start):
        self.policy = {policy}
        self.critic = {critic}
        self.entropy = torch.log(torch.ones(1) * start).requires_grad_(True)
        self.scaler = torch.amp.GradScaler("cuda")
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())
        self.entropy_optimizer = torch.optim.Adam([self.entropy])

    def update(self, batches):
        for x, y in batches:
            self.critic_optimizer.zero_grad()
            values, _ = self.critic.act(x, role="critic")
            self.scaler.scale(torch.nn.functional.mse_loss(values, y)).backward()
            {unscaled}
            torch.nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0){here}
            self.scaler.step(self.critic_optimizer)
            self.policy_optimizer.zero_grad()
            actions, prob = self.policy.act(x, role="policy")
            values, _ = self.critic.act(actions, role="critic")
            self.scaler.scale((self.entropy.exp() * prob - values).mean()).backward()
            self.scaler.unscale_(self.policy_optimizer)
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.scaler.step(self.policy_optimizer)
            self.entropy_optimizer.zero_grad()
            self.scaler.scale(-(self.entropy * prob.detach()).mean()).backward()
            self.scaler.step(self.entropy_optimizer)
            self.scaler.update()
"""

TABLES = {
    "get": ('models.get("policy")', 'models.get("critic")'),
    "get with None": ('models.get("policy", None)', 'models.get("critic", None)'),
    "a subscript": ('models["policy"]', 'models["critic"]'),
}


@pytest.mark.parametrize("table", TABLES)
def test_models_out_of_a_table_are_told_apart(table: str) -> None:
    policy, critic = TABLES[table]
    unscaled = "self.scaler.unscale_(self.critic_optimizer)"
    check(
        "clip-before-unscale",
        AGENT.format(policy=policy, critic=critic, unscaled=unscaled, here=""),
    )


@pytest.mark.parametrize("table", TABLES)
def test_a_model_out_of_a_table_is_clipped_while_scaled(table: str) -> None:
    policy, critic = TABLES[table]
    check(
        "clip-before-unscale",
        AGENT.format(policy=policy, critic=critic, unscaled="pass", here="  # here"),
    )


# --------------------------------------------------------------------------- ranks


@pytest.mark.parametrize("test", ["> -1", ">= 0", "!= -1"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_whether_there_are_ranks_is_asked_by_all(test: str, is_kept: bool) -> None:
    check(
        "rank-divergent-collective",
        f"""
        import torch
        import torch.distributed as dist


        def get_rank():
            if dist.is_available() and dist.is_initialized():
                return dist.get_rank()
            return -1


        class Metric:
            def reset(self):
                self.scores = []
                self.is_parallel = get_rank() {test}

            def compute(self):
                scores = torch.cat(self.scores)
                if {"self.is_parallel" if is_kept else f"get_rank() {test}"}:
                    dist.all_reduce(scores)
                return scores
        """,
    )


@pytest.mark.parametrize("is_kept", [False, True])
def test_whether_this_is_the_first_rank_parts_them(is_kept: bool) -> None:
    check(
        "rank-divergent-collective",
        f"""
        import torch
        import torch.distributed as dist


        class Metric:
            def reset(self):
                self.scores = []
                self.is_first = dist.get_rank() == 0

            def compute(self):
                scores = torch.cat(self.scores)
                if {"self.is_first" if is_kept else "dist.get_rank() == 0"}:
                    dist.all_reduce(scores)  # here
                return scores
        """,
    )


def test_a_helper_meets_itself_on_the_other_side_of_a_yield() -> None:
    check(
        "rank-divergent-collective",
        """
        from contextlib import contextmanager

        import torch.distributed as dist


        def meet(state):
            if state.is_started:
                dist.barrier()
            else:
                dist.all_reduce(state.count)


        @contextmanager
        def one_rank_first(state, rank=0):
            current = dist.get_rank()
            if current != rank:
                meet(state)
            yield
            if current == rank:
                meet(state)
        """,
    )


def test_ranks_that_serve_the_first_one_meet_it() -> None:
    text = """
        import torch.distributed as dist


        class Server:
            def __init__(self, model):
                self.model = model

            def receive(self, messages=None):
                payload = [None]
                dist.scatter_object_list(payload, messages, src=0)
                return payload[0]

            def answer(self, payload):
                results = [None] * dist.get_world_size()
                dist.gather_object(self.model(payload), results, dst=0){here}

            def serve(self):
                {loop}
                    payload = self.receive()
                    if payload is None:
                        return
                    self.answer(payload)

            def stop(self):
                self.receive([None] * dist.get_world_size())


        def evaluate(model, evaluator):
            server = Server(model)
            if dist.get_rank() != 0:
                server.serve()
            else:
                evaluator(server)
                server.stop()
        """
    check("rank-divergent-collective", text.format(loop="while True:", here=""))
    check("rank-divergent-collective", text.format(loop="for _ in range(3):", here="  # here"))


# --------------------------------------------------------------------------- helpers that ask what they got

HELPERS = """
import numbers

import torch
from torch import nn


def item_of(x):
    return x if isinstance(x, numbers.Number) else x.item()


def number_of(x):
    if not torch.is_tensor(x):
        return x
    return float(x)


def detached(x):
    if isinstance(x, torch.Tensor):
        return x.detach()
    if isinstance(x, dict):
        return {name: detached(one) for name, one in x.items()}
    if isinstance(x, tuple | list):
        return [detached(one) for one in x]
    return x


def untouched(x):
    if isinstance(x, dict):
        return {name: untouched(one) for name, one in x.items()}
    return x


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader, is_dry):
    kept = []
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        extra = None if is_dry else loss * 2
        kept.append(EXPRESSION)
    return kept
"""


@pytest.mark.parametrize(
    "expression",
    [
        "item_of(loss)",
        "number_of(loss)",
        "number_of(extra)",
        "detached(loss)",
        "detached(extra)",
        'detached({"loss": loss, "count": len(x)})',
        'detached({"loss": extra})',
        "detached([loss, loss * 2])",
        'detached({"losses": [loss, loss * 2]})',
    ],
)
def test_a_helper_detaches_what_it_is_given(expression: str) -> None:
    check("retained-graph", HELPERS.replace("EXPRESSION", expression))


@pytest.mark.parametrize("expression", ["untouched(loss)", 'untouched({"loss": loss})', '{"loss": extra}'])
def test_a_helper_that_gives_back_what_it_got_detaches_nothing(expression: str) -> None:
    text = HELPERS.replace("kept.append(EXPRESSION)", f"kept.append({expression})  # here")
    check("retained-graph", text)


# --------------------------------------------------------------------------- steps that are not seen

MEASURING = """
import torch
from torch import nn


def importances(model: nn.Module, optimizer: torch.optim.Optimizer, loader):
    kept = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    found = []
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()HERE
        BODY
    return kept, found
"""


@pytest.mark.parametrize(
    "body",
    [
        """for name, p in model.named_parameters():
            if p.grad is not None:
                kept[name] += p.grad.data.clone().pow(2)""",
        """for (name, p), old in zip(model.named_parameters(), kept.values()):
            old.data += p.grad.abs() * len(x)""",
        "found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))",
        "found.append([p.grad for p in model.parameters() if p.grad is not None])",
    ],
)
def test_gradients_may_be_wanted_for_themselves(body: str) -> None:
    check("missing-step", MEASURING.replace("BODY", body).replace("HERE", ""))


@pytest.mark.parametrize(
    "body",
    [
        "print(sum(p.grad.norm() ** 2 for p in model.parameters() if p.grad is not None))",
        """for p in model.parameters():
            if p.grad is not None and torch.isnan(p.grad).any():
                p.grad.zero_()""",
        """for p in model.parameters():
            p.grad.data.clamp_(-1, 1)""",
        "found.append(max(p.grad.abs().max().item() for p in model.parameters()))",
    ],
)
def test_the_size_of_gradients_teaches_nothing(body: str) -> None:
    check("missing-step", MEASURING.replace("BODY", body).replace("HERE", "  # here"))


GENERIC = """
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn

T = TypeVar("T")


class Base(BASES):
    optimizer: torch.optim.Optimizer
    model: nn.Module

    def make_step(self) -> None:
        STUB


class Update(Base[T]):
    def epoch(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()HERE
            self.make_step()
"""


@pytest.mark.parametrize("bases", ["Protocol[T]", "Generic[T]"])
@pytest.mark.parametrize("stub", ["...", "pass", '"""To override."""', "raise NotImplementedError"])
def test_a_method_without_a_body_may_step(bases: str, stub: str) -> None:
    check("missing-step", GENERIC.replace("BASES", bases).replace("STUB", stub).replace("HERE", ""))


@pytest.mark.parametrize("bases", ["Protocol[T]", "Generic[T]"])
def test_a_method_of_a_generic_base_is_followed(bases: str) -> None:
    text = GENERIC.replace("BASES", bases)
    check("missing-step", text.replace("STUB", "self.optimizer.step()").replace("HERE", ""))
    check("missing-step", text.replace("STUB", "self.count = 1").replace("HERE", "  # here"))


def test_generic_modules_are_modules() -> None:
    check(
        "unregistered-submodules",
        """
        from typing import Generic, TypeVar

        from torch import nn

        T = TypeVar("T")


        class Net(nn.Module, Generic[T]):
            pass


        class Deep(Net[int]):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(3, 3) for _ in range(4)]  # here

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x
        """,
    )


def test_the_optimizer_of_an_unseen_object_may_be_the_one_that_steps() -> None:
    text = """
        import torch
        from torch import nn


        class Loss:
            def __init__(self, values, optimizer):
                self.values, self.optimizer = values, optimizer

            def backward(self):
                self.values.mean().backward(retain_graph=True)
                self.optimizer.zero_grad()
                self.values.sum().backward()


        def train(model, engine, loader, criterion):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            holder = engine.hold(model)
            for x, y in loader:
                values = criterion(model(x), y)
                Loss(values, holder.optimizer).backward()
                optimizer.step()
        """
    check("missing-step", text)


# --------------------------------------------------------------------------- gradients cleared out of sight

CLEARING = """
import torch
from torch import nn


def zero_grads(tensors):
    for p in tensors:
        if p.grad is not None:
            p.grad = torch.zeros_like(p.grad)


def drop_grads(tensors):
    for p in tensors:
        p.grad = None


def zero_in_place(tensors):
    for p in tensors:
        if p.grad is None:
            continue
        p.grad.detach_()
        p.grad.zero_()


def fit(loss_fn, design, optim, steps, capture):
    params = None
    for step in range(steps):
        if params is not None:
            CLEAR
        loss = loss_fn(design)
        params = set(site["value"].unconstrained() for site in capture.nodes.values())
        loss.backward()HERE
        optim(params)
        optim.step()
"""


@pytest.mark.parametrize("clear", ["zero_grads(params)", "drop_grads(params)", "zero_in_place(params)"])
def test_gradients_of_unknown_parameters_are_cleared(clear: str) -> None:
    check("missing-zero-grad", CLEARING.replace("CLEAR", clear).replace("HERE", ""))


def test_nothing_clears_gradients_of_unknown_parameters() -> None:
    check("missing-zero-grad", CLEARING.replace("CLEAR", "print(params)").replace("HERE", "  # here"))


@pytest.mark.parametrize("taped", ["wp.Tape()", "wp.context.Tape(device)"])
def test_a_tape_of_another_library_keeps_its_own_gradients(taped: str) -> None:
    check(
        "missing-zero-grad",
        f"""
        import warp as wp
        from warp_nn.optimizers import Adam


        def train(model, batches, device):
            optimizer = Adam(model.parameters(), lr=1e-3)
            for batch in batches:
                with {taped} as tape:
                    loss = model(batch)
                tape.backward(loss)
                optimizer.step()
                tape.zero()
        """,
    )


@pytest.mark.parametrize("chosen", ["torch.optim.SGD", "torch.optim.SGD if plain else torch.optim.Adam"])
def test_a_closure_runs_once(chosen: str) -> None:
    check(
        "grads-cleared-before-step",
        f"""
        import torch
        from torch import nn


        def train(model: nn.Module, loader, plain):
            if plain:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            else:
                optimizer = ({chosen})(model.parameters(), lr=0.1)
            for x, y in loader:

                def closure():
                    optimizer.zero_grad()
                    loss = nn.functional.mse_loss(model(x), y)
                    loss.backward()
                    return loss

                optimizer.step(closure)
        """,
    )


# --------------------------------------------------------------------------- what need not be registered


def test_a_part_may_keep_what_it_is_a_part_of() -> None:
    check(
        "unregistered-submodules",
        """
        import torch
        from torch import nn


        class Rotate(nn.Module):
            def __init__(self, parent, item):
                super().__init__()
                self.parent = [parent]
                self.item = item

            def forward(self, x):
                return x @ self.parent[0].rotations[self.item]


        class Heads(nn.Module):
            def __init__(self, backbone, heads, size):
                super().__init__()
                self.backbone = backbone
                self.rotations = nn.ParameterList([nn.Parameter(torch.eye(size)) for _ in heads])
                rotated = [nn.Sequential(Rotate(self, i), head) for i, head in enumerate(heads)]
                self.heads = nn.ModuleList(rotated)

            def forward(self, x):
                return [head(self.backbone(x)) for head in self.heads]


        model = Heads(nn.Linear(8, 8), [nn.Linear(8, 1), nn.Linear(8, 2)], 8)
        model(torch.randn(4, 8))
        """,
    )


@pytest.mark.parametrize("given", ["orig_freq=16_000", "**config"])
def test_transforms_have_no_parameters(given: str) -> None:
    text = """
        import torch
        import torchaudio
        from torch import nn


        class Resample(nn.Module):
            def __init__(self, orig_freq, new_freq=100):
                super().__init__()
                self.orig_freq, self.new_freq = orig_freq, new_freq
                self.inner = LAYER

            def forward(self, x):
                return self.inner(x)


        class Perturb(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.resamplers = []HERE
                for speed in (90, 100):
                    self.resamplers.append(Resample(GIVEN))

            def forward(self, x):
                return self.resamplers[0](x)
        """.replace("GIVEN", given)
    quiet = "torchaudio.transforms.Resample(orig_freq, new_freq)"
    check("unregistered-submodules", text.replace("LAYER", quiet).replace("HERE", ""))
    check("unregistered-submodules", text.replace("LAYER", "nn.Linear(3, 3)").replace("HERE", "  # here"))


@pytest.mark.parametrize("collected", ["self.collect()", "[self.masks[key] for key in keys]"])
def test_parameters_of_a_dict_may_be_trained_by_a_list_of_them(collected: str) -> None:
    text = """
        import torch
        from torch import nn


        class Explainer(nn.Module):
            def forward(self, model, features, keys):
                self.masks = {}HERE
                for key, x in features.items():
                    self.masks[key] = nn.Parameter(torch.randn(len(x)))
                optimizer = torch.optim.Adam(PARAMETERS, lr=0.1)
                for _ in range(100):
                    optimizer.zero_grad()
                    model({k: x * self.masks[k] for k, x in features.items()}).sum().backward()
                    optimizer.step()

            def collect(self):
                found = []
                for value in self.__dict__.values():
                    if isinstance(value, dict):
                        found.extend(value.values())
                return found
        """
    check("unregistered-submodules", text.replace("PARAMETERS", collected).replace("HERE", ""))


# --------------------------------------------------------------------------- arguments of repeated calls


def test_an_annotated_module_was_made_before() -> None:
    check(
        "layer-built-in-forward",
        """
        from torch import nn


        class Inner(nn.Module):
            def __init__(self, size: int):
                super().__init__()
                self.layer = nn.Linear(size, size)

            def forward(self, x):
                return self.layer(x)


        class Policy(nn.Module):
            def forward(self, x, model: Inner | None = None):
                return model(x)
        """,
    )


def test_each_call_is_given_a_batch_of_its_own() -> None:
    check(
        "retained-graph",
        """
        from typing import Protocol

        import torch
        from torch import nn


        class Batch(Protocol):
            obs: torch.Tensor
            returns: torch.Tensor
            weight: torch.Tensor


        class Algorithm:
            def __init__(self, critic: nn.Module):
                self.critic = critic
                self.optimizer = torch.optim.Adam(critic.parameters())
                self.total = 0.0

            def update(self, batch: Batch):
                weight = getattr(batch, "weight", 1.0)
                difference = self.critic(batch.obs).flatten() - batch.returns
                loss = (difference.pow(2) * weight).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                batch.weight = difference / 2.0
                self.total += loss  # here
        """,
    )


# --------------------------------------------------------------------------- hooks

HOOKED = """
import torch
from torch import nn


class Cache:
    def __init__(self, model: nn.Module, names):
        self.model = model
        self.kept = {}
        for name, part in model.named_modules():
            if name in names:
                part.register_forward_hook(self.hook_of(name))

    def hook_of(self, name):
        def hook(module, inputs, output):
            self.kept[KEY] = output

        return hook


def train(model: nn.Module, loader, names, optimizer: torch.optim.Optimizer):
    cache = Cache(model, names)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(cache.model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_a_hook_puts_its_value_under_the_key_that_it_was_made_for() -> None:
    check("retained-graph", HOOKED.replace("KEY", "name"))
    growing = HOOKED.replace("KEY", "module.calls").replace("] = output", "] = output  # here")
    check("retained-graph", growing)


@pytest.mark.parametrize(
    "removed",
    [
        "for handle in handles:\n        handle.remove()",
        "[h.remove() for h in handles]",
        "handles[0].remove()",
    ],
)
def test_a_hook_that_was_removed_runs_no_more(removed: str) -> None:
    text = """
import torch
from torch import nn


def outputs_of(model, x):
    kept = []

    def hook(module, inputs, outputs):
        kept.append(outputs.clone())HERE

    handles = []
    for part in model.modules():
        if isinstance(part, nn.Linear):
            handles.append(part.register_forward_hook(hook))
    with torch.no_grad():
        model(x)
    REMOVED
    return kept


def train(model: nn.Module, loader, optimizer: torch.optim.Optimizer):
    kept = outputs_of(model, torch.zeros(3))
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return kept
"""
    check("retained-graph", text.replace("REMOVED", removed).replace("HERE", ""))
    check("retained-graph", text.replace("REMOVED", "print(handles)").replace("HERE", "  # here"))


# --------------------------------------------------------------------------- layers, and models being built


@pytest.mark.parametrize(
    "loop",
    [
        "for layer in self.layers:\n            x = layer(x)\n            kept.append(x)",
        "for i in range(self.depth):\n            x = self.layers[i](x)\n            kept.append(x)",
        "for i, layer in enumerate(self.layers):\n            x = layer(x)\n            kept = kept + [x]",
    ],
)
@pytest.mark.parametrize("container", ["nn.ModuleList(layers)", "nn.Sequential(*layers)"])
def test_a_turn_for_each_layer_does_not_grow(loop: str, container: str) -> None:
    check(
        "retained-graph",
        f"""
        from torch import nn


        class Encoder(nn.Module):
            def __init__(self, size: int, depth: int):
                super().__init__()
                self.depth = depth
                layers = [nn.Linear(size, size) for _ in range(depth)]
                self.layers = {container}

            def intermediates(self, x):
                kept = []
                {loop.replace(chr(10), chr(10) + "        ")}
                return x

            def describe(self, x):
                print(self.intermediates(x).shape)
        """,
    )


@pytest.mark.parametrize("rule", ["retained-graph", "unguarded-eval"])
def test_a_model_runs_its_parts_while_it_is_built(rule: str) -> None:
    check(
        rule,
        """
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, encoder: nn.Module, sizes):
                super().__init__()
                x = torch.zeros(1, 3, 64, 64)
                layers = []
                for size in sizes:
                    block = nn.Sequential(nn.Conv2d(x.shape[1], size, 3), nn.ReLU()).eval()
                    x = block(x)
                    layers.append(block)
                self.layers = nn.Sequential(*layers)

            def forward(self, x):
                return self.layers(x)


        def train(loader):
            model = Net(nn.Linear(3, 3), [8, 16, 32])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        """,
    )


# --------------------------------------------------------------------------- files of ranks


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ('os.path.join(folder, f"model_rank{rank}.bin")', True),
        ('"{}/model_{}.bin".format(folder, rank)', True),
        ('f"{folder}/{dist.get_rank()}.bin"', True),
        ('os.path.join(folder, f"model_{dist.get_world_size()}.bin")', False),
        ('os.path.join(folder, "model.bin")', False),
    ],
)
def test_a_file_of_each_rank_comes_from_its_device(path: str, is_own: bool) -> None:
    check(
        "load-without-map-location",
        f"""
        import os

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP


        def main(model, folder):
            dist.init_process_group("nccl")
            rank = dist.get_rank()
            model = DDP(model)
            state = torch.load({path}, weights_only=True){"" if is_own else "  # here"}
            model.load_state_dict(state)
        """,
    )


def test_weights_that_are_filled_and_loaded_are_not_set_aside() -> None:
    check(
        "best-state-aliased",
        """
        import torch
        from torch import nn


        def load_ignore_keys(model: nn.Module, weights):
            state = model.state_dict()
            for own, other in zip(state.keys(), weights.keys()):
                state[own].data = weights[other].data.clone()
            return model.load_state_dict(state)


        class Learner:
            def __init__(self, model: nn.Module):
                self.model = model

            def load_encoder(self, path):
                return load_ignore_keys(self.model, torch.load(path, map_location="cpu"))

            def load_pretrained(self, paths):
                for path in paths:
                    self.load_encoder(path)
        """,
    )


@pytest.mark.parametrize(
    "other", ["dist.get_rank()", "self.mpu.get_data_parallel_rank() if self.mpu else dist.get_rank()"]
)
def test_how_groups_lie_is_no_question_to_one_rank(other: str) -> None:
    text = f"""
        import torch.distributed as dist


        class Engine:
            def __init__(self, mpu, group):
                self.mpu = mpu
                other = {other}
                self.saves = dist.get_rank(group=group) == COMPARED

            def save(self):
                if self.saves:
                    dist.barrier()HERE
        """
    check("rank-divergent-collective", text.replace("COMPARED", "other").replace("HERE", ""))
    check("rank-divergent-collective", text.replace("COMPARED", "0").replace("HERE", "  # here"))


# --------------------------------------------------------------------------- dropout and the mode


@pytest.mark.parametrize(
    ("test", "is_silent"),
    [
        ("not self.training or not self.rate", True),
        ("not self.rate or not self.training", True),
        ("not self.training", True),
        ("not self.rate", False),
    ],
)
def test_an_early_return_tests_the_mode_where_the_mode_is_known(test: str, is_silent: bool) -> None:
    check(
        "dropout-always-on",
        f"""
        import torch
        from torch import nn


        class Rows(nn.Module):
            def __init__(self, rate=0.5):
                super().__init__()
                self.rate = rate

            def forward(self, x):
                if {test}:
                    return x
                keep = x.new_empty(x.size(0), 1).bernoulli_(1 - self.rate){"" if is_silent else "  # here"}
                return keep * x


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.drop = Rows(0.3)
                self.head = nn.Linear(3, 3)

            def forward(self, x):
                return self.drop(self.head(x))


        def main(loader):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                model.train()
                for x, y in loader:
                    loss = nn.functional.mse_loss(model(x), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    )


def test_what_a_layer_makes_of_masked_data_is_no_mask() -> None:
    check(
        "dropout-always-on",
        """
        import torch
        from torch import nn


        class Rows(nn.Module):
            def __init__(self, rate, scale):
                super().__init__()
                self.rate = rate
                self.scale = scale

            def forward(self, x):
                if self.training:
                    keep = torch.empty(3, 1).bernoulli_(1 - self.rate)
                    return keep * self.scale
                return x


        class Attention(nn.Module):
            def __init__(self, scale):
                super().__init__()
                self.drop = Rows(0.1, scale)
                self.scores = nn.Linear(3, 3)

            def forward(self, x):
                weights = torch.softmax(self.scores(self.drop(x)), dim=-1)
                return weights * (x != 0).float()


        class Noisy(nn.Module):
            def __init__(self, scale):
                super().__init__()
                self.scale = scale
                self.body = nn.Linear(3, 3)

            def forward(self, x):
                keep = torch.empty(3, 1).bernoulli_(0.9) * self.scale  # here
                return keep * self.body(x)
        """,
    )


def test_zeros_and_ones_that_are_drawn_outside_of_a_forward_are_data() -> None:
    check(
        "dropout-always-on",
        """
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(3, 3)

            def forward(self, x, keep):
                return self.body(x) * keep


        def main():
            model = Net()
            return model(torch.ones(3, 3), torch.empty(3, 3).bernoulli_(0.5))
        """,
    )


@pytest.mark.parametrize(
    ("given", "test", "confidence"),
    [
        ("x, is_train", "is_train", Confidence.POSSIBLE),
        ("inputs", "rate > 0 and switch", Confidence.POSSIBLE),
        ("x", "self.drops", Confidence.CERTAIN),
        ("x", "self.rate > 0", Confidence.CERTAIN),
    ],
)
def test_a_test_of_what_the_forward_was_given_may_ask_for_the_mode(
    given: str, test: str, confidence: Confidence
) -> None:
    program = f"""
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, rate, drops):
        super().__init__()
        self.rate = rate
        self.drops = drops
        self.body = nn.Linear(3, 3)

    def forward(self, {given}):
        rate = self.rate
        {"x, switch = inputs" if given == "inputs" else "pass"}
        if {test}:
            x = F.dropout(x, rate)
        return self.body(x)


def main(loader, rate, drops, verbose, switch):
    model = Net(rate, drops)
    for x in loader:
        if verbose:
            model({"(x, switch)" if given == "inputs" else "x, switch" if "," in given else "x"})
"""
    findings = findings_of("dropout-always-on", program)
    assert [finding.confidence for finding in findings] == [confidence]


# --------------------------------------------------------------------------- modes that are put back


@pytest.mark.parametrize(
    ("back", "is_silent"),
    [
        ("if was_training:\n            net.train()", True),
        ("if not was_training:\n            pass\n        else:\n            net.train()", True),
        ("if not was_training:\n            net.train()", False),
        ("pass", False),
    ],
)
def test_a_mode_that_was_saved_is_put_back_by_a_test(back: str, is_silent: bool) -> None:
    check(
        "stuck-eval-mode",
        f"""
from contextlib import contextmanager

import torch


@contextmanager
def evaluating(net):
    was_training = net.training
    try:
        net.eval(){"" if is_silent else "  # here"}
        yield net
    finally:
        {back}


class Agent:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def update(self, state, batch):
        with torch.no_grad(), evaluating(self.model):
            value = self.model(state)
        target = float(value)
        loss = (self.model(batch) - target).sum()
        self.model.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
    )


@pytest.mark.parametrize(
    ("around", "again", "is_silent"),
    [
        ("with torch.no_grad():", "", True),
        ("with torch.inference_mode():", "", True),
        ("with open('log'), torch.no_grad():", "", True),
        ("if held:", "", False),
        ("with torch.no_grad():", "self.evaluate(loader)", False),
    ],
)
def test_a_caller_that_is_not_reached_may_switch_autograd_off(
    around: str, again: str, is_silent: bool
) -> None:
    check(
        "unguarded-eval",
        f"""
        import torch


        class Trainer:
            def __init__(self, model, optimizer):
                self.model = model
                self.optimizer = optimizer

            def evaluate(self, loader):
                self.model.eval()
                total = 0.0
                for x, y in loader:
                    out = self.model(x){"" if is_silent else "  # here"}
                    total += torch.nn.functional.mse_loss(out, y).item()
                return total

            def fit(self, loader, held):
                self.model.train()
                for x, y in loader:
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                raise ValueError("where the run is lost")
                {around}
                    self.evaluate(held)
                {again or "pass"}
        """,
    )


@pytest.mark.parametrize(
    ("made", "confidences"),
    [
        ("model", [Confidence.LIKELY]),
        ("Whole()", [Confidence.CERTAIN]),
        ("Bare()", []),
        ("torch.nn.parallel.DistributedDataParallel(Bare())", []),
        ("Plain()", [Confidence.CERTAIN]),
        ("Plain()\n    net.forward = loader.forward", []),
    ],
)
def test_one_of_several_things_that_a_model_gave_may_be_a_number(
    made: str, confidences: list[Confidence]
) -> None:
    program = f"""
import torch
from torch import nn


class Bare(nn.Module):
    def loss_of(self, x):
        raise NotImplementedError


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)

    def forward(self, x):
        y = self.body(x)
        return y.sum(), y


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, x):
        return self.body(x).t()


def fit(model: nn.Module, loader, optimizer):
    net = {made}
    total = 0
    for x in loader:
        loss, count = net(x)
        total += count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return total
"""
    assert [finding.confidence for finding in findings_of("retained-graph", program)] == confidences


@pytest.mark.parametrize(
    ("outer", "indent", "severity"),
    [
        ("for group in grouped(self.loader)", 3, Severity.HINT),
        ("for group in self.loader", 3, Severity.HINT),
        ("for group in self.loaders", 4, Severity.WARNING),
        ("for epoch in range(90)", 3, Severity.WARNING),
    ],
)
def test_what_is_kept_of_the_micro_batches_of_one_step_dies_with_it(
    outer: str, indent: int, severity: Severity
) -> None:
    batches = "self.loader" if "epoch" in outer else "group"
    step = "    " * indent + "self.optimizer.step()"
    program = f"""
import torch


def grouped(loader):
    group = []
    for x in loader:
        group.append(x)
        if len(group) == 4:
            yield group
            group = []


class Trainer:
    def __init__(self, model: torch.nn.Module, optimizer, loader, loaders):
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.loaders = loaders

    def fit(self):
        {outer}:
            self.optimizer.zero_grad()
            outputs = []
            for batch in {batches}:
                loss = self.model(batch)
                outputs.append(loss)
                loss.backward()
{step}
            print(outputs)
"""
    findings = findings_of("retained-graph", program)
    assert [finding.severity for finding in findings] == [severity]


@pytest.mark.parametrize(
    ("given", "is_silent"),
    [
        ('self.tables[str(i)].register_parameter("weight", nn.Parameter(weight))', True),
        ('self.register_parameter(f"scale_{i}", nn.Parameter(torch.ones(1)))', False),
        ("pass", False),
    ],
)
def test_weights_of_hidden_modules_are_registered_by_hand(given: str, is_silent: bool) -> None:
    check(
        "unregistered-submodules",
        f"""
        import torch
        from torch import nn


        class Lookup(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.table = nn.Embedding(n, 4)

            def weights(self):
                return [self.table.weight]

            def forward(self, x):
                return self.table(x)


        class Tables(nn.Module):
            def __init__(self, sizes):
                super().__init__()
                self.lookups = []{"" if is_silent else "  # here"}
                for n in sizes:
                    self.lookups.append(Lookup(n))
                self.tables = nn.ModuleDict()
                for i, lookup in enumerate(self.lookups):
                    for weight in lookup.weights():
                        self.tables[str(i)] = nn.Module()
                        {given}

            def forward(self, x):
                return sum(lookup(x) for lookup in self.lookups)
        """,
    )


# --------------------------------------------------------------------------- settings with several values

WINDOWED = """
import torch
from dataclasses import dataclass
from torch import nn


@dataclass
class Args:
    fp16: bool = True
    window: int = 1
    clip: float = 1.0


class Model:
    def __init__(self, args=None, use_cuda=True):
        self.args = Args()
        if isinstance(args, dict):
            self.args.__dict__.update(args)
        elif isinstance(args, Args):
            self.args = args
        if not use_cuda:
            self.args.fp16 = False
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))

    def train(self, loader):
        args = self.args
        model = self.model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if args.fp16:
            scaler = torch.amp.GradScaler("cuda")
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
{division}
            if args.fp16:
                scaler.scale(loss).backward(){first}
            else:
                loss.backward(){second}
            if (step + 1) % args.window == 0:
                if args.fp16:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                model.zero_grad()
"""


@pytest.mark.parametrize(
    ("division", "ends"),
    [
        (
            """
            if args.window > 1:
                loss = loss / args.window
""",
            ("", ""),
        ),
        (
            """
            loss = loss / args.window if args.fp16 else loss / max(1, args.window)
""",
            ("", ""),
        ),
        ("", ("", "  # here")),
    ],
    ids=["where the window is larger than one", "one way or another", "not at all"],
)
def test_a_setting_with_a_default_is_one_value_for_all_of_a_run(division: str, ends: tuple[str, str]) -> None:
    program = WINDOWED.format(division=division, first=ends[0], second=ends[1])
    check("unscaled-accumulation", program)
    assert findings_of("missing-zero-grad", program.replace("  # here", "")) == []


@pytest.mark.parametrize(
    "clear", ["model.zero_grad()", "optimizer.zero_grad()", "model.zero_grad(set_to_none=True)"]
)
@pytest.mark.parametrize(
    "more",
    [
        "self.model = torch.quantization.quantize_dynamic(self.model, {nn.Linear}, dtype=torch.qint8)",
        "self.model = torch.ao.quantization.prepare_qat(self.model)",
        "self.model = build(self.model)",
    ],
)
def test_a_model_that_was_made_in_one_of_many_ways_is_cleared_by_itself(clear: str, more: str) -> None:
    program = f"""
import torch
from torch import nn
from transformers import AutoModel
from elsewhere import build


class Model:
    def __init__(self, args, kinds):
        if args.a:
            self.model = AutoModel.from_pretrained("a")
        elif args.b:
            self.model = AutoModel.from_pretrained("b")
        elif args.c:
            self.model = AutoModel.from_config(args.c)
        else:
            self.model = kinds[args.kind](args)
        if args.quantized:
            {more}

    def train(self, loader):
        model = self.model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if torch.cuda.device_count() > 1:
            model = nn.DataParallel(model)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            {clear}
"""
    assert findings_of("missing-zero-grad", program) == []


def test_a_flag_that_ends_the_function_is_the_one_that_chose_the_mode() -> None:
    check(
        "stuck-eval-mode",
        """
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, args):
                self.args = args
                self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

            def update(self, batch, eval=False):
                x, y = batch
                if eval:
                    self.model.eval()
                else:
                    self.model.train()
                    self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                value = loss.data.item()
                if eval:
                    return value
                loss.backward()
                self.optimizer.step()
                return value
        """,
    )
    check(
        "stuck-eval-mode",
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


        def train(loader, dev, verbose):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            if verbose:
                model.eval()  # here
                with torch.no_grad():
                    print(sum(model(x).sum().item() for x in dev))
            return model


        def main(loader, dev, verbose):
            for epoch in range(10):
                train(loader, dev, verbose)
        """,
    )


# --------------------------------------------------------------------------- parts that decide on their mode


@pytest.mark.parametrize(
    ("own", "end"),
    [
        (
            """
    def train(self, mode=True):
        if not mode or self.learns:
            super().train(mode)
""",
            "",
        ),
        (
            """
    def train(self, mode=True):
        return self
""",
            "",
        ),
        (
            """
    def train(self, mode=True):
        super().train(mode)
        return self
""",
            "  # here",
        ),
        ("", "  # here"),
    ],
    ids=["eval alone", "nothing", "as any other", "none"],
)
def test_a_part_with_a_train_of_its_own_is_woken_by_that_alone(own: str, end: str) -> None:
    check(
        "frozen-norm-reactivated",
        f"""
import torch
from torch import nn


class Chars(nn.Module):
    def __init__(self):
        super().__init__()
        self.learns = False
        self.rnn = nn.LSTM(8, 8)
        self.drop = nn.Dropout(0.1)
{own}
    def represent(self, x):
        with torch.no_grad():
            return self.drop(self.rnn(x)[0])


class Tagger(nn.Module):
    def __init__(self, chars):
        super().__init__()
        self.chars = chars
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.chars.represent(x))


def train(loader):
    chars = Chars()
    chars.eval()
    model = Tagger(chars)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    for epoch in range(10):
        model.train(){end}
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
    )


# --------------------------------------------------------------------------- rates that others choose


def test_the_rate_of_dropout_is_left_to_the_caller_or_made_zero() -> None:
    check(
        "dropout-always-on",
        """
        import torch
        import torch.nn.functional as F
        from torch import nn


        class Attend(nn.Module):
            def __init__(self):
                super().__init__()
                self.pre = nn.Linear(4, 4)

            def forward(self, query, key, value, mask=None, dropout_p=0.0):
                out = F.scaled_dot_product_attention(
                    self.pre(query), key, value, attn_mask=mask, dropout_p=dropout_p
                )
                return F.dropout(out, dropout_p)


        class Weighted(nn.Module):
            def __init__(self, rate):
                super().__init__()
                self.rate = rate
                self.out = nn.Linear(4, 4)

            def attend(self, q, k, v, rate, training):
                if not training:
                    rate = 0.0
                weights = torch.softmax(torch.bmm(q, k.transpose(-2, -1)), -1)
                if rate > 0.0:
                    weights = F.dropout(weights, p=rate)
                return torch.bmm(weights, v)

            def forward(self, q, k, v):
                return self.out(self.attend(q, k, v, self.rate, self.training))


        class Always(nn.Module):
            def __init__(self, rate=0.0):
                super().__init__()
                self.rate = rate
                self.out = nn.Linear(4, 4)

            def drop(self, x, p):
                return F.dropout(x, p)  # here

            def forward(self, x):
                return self.drop(F.dropout(self.out(x), self.rate), self.rate)  # here
        """,
    )


# --------------------------------------------------------------------------- forwards that guard themselves


def test_a_forward_that_switches_autograd_off_needs_no_other_guard() -> None:
    check(
        "unguarded-eval",
        """
        import torch
        from torch import nn
        from elsewhere import build


        class Within(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))

            def forward(self, x):
                with torch.no_grad():
                    y = self.net(x)
                return y.flatten(1)


        class Unseen(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = build()

            def forward(self, count):
                with torch.no_grad():
                    return self.net.sample(count)


        class Partly(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))

            def forward(self, x):
                with torch.no_grad():
                    y = self.body(x)
                return self.head(y)


        def extract(loader):
            within, unseen, partly = Within(), Unseen(), Partly()
            within.eval()
            unseen.eval()
            partly.eval()
            for x in loader:
                yield within(x).cpu().numpy(), unseen(len(x)).cpu().numpy()
                yield partly(x).cpu().numpy()  # here
        """,
    )


# --------------------------------------------------------------------------- states without tensors


def test_the_state_of_a_schedule_lies_on_no_device() -> None:
    check(
        "load-without-map-location",
        """
        import os
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        def main(path):
            rank = int(os.environ["LOCAL_RANK"])
            dist.init_process_group("nccl")
            model = nn.Linear(4, 2).to(rank)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
            optimizer.load_state_dict(torch.load(os.path.join(path, "optimizer.pt")))  # here
            scheduler.load_state_dict(torch.load(os.path.join(path, "scheduler.pt")))
            model = DistributedDataParallel(model, device_ids=[rank])
            return model
        """,
    )


# --------------------------------------------------------------------------- weights that are used at once


def test_weights_that_are_written_in_the_turn_that_took_them_are_not_late() -> None:
    check(
        "best-state-aliased",
        """
        import torch
        from torch import nn


        class Model(nn.Module):
            def __init__(self, table):
                super().__init__()
                self.table = table
                self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))

            def forward(self, x):
                return self.body(x)

            def get_params(self):
                state = self.state_dict()
                for name in [k for k in state if k.startswith("table.")]:
                    del state[name]
                return {"model": state, "table": self.table.get_params(self)}


        def train(loader, table, path):
            model = Model(table)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(10):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                torch.save({"params": model.get_params(), "epoch": epoch}, path)
        """,
    )
    check(
        "best-state-aliased",
        """
        import torch
        from torch import nn


        def train(loader, dev, score, path):
            model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            best, kept = 0.0, None
            for epoch in range(10):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                if score(epoch) > best:
                    best = score(epoch)
                    kept = model.state_dict()  # here
            torch.save(kept, path)
        """,
    )


# --------------------------------------------------------------------------- graphs that end with a call


def test_a_variable_of_a_function_that_the_loop_calls_ends_with_the_call() -> None:
    check(
        "retained-graph",
        """
        import torch
        from torch import nn


        class Clusters(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.centers = torch.zeros(2, 4)

            def forward(self, x):
                return self.body(x)

            def loss_of(self, emb):
                distances = torch.cdist(emb, self.centers, p=2)
                chosen = nn.functional.one_hot(torch.argmin(distances, dim=1), num_classes=2).float()
                self.centers = torch.matmul(chosen.T, emb) / chosen.sum(dim=0).view(2, 1)
                return torch.pow(emb, 2).sum()


        def train(loader):
            model = Clusters()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                optimizer.zero_grad()
                loss = model.loss_of(model(x))
                loss.backward()
                optimizer.step()


        def train_with_a_sum(loader):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            total = 0
            for x in loader:
                optimizer.zero_grad()
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                total = total + loss  # here
            return total
        """,
    )


def test_a_state_through_time_is_differentiated_with_all_that_came_before() -> None:
    check(
        "retained-graph",
        """
        import torch
        from torch import nn


        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(4, 4)
                self.state = torch.zeros(1, 4)

            def forward(self, x):
                self.state = self.cell(x, self.state)
                return self.state


        def train(episodes):
            agent = Agent()
            optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
            for episode in episodes:
                agent.state = torch.zeros(1, 4)
                out = [agent(x) for x in episode]
                optimizer.zero_grad()
                torch.stack(out).mean().backward()
                optimizer.step()
        """,
    )


@pytest.mark.parametrize("switch", ["torch.set_grad_enabled(self.model.wants_gradients)", "torch.no_grad()"])
def test_autograd_that_a_setting_switches_is_off_unless_it_is_wanted(switch: str) -> None:
    check(
        "retained-graph",
        f"""
import torch
from torch import nn


class Problem(nn.Module):
    def __init__(self, net, wants_gradients=False):
        super().__init__()
        self.net = net
        self.wants_gradients = wants_gradients

    def forward(self, x):
        return {{"loss": self.net(x).mean()}}


class Trainer:
    def __init__(self, problem: Problem, data):
        self.model = problem
        self.data = data

    def test(self):
        self.model.eval()
        with {switch}:
            losses = []
            for batch in self.data:
                losses.append(self.model(batch)["loss"])
        return torch.stack(losses).mean()
""",
    )


def test_one_graph_is_differentiated_for_each_class() -> None:
    check(
        "retain-graph-in-loop",
        """
        import torch
        from torch import nn


        class Attack:
            def __init__(self, model: nn.Module):
                self.model = model

            def logits(self, x):
                return self.model(x)

            def gradients(self, images):
                images = images.clone().requires_grad_()
                y = self.logits(images)
                mask = torch.zeros_like(y)
                for k in range(y.shape[-1]):
                    mask[:, k] = 1.0
                    y.backward(mask, retain_graph=True)
                    mask[:, k] = 0.0
                return images.grad

            def attack(self, loader):
                return [self.gradients(x) for x in loader]


        def train(model: nn.Module, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward(retain_graph=True)  # here
                optimizer.step()
        """,
    )


# --------------------------------------------------------------------------- methods that others write


@pytest.mark.parametrize("body", ["pass", "...", "raise NotImplementedError", '"""Of a batch."""'])
def test_the_loss_of_an_abstract_method_has_the_gradients(body: str) -> None:
    program = f"""
from abc import ABCMeta, abstractmethod
import torch
from torch import nn


class Base(metaclass=ABCMeta):
    def __init__(self, policy: nn.Module, critic: nn.Module):
        self.policy = policy
        self.critic = critic
        self.actor_optim = torch.optim.Adam(policy.parameters())
        self.critic_optim = torch.optim.Adam(critic.parameters())

    def actor_grad(self, batch):
        action = self.policy(batch.obs)
        self.actor_optim.zero_grad()
        loss = self.actor_loss(batch, action)
        loss.actor_loss.backward()
        return loss

    def update(self, batch):
        self.critic_optim.zero_grad()
        error = self.critic(self.policy(batch.obs)).mean()
        error.backward()
        self.critic_optim.step()
        loss = self.actor_grad(batch)
        self.actor_optim.step()
        return loss

    @abstractmethod
    def actor_loss(self, batch, action):
        {body}
"""
    assert findings_of("grads-cleared-before-step", program) == []


# --------------------------------------------------------------------------- windows by the number of a step


@pytest.mark.parametrize(
    ("clears", "end"),
    [("(step.number - 1) % n == 0", ""), ("(step.number + n - 1) % n == 0", ""), ("False", "  # here")],
)
def test_a_window_is_cleared_at_its_head_and_stepped_at_its_end(clears: str, end: str) -> None:
    check(
        "missing-zero-grad",
        f"""
import torch


class Model:
    def __init__(self, network, optimizer, loss):
        self.network = network
        self.optimizer = optimizer
        self.loss = loss

    def fit(self, batches, n, epochs):
        self.network.train()
        for epoch in range(epochs):
            for step, (x, y) in batches:
                self._fit_batch(x, y, step, n)

    def _fit_batch(self, x, y, step, n):
        clears = {clears}
        steps = step.number % n == 0
        if clears:
            self.optimizer.zero_grad()
        loss = self.loss(self.network(x), y) / n
        loss.backward(){end}
        if steps:
            self.optimizer.step()
""",
    )


def test_zeros_of_the_shape_of_a_prediction_take_nothing_from_its_graph() -> None:
    check(
        "loss-cut-from-graph",
        """
        import torch
        from torch import nn
        from elsewhere import residual


        class Approximator:
            def __init__(self, net: nn.Module, form):
                self.net = net
                self.form = form

            def loss_of(self, x):
                u = self.net(x)
                return residual(x) + torch.mean(self.form(u) ** 2)


        def main(loader):
            net = nn.Linear(2, 1)
            approximator = Approximator(net, lambda u: torch.zeros_like(u))
            optimizer = torch.optim.Adam(net.parameters())
            for x in loader:
                optimizer.zero_grad()
                approximator.loss_of(x).backward()
                optimizer.step()


        def cut(loader):
            net = nn.Linear(2, 1)
            optimizer = torch.optim.Adam(net.parameters())
            for x in loader:
                optimizer.zero_grad()
                loss = torch.tensor(net(x).mean(), requires_grad=True)  # here
                loss.backward()
                optimizer.step()
        """,
    )


# --------------------------------------------------------------------------- inputs that are differentiated


@pytest.mark.parametrize(
    "told", ["x.requires_grad_()", "x.requires_grad = True", "x = x.detach().requires_grad_(True)"]
)
def test_inputs_that_require_gradients_need_the_graph(told: str) -> None:
    program = f"""
import torch
from torch import nn


class Model:
    def __init__(self, net: nn.Module, residual):
        self.net = net
        self.residual = residual

    def test(self, batches):
        self.net.eval()
        out = []
        for x in batches:
            x = torch.as_tensor(x)
            {told}
            y = self.net(x)
            out.append(self.residual(y, x).item())
        return out
"""
    assert findings_of("unguarded-eval", program) == []
    assert len(findings_of("unguarded-eval", program.replace(told, "pass"))) == 1


# -------------------------------------------------------------------------- parts of a class that is not seen


def test_a_part_whose_class_is_not_seen_follows_the_whole() -> None:
    check(
        "stuck-eval-mode",
        """
        import torch
        from torch import nn
        from elsewhere import Flow


        class Whole(nn.Module):
            def __init__(self, rounds):
                super().__init__()
                self.rounds = rounds
                self.flow = Flow(4).to("cuda")

            def generate(self, count):
                self.flow.eval()
                with torch.no_grad():
                    return self.flow.sample(count)

            def fit(self, loader):
                optimizer = torch.optim.Adam(self.flow.parameters(), lr=0.1)
                for it in range(self.rounds):
                    self.train()
                    for x in loader:
                        optimizer.zero_grad()
                        loss = -self.flow.log_prob(inputs=x).mean()
                        loss.backward()
                        optimizer.step()
                    self.generate(10)
        """,
    )


def test_what_training_starts_from_is_no_score() -> None:
    check(
        "eval-loader-shuffled",
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader


        class Sphere:
            def __init__(self):
                self.net = nn.Linear(4, 4)
                self.c = None

            def start(self, data):
                loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
                self.net.eval()
                with torch.no_grad():
                    z = [self.net(x) for x in loader]
                self.c = torch.mean(torch.cat(z), dim=0)

            def fit(self, data):
                for member in range(3):
                    self.start(data)
                    optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
                    for x in DataLoader(data, batch_size=8, shuffle=True):
                        optimizer.zero_grad()
                        loss = ((self.net(x) - self.c) ** 2).mean()
                        loss.backward()
                        optimizer.step()
                        print(loss.data.cpu().item())


        def evaluate(net: nn.Module, data):
            loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)  # here
            net.eval()
            right = 0
            with torch.no_grad():
                for x, y in loader:
                    right += (net(x).argmax(1) == y).sum().item()
            return right
        """,
    )

"""Kinds that a reader found in public training code and the rules did not, each beside its correct twins.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def lines_of(rule: str, text: str, limits: Limits | None = None) -> list[int]:
    """The lines, from 1, at which the rule finds something, in order."""
    file = SourceFile("/nowhere/program.py", text)
    trace = run(file.module, Project([]), limits or Limits())
    assert trace.silence.failed == ()
    findings = judge(trace, file, Settings()).findings
    return sorted(finding.place.span.line + 1 for finding in findings if finding.rule == rule)


def check(rule: str, text: str) -> None:
    program = textwrap.dedent(text)
    wanted = [n for n, line in enumerate(program.splitlines(), start=1) if line.endswith("# here")]
    assert lines_of(rule, program) == wanted


@pytest.mark.parametrize(
    "text",
    [
        # of two things that an unseen call gave, the other one was differentiated
        """
        class Trainer:
            def __init__(self, model, train_loss, optimizer):
                self.model, self.train_loss, self.optimizer = model, train_loss, optimizer

            def train(self, batches):
                total = 0.0
                for batch in batches:
                    self.optimizer.zero_grad()
                    out, attention = self.model(batch)
                    loss, statistics = self.train_loss(batch, out, attention)
                    loss.backward()
                    total += statistics.loss
                    self.optimizer.step()
                return total
        """,
        # the same one was
        """
        class Trainer:
            def __init__(self, model, train_loss, optimizer):
                self.model, self.train_loss, self.optimizer = model, train_loss, optimizer

            def train(self, batches):
                total = 0.0
                for batch in batches:
                    self.optimizer.zero_grad()
                    out, attention = self.model(batch)
                    loss, statistics = self.train_loss(batch, out, attention)
                    loss.backward()
                    total += loss  # here
                    self.optimizer.step()
                return total
        """,
        # what a later unseen call used of it was
        """
        class Trainer:
            def __init__(self, model, train_loss, optimizer):
                self.model, self.train_loss, self.optimizer = model, train_loss, optimizer

            def train(self, batches):
                outputs = []
                for batch in batches:
                    self.optimizer.zero_grad()
                    out, attention = self.model(batch)
                    loss, statistics = self.train_loss(batch, out, attention)
                    loss.backward()
                    outputs.append(out)  # here
                    self.optimizer.step()
                return len(outputs)
        """,
    ],
)
def test_parts_of_what_an_unseen_call_gave_need_proof(text: str) -> None:
    check("retained-graph", text)


READS = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def start(loader):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Agent:
    def train(self, loader):
        for x, y in loader:
            out = model(x)
            if (out > 4).any():
                print(out.detach().max())
{padding}
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_part_that_was_not_followed_to_its_end_is_not_judged() -> None:
    padding = "\n".join(f"            a{n} = {n} + {n}" for n in range(60))
    text = READS.format(padding=padding)
    assert lines_of("unguarded-eval", text) == []
    for visits in range(60, 400, 20):
        assert lines_of("unguarded-eval", text, Limits(entry_visits=visits)) == []


STEPS = """
import math
import torch
from torch import nn


def train(loader, model, optimizer, args, most, name):
    {before}
    for step, (x, y) in enumerate(loader):
        {first}
        x, y = x.cuda(), y.cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {last}
        torch.cuda.empty_cache()  # empty-cache-in-loop
        print(loss.item())  # per-step-host-sync
        noise = torch.zeros(3).cuda()  # redundant-transfer
        torch.manual_seed(3)  # reseed-in-loop


def main(args, data):
    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, shuffle=True)
    {call}
"""
EVERY_STEP = {
    "nothing": {},
    "a flag decides whether the program trains": {
        "call": "if args.train:\n        train(loader, model, optimizer, args, 3, '')"
    },
    "one of two ways to start": {
        "call": "if args.spawn:\n        start(train)\n"
        "    else:\n        train(loader, model, optimizer, args, 3, '')"
    },
    "bad options are refused": {"before": "if args.rate < 0:\n        raise ValueError(args.rate)"},
    "nothing to do": {"before": "if not args.train:\n        return"},
    "a most of steps": {"first": "if most and step > most:\n            break"},
    "the loss is no number: the run ends": {
        "last": "if not torch.isfinite(loss):\n            raise SystemExit(1)"
    },
    "the loss is no number: the batch is left out": {
        "last": "if not torch.isfinite(loss):\n            continue"
    },
    "an empty batch is left out": {"first": "if x is None:\n            continue"},
    "the time is over": {"last": "if args.short:\n            return"},
}
SOME_STEPS = {
    "every tenth": {"last": "if step % 10:\n            continue"},
    "what the user asks for": {"last": "if args.quiet:\n            continue"},
    "what the user asks for, asked twice": {
        "first": "if args.quiet:\n            optimizer.zero_grad()",
        "last": "if args.quiet:\n            continue",
    },
}


@pytest.mark.parametrize(
    "rule", ["empty-cache-in-loop", "per-step-host-sync", "redundant-transfer", "reseed-in-loop"]
)
@pytest.mark.parametrize("name", [*EVERY_STEP, *SOME_STEPS])
def test_only_tests_that_choose_steps_silence_what_each_step_costs(rule: str, name: str) -> None:
    parts = {"before": "", "first": "", "last": "", "call": "train(loader, model, optimizer, args, 3, '')"}
    text = STEPS.format(**parts | (EVERY_STEP | SOME_STEPS)[name])
    wanted = [n for n, line in enumerate(text.splitlines(), start=1) if line.endswith(f"# {rule}")]
    assert lines_of(rule, text) == (wanted if name in EVERY_STEP else [])


@pytest.mark.parametrize(
    "test", ["if args.debug:", "if step % 50 == 0:", "if loss > 3:", "with quiet() if step else loud():"]
)
def test_a_test_around_it_silences(test: str) -> None:
    text = f"""
import torch
from torch import nn

model = nn.Linear(3, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, args):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {test}
            torch.cuda.empty_cache()
"""
    is_test = test.startswith("if")
    assert bool(lines_of("empty-cache-in-loop", text)) is not is_test


def test_a_function_that_returns_early_chooses_the_steps_of_its_callers() -> None:
    text = """
    import torch
    from torch import nn

    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def log(step, loss, args):
        if args.silent:
            return
        print(loss.item())


    def train(loader, args):
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(step, loss, args)
    """
    check("per-step-host-sync", text)


def test_an_engine_steps_too() -> None:
    text = """
    import deepspeed
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={})


    def train(loader):
        for epoch in range(3):
            for x, y in loader:
                loss = nn.functional.cross_entropy(engine(x.cuda()), y.cuda())
                engine.backward(loss)
                engine.step()
                %s
            evaluate(loader)
            %s


    def evaluate(loader):
        engine.eval()
        with torch.no_grad():
            for x, y in loader:
                print(nn.functional.cross_entropy(engine(x.cuda()), y.cuda()).item())
    """
    check("per-step-host-sync", text % ("print(loss.item())  # here", ""))
    check("empty-cache-in-loop", text % ("torch.cuda.empty_cache()  # here", ""))
    check("sync-in-hot-loop", text % ("for i in range(len(x)): print(loss[i].item())  # here", ""))
    check("stuck-eval-mode", (text % ("", "")).replace("engine.eval()", "engine.eval()  # here"))
    check("stuck-eval-mode", text % ("", "engine.train()"))


DRAWN = """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(3, 1).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader([], batch_size=4, shuffle=True)
batches = iter(data)
rows = torch.zeros(100, 3)


def main(steps, size, step=0):
    {loop}
        {batch}
        loss = model(x.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
        torch.cuda.empty_cache()
        step += 1
"""


@pytest.mark.parametrize(
    ("loop", "batch", "is_each_step"),
    [
        ("while step < steps:", "x = next(batches)", True),
        ("while True:", "x = next(batches)", True),
        ("for step in range(steps):", "x = next(batches)", True),
        ("for start in range(0, 100, size):", "x = rows[start : start + size]", True),
        ("for x in data:", "pass", True),
        ("for epoch in range(steps):", "x = rows", False),  # all data: an epoch
        ("for step in range(5):", "x = next(batches)", False),  # a trial
    ],
)
@pytest.mark.parametrize("rule", ["per-step-host-sync", "empty-cache-in-loop"])
def test_loops_that_draw_their_batches(rule: str, loop: str, batch: str, is_each_step: bool) -> None:
    assert bool(lines_of(rule, DRAWN.format(loop=loop, batch=batch))) is is_each_step


def test_micro_batches_are_read_one_by_one() -> None:
    text = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    model = nn.Linear(3, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(DataLoader([], batch_size=4, shuffle=True))
    step = 0
    while step < 1000:
        total = 0.0
        for _ in range(4):
            loss = model(next(batches).cuda()).pow(2).mean() / 4
            total += loss.item()  # here
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    """
    check("per-step-host-sync", text)


CHOSEN = """
import importlib
import hydra
import lightning as L
import mylib
import torch
import torch_optimizer
from accelerate import Accelerator
from timm.optim import create_optimizer, create_optimizer_v2
from torch import nn, optim

model = nn.Linear(3, 3)
fabric = L.Fabric()


def main(loader, args, name):
    optimizer = {made}
    for x, y in loader:
        {clear}
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), lr=0.1)",
    "getattr(torch.optim, name)(model.parameters(), lr=0.1)",
    "getattr(optim, args.optimizer)(params=model.parameters())",
    "torch.optim.__dict__[name](model.parameters())",
    "vars(optim)[name](model.parameters())",
    "getattr(importlib.import_module('torch.optim'), name)(model.parameters())",
    "__import__('torch.optim', fromlist=['SGD']).SGD(model.parameters(), lr=0.1)",
    "eval('torch.optim.' + name)(model.parameters())",
    "eval(f'optim.{name}')(model.parameters(), lr=0.1)",
    "{'sgd': optim.SGD, 'adam': optim.Adam}[name](model.parameters(), lr=0.1)",
    "hydra.utils.instantiate(args.optimizer, params=model.parameters())",
    "mylib.build(name, model.parameters())",
    "name(model.parameters())",
    "create_optimizer_v2(model, opt=name)",
    "create_optimizer(args, model)",
    "torch_optimizer.Yogi(model.parameters(), lr=0.1)",
    "fabric.setup_optimizers(mylib.build(name, model))",
    "Accelerator().prepare_optimizer(mylib.build(name, model))",
)


@pytest.mark.parametrize("made", OPTIMIZERS)
def test_an_optimizer_is_one_however_its_class_is_chosen(made: str) -> None:
    assert lines_of("missing-zero-grad", CHOSEN.format(made=made, clear="pass"))
    assert lines_of("missing-zero-grad", CHOSEN.format(made=made, clear="optimizer.zero_grad()")) == []
    assert lines_of("missing-zero-grad", CHOSEN.format(made=made, clear="model.zero_grad()")) == []


@pytest.mark.parametrize(
    "made",
    [
        "mylib.build(name, model)",  # of a model anything may be made
        "mylib.average(model.parameters(), 0.99)",  # used below like no optimizer
        "getattr(mylib, name)(model)",
        "getattr(torch.optim.lr_scheduler, name)(mylib.build(model), 3)",
    ],
)
def test_what_may_be_anything_is_no_optimizer(made: str) -> None:
    text = CHOSEN.format(made=made, clear="optimizer.copy_to(model)" if "average" in made else "pass")
    assert lines_of("missing-zero-grad", text) == []


def test_an_optimizer_that_went_through_a_dictionary() -> None:
    text = """
    import lightning as L
    import mylib
    from torch import nn


    def main(loader, name):
        fabric = L.Fabric(devices=2)
        model = fabric.setup(nn.Linear(3, 3))
        optimizer = fabric.setup_optimizers(mylib.make(name, model))
        fit(fabric, {"model": model, "optimizer": optimizer, "n": 0}, loader)


    def fit(fabric, state, loader):
        model, optimizer = state["model"], state["optimizer"]
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            fabric.clip_gradients(model, optimizer, max_norm=1.0)  # here
    """
    check("clip-order", text)


def test_what_a_function_that_was_not_run_gave_may_be_no_tensor() -> None:
    text = """
    import torch
    from torch import nn

    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def is_sparse(x):
        return x.layout == torch.sparse_coo


    def train(loader, args):
        for x, y in loader:
            out = model(x.cuda())
            for n in range(len(y)):
                if is_sparse(out):
                    print(n)
                if out[n] > 3:  # here
                    print(n)
            optimizer.zero_grad()
            out.sum().backward()
            optimizer.step()
    """
    check("sync-in-hot-loop", text)


@pytest.mark.parametrize("flag", ["multiprocessing_distributed", "spawn", "dist_eval"])
def test_a_flag_that_starts_processes_chooses_none_of_them(flag: str) -> None:
    text = """
    import argparse
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn


    def main():
        args = argparse.ArgumentParser().parse_args()
        if args.FLAG:
            mp.spawn(worker, nprocs=4, args=(4, args))
        else:
            worker(0, 4, args)


    def worker(gpu, count, args):
        dist.init_process_group("nccl", world_size=count, rank=gpu)
        model = nn.Linear(3, 3)
        model = nn.parallel.DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        if args.weights:
            model.load_state_dict(torch.load(args.weights))  # here
        if dist.get_rank() == 0:
            model.load_state_dict(torch.load(args.start))
        model.load_state_dict(torch.load("released.pth"))
        model.load_state_dict(torch.load("last.pth"))  # here
        torch.save(model.state_dict(), "last.pth")


    if __name__ == "__main__":
        main()
    """
    check("load-without-map-location", text.replace("FLAG", flag))


LEAVES = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Trainer:
    def __init__(self, stopper, gpu_rank=1):
        self.stopper, self.gpu_rank = stopper, gpu_rank

    def train(self, loader, most, stop):
        for step, (x, y) in enumerate(loader):
            {collective}
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            {exit}
            if most > 0 and step >= most:
                break
"""


@pytest.mark.parametrize("collective", ["pass", "dist.all_reduce(x)", "dist.barrier()"])
@pytest.mark.parametrize(
    ("left", "hangs"),
    [
        ("if dist.get_rank() == 0 and self.stopper.stops():\n                break", True),
        (
            "if self.gpu_rank <= 0:\n                if self.stopper.stops():\n                    return",
            True,
        ),
        ("if dist.get_rank() != 0:\n                break", True),
        ("if self.stopper.stops():\n                break", False),
        (
            "if dist.get_rank() == 0:\n                if self.stopper.stops():\n                    break\n"
            "            else:\n                if stop.item():\n                    break",
            False,
        ),
        ("if dist.get_rank() == 0:\n                if step >= most:\n                    break", False),
        ("if dist.get_world_size() == 1:\n                break", False),
        ("if dist.get_rank() == 0:\n                for n in stop:\n                    break", False),
    ],
)
def test_ranks_that_leave_a_loop_by_themselves(collective: str, left: str, hangs: bool) -> None:
    text = LEAVES.format(collective=collective, exit=left)
    assert bool(lines_of("rank-divergent-collective", text)) is hangs


CHUNKED = """
import torch
import torch.distributed as dist
from torch import nn

model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def learn(batches, chunk, window, kept):
    if window > 1:
        optimizer.zero_grad()
    for batch in batches:
        {loop}
            if window {test}:
                optimizer.zero_grad(){mark}
            nn.functional.cross_entropy(model(batch[:, j : j + chunk]), batch).backward()
    for p in model.parameters():
        {by_hand}
    optimizer.step()


def train(loader, chunk, window, kept):
    for batches in loader:
        learn(batches, chunk, window, kept)
"""


@pytest.mark.parametrize("test", ["== 1", "< 2"])
@pytest.mark.parametrize(
    ("by_hand", "is_new"),
    [
        ("pass", False),
        ("p.grad.div_(4)", False),
        ("p.grad.mul_(0.25)", False),
        ("p.grad.copy_(kept)", True),
        ("p.grad = kept", True),
        ("p.grad.add_(kept)", True),
    ],
)
def test_gradients_of_chunks_cleared_in_a_window_of_one(test: str, by_hand: str, is_new: bool) -> None:
    loop = "for j in range(0, batch.size(1) - 1, chunk):"
    text = CHUNKED.format(loop=loop, test=test, by_hand=by_hand, mark="" if is_new else "  # here")
    check("grads-cleared-before-step", text)


def test_a_window_of_one_has_one_turn() -> None:
    check(
        "grads-cleared-before-step",
        CHUNKED.format(loop="for j in [0]:", test="== 1", by_hand="pass", mark=""),
    )


REPORTED = """
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Mean:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total, self.count = self.total + value, self.count + n

    def synchronize(self):
        both = torch.tensor([self.total, self.count], device="cuda")
        dist.all_reduce(both)
        self.total, self.count = both.tolist()

    def mean(self):
        return self.total / self.count


def mean_of(value):
    value = value.clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def sum_in_place(value):
    dist.all_reduce(value)


def evaluate(model, data, accelerator: Accelerator, fabric: Fabric):
    loader = DataLoader(data, 64, shuffle=False, sampler=DistributedSampler(data, shuffle=False))
    model.eval()
    total, hits, meter = torch.zeros((), device="cuda"), torch.zeros((), device="cuda"), Mean()
    with torch.no_grad():
        for x, y in loader:
            scores = model(x.cuda())
            loss = nn.functional.cross_entropy(scores, y.cuda())
            meter.update(loss.item(), len(x))
            total += loss
            hits += (scores.argmax(1) == y.cuda()).sum()
    dist.all_reduce(total)
    print(total.item())
    {share}
    print({shown})
"""


@pytest.mark.parametrize(
    ("share", "shown", "is_local"),
    [
        ("pass", "hits.item()", True),
        ("pass", "hits / len(data)", True),
        ("pass", "meter.mean()", True),
        ("mean_of(hits)", "hits.item()", True),
        ("dist.all_reduce(hits)", "hits.item()", False),
        ("sum_in_place(hits)", "hits.item()", False),
        ("for one in (total, hits): dist.all_reduce(one)", "hits.item()", False),
        ("kept = {'hits': hits}; dist.all_reduce(kept['hits'])", "hits.item()", False),
        ("both = torch.stack([total, hits]); dist.all_reduce(both)", "both[1].item()", False),
        ("hits = mean_of(hits)", "hits.item()", False),
        ("meter.synchronize()", "meter.mean()", False),
        ("parts = [hits.clone()]; dist.all_gather(parts, hits)", "sum(parts).item()", False),
        ("hits = accelerator.reduce(hits)", "hits.item()", False),
        ("total, hits = accelerator.gather_for_metrics((total, hits))", "hits.item()", False),
        ("dist.all_reduce(hits.data)", "hits.item()", False),
        ("fabric.all_reduce(hits)", "hits.item()", False),
        ("hits = fabric.all_reduce(hits)", "hits.item()", False),
        ("fabric.all_reduce(hits.clone())", "hits.item()", True),
    ],
)
def test_each_number_is_reduced_by_itself(share: str, shown: str, is_local: bool) -> None:
    text = REPORTED.format(share=share, shown=shown)
    assert bool(lines_of("metric-on-local-shard", text)) is is_local


WINDOW = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.zeros(1000, 3)


def loss_of(scores, y):
    count, width = scores.shape[:2]
    return torch.sum(F.cross_entropy(scores, y, reduction="none")) / count


def train(loader, window):
    for i, (x, y) in enumerate(loader):
        loss = {loss}
        {divide}
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
SUMMED = 'F.cross_entropy(model(x), y, reduction="sum")'


@pytest.mark.parametrize(
    ("loss", "divide", "is_plain"),
    [
        ("F.cross_entropy(model(x), y)", "pass", True),
        (f"{SUMMED} / x.size(0)", "pass", True),
        (f"{SUMMED} / x.shape[0]", "pass", True),
        (f"{SUMMED} / model(x).shape[0]", "pass", True),
        ("loss_of(model(x), y)", "pass", True),
        (f"{SUMMED} / x.size(0)", "loss = loss / 4", False),
        (f"{SUMMED} / x.size(0) / window", "pass", False),
        (f"{SUMMED} / rows.size(0)", "pass", False),  # of all data
        (f"{SUMMED} / 128", "pass", False),
        (SUMMED, "pass", False),
    ],
)
def test_a_sum_over_the_size_of_its_batch_is_a_mean(loss: str, divide: str, is_plain: bool) -> None:
    text = WINDOW.format(loss=loss, divide=divide)
    assert bool(lines_of("unscaled-accumulation", text)) is is_plain


def test_parts_of_a_batch_over_its_whole_size() -> None:
    text = """
    import torch.nn.functional as F
    from torch import nn, optim

    model = nn.Linear(3, 3)
    optimizer = optim.SGD(model.parameters(), lr=0.1)


    def train(loader):
        for x, y in loader:
            optimizer.zero_grad()
            for part, wanted in zip(x.chunk(4), y.chunk(4)):
                (F.cross_entropy(model(part), wanted, reduction="sum") / x.size(0)).backward()
            optimizer.step()
    """
    check("unscaled-accumulation", text)


SETTINGS = """
import torch
import torch.distributed as dist
from dataclasses import dataclass
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


@dataclass
class Settings:
    ddp: bool = False
    epochs: int = 10


def update(settings, **given):
    if isinstance(settings, (tuple, list)):
        for one in settings:
            update(one, **given)
        return
    for name, value in given.items():
        if hasattr(settings, name):
            setattr(settings, name, value)


def main(data, **given):
    settings = Settings()
    {change}
    options = {{}}
    if settings.ddp:
        dist.init_process_group("nccl")
        options["sampler"] = DistributedSampler(data, shuffle=True)
    model = nn.Linear(3, 3)
    if settings.ddp:
        model = nn.parallel.DistributedDataParallel(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, 4, **options)
    for epoch in range(settings.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("change", "may_be_on"),
    [
        ("settings.ddp = given['ddp']", True),
        ("update(settings, **given)", True),
        ("update((settings, Settings()), **given)", True),
        ("for name, value in given.items():\n        setattr(settings, name, value)", True),
        ("setattr(settings, 'ddp', given['ddp'])", True),
        ("setattr(settings, 'epochs', given['epochs'])", False),
        ("pass", False),
    ],
)
def test_settings_whose_names_are_computed_may_be_anything(change: str, may_be_on: bool) -> None:
    assert bool(lines_of("sampler-epoch-not-set", SETTINGS.format(change=change))) is may_be_on


COUNTED = """
import collections

import torch
from torch import nn

model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(batches):
    model.eval()  # here
    with torch.no_grad():
        return [model(x).argmax(1) for x, _ in batches]


def fit(batches, held_out, state):
    n = step = 0
    for _ in range(10):
        for x, y in batches:
            {first}
            for group in optimizer.param_groups:
                group["lr"] = 0.1
            (nn.functional.cross_entropy(model(x), y) / 16).backward()
            if {n} % 16 == 0:
                optimizer.step()
                optimizer.zero_grad()
                {second}
            if {n} % 16 == 0 and {step} % 600 == 0:
                evaluate(held_out)


class Progress:
    def __init__(self):
        self.at = {{"n": 0, "step": 0}}


def main(batches, held_out):
    fit(batches, held_out, {state})
"""


@pytest.mark.parametrize(
    ("n", "step", "state"),
    [
        ("n", "step", "None"),
        ('state["n"]', 'state["step"]', '{"n": 0, "step": 0}'),
        ('state["n"]', 'state["step"]', "dict(n=0, step=0)"),
        ('state["n"]', 'state["step"]', "collections.Counter()"),
        ('state["n"]', 'state["step"]', "collections.defaultdict(int)"),
        ('state.at["n"]', 'state.at["step"]', "Progress()"),
    ],
)
@pytest.mark.parametrize("how", ["{x} += 1", "{x} = {x} + 1", "{x} = 1 + {x}"])
def test_counters_wherever_they_are_kept(n: str, step: str, state: str, how: str) -> None:
    text = COUNTED.format(n=n, step=step, state=state, first=how.format(x=n), second=how.format(x=step))
    check("stuck-eval-mode", text)


LOGGED = """
import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def shared(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, _):
        loss = self.shared(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        loss = self.shared(batch)
        {log}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def main(train, held_out):
    trainer = L.Trainer({trainer})
    trainer.fit(Net(), train, held_out)
"""
STOPPING = ', callbacks=[EarlyStopping(monitor="loss")]'


@pytest.mark.parametrize(
    ("log", "trainer", "is_local"),
    [
        ('self.log("loss", loss)', "devices=4" + STOPPING, True),
        ('self.log("loss", loss, prog_bar=True)', "num_nodes=2" + STOPPING, True),
        ('self.log_dict({"loss": loss})', "devices=2" + STOPPING, True),
        ('self.log("other", loss)', "devices=2" + STOPPING, True),
        ('self.log("loss", loss, sync_dist=True)', "devices=4" + STOPPING, False),
        ('self.log("loss", loss, rank_zero_only=True)', "devices=4" + STOPPING, False),
        ('self.log("loss", loss)', "devices=1" + STOPPING, False),
        ('self.log("loss", loss)', "" + STOPPING[2:], False),
        ('self.log("loss", loss)', "devices=4, use_distributed_sampler=False" + STOPPING, False),
        ('self.log("loss", loss)', "**settings" + STOPPING, False),
        ('self.log("step", 3)', "devices=4" + STOPPING, False),
    ],
)
def test_what_lightning_logs_of_one_rank(log: str, trainer: str, is_local: bool) -> None:
    end = "  # here" if is_local else ""
    check("metric-on-local-shard", LOGGED.format(log=log + end, trainer=trainer))


READING = """
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_tensor


class Photos(Dataset):
    def __init__(self, rows):
        self.rows = rows
        {prepared}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.sample({sample})

    def sample(self, row):
        return self.read(row[0]), row[1]

    def read(self, path):
        {read}


def train(rows, model):
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Photos(rows), batch_size=64, shuffle=True){end}
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("sample", "prepared", "read", "is_slow"),
    [
        ("self.rows[index]", "pass", "return to_tensor(Image.open(path))", True),
        ("self.rows[index]", "self.seen = {}", "return self.seen[path]", False),
        ("self.rows[index]", "self.read(rows[0][0])", "return torch.zeros(3)", False),
        ("self.rows[index]", "self.cache = {}", "return self.cache[path] or Image.open(path)", False),
    ],
)
def test_a_file_is_opened_by_a_method_of_the_data_set(
    sample: str, prepared: str, read: str, is_slow: bool
) -> None:
    end = "  # here" if is_slow else ""
    check("loader-starved", READING.format(sample=sample, prepared=prepared, read=read, end=end))


PREPARED = """
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch import nn


def train(batches, accelerator):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.{prepare}(model, optimizer)
    for i, (x, y) in enumerate(batches):
        {around}:
            loss = nn.functional.cross_entropy(model(x), y) / 4
            accelerator.backward(loss){end}
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    {wait}


def main(batches):
    train(batches, {owner}())
"""
WAIT, BARRIER = "accelerator.wait_for_everyone()", "accelerator.barrier()"


@pytest.mark.parametrize(
    ("owner", "prepare", "around", "wait", "is_each"),
    [
        ("Accelerator", "prepare", "if True", WAIT, True),
        ("Accelerator", "prepare", "if True", "if accelerator.is_main_process: print(loss)", True),
        ("Accelerator", "prepare", "if True", "pass", False),
        ("Accelerator", "prepare", "with accelerator.accumulate(model)", WAIT, False),
        ("Accelerator", "prepare", "with accelerator.no_sync(model)", WAIT, False),
        ("Fabric", "setup", "if True", BARRIER, True),
        ("Fabric", "setup", "if True", "pass", False),
        ("Fabric", "setup", "with accelerator.no_backward_sync(model, enabled=i % 4 != 3)", BARRIER, False),
    ],
)
def test_prepared_models_average_in_each_backward(
    owner: str, prepare: str, around: str, wait: str, is_each: bool
) -> None:
    end = "  # here" if is_each else ""
    text = PREPARED.format(owner=owner, prepare=prepare, around=around, end=end, wait=wait)
    check("accumulation-syncs-every-microbatch", text)


NAMED = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def log(losses, seen):
    {loop}:
        seen[name] = {read}{end}


def train(loader, seen):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = model(x.cuda())
        losses = {{"ce": nn.functional.cross_entropy(out, y.cuda()), "l2": out.pow(2).mean()}}
        sum(losses.values()).backward()
        optimizer.step()
        {test}:
            log(losses, seen)
"""


@pytest.mark.parametrize(
    ("loop", "read", "test", "is_each"),
    [
        ("for name, value in losses.items()", "value.item()", "if True", True),
        ("for name in losses", "float(losses[name])", "if True", True),
        ('for name in ("ce", "l2")', "losses[name].item()", "if True", True),
        ("for name, value in losses.items()", "value.detach()", "if True", False),
        ("for name, value in losses.items()", "value.item()", "if step % 100 == 0", False),
    ],
)
def test_named_losses_are_read_in_each_step(loop: str, read: str, test: str, is_each: bool) -> None:
    end = "  # here" if is_each else ""
    check("per-step-host-sync", NAMED.format(loop=loop, read=read, test=test, end=end))


STEPPER = """
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


class Stepper:
    def __init__(self, inner, kind):
        self.inner = inner
        self.kind = None
        if kind == "half":
            self.kind = "amp"
        elif kind == "old":
            self.kind = "old"
        self.scaler = torch.amp.GradScaler("cuda")

    @property
    def amp(self):
        return self.kind == "amp"

    def backward(self, loss):
        if {scale}:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()

    def step(self):
        {unscale}
        if {clip}:
            clip_grad_norm_(self.inner.param_groups[0]["params"], 1.0)
        if self.amp:
            self.scaler.step(self.inner)
            self.scaler.update()
        else:
            self.inner.step()


def main(batches, kind):
    net = nn.Linear(4, 2).cuda()
    stepper = Stepper(torch.optim.SGD(net.parameters(), lr=0.1), kind)
    for x, y in batches:
        stepper.inner.zero_grad()
        stepper.backward(nn.functional.cross_entropy(net(x), y))
        stepper.step()  # here
"""
UNSCALE = "if self.amp: self.scaler.unscale_(self.inner)"


@pytest.mark.parametrize(
    ("scale", "unscale", "clip", "is_wrong"),
    [
        ("self.amp", UNSCALE, "True", False),
        ("self.amp", "pass", 'self.kind != "amp"', False),
        ("self.amp", "pass", "True", True),
        ("True", "pass", "True", True),
    ],
)
def test_whoever_scales_may_unscale(scale: str, unscale: str, clip: str, is_wrong: bool) -> None:
    text = STEPPER.format(scale=scale, unscale=unscale, clip=clip)
    check("clip-before-unscale", text if is_wrong else text.replace("  # here", ""))


SHIFTED = """
import torch
from torch import nn
from torch.nn import functional as F

net = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(loader):
    for i, batch in enumerate(loader):
        x, y = {parts}
        loss = F.cross_entropy(net(x).flatten(0, 1), y.reshape(-1), ignore_index={ignored})
        (loss / 4).backward(){end}
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("parts", "ignored", "may_differ"),
    [
        ("batch[:, :-1], batch[:, 1:]", "-100", False),
        ("batch[:, :-1].contiguous().long(), batch[:, 1:].contiguous().long()", "-100", False),
        ("batch[:, :-1], batch[:, 1:]", "0", True),
        ('batch["ids"], batch["labels"]', "-100", True),
        ("batch[0], batch[1]", "-100", True),
    ],
)
def test_targets_that_the_model_is_fed_hold_no_negative_number(
    parts: str, ignored: str, may_differ: bool
) -> None:
    end = "  # here" if may_differ else ""
    check("token-mean-mismatch", SHIFTED.format(parts=parts, ignored=ignored, end=end))


ASKING = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        {asks}
        return self.layer(x)


def measure(config, loader):
    net = Net(config)
    right = 0
    with torch.no_grad():
        for x, y in loader:{end}
            right += (net(x).argmax(1) == y).sum().item()
    return right
"""


@pytest.mark.parametrize(
    ("asks", "depends"),
    [
        ("x = x + torch.randn_like(x) if self.training else x", True),
        ("if self.training: x = x + torch.randn_like(x)", True),
        ("if self.config.noise > 0 and self.training: x = x + torch.randn_like(x)", False),
        ("x = x * self.config.training.scale", False),
        ('x = x * self.config.training["scale"]', False),
    ],
)
def test_a_mode_that_settings_ask_for_is_not_sure(asks: str, depends: bool) -> None:
    check("eval-in-train-mode", ASKING.format(asks=asks, end="  # here" if depends else ""))


MODE_OF_ONE = """
import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


class Noisy(Plain):
    def forward(self, x):
        return self.layer(nn.functional.dropout(x, training=self.training))


def measure(config, loader):
    net = {made}
    right = 0
    with torch.no_grad():
        for x, y in loader:{end}
            right += (net(x).argmax(1) == y).sum().item()
    return right
"""


@pytest.mark.parametrize(
    ("made", "is_sure"),
    [("Noisy()", True), ("Noisy() if config.noisy else Plain()", False), ("Plain()", False)],
)
def test_of_several_models_all_have_to_depend_on_the_mode(made: str, is_sure: bool) -> None:
    check("eval-in-train-mode", MODE_OF_ONE.format(made=made, end="  # here" if is_sure else ""))

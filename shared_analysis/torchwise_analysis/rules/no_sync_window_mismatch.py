"""no-sync-window-mismatch: the micro-batch before the step is one that skips the averaging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ApiCall, Backward, Forward, NoSync, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import said_of_ranks
from torchwise_analysis.rules._reading import belief_in, called, distinct, doubt, grade, known_by, step

WRONG = """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, k):
    for i, (x, y) in enumerate(loader):
        scope = contextlib.nullcontext() if i % k == 0 else model.no_sync()
                                                            ^^^^^^^^^^^^^^^ no-sync-window-mismatch
        with scope:
            (nn.functional.cross_entropy(model(x), y) / k).backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

RIGHT = """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, k):
    for i, (x, y) in enumerate(loader):
        is_last = (i + 1) % k == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / k).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
"""

RULE = Rule(
    code="TW605",
    name="no-sync-window-mismatch",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim="The optimizer steps on gradients whose last micro-batch was run without averaging over the ranks.",
    cost=(
        "Outside `no_sync` a backward averages everything that has accumulated so far. When the last "
        "micro-batch of the window runs inside it, the step uses gradients that are partly or wholly local: "
        "the copies of the model drift apart and are never brought together again, because only gradients "
        "are averaged, not weights. One report measured 4.0 where 7.0 was right. Nothing raises."
    ),
    wrong=Example("The first micro-batch is averaged, the last is not", WRONG),
    right=Example("One test decides both", RIGHT),
    silent=(
        "the micro-batch before the step runs outside `no_sync`, however the tests are written",
        "the relation of both tests cannot be computed",
        "gradients are averaged by hand before the step",
        "a framework sets the boundary (`accumulate`, an engine, a Trainer)",
    ),
    grading=(
        "Always an error. Certain when both tests count the same loop, or when the flag is set between the "
        "forward that reads it and its backward; likely when the optimizer is only known by its name."
        " A hint where the project's own launch lines all start one process."
    ),
    fix="Advice: decide with one variable whether a micro-batch is averaged and whether it steps.",
    references=(
        Reference(
            "DistributedDataParallel.no_sync",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
        Reference(
            "Distributed Data Parallel, internal design: the forward prepares the averaging",
            "https://docs.pytorch.org/docs/stable/notes/ddp.html",
        ),
        Reference(
            "modelscope/FunASR#3472: align DDP no_sync with gradient accumulation",
            "https://github.com/modelscope/FunASR/pull/3472",
        ),
    ),
    examples=(
        Example(
            "Synchronised one micro-batch too early",
            """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        context = model.no_sync() if i % 4 != 0 else contextlib.nullcontext()
                  ^^^^^^^^^^^^^^^ no-sync-window-mismatch
        with context:
            (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "The flag is set after the forward that reads it",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = 4


def train(batches):
    for _ in range(100):
        optimizer.zero_grad()
        for micro in range(window):
            x, y = next(batches)
            loss = nn.functional.cross_entropy(model(x), y) / window
            model.require_backward_grad_sync = micro == window - 1
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ no-sync-window-mismatch
            loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "The flag is set before the forward",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = 4


def train(batches):
    for _ in range(100):
        optimizer.zero_grad()
        for micro in range(window):
            x, y = next(batches)
            model.require_backward_grad_sync = micro == window - 1
            loss = nn.functional.cross_entropy(model(x), y) / window
            loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A window in a loop of its own",
            """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(batches, window):
    for _ in range(100):
        optimizer.zero_grad()
        for micro in range(window):
            x, y = next(batches)
            with model.no_sync() if micro < window - 1 else contextlib.nullcontext():
                (nn.functional.cross_entropy(model(x), y) / window).backward()
        optimizer.step()
""",
        ),
        Example(
            "Two statements for the two kinds of micro-batch",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, k):
    for i, (x, y) in enumerate(loader):
        if (i + 1) % k != 0:
            with model.no_sync():
                (nn.functional.cross_entropy(model(x), y) / k).backward()
        else:
            (nn.functional.cross_entropy(model(x), y) / k).backward()
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A flag that the caller chooses",
            """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def micro_step(x, y, steps_now):
    with contextlib.nullcontext() if steps_now else model.no_sync():
        nn.functional.cross_entropy(model(x), y).backward()
    if steps_now:
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
    ),
)


class _Window(NamedTuple):
    """A step, the backward before it and the forward that this backward trains."""

    step: Step
    backward: Backward
    forward: Forward


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    if trace.api("all_reduce of gradients"):
        return
    windows = tuple(_windows(trace))
    good = {w.step.place for w in windows if w.forward.scene.no_sync is None}
    for window in windows:
        late = _late_flag(trace, window)
        if late is not None:
            yield _hit(window, late.place, "this flag is read by the forward, which has already run")
        elif window.step.place not in good and _is_same_turn(window):
            entered = _entered(trace, window)
            if entered is not None:
                yield _hit(window, entered.place, "the micro-batch before the step does not average")


def _windows(trace: Trace) -> Iterator[_Window]:
    """Steps with the last backward before them, where that ran a wrapped model."""
    last: dict[int, Backward] = {}
    for event in trace.of_any(Backward, Step):
        if isinstance(event, Backward):
            for optimizer in event.before:
                last[optimizer] = event
        else:
            backward = last.get(event.optimizer.id)
            passes = sorted(backward.passes) if backward is not None else []
            forwards = [trace.passes[p].forward for p in passes if p in trace.passes]
            wrapped = [f for f in forwards if f.wrapped in ("ddp", "fsdp", "prepared")]
            if backward is not None and wrapped:
                yield _Window(event, backward, wrapped[-1])


def _is_same_turn(window: _Window) -> bool:
    """Step and backward in one turn of the loop, which is counted exactly, or without any test between."""
    return window.step.loops == window.backward.loops


def _entered(trace: Trace, window: _Window) -> NoSync | None:
    owner = window.forward.scene.no_sync
    if owner is None:
        return None
    found = [e for e in trace.of(NoSync) if e.order < window.forward.order and e.how != "accumulate"]
    if not found:
        return None
    undecided = [g for g in found[-1].scene.guards if g.kind != "periodic"]
    return None if undecided else found[-1]


def _late_flag(trace: Trace, window: _Window) -> ApiCall | None:
    """`require_backward_grad_sync` set between the forward and its backward, and not before in that turn."""
    settings = trace.api("require_backward_grad_sync")
    between = [s for s in settings if window.forward.order < s.order < window.backward.order]
    same_turn = [s for s in settings if s.order < window.forward.order and s.loops == window.forward.loops]
    return between[-1] if between and not same_turn else None


def _hit(window: _Window, place: Place, fact: str) -> Hit:
    one = window.step
    name = called(one.optimizer, "the optimizer")
    return Hit(
        place,
        Severity.ERROR,
        grade(min(belief_in(one.optimizer) * int(one.optimizer.place is not None), 1)),
        f"{fact}: {name} steps with gradients of this rank alone, and the copies of the model drift apart."
        + doubt((belief_in(one.optimizer) > 0, known_by(one.optimizer))),
        distinct(
            (
                *step(place, fact),
                Evidence(window.forward.place, "the forward before the step"),
                Evidence(window.backward.place, "its backward adds local gradients"),
                Evidence(one.place, "which are applied here"),
            )
        ),
        frozenset({("window", window.backward.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Average on the micro-batch that steps: let one test decide both", Safety.ADVICE, ())

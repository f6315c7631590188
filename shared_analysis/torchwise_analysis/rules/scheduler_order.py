"""scheduler-order: the scheduler steps before the optimizer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import SchedulerBuilt, SchedulerStep, Step, WeightsLoaded
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._moving import moved_behind
from torchwise_analysis.rules._reading import called, distinct, turn_tests

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)


def train(loader):
    for x, y in loader:
        scheduler.step()
        ^^^^^^^^^^^^^^^^ scheduler-order hint certain
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
"""

RULE = Rule(
    code="TW705",
    name="scheduler-order",
    category=Category.DATA,
    severity=Severity.HINT,
    claim="A scheduler is stepped before the first step of its optimizer.",
    cost=(
        "Since torch 1.1 the first value of the schedule is set when the scheduler is made. Stepped before "
        "the optimizer, it goes on to the second value at once: the first is never used, and the whole "
        "schedule runs one unit early. torch warns about it. The cost is small unless a unit is an epoch of "
        "a short run."
    ),
    wrong=Example("Scheduler first", WRONG, fixed=RIGHT),
    right=Example("Optimizer first", RIGHT),
    silent=(
        "`ReduceLROnPlateau`, which acts on a metric",
        "a scheduler that was restored, or made with `last_epoch`",
        "the optimizer may have stepped before, here or in code that is not seen",
        "a framework steps either of them",
    ),
    grading="Always a hint. Certain: both steps are seen in one run, in this order.",
    fix="Move the scheduler's step below the optimizer's. Unsafe: the learning rates change.",
    references=(
        Reference(
            "torch.optim: how to adjust learning rate",
            "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
        ),
        Reference(
            "StepLR",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.StepLR.html",
        ),
    ),
    examples=(
        Example(
            "Before the step, in each batch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 500)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        warm.step()
        ^^^^^^^^^^^ scheduler-order
        optimizer.step()
""",
        ),
        Example(
            "At the head of the epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def train(loader):
    for epoch in range(20):
        scheduler.step()
        ^^^^^^^^^^^^^^^^ scheduler-order hint certain
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Restored from a checkpoint",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def resume(loader, path):
    scheduler.load_state_dict(torch.load(path, map_location="cpu"))
    for epoch in range(20):
        scheduler.step()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Behind the first epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def train(loader):
    for epoch in range(20):
        if epoch > 0:
            scheduler.step()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "A helper whose caller steps the optimizer",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def end_of_epoch():
    scheduler.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The early step of the schedule and the step of its optimizer."""

    early: SchedulerStep
    later: Step


def detect(trace: Trace) -> Iterator[Hit]:
    restored = {
        e.target.id for e in trace.of(WeightsLoaded) if e.target.kind in (Kind.SCHEDULER, Kind.OPAQUE)
    }
    owners = {e.scheduler.id: e.optimizer for e in trace.of(SchedulerBuilt)}
    for early in trace.of(SchedulerStep):
        scheduler, optimizer = early.scheduler, owners.get(early.scheduler.id)
        if optimizer is None or early.optimizer_stepped != frozenset({False}) or _is_special(scheduler):
            continue
        if (
            {scheduler.id, optimizer.id} & (restored | trace.escaped)
            or not early.loops
            or early.arguments.open
        ):
            continue
        if turn_tests(early, 0) or any(turn.iteration for turn in early.loops):
            continue
        later = _next_step(trace, early, optimizer)
        if later is not None:
            yield _hit(early, later, scheduler)


def _is_special(scheduler: Obj) -> bool:
    return (
        scheduler.type_name.endswith("ReduceLROnPlateau") or scheduler.arguments.get("last_epoch") is not None
    )


def _next_step(trace: Trace, early: SchedulerStep, optimizer: Obj) -> Step | None:
    """The optimizer's step in the same turn of the scheduler's loop."""
    for one in trace.of(Step):
        is_same = one.optimizer.id == optimizer.id and one.scene.entry is early.scene.entry
        if is_same and one.order > early.order and one.loops[: len(early.loops)] == early.loops:
            return one
    return None


def _hit(early: SchedulerStep, later: Step, scheduler: Obj) -> Hit:
    name = called(scheduler, "the scheduler")
    return Hit(
        early.place,
        Severity.HINT,
        Confidence.CERTAIN,
        f"{name} steps before the optimizer does: the first value of the schedule is never used. Step it "
        "behind the optimizer.",
        distinct(
            (
                Evidence(early.place, "the schedule goes on here"),
                Evidence(later.place, "before this first step of its optimizer"),
            )
        ),
        frozenset({("scheduler", scheduler.id)}),
        _Found(early, later),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Step the scheduler behind the optimizer (changes the learning rates)"
    if not isinstance(hit.facts, _Found):
        return
    early, later = hit.facts
    edits = moved_behind(file, early.place, later.place) if early.loops == later.loops else None
    yield Fix(title, Safety.ADVICE if edits is None else Safety.UNSAFE, edits or ())

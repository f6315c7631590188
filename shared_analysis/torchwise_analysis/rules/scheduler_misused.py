"""scheduler-misused: a plateau scheduler watches the number of the epoch."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import SchedulerStep
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, loop_words, step

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)


def train(loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        plateau.step(epoch)
        ^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)


def train(loader, validate, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        plateau.step(validate())
"""

RULE = Rule(
    code="TW709",
    name="scheduler-misused",
    category=Category.DATA,
    severity=Severity.ERROR,
    claim="`ReduceLROnPlateau` is stepped with a loop counter in place of a metric.",
    cost=(
        "The first argument of its `step` is the metric. A counter only rises, which a scheduler in mode "
        "`min` takes for a metric that gets worse: after each patience the learning rate is cut, however "
        "well the model learns, until nothing moves. With mode `max` it is never cut."
    ),
    wrong=Example("The epoch is taken for a loss", WRONG),
    right=Example("A validation loss", RIGHT),
    silent=(
        "other schedulers, whose `step` takes an epoch",
        "anything that is not a loop counter: a loss, a mean, a value that cannot be read",
        "a counter given as the second argument",
    ),
    grading="Always an error. Certain: the counter of a loop around the call is seen to arrive.",
    fix="Advice: give it the validation metric.",
    references=(
        Reference(
            "ReduceLROnPlateau",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
        ),
        Reference(
            "torch.optim: how to adjust learning rate",
            "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
        ),
    ),
    examples=(
        Example(
            "A counted epoch by keyword",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def train(loader):
    for number in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        plateau.step(metrics=number)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain
""",
        ),
        Example(
            "The epoch comes second",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def train(loader):
    for epoch in range(100):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        plateau.step(total, epoch)
""",
        ),
        Example(
            "A scheduler that counts",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)


def train(loader):
    for epoch in range(100):
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step(epoch + i / 1000)
""",
        ),
        Example(
            "Either kind, chosen by its class",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, schedule, validate):
    for epoch in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            schedule.step(validate())
        else:
            schedule.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.of(SchedulerStep):
        scheduler = event.scheduler
        metric = event.arguments.get("metrics", 0)
        if not scheduler.type_name.endswith("ReduceLROnPlateau") or not isinstance(metric, Const):
            continue
        counts = metric.counter is not None and metric.counter.modulus is None and type(metric.value) is int
        loops = [t.loop for t in event.loops if t.loop.kind in (LoopKind.RANGE, LoopKind.BATCHES)]
        if not counts or not loops or event.scene.guards:
            continue
        yield Hit(
            event.place,
            Severity.ERROR,
            Confidence.CERTAIN,
            f"{called(scheduler, 'this scheduler')} takes a metric and gets the counter of the "
            f"{loop_words(loops[-1])}: the learning rate falls whatever the model learns. Give it the "
            "validation metric.",
            distinct(
                (
                    *step(scheduler.place, "this scheduler acts on a metric"),
                    Evidence(loops[-1].place, "this loop counts"),
                    Evidence(event.place, "and its counter is taken for the metric"),
                )
            ),
            frozenset({("scheduler", scheduler.id)}),
        )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Give `step` the validation metric", Safety.ADVICE, ())

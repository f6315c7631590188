"""average-before-step: a moving average of the weights is updated before the weights are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchwise_analysis.api import (
    Call,
    Category,
    Confidence,
    Evidence,
    Example,
    Fix,
    Hit,
    Machine,
    Reference,
    Rule,
    Safety,
    Severity,
    SourceFile,
    Trace,
    events,
    function,
    library_object,
    method,
    values,
)

PROGRAM = """
import torch
from emakit import Average
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = Average(model, decay=0.999)


def after_batch(average):
    average.update()


for x, y in torch.utils.data.DataLoader(torch.zeros(8, 12)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
%s
"""
EARLY = """\
    average.update()
    ^^^^^^^^^^^^^^^^ average-before-step warning certain
    optimizer.step()"""
CALLED = """\
import torch
from emakit import Average
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = Average(model, decay=0.999)


def after_batch(average):
    average.update()
    ^^^^^^^^^^^^^^^^ average-before-step warning certain


for x, y in torch.utils.data.DataLoader(torch.zeros(8, 12)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    after_batch(average)
    optimizer.step()
"""

RULE = Rule(
    code="EMA001",
    name="average-before-step",
    category=Category.OTHER,
    severity=Severity.WARNING,
    claim="A moving average of the weights is updated before the step, so it lags one step behind.",
    cost="The average holds the weights of the step before; with few steps that is what gets evaluated.",
    wrong=Example("Updated, then stepped", PROGRAM % EARLY),
    right=Example("Stepped, then updated", PROGRAM % "    optimizer.step()\n    average.update()"),
    silent=("where no step follows in the loop",),
    grading="Certain.",
    fix="Advice only: statements are not moved.",
    references=(Reference("SWA and EMA", "https://docs.pytorch.org/docs/stable/optim.html"),),
    examples=(
        Example("In a helper", CALLED),
        Example("Something else is called update", PROGRAM % "    {}.update()\n    optimizer.step()"),
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Averaged(events.Event):
    """An average took the weights over."""

    average: values.Obj


@function("emakit.Average")
def average(m: Machine, call: Call) -> values.Value:
    return library_object(m, call)


@method("emakit.Average", "update")
def update(m: Machine, obj: values.Obj, call: Call) -> values.Value:
    m.emit(Averaged, call.node, average=obj)
    return values.NONE


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.of(Averaged):
        loop = trace.innermost(event)
        steps = [step for step in trace.steps if loop is not None and trace.innermost(step) is loop]
        if steps and event.order < steps[0].order:
            yield Hit(
                event.place,
                Severity.WARNING,
                Confidence.CERTAIN,
                "the average takes over the weights of the step before. Update it behind the step.",
                (Evidence(steps[0].place, "the step comes only here"),),
            )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    yield Fix("Update the average behind the step", Safety.ADVICE, ())

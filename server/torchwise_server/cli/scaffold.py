"""The files that `torchwise new-rule` writes: a rule that works, to be changed into the wanted one."""

from __future__ import annotations

PROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "torchwise-{name}"
version = "0.1.0"
description = "A rule for torchwise"
requires-python = ">=3.10"
dependencies = ["torchwise>={version}"]

# what torchwise looks for: the name of a module with RULE, detect and, if it has any, fixes
[project.entry-points."torchwise.rules"]
{name} = "{module}"

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""

TEST = '''\
"""The examples of the rule are its tests: what is marked must be found, and nothing else."""

from pathlib import Path

from torchwise_analysis.rule_testing import faults

import {module}


def test_examples(tmp_path: Path) -> None:
    assert faults({module}, tmp_path) == []
'''

RULE = '''\
"""{name}: a value that goes to the run log still carries its autograd graph.

Everything a rule is stands in this file: its page (RULE), its examples (which are its tests), what the
calls of a library mean (`function`), how the fault is found (`detect`) and how it is mended (`fixes`). Change
it piece by piece; `pytest` says what does not hold. docs/rule-api.md of torchwise explains each piece.
"""

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
    Place,
    Reference,
    Rule,
    Safety,
    Severity,
    SourceFile,
    Trace,
    append_to,
    argument_place,
    events,
    function,
    values,
)

# ---------------------------------------------------------------- the page and the tests

PROGRAM = """
import runlog
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in torch.utils.data.DataLoader(torch.zeros(8, 12)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
%s
"""

POSITIONAL = """\
    runlog.track("loss", loss)
                         ^^^^ {name} warning certain"""

KEYWORD = """\
    runlog.track(name="loss", value=loss)
                                    ^^^^ {name} warning certain"""

RULE = Rule(
    code="{code}",
    name="{name}",
    category=Category.OTHER,
    severity=Severity.WARNING,
    claim="A value that is given to the run log still carries the autograd graph that made it.",
    cost="The log keeps what it is given, and with it the graph: memory grows with each step.",
    wrong=Example(
        "The loss is tracked as it is",
        PROGRAM % POSITIONAL,
        fixed=PROGRAM % '    runlog.track("loss", loss.detach())',
    ),
    right=Example("A number is tracked", PROGRAM % '    runlog.track("loss", loss.item())'),
    silent=("outside of a loop", "for values without a graph"),
    grading="Certain, likely where the model is only taken for one by its use.",
    fix="Detach the value. Safe.",
    references=(
        Reference(
            "How autograd encodes the history", "https://docs.pytorch.org/docs/stable/notes/autograd.html"
        ),
    ),
    examples=(
        Example("By keyword", PROGRAM % KEYWORD),
        Example("Once, behind the loop", PROGRAM % 'runlog.track("loss", loss)'),
    ),
)

# ---------------------------------------------------------------- what the library does


@dataclass(frozen=True, slots=True, eq=False)
class Tracked(events.Event):
    """A tensor with a graph went to the log. given: the expression; passes: the forwards in its graph."""

    given: Place
    passes: frozenset[int]


@function("runlog.track")
def track(m: Machine, call: Call) -> values.Value:
    """`runlog.track(name, value)` keeps the value until the run ends."""
    passes = frozenset(number for tensor in m.tensors(call.get("value", 1)) for number in tensor.passes)
    given = argument_place(m, call, "value", 1)
    if passes and given is not None:
        m.emit(Tracked, call.node, given=given, passes=passes)
    return values.NONE


# ---------------------------------------------------------------- how the fault is found and mended


def detect(trace: Trace) -> Iterator[Hit]:
    """One hit for each call in a loop."""
    for event in trace.of(Tracked):
        loop = trace.innermost(event)
        if loop is None:
            continue
        forward = trace.forward_of(min(event.passes))
        yield Hit(
            event.given,
            Severity.WARNING,
            Confidence.LIKELY if forward.belief else Confidence.CERTAIN,
            "the log keeps the autograd graph of every iteration. Track a detached value.",
            (
                Evidence(forward.place, "this forward makes the graph"),
                Evidence(loop.place, "each turn of this loop tracks one more"),
            ),
        )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    """Safe: nothing that the log does needs the graph."""
    yield Fix("Track a detached value: add `.detach()`", Safety.SAFE, (append_to(hit.place, ".detach()"),))
'''

"""Tests of counters: which turn of a loop is the last, and what turns hand on to each other."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.events import Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

PROGRAM = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, parts, settings):
    for epoch in range(10):
        optimizer.zero_grad()
        {first}
        for {loop}:
            nn.functional.cross_entropy(model(x), y).backward()
            {body}
            if {test}:
                optimizer.step()
"""


def traced(loop: str, test: str, first: str = "pass", body: str = "pass") -> Trace:
    text = PROGRAM.format(loop=loop, test=test, first=first, body=body)
    trace = run(lower_text("train.py", text), Project(()))
    assert trace.silence.failed == ()
    return trace


@pytest.mark.parametrize(
    ("loop", "test"),
    [
        ("i, (x, y) in enumerate(loader)", "i == len(loader) - 1"),
        ("i, (x, y) in enumerate(loader)", "i + 1 == len(loader)"),
        ("i, (x, y) in enumerate(loader)", "i >= len(loader) - 1"),
        ("i, (x, y) in enumerate(loader)", "not i < len(loader) - 1"),
        ("i, (x, y) in enumerate(loader)", "not i != len(loader) - 1"),
        ("i, (x, y) in enumerate(loader, 1)", "i == len(loader)"),
        ("i, (x, y) in enumerate(zip(a.chunk(parts), b.chunk(parts)))", "i == parts - 1"),
        ("i in range(settings.parts)", "i == settings.parts - 1"),
    ],
)
def test_a_step_at_the_last_index_is_one_step(loop: str, test: str) -> None:
    trace = traced(loop, test)
    steps = trace.of(Step)
    assert steps
    for step in steps:  # none of them meets gradients that were applied before, all runs are over
        assert {(atom.applied, count) for atom in step.before for _, count in atom.sites} == {(False, 2)}
    last = max(turn.iteration for backward in trace.backwards for turn in backward.loops[-1:])
    assert {step.loops[-1].iteration for step in steps} == {last}


@pytest.mark.parametrize(
    ("first", "body", "test", "kind", "how"),
    [
        ("seen = 0", "seen += len(x)", "seen >= settings.batch", "periodic", ">="),
        ("seen = 0", "seen = seen + len(x)", "seen >= settings.batch", "periodic", ">="),
        ("seen = [0, 0]", "seen = [n + len(x) for n in seen]", "seen[0] > settings.batch", "periodic", ">"),
        ("last = -1", "now = last + i", "now - last >= settings.window", "periodic", ">="),
        ("pass", "pass", "(i + 1) % settings.window == 0", "periodic", "counted"),
        ("pass", "pass", "settings.batch >= settings.window", "flag", ">="),
        ("pass", "size = len(x)", "size >= settings.batch", "value", ">="),
    ],
)
def test_what_turns_hand_on_counts_them(first: str, body: str, test: str, kind: str, how: str) -> None:
    trace = traced("i, (x, y) in enumerate(loader)", test, first, body)
    guards = {(guard.kind, guard.test) for step in trace.of(Step) for guard in step.scene.guards}
    assert guards == {(kind, how)}


def test_operands_of_one_condition_are_a_group() -> None:
    trace = traced(
        "i, (x, y) in enumerate(loader)", "seen >= settings.batch or settings.all", "seen = 0", "seen += 1"
    )
    groups = [{guard.group for guard in step.scene.guards} for step in trace.of(Step)]
    assert max(len(step.scene.guards) for step in trace.of(Step)) == 2
    assert all(len(group) == 1 for group in groups)


def test_optimizers_of_a_list_get_the_gradients_of_functions() -> None:
    text = PROGRAM.replace("optimizer = torch", "optimizers = [torch").replace("lr=0.1)", "lr=0.1)]")
    text = text.replace("optimizer.zero_grad()", "optimizers[0].zero_grad()")
    text = text.replace("optimizer.step()", "optimizers[0].step()")
    text = text.format(loop="x, y in loader", test="True", first="pass", body="pass")
    trace = run(lower_text("train.py", text), Project(()))
    assert all(backward.before for backward in trace.backwards)
    assert all(atom.sites for step in trace.of(Step) for atom in step.before)

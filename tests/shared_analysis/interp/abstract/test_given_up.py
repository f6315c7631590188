"""A function that was given up for its size was not reached: it is run by itself."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.events import CutShort, Escaped
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.interp.abstract.values import Kind
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

PROGRAM = """
import torch
from torch import nn


def train(model, optimizer, loader):
{busy}
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.utils.data.DataLoader([]))


main()
"""


@pytest.mark.parametrize(("visits", "reached"), [(80_000, True), (400, False)])
def test_it_is_reached_only_when_it_came_to_its_end(visits: int, reached: bool) -> None:
    text = PROGRAM.format(busy="    x = torch.zeros(1)\n" * 60)
    limits = Limits(entry_visits=visits)
    trace = run(lower_text("train.py", text), Project(()), limits=limits)
    assert not trace.silence.failed
    entries = {step.scene.entry.name for step in trace.steps}
    assert ("train" in entries) is not reached


SAVING = """
import torch
from torch import nn


def save(model, optimizer, path):
{busy}
    if isinstance(optimizer, torch.optim.Optimizer):
        {use}


def main(loader):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        save(model, optimizer=optimizer, path="last.pt")
"""


@pytest.mark.parametrize(
    ("use", "escapes"),
    [
        ("torch.save(optimizer.state_dict(), path)", False),
        ("print(optimizer.param_groups[0]['lr'])", False),
        ("optimizer.step()", True),
        ("update(optimizer)", True),
    ],
)
def test_an_optimizer_of_which_only_the_state_is_read_is_not_stepped(use: str, escapes: bool) -> None:
    text = SAVING.format(busy="    x = torch.zeros(1)\n" * 60, use=use)
    trace = run(lower_text("train.py", text), Project(()), limits=Limits(entry_visits=200))
    assert not trace.silence.failed
    assert trace.of(CutShort)
    assert any(event.value.kind is Kind.OPTIMIZER for event in trace.of(Escaped)) is escapes

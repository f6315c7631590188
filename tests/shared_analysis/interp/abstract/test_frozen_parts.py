"""Freezing reaches the parts of its time; what is registered or unfrozen later learns."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

PROGRAM = """
import torch
from torch import nn
from torchvision import models

model = models.resnet50()
for p in model.parameters():
    p.requires_grad = False
{change}
for x, y in torch.utils.data.DataLoader([]):
    loss = nn.functional.cross_entropy(model(x), y)
"""


@pytest.mark.parametrize(
    ("change", "learns"),
    [
        ("", False),
        ("model.fc = nn.Linear(2048, 10)", True),
        ("model.fc = nn.Sequential(nn.Dropout(), nn.Linear(2048, 10))", True),
        ("model.fc = nn.Identity()", False),
        ("model.classifier[1] = nn.Linear(2048, 10)", True),
        ("model.heads.head = nn.Linear(2048, 10)", True),
        ("model.layer4.requires_grad_(True)", True),
        ("for p in model.layer4.parameters():\n    p.requires_grad = True", True),
        ("model.fc = nn.Linear(2048, 10)\nmodel.requires_grad_(False)", False),
        ("model.head = model.fc", False),
        ("import heads\nwidth = model.fc.in_features\nmodel.fc = heads.build(width)", True),
        ("model.num_classes = 10", False),
        ("for p in model.parameters():\n    p.copy_(p + 1).requires_grad_(p.requires_grad)", False),
        (
            "model.requires_grad_(True)\nmodel = nn.parallel.DistributedDataParallel(model)\n"
            "model.requires_grad_(False)",
            False,
        ),
        ("import copy\nmodel = copy.deepcopy(model).eval()", False),
        (
            "model.requires_grad_(True)\nfor n, p in model.named_parameters():\n"
            "    if 'fc' not in n:\n        p.requires_grad = False",
            True,
        ),
        (
            "model.requires_grad_(True)\nfor n, p in model.named_parameters():\n"
            "    if 'fc' in n:\n        continue\n    p.requires_grad_(False)",
            True,
        ),
        (
            "import sys\nif len(sys.argv) > 1:\n    raise SystemExit\nfor p in model.parameters():\n"
            "    p.requires_grad = False",
            False,
        ),
    ],
)
def test_a_pass_has_a_graph_when_any_part_learns(change: str, learns: bool) -> None:
    trace = run(lower_text("train.py", PROGRAM.format(change=change)), Project(()))
    assert not trace.silence.failed
    assert {True in forward.grad for forward in trace.forwards} == {learns}


BRANCHES = """
import sys
import torch
import unseen
from torch import nn

model = None
if len(sys.argv) > 1:
    model = nn.Linear(8, 4){first}
else:
    model = nn.Linear(8, 4){second}
{change}
for x, y in torch.utils.data.DataLoader([]):
    loss = nn.functional.cross_entropy(model(x), y)
"""


@pytest.mark.parametrize(
    ("first", "second", "change", "grads"),
    [
        (".requires_grad_(False)", ".requires_grad_(False)", "", {False}),
        (".requires_grad_(False)", "", "", {False, True}),
        ("", "", "if len(sys.argv) > 2:\n    model.requires_grad_(False)", {True}),
        # somebody that we cannot see may have let it learn again
        (".requires_grad_(False)", ".requires_grad_(False)", "unseen.fill(model)", {False, True}),
        ("", "", "unseen.fill(model)", {True}),
        (
            ".requires_grad_(False)",
            ".requires_grad_(False)",
            "unseen.fill(model)\nmodel.requires_grad_(True)",
            {True},
        ),
    ],
)
def test_what_is_made_in_a_branch_keeps_what_is_said_of_it(
    first: str, second: str, change: str, grads: set[bool]
) -> None:
    text = BRANCHES.format(first=first, second=second, change=change)
    trace = run(lower_text("train.py", text), Project(()))
    assert not trace.silence.failed
    found = {flag for forward in trace.forwards if forward.through == "call" for flag in forward.grad}
    assert found == grads

"""An estimate outlives edits of what its runs did not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateReport, EstimateRequest, estimate_module
from torchwise_analysis.plan.reuse import moved, shift_between
from torchwise_analysis.source import Document

TEXT = '''import torch
from torch import nn


def describe(model):
    """Nobody calls this."""
    for name, child in model.named_children():
        print(name, child)
    return None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 64)

    def summary(self):
        return "nothing"

    def forward(self, x):
        return self.body(x)


def batches(count):
    for _ in range(count):
        yield torch.zeros(8, 64, device="cuda")


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches(3):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''


def answered(folder: Path, document: Document) -> EstimateReport:
    request = EstimateRequest(with_remedies=False, text=document.text)
    report = estimate_module(document.module, Project([str(folder)]), request)
    assert report.estimates
    return report


def edited(folder: Path, old: str, new: str) -> EstimateReport | None:
    """The answer kept for TEXT with one edit, checked against a fresh one; None where it has to run again."""
    path = str(folder / "train.py")
    document = Document(path, TEXT)
    before = answered(folder, document)
    module, text = document.module, document.text
    assert text.count(old) == 1
    changed = Document(path, TEXT.replace(old, new))
    shift = shift_between(module, text, changed.module, changed.text, before.entered)
    if shift is None:
        return None
    kept = moved(before, path, shift)
    if kept is not None:
        fresh = answered(folder, changed)
        assert kept.estimates == fresh.estimates
    return kept


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("print(name, child)", "print(child)"),
        ("    return None\n", "    print(1)\n    print(2)\n    return None\n"),
        ('        return "nothing"\n', '        return "something"\n'),
        ("\n\nclass Net", "\n\n# a comment\n\n\nclass Net"),
        ('"""Nobody calls this."""', '"""Nobody calls\n    this."""'),
    ],
)
def test_what_no_run_enters_may_change(tmp_path: Path, old: str, new: str) -> None:
    assert edited(tmp_path, old, new) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nn.Linear(64, 64)", "nn.Linear(64, 32)"),
        ("return self.body(x)", "return self.body(x) + 1"),
        ("torch.zeros(8, 64", "torch.zeros(16, 64"),
        ("def describe(model):", "def describe(model, more=print()):"),
        ("for x in batches(3):", "# torchwise: batch_size=4\nfor x in batches(3):"),
        ("lr=0.1", "lr=0.2"),
        ("\n\nmodel = Net()", "\n\nimport os\nmodel = Net()"),
        ("    loss.backward()", "    (loss.backward("),
    ],
)
def test_what_a_run_reads_may_not(tmp_path: Path, old: str, new: str) -> None:
    path = str(tmp_path / "train.py")
    document, changed = Document(path, TEXT), Document(path, TEXT.replace(old, new))
    before = answered(tmp_path, document)
    assert shift_between(document.module, TEXT, changed.module, changed.text, before.entered) is None


def test_without_knowledge_of_what_ran_everything_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "train.py")
    document = Document(path, TEXT)
    changed = Document(path, TEXT.replace("print(name, child)", "print(child)"))
    assert shift_between(document.module, TEXT, changed.module, changed.text, None) is None
    assert shift_between(document.module, TEXT, document.module, TEXT, None) is not None

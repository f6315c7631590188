"""What is still read of a script whose model cannot be made: honest facts, no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import report

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import PlanField, Source

SCRIPT = """
import torch
from torch import nn
from words import vocabulary

class Net(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(len(words), 64)
        {in_model}

    def forward(self, x):
        return self.embedding(x).sum()

model = Net(vocabulary())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for batch in vocabulary():
    {step}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def precision(
    folder: Path, step: str = "loss = model(batch)", before: str = "", in_model: str = ""
) -> PlanField | None:
    script = SCRIPT.format(step=step, before=before, in_model=in_model)
    found = report(folder, script)
    assert not found.estimates
    return found.unanswered[0].plan.get("precision")


def test_a_loop_that_casts_nothing_is_in_single_precision(tmp_path: Path) -> None:
    found = precision(tmp_path)
    assert found is not None
    assert (found.value, found.source) == ("float32", Source.DEFAULT)


@pytest.mark.parametrize(
    "changed",
    [
        {"before": "model = model.half()"},
        {"before": "model.to(torch.bfloat16)"},
        {"before": "model = model.to(vocabulary())"},
        {"in_model": "self.half()"},
        {"in_model": "self.kind = torch.bfloat16"},
        {"step": "with vocabulary():\n        loss = model(batch)"},
        {"before": "torch.set_default_dtype(torch.float64)"},
    ],
)
def test_what_may_cast_leaves_the_precision_open(tmp_path: Path, changed: dict[str, str]) -> None:
    assert precision(tmp_path, **changed) is None


def test_autocast_around_a_model_that_is_not_known_is_read(tmp_path: Path) -> None:
    step = "with torch.autocast('cuda', dtype=torch.bfloat16):\n        loss = model(batch)"
    found = precision(tmp_path, step)
    assert found is not None
    assert found.value == "bfloat16 autocast"


def test_a_model_that_the_project_registers_takes_the_place_of_the_librarys(tmp_path: Path) -> None:
    library = tmp_path / "site" / "timm" / "models"
    library.mkdir(parents=True)
    (tmp_path / "site" / "timm" / "__init__.py").write_text("from .models import create_model\n")
    (library / "__init__.py").write_text(
        "from ._factory import create_model\nfrom ._registry import register_model\nfrom .tiny import *\n"
    )
    (library / "_factory.py").write_text("def create_model(*args): ...\n")
    (library / "_registry.py").write_text("def register_model(fn): ...\n")
    (library / "tiny.py").write_text(
        "from torch import nn\nfrom ._registry import register_model\n\n"
        "@register_model\ndef tiny(pretrained=False, **kwargs):\n    return nn.Linear(8, 8)\n"
    )
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "own.py").write_text(
        "from torch import nn\nfrom timm.models import register_model\n\n"
        "@register_model\ndef tiny(pretrained=False, width=4, **kwargs):\n    return nn.Linear(width, 2)\n"
    )
    script = """
import torch
import nets.own
from timm.models import create_model
model = create_model("tiny", width=16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(4, 16, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    (tmp_path / "main.py").write_text(script)
    project = Project([str(tmp_path)], [str(tmp_path / "site")])
    found = estimate_module(lower_text(str(tmp_path / "main.py"), script), project, EstimateRequest())
    assert [e.parameters for e in found.estimates] == [34], found.unanswered


def test_a_schedule_as_long_as_the_data_stops_nothing(tmp_path: Path) -> None:
    script = """
import torch
import numpy as np
from words import vocabulary
rates = np.concatenate((np.linspace(0, 1, len(vocabulary())), np.arange(len(vocabulary()))))
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    for group in optimizer.param_groups:
        group["lr"] = rates[step]
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert report(tmp_path, script).estimates

"""What a person is told to do where an estimate stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text

SCRIPT = """
import torch
import torchvision
model = torchvision.models.unheard_of()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    model(torch.zeros(2, 3, 8, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_library_that_cannot_be_read_is_to_be_installed(tmp_path: Path, is_installed: bool) -> None:
    if is_installed:
        package = tmp_path / "torchvision"
        (package / "models").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "models" / "__init__.py").write_text("")
    project = Project([], [str(tmp_path)])
    report = estimate_module(lower_text("train.py", SCRIPT), project, EstimateRequest(with_remedies=False))
    (unanswered,) = report.unanswered
    assert ("the source of torchvision was not found" in unanswered.message) != is_installed
    assert "# torchwise: model=" not in unanswered.message

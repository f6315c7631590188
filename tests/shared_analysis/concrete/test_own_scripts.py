"""Scripts of kinds that the reference tables lack, against a real PyTorch on fake tensors: at most 3 % off.

`measuring.py` runs them; cuBLAS workspaces, which a CPU does not have, are not counted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.measuring import measured

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

FOLDER = Path(__file__).parent / "own_scripts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
ALLOWED = 0.03


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def estimate(name: str) -> Estimate:
    request = EstimateRequest(with_remedies=False, with_alternatives=False)
    report = estimate_module(lower_text(f"{name}.py", text_of(name)), Project([], []), request)
    assert not report.unanswered, report.unanswered
    return report.estimates[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_of_its_own_kind_is_answered(name: str) -> None:
    found = estimate(name)
    assert found.parameters
    assert found.peak.allocated is not None


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_a_script_takes_what_pytorch_takes(name: str) -> None:
    pytest.importorskip(
        "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
    )
    parameters, peak = measured(text_of(name))
    found = estimate(name)
    assert found.parameters == parameters
    assert found.peak.allocated is not None
    ours = found.peak.allocated.point - found.breakdown["workspaces"]
    assert ours == pytest.approx(peak, rel=ALLOWED)

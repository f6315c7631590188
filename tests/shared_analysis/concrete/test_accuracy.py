"""Estimates of whole scripts against simulated truth (see tests/data/memory/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text

DATA = Path(__file__).parents[2] / "data" / "memory"
GPUS = {75: "t4", 80: "a100-80gb", 90: "h100-80gb"}


class Row(TypedDict):
    id: str
    sm: int
    parameters: int
    peak_allocated: int
    peak_reserved: int
    phase: str


ROWS: list[Row] = [json.loads(line) for line in (DATA / "oracle_rows.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_peak_of_a_script(row: Row) -> None:
    """No library is readable here: GPT-2 and BERT come from the hand-written families."""
    path = DATA / "scripts" / f"{row['id']}.py"
    module = lower_text(str(path), path.read_text())
    request = EstimateRequest((GPUS[row["sm"]],), with_remedies=False)
    report = estimate_module(module, Project([]), request)
    assert report.unanswered == ()
    (estimate,) = report.estimates
    assert estimate.parameters == row["parameters"]
    assert estimate.phase is not None and estimate.phase.value == row["phase"]
    allocated = estimate.peak.allocated
    assert allocated is not None
    assert abs(allocated.point / row["peak_allocated"] - 1) < 0.005
    assert allocated.low <= row["peak_allocated"] <= allocated.high
    assert sum(estimate.breakdown.values()) == allocated.point

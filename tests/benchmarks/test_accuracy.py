"""How estimates are scored: nearest reading, coverage, verdicts, and shares by document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.test_gpu_calibration import loaded

from torchwise_memory.report import Interval, Peak, Verdict
from torchwise_memory.workload import Answer

ACCURACY: Any = loaded("accuracy")
GIB = 1 << 30


def scored(low: float, high: float, peak: tuple[int, int, int], source: str = "a") -> Any:
    row = {"value_gib_low": low, "value_gib_high": high, "source": {"key": source}}
    point = peak[1]
    true = min((low * GIB, high * GIB), key=lambda each: abs(point / each - 1))
    return ACCURACY.Scored(row, "allocated", true, Interval(*(bound * GIB for bound in peak)))


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("max_memory_allocated", "allocated"),
        ("peak active memory", "allocated"),
        ("max_memory_reserved (torchtitan)", "reserved"),
        ("nvidia-smi", "device"),
        ("active/reserved", "allocated"),
        (None, None),
        ("GB", None),
    ],
)
def test_a_metric_is_known_by_its_name(metric: str | None, kind: str | None) -> None:
    assert ACCURACY.kind_of(metric) == kind


def test_either_reading_of_a_unit_may_lie_inside() -> None:
    assert scored(9, 12, (11, 12, 13)).is_covered
    assert not scored(9, 10, (11, 12, 13)).is_covered


def test_shares_leave_a_twentieth_outside_on_each_side() -> None:
    numbers = [scored(true, true, (100, 100, 100)) for true in range(81, 121)]
    low, high = ACCURACY.shares(numbers)
    assert (low, high) == (pytest.approx(0.83), pytest.approx(1.19))


@pytest.mark.parametrize(
    ("verdict", "result", "outcome"),
    [
        (Verdict.FITS, "fits", "right"),
        (Verdict.PROBABLY_OOM, "OOM", "right"),
        (Verdict.PROBABLY_FITS, "OOM", "false fit"),
        (Verdict.OOM, "fits", "false OOM"),
        (Verdict.BORDERLINE, "OOM", "borderline"),
        (Verdict.UNKNOWN, "fits", "unknown"),
    ],
)
def test_verdicts_are_counted(verdict: Verdict, result: str, outcome: str) -> None:
    answer = Answer(Peak(None, None, None), verdict)
    assert ACCURACY.outcomes([({"result": result}, answer)]) == {outcome: 1}


def test_scripts_and_rows_are_there_with_their_provenance() -> None:
    data = Path(ACCURACY.ROOT) / "data"
    words = (data / "README.md").read_text(encoding="utf-8")
    assert all(name in words for name in ("measured.jsonl", "scripts.jsonl"))
    assert len(ACCURACY.SCRIPTS.read_text(encoding="utf-8").splitlines()) == 109

"""The calibration on a real GPU, up to the point where it measures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CALIBRATION: Any = loaded("gpu_calibration")
CASES: list[Any] = list(CALIBRATION.cases())


def test_there_are_about_forty_cases_of_different_names() -> None:
    assert 38 <= len(CASES) == len({case.name for case in CASES}) <= 48


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_program_that_prints_its_peaks(case: Any) -> None:
    compile(case.text, case.name, "exec")
    assert case.text.count(CALIBRATION.MARK) == 1


@pytest.mark.parametrize(
    "name", ["mlp-amp", "gpt-accumulated", "gpt-inference", "resnet18-fp32", "llama-bf16"]
)
def test_the_same_text_is_estimated(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    estimate = CALIBRATION.estimated(case, "t4")
    low, point, high = estimate["allocated"]
    assert 0 < low <= point <= high < estimate["device"][2]


def test_what_a_script_printed_is_read(tmp_path: Path) -> None:
    text = f"print('noise')\nprint({CALIBRATION.MARK!r}, 1, 2, 3)\n"
    assert CALIBRATION.measured(CALIBRATION.Case("printed", text), tmp_path) == (1, 2, 3)


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    failed = CALIBRATION.measured(CALIBRATION.Case("failing", "raise ValueError('no card')"), tmp_path)
    assert failed == "ValueError: no card"


def test_a_line_shows_each_peak_and_collects_errors() -> None:
    errors: dict[str, list[float]] = {"allocated": [], "reserved": [], "device": []}
    estimate = {"allocated": [1, 2 << 30, 3 << 30], "reserved": [1, 4 << 30, 5 << 30], "device": None}
    line = CALIBRATION._line("case", (2 << 30, 2 << 30, 3 << 30), estimate, errors)
    assert "allocated  2.000 ours  2.000" in line and "device  3.000 -" in line
    assert errors == {"allocated": [0.0], "reserved": [1.0], "device": []}

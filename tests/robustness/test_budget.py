"""Files made to exhaust whoever reads them: the defect below them is found, or what was not analysed is said.

`benchmarks/budget.py` measures the same inputs at a megabyte.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.robustness.pathological import INPUTS

from torchwise_analysis.engine import CheckReport, Engine, ProblemKind, open_project
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.plan import EstimateRequest
from torchwise_analysis.settings import Settings
from torchwise_analysis.source import Document
from torchwise_analysis.source.notebooks import read_notebook

# Small enough that each takes a moment, large enough that what grows by the square or the power shows.
SIZE = 20_000


def written(name: str, folder: Path, size: int = SIZE) -> tuple[Engine, SourceFile]:
    files = INPUTS[name](size)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8", newline="")
    first, text = next(iter(files.items()))
    path = str(folder / first)
    if first.endswith(".ipynb"):
        text = read_notebook(text).text
    return Engine(Settings(), folder, open_project(path, Settings())), SourceFile(path, text)


@pytest.mark.parametrize("name", INPUTS)
def test_the_defect_is_found_or_silence_is_explained(name: str, tmp_path: Path) -> None:
    engine, file = written(name, tmp_path)
    report = engine.check_quickly(file)
    assert not [problem for problem in report.problems if problem.kind is ProblemKind.FAILURE]
    assert found(report) or report.problems


def found(report: CheckReport) -> bool:
    """What each of the inputs has below its burden: a loop that keeps graphs, or never clears gradients."""
    return any(finding.rule in ("retained-graph", "missing-zero-grad") for finding in report.findings)


@pytest.mark.parametrize("name", INPUTS)
def test_an_estimate_answers_or_says_why_not(name: str, tmp_path: Path) -> None:
    engine, file = written(name, tmp_path)
    report = engine.estimate(file, EstimateRequest(("t4",), with_alternatives=False, with_remedies=False))
    assert report.estimates or report.unanswered or report.problems
    assert not [problem for problem in report.problems if problem.kind is ProblemKind.FAILURE]
    assert not [one.message for one in report.unanswered if "failed (" in one.message]


@pytest.mark.parametrize("name", [name for name in INPUTS if "notebook" not in name])
def test_an_edit_of_them_is_the_same_as_a_fresh_text(name: str, tmp_path: Path) -> None:
    engine, file = written(name, tmp_path, SIZE // 4)
    document = Document(file.path, file.text)
    engine.check_quickly(document)
    document.edit(1, 0, 1, 0, "# typed\n")
    lines = file.text.split("\n")
    fresh = SourceFile(file.path, "\n".join([lines[0], "# typed", *lines[1:]]))
    if "\r" not in file.text:
        assert document.text == fresh.text
    assert engine.check_quickly(document).findings == engine.check_quickly(fresh).findings


def test_a_text_beyond_the_fuel_says_where_it_ended(tmp_path: Path) -> None:
    """Silence about a file of which a part was never followed would be taken for an answer."""
    engine, file = written("tiny functions", tmp_path, 1_000_000)
    problems = engine.check_quickly(file).problems
    assert [problem.kind for problem in problems] == [ProblemKind.UNFINISHED]
    assert "too " in problems[0].message
    assert json.dumps(problems[0].message)


def test_more_brackets_than_any_program_are_not_parsed(tmp_path: Path) -> None:
    engine, file = written("lists, nested 90 deep", tmp_path, 1_000_000)
    assert "more brackets" in engine.check_quickly(file).problems[0].message
    assert "more brackets" in Document(file.path, file.text).module.problems[0].message

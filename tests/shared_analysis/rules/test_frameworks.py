"""Under each framework the faults of its users are found; `tests/data/rules/quiet` holds the right programs.

The first line of a program says what is found: rule, confidence and line of each finding.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchwise_analysis.findings import Confidence
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings

PROGRAMS = sorted((Path(__file__).parents[2] / "data" / "rules" / "faulty").glob("*.py"))
_WANTED = re.compile(r"([a-z-]+) ([a-z]+) @ (\d+)")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_fault_is_found(path: Path) -> None:
    file = SourceFile(str(path), path.read_text(encoding="utf-8"))
    trace = run(file.module, Project([str(path.parent)]))
    assert trace.silence.failed == ()
    found = {
        (f.rule, f.confidence.name.lower(), str(f.place.span.line + 1))
        for f in judge(trace, file, Settings()).findings
        if f.confidence is not Confidence.POSSIBLE
    }
    wanted = set(_WANTED.findall(file.text.partition("\n")[0]))
    assert wanted
    assert found == wanted

"""What is found in small programs, for the tests of spellings."""

from __future__ import annotations

import textwrap
from pathlib import Path

from torchwise_analysis.findings import Confidence, Finding, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def found_in(text: str, folder: Path | None = None) -> list[Finding]:
    """Findings of any grade; the program stands alone, or as `train.py` in a folder that its imports see."""
    path = "/nowhere/program.py"
    if folder is not None:
        path = str(folder / "train.py")
        Path(path).write_text(text, encoding="utf-8")
    file = SourceFile(path, text)
    trace = run(file.module, Project([] if folder is None else [str(folder)]))
    assert trace.silence.failed == ()
    return list(judge(trace, file, Settings()).findings)


def check_marks(rule: str, text: str) -> None:
    """A line that ends in `# here` holds a finding of the rule, certain or likely; no other line does."""
    program = textwrap.dedent(text)
    shown = [each for each in found_in(program) if each.confidence is not Confidence.POSSIBLE]
    found = sorted({each.place.span.line + 1 for each in shown if each.rule == rule})
    assert found == [n for n, line in enumerate(program.splitlines(), start=1) if line.endswith("# here")]


def loud_rules(folder: Path, text: str) -> set[str]:
    """Rules of what is shown as an error or a warning."""
    return {
        each.rule
        for each in found_in(text, folder)
        if each.confidence is not Confidence.POSSIBLE and each.severity is not Severity.HINT
    }

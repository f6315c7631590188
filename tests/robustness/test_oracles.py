"""Ways to the same answer give the same answer, and no text whatever breaks the analysis.

The default run is small; TORCHWISE_LONG_TESTS=1 makes it long.
"""

from __future__ import annotations

import ast
import io
import json
import os
import random
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from torchwise_analysis.engine import CheckReport, Engine, ProblemKind, check_together, open_project
from torchwise_analysis.findings import Finding, Fix, Safety
from torchwise_analysis.fixes import SourceFile, apply_edits
from torchwise_analysis.interp.abstract.runs import Memory
from torchwise_analysis.plan import EstimateRequest
from torchwise_analysis.settings import Settings
from torchwise_analysis.source import Document

LONG = bool(os.environ.get("TORCHWISE_LONG_TESTS"))
ROUNDS = 300 if LONG else 4

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((*(ROOT / "examples").glob("*.py"), *(ROOT / "tests" / "data").rglob("*.py")))
NAMES = [str(path.relative_to(ROOT)) for path in SCRIPTS]
each_script = pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)


def engine_of(path: Path) -> Engine:
    return Engine(Settings(), path.parent, open_project(str(path), Settings()))


def checked(path: Path, text: str) -> CheckReport:
    return engine_of(path).check(SourceFile(str(path), text))


def failures(report: CheckReport) -> list[str]:
    return [problem.message for problem in report.problems if problem.kind is ProblemKind.FAILURE]


# --------------------------------------------------------------------------- no text breaks it


@each_script
def test_changed_tokens_never_break_the_analysis(path: Path) -> None:
    chance = random.Random(path.name)
    text = path.read_text("utf-8")
    for _ in range(ROUNDS):
        mutant = mutated(text, chance)
        file = SourceFile(str(path), mutant)
        engine = engine_of(path)
        assert failures(engine.check_quickly(file)) == [], mutant
        estimated = engine.estimate(
            file, EstimateRequest(("t4",), with_alternatives=False, with_remedies=False)
        )
        said = [problem.message for problem in estimated.problems if problem.kind is ProblemKind.FAILURE]
        said += [one.message for one in estimated.unanswered if "failed (" in one.message]
        assert said == [], mutant


def mutated(text: str, chance: random.Random) -> str:
    """A few tokens doubled, dropped, exchanged or replaced; layout stays."""
    lines = text.splitlines(keepends=True)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.string.strip() and token.start[0] == token.end[0]
    ]
    for token in sorted(
        chance.sample(tokens, chance.choice((1, 2, 5))), key=lambda one: one.start, reverse=True
    ):
        row, start = token.start
        line, end = lines[row - 1], token.end[1]
        other = chance.choice(tokens).string
        new = chance.choice(("", token.string * 2, f"{token.string} {other}", other, chance.choice(_ODD)))
        lines[row - 1] = line[:start] + new + line[end:]
    return "".join(lines)


_ODD = (
    "None",
    "-1",
    "10**99",
    "[]",
    "*x",
    "lambda: 0",
    "yield",
    "await x",
    "'\\0'",
    "1j",
    "...",
    "{**x}",
    "not",
    "__class__",
)


# --------------------------------------------------------------------------- the same by other ways


@each_script
def test_editing_ends_where_a_fresh_check_does(path: Path) -> None:
    chance = random.Random(path.name)
    first_text = path.read_text("utf-8")
    original = first_text.splitlines(keepends=True)
    lines = list(original)
    document = Document(str(path), first_text)
    engine, memory = engine_of(path), Memory()
    for _ in range(ROUNDS):
        first = chance.randrange(len(lines) + 1)
        last = min(len(lines), first + chance.choice((0, 1, 1, 2)))
        new = chance.choices(original, k=chance.choice((0, 1, 2)))
        document.edit(first, 0, last, 0, "".join(new))
        lines[first:last] = new
        assert document.text == "".join(lines)
        report = engine.check_quickly(document, memory=memory)
        assert failures(report) == []
        if parses(document.text):
            assert report.findings == fresh_findings(path, document.text)
    # the first text again: nothing of the way there may be left
    document.replace(first_text)
    assert engine.check_quickly(document, memory=memory).findings == fresh_findings(path, first_text)


def fresh_findings(path: Path, text: str) -> tuple[Finding, ...]:
    return engine_of(path).check_quickly(SourceFile(str(path), text)).findings


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def test_a_folder_is_its_files(tmp_path: Path) -> None:
    folder = [tmp_path / f"f{number}.py" for number, _ in enumerate(SCRIPTS[:6])]
    for copy, path in zip(folder, SCRIPTS, strict=False):
        copy.write_bytes(path.read_bytes())
    files = [(engine_of(path), SourceFile(str(path), path.read_text("utf-8"))) for path in folder]
    together = [report.findings for report in check_together(files)]
    assert together == [checked(path, path.read_text("utf-8")).findings for path in folder]
    backwards = [report.findings for report in check_together(files[::-1])]
    assert backwards[::-1] == together


def test_answers_are_equal_under_hash_seeds() -> None:
    scripts = NAMES if LONG else NAMES[:3]
    for command in (["check", "--min-confidence", "possible"], ["estimate", "--gpu", "t4"]):
        answers = {said(command, scripts, seed) for seed in ("0", "1", "4711")}
        assert len(answers) == 1


def said(command: list[str], scripts: list[str], seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torchwise_server", *command, "--format", "json", *scripts],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    json.loads(done.stdout)
    return done.stdout


# --------------------------------------------------------------------------- fixes


@each_script
def test_safe_fixes_come_to_rest(path: Path) -> None:
    """Each takes its own finding away, and what it leaves has no safe fix that was not there before."""
    text = path.read_text("utf-8")
    left = safe_fixes(checked(path, text))
    while left:
        finding, fix = left[0]
        text = apply_edits(SourceFile(str(path), text), fix.edits)
        after = safe_fixes(checked(path, text))
        assert len(after) < len(left), (finding.rule, fix.title)
        left = after


def safe_fixes(report: CheckReport) -> list[tuple[Finding, Fix]]:
    return [
        (finding, fix)
        for finding in report.findings
        for fix in finding.fixes
        if fix.edits and fix.safety is Safety.SAFE
    ]

"""Whole correct programs of many idioms: neither an error nor a warning; a slip put into one is found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from torchwise_analysis.findings import Confidence, Finding, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings

CORPUS = Path(__file__).parents[2] / "data" / "rules" / "correct"


class Slip(NamedTuple):
    """Text of a program that is replaced; the rules and places of the finding, any of which will do."""

    name: str
    rules: frozenset[str]
    file: str
    places: tuple[str, ...]
    old: str
    new: str


def programs() -> dict[str, dict[str, str]]:
    """By name of the program, its texts by name of the file."""
    out: dict[str, dict[str, str]] = {}
    for name in ("first.txt", "second.txt", "third.txt"):
        for header, body in _blocks(name):
            _, *files = re.split(r"^@@file ", body, flags=re.MULTILINE)
            parts = (part.partition("\n") for part in files)
            out[header.partition(" | ")[0]] = {file: f"{text.rstrip()}\n" for file, _, text in parts}
    return out


def slips() -> list[Slip]:
    out: list[Slip] = []
    for header, body in _blocks("faults.txt"):
        name, rules, file, places = header.split(" | ", 3)
        old, _, new = body.partition("@@into\n")
        parts = (old.removesuffix("\n"), new.rstrip("\n"))
        out.append(Slip(name, frozenset(rules.split()), file, tuple(places.split(" || ")), *parts))
    return out


def _blocks(name: str) -> list[tuple[str, str]]:
    text = (CORPUS / name).read_text(encoding="utf-8")
    blocks = re.split(r"^@@ ", text, flags=re.MULTILINE)[1:]
    return [(header, body) for header, _, body in (block.partition("\n") for block in blocks)]


PROGRAMS = programs()
SLIPS = slips()


def findings(folder: Path, texts: dict[str, str]) -> list[Finding]:
    """Errors and warnings in each file of a program, of grades that are shown by default."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    out: list[Finding] = []
    for name, text in texts.items():
        file = SourceFile(str(folder / name), text)
        assert file.module.problems == (), "the program must parse"
        trace = run(file.module, Project([str(folder)]))
        assert trace.silence.failed == ()
        out += judge(trace, file, Settings()).findings
    return [f for f in out if f.severity is not Severity.HINT and f.confidence is not Confidence.POSSIBLE]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_said_of_a_correct_program(name: str, tmp_path: Path) -> None:
    assert [(f.rule, f.place.span.line + 1) for f in findings(tmp_path, PROGRAMS[name])] == []


@pytest.mark.parametrize("slip", SLIPS, ids=[f"{slip.name}-{n}" for n, slip in enumerate(SLIPS)])
def test_a_slip_is_found(slip: Slip, tmp_path: Path) -> None:
    texts = dict(PROGRAMS[slip.name])
    assert slip.old in texts[slip.file]
    texts[slip.file] = texts[slip.file].replace(slip.old, slip.new, 1)
    assert any(_is_of(slip, finding, texts) for finding in findings(tmp_path, texts))


def _is_of(slip: Slip, finding: Finding, texts: dict[str, str]) -> bool:
    rules = {finding.rule, *(also.rule for also in finding.also)}
    line = texts[Path(finding.place.path).name].splitlines()[finding.place.span.line]
    return bool(rules & slip.rules) and any(place in line for place in slip.places)

"""The baseline: findings that a project has accepted for now, kept in a file beside the code.

A finding is known by its rule, its file and the text of its lines, not by their number, so that edits above
it do not bring it back; several of the same text are counted.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from torchwise_analysis.files import read_regular
from torchwise_analysis.findings import Finding
from torchwise_server.cli import UsageError
from torchwise_server.reporters.sources import Sources

_VERSION = 1
_MOST_BYTES = 64 << 20
_LONGEST_TEXT = 400
_NOTE = "written by `torchwise check --update-baseline`; findings listed here are not reported"

Entry: TypeAlias = "tuple[str, str, str]"


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left of findings; `known` is how many the baseline held, `gone` how many of its are no more."""

    findings: tuple[Finding, ...]
    known: int
    gone: int


def narrowed(findings: Sequence[Finding], file: Path, sources: Sources) -> Narrowed:
    """The findings that the baseline does not hold.

    Raises:
        UsageError: it cannot be read.
    """
    left = read(file)
    total = sum(left.values())
    new: list[Finding] = []
    for finding in findings:
        entry = _entry(finding, file.parent, sources)
        if left[entry]:
            left[entry] -= 1
        else:
            new.append(finding)
    known = len(findings) - len(new)
    return Narrowed(tuple(new), known, total - known)


def read(file: Path) -> Counter[Entry]:
    """The entries of a baseline with their number.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        data = read_regular(file, _MOST_BYTES)
    except FileNotFoundError:
        raise UsageError(f"--baseline {file}: no such file; --update-baseline writes it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--baseline {file}: {getattr(error, 'strerror', None) or error}") from None
    try:
        document: object = json.loads(data)
        return _entries(document)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UsageError(f"--baseline {file}: not a baseline of torchwise ({error})") from None


def render(findings: Sequence[Finding], file: Path, sources: Sources) -> str:
    """The text of a baseline that holds `findings`: sorted, one entry a line, so that merges stay small."""
    counts = Counter(_entry(finding, file.parent, sources) for finding in findings)
    rows = [
        json.dumps({"path": path, "rule": rule, "text": text, "count": number}, ensure_ascii=False)
        for (path, rule, text), number in sorted(counts.items())
    ]
    body = ",\n  ".join(rows)
    listed = f"[\n  {body}\n ]" if rows else "[]"
    return f'{{\n "version": {_VERSION},\n "note": {json.dumps(_NOTE)},\n "findings": {listed}\n}}\n'


def _entries(document: object) -> Counter[Entry]:
    if not isinstance(document, dict):
        raise TypeError("no JSON object")
    table = cast("dict[str, object]", document)
    if table.get("version") != _VERSION:
        raise ValueError(f"version {_VERSION} expected")
    rows = table["findings"]
    if not isinstance(rows, list):
        raise TypeError("`findings` is no list")
    counts: Counter[Entry] = Counter()
    for row in cast("list[dict[str, object]]", rows):
        number = row["count"]
        if not isinstance(number, int) or number < 1:
            raise ValueError("a count is no positive number")
        counts[(str(row["path"]), str(row["rule"]), str(row["text"]))] += number
    return counts


def _entry(finding: Finding, folder: Path, sources: Sources) -> Entry:
    place = finding.place
    lines = sources.lines(place.path)[place.span.line : place.span.end_line + 1]
    text = " ".join(" ".join(lines).split())[:_LONGEST_TEXT]
    path = os.path.relpath(place.path, folder.absolute()).replace(os.sep, "/")
    return path, finding.rule, text

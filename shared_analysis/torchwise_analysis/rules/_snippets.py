"""Examples as text: programs with their expected findings marked by carets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchwise_analysis.findings import Confidence, Severity
from torchwise_analysis.source.nodes import Span

_MARK = re.compile(
    r"^(?P<lead> *)(?P<carets>\^+) (?P<rule>[a-z0-9-]+)"
    r"(?: (?P<severity>error|warning|hint))?(?: (?P<confidence>certain|likely|possible))?$"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """A finding that must be reported: its exact range, and its grades where the mark states them."""

    rule: str
    span: Span
    severity: Severity | None
    confidence: Confidence | None


@dataclass(frozen=True, slots=True)
class Snippet:
    """A program without its marks."""

    text: str
    expected: tuple[Expected, ...]


def parse(marked: str) -> Snippet:
    """Take the marks out of an example.

    Marks cover one line: examples are written so that findings do.

    Raises:
        ValueError: a mark stands above all code.
    """
    lines: list[str] = []
    expected: list[Expected] = []
    for line in marked.lstrip("\n").split("\n"):
        match = _MARK.match(line)
        if match is None:
            lines.append(line)
            continue
        if not lines:
            raise ValueError("a mark needs a line of code above it")
        start = len(match["lead"])
        row = len(lines) - 1
        expected.append(
            Expected(
                match["rule"],
                Span(row, start, row, start + len(match["carets"])),
                Severity(match["severity"]) if match["severity"] else None,
                Confidence(match["confidence"]) if match["confidence"] else None,
            )
        )
    return Snippet("\n".join(lines), tuple(expected))

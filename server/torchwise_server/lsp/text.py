"""The text of an open document, cut into lines as the protocol cuts it.

Only `\\n`, `\\r\\n` and `\\r` end a line. Form feed, vertical tab, U+0085 and U+2028 do not, although
`str.splitlines` thinks so; one of them above an edit would corrupt every later incremental change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Position(NamedTuple):
    """Line and column from 0, the column in code points."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the text from `start` to `end` by `text`, in code points of the text before it."""

    start: Position
    end: Position
    text: str


def split_lines(text: str) -> list[str]:
    """The lines of `text` with their endings; the last one is empty if the text ends a line."""
    lines = _LINE.findall(text)
    if not lines or lines[-1].endswith(("\r", "\n")):
        lines.append("")
    return lines


class Text:
    """Mutable text as a list of lines. Positions outside are clamped, as the protocol asks."""

    def __init__(self, text: str) -> None:
        self.lines = split_lines(text)

    def __str__(self) -> str:
        return "".join(self.lines)

    def line(self, number: int) -> str:
        """Line `number` without its ending; empty behind the last one."""
        if not 0 <= number < len(self.lines):
            return ""
        return self.lines[number].rstrip("\r\n")

    @property
    def end(self) -> Position:
        return Position(len(self.lines) - 1, len(self.lines[-1]))

    def clamp(self, position: Position) -> Position:
        if position.line >= len(self.lines):
            return self.end
        return Position(position.line, min(position.column, len(self.line(position.line))))

    def apply(self, change: Change) -> None:
        start, end = self.clamp(change.start), self.clamp(change.end)
        if end < start:
            start, end = end, start
        before = self.lines[start.line][: start.column]
        after = self.lines[end.line][end.column :]
        first = start.line
        if first and self.lines[first - 1].endswith("\r"):
            # a line feed typed behind a lone carriage return joins it to one ending
            first -= 1
            before = self.lines[first] + before
        last = end.line + 1
        fresh = split_lines(before + change.text + after)
        if last < len(self.lines):
            if fresh[-1] == "":
                fresh.pop()
            elif not fresh[-1].endswith(("\r", "\n")):  # an ending was deleted: the next line moves up
                fresh[-1:] = split_lines(fresh[-1] + self.lines[last])
                last += 1
                if fresh[-1] == "" and last < len(self.lines):
                    fresh.pop()
        self.lines[first:last] = fresh


def difference(old: Text, new: Text) -> Change | None:
    """One change over whole lines that turns `old` into `new`."""
    if old.lines == new.lines:
        return None
    shorter = min(len(old.lines), len(new.lines))
    head = 0
    while head < shorter and old.lines[head] == new.lines[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old.lines[-1 - tail] == new.lines[-1 - tail]:
        tail += 1
    if tail == 0 or head == len(old.lines):
        # the change reaches the last line: start at the end of the line before if none is left to start on
        if head == len(old.lines) or head == len(new.lines):
            head = max(0, head - 1)
        return Change(Position(head, 0), old.end, "".join(new.lines[head:]))
    text = "".join(new.lines[head : len(new.lines) - tail])
    return Change(Position(head, 0), Position(len(old.lines) - tail, 0), text)

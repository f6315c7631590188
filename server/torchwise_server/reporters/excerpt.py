"""Lines of source for a terminal: neutralised, measured in cells, cut around what matters."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from torchwise_server.reporters.words import visible

_TAB = 4
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A printable line; `start` and `length` mark a part of it, in terminal cells."""

    text: str
    start: int
    length: int


def excerpt(line: str, column: int, end_column: int, width: int) -> Excerpt:
    """`line` from its first character that is no blank, marked from `column` to `end_column` (code points).

    A line wider than `width` cells is cut so that the mark stays in view.
    """
    indent = len(line) - len(line.lstrip())
    column = min(max(column, indent), len(line))
    end_column = min(max(end_column, column), len(line.rstrip()) or column)
    before, marked, after = (
        _printable(part)
        for part in (line[indent:column], line[column:end_column], line[end_column:].rstrip())
    )
    start, length = cell_len(before), cell_len(marked)
    text = before + marked + after
    if cell_len(text) <= width:
        return Excerpt(text, start, max(1, length))
    first = max(0, min(start - width // 4, start + length - width + 2)) if start + length + 1 > width else 0
    shown, dropped = _window(text, first, width)
    return Excerpt(shown, start - dropped, max(1, min(length, width - 1 - (start - dropped))))


def _printable(text: str) -> str:
    return visible(text.replace("\t", " " * _TAB))


def _window(text: str, first: int, width: int) -> tuple[str, int]:
    """At most `width` cells of `text` from about cell `first`, and how many cells the mark moved left."""
    shown = ""
    cells = 0
    room = width - 1 - (1 if first else 0)
    begin = first
    for character in text:
        size = cell_len(character)
        if cells < first:
            cells += size
            begin = cells
            continue
        if cells - begin + size > room:
            shown += _CUT
            break
        shown += character
        cells += size
    return (_CUT + shown, begin - 1) if first else (shown, 0)

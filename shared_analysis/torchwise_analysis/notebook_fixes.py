"""Edits of a notebook's joined code, carried out inside its cells.

Only the `source` of a cell that an edit touches is written anew, and of a source kept as a list of lines only
those lines; every other byte of the file stays as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from torchwise_analysis.findings import Edit, Finding, Fix
from torchwise_analysis.fixes import OverlappingEditsError, SourceFile, apply_edits
from torchwise_analysis.source.lines import count_breaks, line_starts, split_lines
from torchwise_analysis.source.nodes import Span
from torchwise_analysis.source.notebooks import Notebook, NotebookCell, read_notebook

_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(_STRING + r"|[\[\]{}]", re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(_STRING + r"|[^,\]}\s]+", re.DOTALL)
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}")


class NotebookFixer:
    """The versions of one notebook, by their joined code. `data` is the text of the `.ipynb` file."""

    def __init__(self, data: str) -> None:
        self._data = {read_notebook(data.removeprefix("\ufeff")).text: data}

    def apply(self, file: SourceFile, finding: Finding, fix: Fix) -> str | None:
        """The joined code after a fix; None where it cannot be done inside cells: it would cross them, touch
        a line that is a command of the notebook, or stand above a cell magic."""
        data = self._data[file.text]
        try:
            expected = apply_edits(file, fix.edits)
            changed = _rewritten(data, file, finding, fix.edits)
        except (OverlappingEditsError, _NotPossibleError):
            return None
        text = read_notebook(changed.removeprefix("\ufeff")).text
        if text != expected:
            return None
        self._data[text] = changed
        return text

    def data(self, text: str) -> str:
        """The text of the `.ipynb` file whose joined code is `text`, which came from `apply`."""
        return self._data[text]


def lines_in_file(data: str) -> dict[int, tuple[int, ...]]:
    """For each cell with a source, by its number from 1: on which line of the `.ipynb` file (from 0) each of
    its lines stands. Empty for what is no notebook.

    Jupyter writes a line of code to a line of the file; a source kept as one string has all of them on one.
    """
    try:
        sources = _sources(data)
        return {number: tuple(_file_lines(data, source)) for number, source in sources.items()}
    except (_NotPossibleError, LookupError, ValueError, RecursionError):
        return {}


def _file_lines(data: str, source: _Source) -> Iterator[int]:
    raw = data[source.start : source.end]
    items = [(0, len(raw))] if raw.startswith('"') else _items(raw, 0)
    at, line = 0, data.count("\n", 0, source.start)
    is_open = False  # the last string ended within a line of code
    for start, end in items:
        value: object = json.loads(raw[start:end])
        if not isinstance(value, str) or not value:
            continue
        line += raw.count("\n", at, start)
        at = start
        ends_open = not value.endswith(("\n", "\r"))
        for _ in range(count_breaks(value) + ends_open - is_open):
            yield line
        is_open = ends_open


class _NotPossibleError(Exception):
    """The edit has no place inside one cell."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The value of a cell's `source` and where it stands in the file."""

    text: str
    start: int
    end: int


def _rewritten(data: str, file: SourceFile, finding: Finding, edits: Sequence[Edit]) -> str:
    notebook = read_notebook(data.removeprefix("\ufeff"))
    sources = _sources(data)
    by_cell: dict[int, list[Edit]] = {}
    for edit in edits:
        if edit.place.path != file.path:
            raise _NotPossibleError
        cell = _cell_of(notebook, sources, edit, finding)
        by_cell.setdefault(cell.number, []).append(edit)
    replaced: list[tuple[_Source, str]] = []
    for cell in notebook.cells:
        if cell.number in by_cell:
            source = sources[cell.number]
            new = _edited(notebook, cell, source.text, by_cell[cell.number])
            replaced.append((source, _encoded(data, source, new)))
    for source, text in reversed(replaced):
        data = data[: source.start] + text + data[source.end :]
    return data


# --------------------------------------------------------------------------- which cell, and what it becomes


def _cell_of(notebook: Notebook, sources: dict[int, _Source], edit: Edit, finding: Finding) -> NotebookCell:
    span = edit.place.span
    index = _index(notebook, span.line)
    cell = notebook.cells[index]
    if span.end_line > cell.line + cell.line_count or (
        span.end_line == cell.line + cell.line_count and span.end_column
    ):
        raise _NotPossibleError
    is_between = (span.line, span.column) == (span.end_line, span.end_column) == (cell.line, 0) and index > 0
    if is_between and _is_of_cell_above(notebook.cells[index - 1], edit.text, finding):
        return notebook.cells[index - 1]
    if (span.line, span.column) == (cell.line, 0) and sources[cell.number].text.lstrip().startswith("%%"):
        raise _NotPossibleError  # a cell magic must stay on top
    return cell


def _index(notebook: Notebook, line: int) -> int:
    found = -1
    for index, cell in enumerate(notebook.cells):
        if cell.line <= line:
            found = index
    if found < 0:
        raise _NotPossibleError
    return found


def _is_of_cell_above(above: NotebookCell, text: str, finding: Finding) -> bool:
    """An insertion between two cells belongs to the block it continues, or to the cell of its finding."""
    if text[:1] in " \t":
        return True
    if text.startswith(("import ", "from ")):
        return False
    return above.line <= finding.place.span.line < above.line + above.line_count


def _edited(notebook: Notebook, cell: NotebookCell, source: str, edits: Sequence[Edit]) -> str:
    joined = split_lines(notebook.text)
    original = split_lines(source)
    starts = line_starts(source)

    def offset(line: int, column: int) -> int:
        if line == len(starts):  # behind a last line without line break
            return len(source) + 1
        if column and original[line] != joined[cell.line + line]:
            raise _NotPossibleError  # a command of the notebook, blanked in the joined code
        return starts[line] + column

    # the joined code ends every cell with a line break
    text = source if source.endswith(("\n", "\r")) else source + "\n"
    for edit in sorted(edits, key=lambda each: _start(each.place.span), reverse=True):
        span = edit.place.span
        start = offset(span.line - cell.line, span.column)
        end = offset(span.end_line - cell.line, span.end_column)
        text = text[:start] + edit.text + text[end:]
    return text if source.endswith(("\n", "\r")) else text.removesuffix("\n")


def _start(span: Span) -> tuple[int, int]:
    return span.line, span.column


def _encoded(data: str, source: _Source, new: str) -> str:
    """The value of `source` with the text `new`, in the style of the file."""
    is_ascii = data.isascii() and _ESCAPED.search(data) is not None
    raw = data[source.start : source.end]
    if raw.startswith('"'):
        return json.dumps(new, ensure_ascii=is_ascii)
    items = [(source.start + start, source.start + end) for start, end in _items(raw, 0)]
    values = [json.loads(data[start:end]) for start, end in items]
    if not values or not all(isinstance(value, str) for value in values):
        raise _NotPossibleError
    above = _kept(values, new)
    rest = new[sum(map(len, values[:above])) :]
    below = _kept([value[::-1] for value in reversed(values[above:])], rest[::-1])
    while above and not values[above - 1].endswith("\n"):
        above -= 1
        rest = values[above] + rest
    middle = rest[: len(rest) - sum(map(len, values[len(values) - below :]))] if below else rest
    tokens = [data[start:end] for start, end in items[:above]]
    tokens += [json.dumps(line, ensure_ascii=is_ascii) for line in middle.splitlines(keepends=True)]
    tokens += [data[start:end] for start, end in items[len(items) - below :]] if below else []
    opening, closing = data[source.start : items[0][0]], data[items[-1][1] : source.end]
    between = data[items[0][1] : items[1][0]] if len(items) > 1 else "," + opening[1:]
    return opening + between.join(tokens) + closing


def _kept(values: Sequence[str], text: str) -> int:
    """How many values stand at the start of `text` as they are."""
    position = 0
    for number, value in enumerate(values):
        if not text.startswith(value, position):
            return number
        position += len(value)
    return len(values)


# --------------------------------------------------------------------------- JSON with places


def _sources(data: str) -> dict[int, _Source]:
    """The sources of the cells by their number from 1."""
    top = _members(data, _space(data, 1 if data.startswith("\ufeff") else 0))
    if "cells" in top:
        cells = _items(data, top["cells"][0])
    else:  # format 3 keeps them in worksheets
        sheets = _items(data, top["worksheets"][0])
        cells = _items(data, _members(data, sheets[0][0])["cells"][0])
    found: dict[int, _Source] = {}
    for number, (start, _) in enumerate(cells, start=1):
        if data[start] != "{":
            continue
        members = _members(data, start)
        place = members.get("source", members.get("input"))
        if place is not None:
            value: object = json.loads(data[place[0] : place[1]])
            lines = [value] if isinstance(value, str) else value
            if isinstance(lines, list):
                texts = (line for line in cast("list[object]", lines) if isinstance(line, str))
                found[number] = _Source("".join(texts), *place)
    return found


def _members(data: str, start: int) -> dict[str, tuple[int, int]]:
    """Where the values of the object at `start` stand; as in JSON, the last of equal keys counts."""
    found: dict[str, tuple[int, int]] = {}
    position = _space(data, start + 1)
    while data[position] != "}":
        end = _value_end(data, position)
        key = json.loads(data[position:end])
        begin = _space(data, _space(data, end) + 1)  # behind the colon
        end = _value_end(data, begin)
        found[key] = (begin, end)
        position = _next(data, end)
    return found


def _items(data: str, start: int) -> list[tuple[int, int]]:
    """Where the items of the list at `start` stand."""
    found: list[tuple[int, int]] = []
    position = _space(data, start + 1)
    while data[position] != "]":
        end = _value_end(data, position)
        found.append((position, end))
        position = _next(data, end)
    return found


def _next(data: str, end: int) -> int:
    position = _space(data, end)
    return _space(data, position + 1) if data[position] == "," else position


def _value_end(data: str, start: int) -> int:
    if data[start] not in "[{":
        scalar = _SCALAR.match(data, start)
        if scalar is None:
            raise _NotPossibleError
        return scalar.end()
    depth = 0
    for token in _TOKEN.finditer(data, start):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth == 0:
            return token.end()
    raise _NotPossibleError


def _space(data: str, position: int) -> int:
    match = _SPACE.match(data, position)
    return position if match is None else match.end()

"""Jupyter notebooks as one Python text with a way back to cells.

The code cells follow one another, each on lines of its own. What IPython adds to Python (magics,
shell lines, help) is blanked and not deleted, so that columns and lines stay.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torchwise_analysis.source.lines import count_breaks
from torchwise_analysis.source.scanner import logical_line

# Cell magics that run the rest of their cell as Python, in this process.
_PYTHON_CELL_MAGICS = frozenset(
    {"time", "timeit", "capture", "prun", "memit", "mprun", "pyinstrument", "debug"}
)

_CELL_MAGIC = re.compile(r"\s*%%(\w*)")
_ASSIGNED = re.compile(r"([ \t]*[\w.,()\[\] \t]*=[ \t]*)[%!](?!=)")
_HELP = re.compile(r"[ \t]*[%\w.*]+\?{1,2}[ \t]*(?=[\r\n]|\Z)")
_REST_OF_COMMAND = re.compile(r"(?:[^\\\r\n]|\\(?:\r\n|[\s\S])|\\\Z)*")
_BREAK = re.compile(r"\r\n|\r|\n")

# What an assigned magic becomes: a call about which nothing is known.
_UNKNOWN = "get_ipython()"


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """A code cell: its number among all cells (from 1) and its first line in the text (from 0)."""

    number: int
    line: int
    line_count: int


@dataclass(frozen=True, slots=True)
class Notebook:
    """`text` is Python; `problem` says why it is empty although the file is not.

    `is_foreign`: a sound notebook of another language.
    """

    text: str
    cells: tuple[NotebookCell, ...] = ()
    problem: str | None = None
    is_foreign: bool = False

    def cell_of(self, line: int) -> tuple[int, int] | None:
        """Cell and line in it, both from 1, of a line (from 0) of the text; None outside of all cells."""
        index = bisect_right(self.cells, line, key=lambda cell: cell.line) - 1
        if index < 0:
            return None
        cell = self.cells[index]
        return cell.number, min(line - cell.line, cell.line_count - 1) + 1

    def line_of(self, cell_number: int, line: int) -> int | None:
        """Line (from 0) of the text of a line (from 1) of a cell; None for what is no code."""
        for cell in self.cells:
            if cell.number == cell_number and 1 <= line <= cell.line_count:
                return cell.line + line - 1
        return None


def read_notebook(data: bytes | str) -> Notebook:
    """The Python of an `.ipynb` file; never raises: a file that is no notebook has a problem.

    An empty file is a notebook without cells, as editors see one that was just made.
    """
    if not data.strip():
        return _joined([])
    try:
        content: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        return Notebook("", problem=f"not a notebook: {error}")
    if not isinstance(content, dict):
        return Notebook("", problem="not a notebook: no JSON object")
    notebook = cast("dict[str, object]", content)
    language = _language(notebook)
    if language is not None and language.lower() not in ("python", "ipython"):
        return Notebook("", problem=f"not a Python notebook: its language is {language}", is_foreign=True)
    cells = _cells(notebook)
    if cells is None:
        return Notebook("", problem="not a notebook: no list of cells")
    return _joined(cells)


def without_magics(cell: str) -> str:
    """The text of a cell with everything that is not Python blanked; lines and columns stay."""
    magic = _CELL_MAGIC.match(cell)
    if magic is not None and magic.group(1) not in _PYTHON_CELL_MAGICS:
        return "".join(_BREAK.findall(cell))
    parts: list[str] = []
    position = 0
    while position < len(cell):
        replaced = _without_magic(cell, position)
        if replaced is None:
            line = logical_line(cell, position)
            parts.append(cell[position : line.end])
            position = line.end
            continue
        text, position = replaced
        parts.append(text)
    return "".join(parts)


def _without_magic(cell: str, start: int) -> tuple[str, int] | None:
    """The replacement of a magic line and where the next line starts; None for Python."""
    command = _REST_OF_COMMAND.match(cell, start)
    end = start if command is None else command.end()
    following = _BREAK.match(cell, end)
    next_line = end if following is None else following.end()
    line = cell[start:end]
    stripped = line.lstrip(" \t")
    assigned = _ASSIGNED.match(line)
    if assigned is not None:
        # further lines of the command would be code
        breaks = "".join(_BREAK.findall(line))
        return assigned.group(1) + _UNKNOWN + breaks + cell[end:next_line], next_line
    if not stripped.startswith(("%", "!", "?")) and _HELP.match(line) is None:
        return None
    indent = line[: len(line) - len(stripped)]
    # a block must not become empty
    first = f"{indent}pass" if indent else ""
    return first + "".join(_BREAK.findall(line)) + cell[end:next_line], next_line


# --------------------------------------------------------------------------- JSON


@dataclass(frozen=True, slots=True)
class _CodeCell:
    number: int
    source: str


def _joined(cells: list[_CodeCell]) -> Notebook:
    parts: list[str] = []
    placed: list[NotebookCell] = []
    line = 0
    for cell in cells:
        text = without_magics(cell.source)
        if not text.endswith(("\n", "\r")):
            text += "\n"
        count = count_breaks(text)
        placed.append(NotebookCell(cell.number, line, count))
        parts.append(text)
        line += count
    return Notebook("".join(parts), tuple(placed))


def _language(notebook: dict[str, object]) -> str | None:
    metadata = notebook.get("metadata")
    if not isinstance(metadata, dict):
        return None
    for section, name in (("kernelspec", "language"), ("language_info", "name")):
        part = cast("dict[str, object]", metadata).get(section)
        if isinstance(part, dict):
            language = cast("dict[str, object]", part).get(name)
            if isinstance(language, str):
                return language
    return None


def _cells(notebook: dict[str, object]) -> list[_CodeCell] | None:
    cells = notebook.get("cells")
    if cells is None:
        # format 3 keeps them in worksheets
        worksheets = notebook.get("worksheets")
        sheets = cast("list[object]", worksheets) if isinstance(worksheets, list) else []
        first = sheets[0] if sheets else None
        cells = cast("dict[str, object]", first).get("cells") if isinstance(first, dict) else None
    if not isinstance(cells, list):
        return None
    return list(_code_cells(cast("list[object]", cells)))


def _code_cells(cells: list[object]) -> Iterator[_CodeCell]:
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict):
            continue
        fields = cast("dict[str, object]", cell)
        source = _source(fields.get("source", fields.get("input")))
        if fields.get("cell_type") == "code" and source is not None and _is_python(fields):
            yield _CodeCell(number, source)


def _source(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(line for line in cast("list[object]", value) if isinstance(line, str))
    return None


def _is_python(cell: dict[str, object]) -> bool:
    """Whether an editor has not marked the cell as one of another language."""
    metadata = cell.get("metadata")
    editor = cast("dict[str, object]", metadata).get("vscode") if isinstance(metadata, dict) else None
    if not isinstance(editor, dict):
        return True
    return cast("dict[str, object]", editor).get("languageId", "python") == "python"

"""How reports speak of files and lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchwise_analysis.names.launches import GIVEN
from torchwise_memory.report import Origin
from torchwise_server.reporters.words import one_line


def _no_line(path: str, line: int) -> None:  # noqa: ARG001
    return None


@dataclass(frozen=True, slots=True)
class Sources:
    """How reports speak of files: the name to print for a path, its lines, and the cell of a notebook's line.

    `short` is the name for a reader, who knows a library's file by its place in the library.
    `cell` maps (path, line) to (number of the cell from 1, line in it), None where the file is no notebook.
    `file_line` maps the same to the line (from 0) of a notebook's file, None where it is not known.
    """

    name: Callable[[str], str]
    short: Callable[[str], str]
    lines: Callable[[str], tuple[str, ...]]
    cell: Callable[[str, int], tuple[int, int] | None]
    file_line: Callable[[str, int], int | None] = _no_line

    def line(self, path: str, line: int) -> str:
        """A line (from 0) as a reader finds it: its number from 1, or the cell and the line in it."""
        cell = self.cell(path, line)
        return str(line + 1) if cell is None else f"cell {cell[0]}:{cell[1]}"

    def at(self, path: str, line: int) -> str:
        """`name:line` of a line (from 0)."""
        return f"{self.name(path)}:{self.line(path, line)}"

    def place(self, origin: Origin | None, home: str) -> str:
        """A line for a reader of a report on the file `home`; empty where none is known."""
        if origin is None:
            return ""
        if origin.path == GIVEN:
            return "command line"
        line = self.line(origin.path, origin.line - 1)
        if origin.path == home:
            return f"line {line}" if line.isdigit() else line
        return f"{one_line(self.short(origin.path))}:{line}"

    def cell_fields(self, path: str, line: int) -> dict[str, int]:
        """Where a line (from 0) of a notebook's joined code stands in the notebook, for JSON."""
        cell = self.cell(path, line)
        return {} if cell is None else {"cell": cell[0], "cell_line": cell[1]}

    def notebook_fields(self, path: str, line: int) -> dict[str, int]:
        """The same, and the line of the `.ipynb` file as it was read."""
        row = self.file_line(path, line)
        return {**self.cell_fields(path, line), **({} if row is None else {"file_line": row + 1})}

    def rows(self, path: str, first: int, last: int) -> tuple[int, int] | None:
        """The lines from 1 of the file that hold these lines (from 0) of its code; None where not known."""
        if self.cell(path, first) is None:
            return first + 1, last + 1
        start, end = self.file_line(path, first), self.file_line(path, last)
        return None if start is None or end is None else (start + 1, end + 1)

"""How reports speak of files and lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchwise_analysis.names.launches import GIVEN
from torchwise_memory.report import Origin
from torchwise_server.reporters.words import one_line


@dataclass(frozen=True, slots=True)
class Sources:
    """How reports speak of files: the name to print for a path, its lines, and the cell of a notebook's line.

    `short` is the name for a reader, who knows a library's file by its place in the library.
    `cell` maps (path, line) to (number of the cell from 1, line in it), None where the file is no notebook.
    """

    name: Callable[[str], str]
    short: Callable[[str], str]
    lines: Callable[[str], tuple[str, ...]]
    cell: Callable[[str, int], tuple[int, int] | None]

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

"""Open documents: files and notebooks as the client has them, and what is known of them.

They belong to the message loop. The analysis thread sees only `unseen`: the changes it has not taken
yet, each with the version it leads to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lsprotocol import types as lsp

from torchwise_analysis.engine import CheckStatistics
from torchwise_analysis.findings import Finding, Place
from torchwise_analysis.policy import Surface
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import Estimate, Unanswered
from torchwise_server.lsp.convert import Located, Units
from torchwise_server.lsp.magics import without_magics
from torchwise_server.lsp.text import Change, Position, Text, difference


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of one version, all of them: what is shown is decided when they are shown.

    is_broken: part of the text is no Python. failures: faults of ours, contained. is_verified: every fix was
    applied on trial. valid_s: the answer changes by itself after so many seconds. read: other files that the
    answer rests on.
    """

    findings: tuple[Finding, ...] = ()
    is_broken: bool = False
    failures: tuple[str, ...] = ()
    is_verified: bool = False
    valid_s: float | None = None
    statistics: CheckStatistics = field(default_factory=CheckStatistics)
    read: frozenset[str] = frozenset()
    version: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimated:
    """The estimates of one version. `made_at` is an earlier one if the text is broken since."""

    estimates: tuple[Estimate, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    is_broken: bool = False
    failures: tuple[str, ...] = ()
    version: int = 0
    made_at: int = 0
    seconds: float = 0.0

    @property
    def is_kept(self) -> bool:
        """Whether it speaks of an earlier text."""
        return self.made_at < self.version


class Update(NamedTuple):
    """Changes that lead to `version`; a string replaces the whole text."""

    version: int
    changes: tuple[Change | str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it needs no earlier text."""
        return bool(self.changes) and isinstance(self.changes[0], str)


@dataclass(frozen=True, slots=True)
class _Shift:
    """An edit seen from lines, leading to `version`: those from `first` on moved by `by`, those between
    `start` and `first` were deleted."""

    version: int
    start: int
    first: int
    by: int

    def moved(self, line: int) -> int:
        if line >= self.first:
            return line + self.by
        return min(line, self.start)


@dataclass(frozen=True, slots=True)
class Shown:
    """Findings as they were last made for the client, under what options."""

    findings: tuple[Finding, ...]
    shown_as: tuple[Surface, str]
    by_uri: dict[str, list[lsp.Diagnostic]]


class OpenDocument:
    """What the client has open, as one Python text that is analysed."""

    def __init__(self, uri: str, path: str, text: str, version: int) -> None:
        self.uri = uri
        self.path = path
        self.text = Text(text)
        self.version = version
        self.unseen: deque[Update] = deque([Update(version, (text,))])
        self.checked: Checked | None = None
        self.estimated: Estimated | None = None
        self.lenses: tuple[tuple[str, int], ...] = ()  # titles and lines the client was last asked to show
        self.hinted: tuple[tuple[int, str], ...] = ()  # lines and texts of inlay hints, likewise
        self.diagnostics: Shown | None = None
        self._shifts: deque[_Shift] = deque(maxlen=1000)

    @property
    def uris(self) -> Sequence[str]:
        """The client's documents that diagnostics are sent for."""
        return (self.uri,)

    def version_of(self, uri: str) -> int | None:
        """The client's own version of one of its documents."""
        return self.version if uri == self.uri else None

    def locate(self, place: Place) -> Located | None:
        """Where a place of this document is for the client."""
        return Located(self.uri, place.span, self.text.line)

    def position(self, uri: str, position: Position) -> Position | None:
        """A position in the client's document `uri` as one of the analysed text."""
        return position if uri == self.uri else None

    def has_plain_columns(self, units: Units) -> bool:
        """Whether columns are the same for the client, whatever stands in their lines."""
        return units.counts_code_points or all(line.isascii() for line in self.text.lines)

    def line_of(self, uri: str, number: int) -> str:
        """A line of the client's document `uri`."""
        return self.text.line(number) if uri == self.uri else ""

    def change(self, version: int, changes: Iterable[Change | str]) -> None:
        made = tuple(changes)
        self.version = version
        self.unseen.append(Update(version, made))

    def apply(self, change: Change | str) -> None:
        """Bring the text up to date; `change` tells the analysis afterwards."""
        before = len(self.text.lines)
        if isinstance(change, str):
            self.text = Text(change)
            return
        self.text.apply(change)
        by = len(self.text.lines) - before
        if by:
            first = change.end.line + (1 if change.end.column else 0)
            self._shifts.append(_Shift(self.version + 1, change.start.line, first, by))

    def current_line(self, line: int, version: int) -> int:
        """Where line `line` of an earlier version is now."""
        for shift in self._shifts:
            if shift.version > version:
                line = shift.moved(line)
        return min(line, len(self.text.lines) - 1)

    def resend(self) -> None:
        """Let the analysis start from the whole text again."""
        self.unseen.clear()
        self.unseen.append(Update(self.version, (str(self.text),)))


@dataclass(slots=True)
class OpenFile:
    """A file that the client has open and that is no Python: the settings of a project."""

    uri: str
    path: str
    text: Text
    version: int


@dataclass(slots=True)
class Cell:
    """One Python cell of a notebook."""

    uri: str
    version: int
    text: Text


class OpenNotebook(OpenDocument):
    """A notebook as one Python text: its code cells in order, magics blanked, each on lines of its own."""

    def __init__(self, uri: str, path: str, order: Iterable[str], cells: Mapping[str, Cell]) -> None:
        self._order = list(order)  # all cells, also those that hold no Python
        self._cells = dict(cells)
        super().__init__(uri, path, self._join(), 0)

    @property
    def cells(self) -> list[Cell]:
        """The Python cells in order."""
        return [self._cells[uri] for uri in self._order if uri in self._cells]

    @property
    def uris(self) -> Sequence[str]:
        return [cell.uri for cell in self.cells]

    def version_of(self, uri: str) -> int | None:
        cell = self.cell(uri)
        return cell.version if cell else None

    def cell(self, uri: str) -> Cell | None:
        return self._cells.get(uri)

    def has_plain_columns(self, units: Units) -> bool:  # noqa: ARG002 - and places move with the cells
        return False

    def rearrange(self, start: int, removed: int, added: Iterable[str], cells: Mapping[str, Cell]) -> None:
        """Replace `removed` cells from number `start` on; `cells` brings the texts of new ones."""
        gone = self._order[start : start + removed]
        self._order[start : start + removed] = added
        for uri in gone:
            if uri not in self._order:
                self._cells.pop(uri, None)
        self._cells.update(cells)

    def locate(self, place: Place) -> Located | None:
        number = bisect_right(self._starts, place.span.line) - 1
        if not 0 <= number < len(self.cells):
            return None
        cell, start = self.cells[number], self._starts[number]
        span = place.span.shifted(-start)
        last = len(cell.text.lines) - 1
        if span.end_line > last:
            # the line below the cell's last one belongs to the next cell
            if (span.end_line, span.end_column) != (last + 1, 0):
                return None
            span = Span(span.line, span.column, *cell.text.end)
        return Located(cell.uri, span, cell.text.line)

    def position(self, uri: str, position: Position) -> Position | None:
        for cell, start in zip(self.cells, self._starts, strict=True):
            if cell.uri == uri:
                return Position(start + position.line, position.column)
        return None

    def line_of(self, uri: str, number: int) -> str:
        cell = self.cell(uri)
        return cell.text.line(number) if cell else ""

    def refresh(self) -> None:
        """The cells were changed: derive the joined text, as one change for the analysis."""
        change = difference(self.text, Text(self._join()))
        if change is not None:
            self.apply(change)
            self.change(self.version + 1, (change,))

    def _join(self) -> str:
        self._starts: list[int] = []
        parts: list[str] = []
        line = 0
        for cell in self.cells:
            self._starts.append(line)
            ends = len(cell.text.lines) > 1 and not cell.text.lines[-1]
            parts.append(without_magics(cell.text) + ("" if ends else "\n"))
            line += len(cell.text.lines) - (1 if ends else 0)
        return "".join(parts)

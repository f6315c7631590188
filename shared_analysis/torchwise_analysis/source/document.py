"""A document under edit: its text, and its module at the price of what changed.

An edit costs a rescan of the lines around it; the module after it costs the parse of the segments
whose text is new and the placing of those that moved. The result is always the one that a fresh
`Document` of the same text would give, stand-ins for broken segments aside.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from torchwise_analysis.source.collector import collector_paused
from torchwise_analysis.source.lines import count_breaks, line_starts
from torchwise_analysis.source.lower_text import too_much, whole
from torchwise_analysis.source.nodes import Block, Module, Problem
from torchwise_analysis.source.scanner import LineTable, comments_of
from torchwise_analysis.source.segments import (
    Lowered,
    Placer,
    Segment,
    SegmentCache,
    Source,
    Stale,
    TreeCache,
    cut,
    lower_piece,
)

if TYPE_CHECKING:
    import libcst

_BREAK = re.compile(r"[\r\n]")
# Trees of the segments edited last; once a segment is lowered its tree only serves who wants to transform it.
_MAX_TREES = 4
_MAX_STAND_INS = 20
STALE_SECONDS = 5.0

_Segments: TypeAlias = "Sequence[tuple[int, Segment]]"


class CommentToken(NamedTuple):
    """A comment with its hash sign; line and column from 0."""

    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class SegmentTree:
    """The LibCST tree of one segment.

    `module` holds `prefix`, the segment's text and `suffix`: a member of a body stands below a
    header of ours that allows its indentation. Line n (from 1) of the tree is line
    `line + n - 1` (from 0) of the document.
    """

    module: libcst.Module
    line: int
    prefix: str
    suffix: str

    def text_of(self, module: libcst.Module) -> str:
        """The segment's new text out of a transformed tree; ValueError if it changed our own lines."""
        code = module.code
        if not code.startswith(self.prefix) or not code.endswith(self.suffix):
            raise ValueError("the transformation went beyond the segment")
        return code[len(self.prefix) : len(code) - len(self.suffix)]


class _Shift(NamedTuple):
    """Lines [start, old_end] became [start, new_end]."""

    start: int
    old_end: int
    new_end: int

    def moved(self, line: int) -> int:
        if line <= self.start:
            return line
        if line > self.old_end:
            return line + self.new_end - self.old_end
        return min(line, self.new_end)


class Document:
    """One text with its module. Lines and columns from 0, columns in code points.

    A segment that breaks while it is being typed keeps its last good lowering for
    `stale_seconds` of `clock`. Not safe for use by several threads at once.
    """

    def __init__(
        self,
        path: str,
        text: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self.path = path
        self._text = text
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._trees = TreeCache(_MAX_TREES)
        self._cache = SegmentCache(self._lower)
        self._table = LineTable.of(text)
        self._relaxed: LineTable | None = None
        self._segments: _Segments = ()
        self._shifts: list[_Shift] = []
        self._stale: dict[Segment, Stale] = {}
        self._stale_lines: tuple[tuple[int, int], ...] = ()
        self._module: Module | None = None
        self._is_cut = False
        self._is_edited = False

    @property
    def text(self) -> str:
        return self._text

    @property
    def line_starts(self) -> list[int]:
        """Offset of the first character of every line."""
        return line_starts(self._text)

    @property
    def line_count(self) -> int:
        return self._table.row_starts()[-1] + 1

    @property
    def module(self) -> Module:
        """The lowered module of the text as it is now."""
        if self._module is None or self._is_expired():
            with collector_paused():
                self._module = self._assemble()
        return self._module

    @property
    def stale(self) -> tuple[tuple[int, int], ...]:
        """Lines [start, end] of broken segments that `module` shows as they last were."""
        return self._stale_lines if self.module.problems else ()

    @property
    def stale_until(self) -> float | None:
        """When (by the clock) the next stand-in expires and `module` changes by itself."""
        return min((stale.expires for stale in self._stale.values()), default=None)

    def edit(self, start_line: int, start_column: int, end_line: int, end_column: int, new_text: str) -> None:
        """Replace a range; positions behind the end of a line or of the text mean that end."""
        self._is_edited = True
        start = self._offset(start_line, start_column)
        end = max(start, self._offset(end_line, end_column))
        lines = self.line_count
        self._text = self._text[:start] + new_text + self._text[end:]
        self._table.edit(self._text, start, end, start + len(new_text))
        if not self._table.ends_open:
            self._relaxed = None
        elif self._relaxed is not None:
            self._relaxed.edit(self._text, start, end, start + len(new_text))
        old_end = min(max(start_line, end_line), lines - 1)
        new_end = old_end + self.line_count - lines
        self._shifts.append(_Shift(min(start_line, old_end, new_end), old_end, new_end))
        self._module = None
        self._is_cut = False

    def replace(self, text: str) -> None:
        """Take a whole new text; segments whose text is unchanged stay."""
        old, new = self._text, text
        if old == new:
            return
        self._is_edited = True
        start = _common_prefix(old, new)
        end = _common_suffix(old, new, start)
        lines = self.line_count
        first_line = count_breaks(old[:start])
        old_end = lines - 1 - count_breaks(old[len(old) - end :])
        self._text = new
        self._table.edit(new, start, len(old) - end, len(new) - end)
        self._relaxed = None
        new_end = max(first_line, old_end + self.line_count - lines)
        self._shifts.append(_Shift(first_line, max(first_line, old_end), new_end))
        self._module = None
        self._is_cut = False

    def tree_for(self, line: int) -> SegmentTree | None:
        """The LibCST tree of the innermost segment at a line; None where there is none that parses."""
        found = _segment_at(self._cut(), line)
        if found is None:
            return None
        start, segment = found
        source = segment.source()
        tree = None if segment.is_broken else self._trees.get(source.whole)
        if tree is None:
            return None
        return SegmentTree(tree, start - (1 if source.prefix else 0), source.prefix, source.suffix)

    def comments(self) -> tuple[CommentToken, ...]:
        """All comments, also of what does not parse; hash signs in strings are none."""
        text = self._text
        starts = self._table.starts()
        lines = self.line_starts
        out: list[CommentToken] = []
        position = text.find("#")
        while position >= 0:
            index = bisect_right(starts, position) - 1
            end = starts[index + 1]
            for begin, finish in comments_of(text, starts[index], end):
                line = bisect_right(lines, begin) - 1
                out.append(CommentToken(line, begin - lines[line], text[begin:finish]))
            position = text.find("#", end)
        return tuple(out)

    # ----------------------------------------------------------------- positions

    def _offset(self, line: int, column: int) -> int:
        """Offset of a position, from the line table: the list of all line starts is not kept."""
        if line < 0:
            return 0
        rows = self._table.row_starts()
        if line > rows[-1]:
            return len(self._text)
        index = bisect_right(rows, line) - 1
        starts = self._table.starts()
        if index == len(starts) - 1 and index and self._text[-1] not in "\r\n":
            # the last line has no break of its own
            index -= 1
        begin = starts[index]
        end = starts[index + 1] if index + 1 < len(starts) else len(self._text)
        piece = self._text[begin:end]
        inner = line_starts(piece)
        begin += inner[line - rows[index]]
        line_break = _BREAK.search(self._text, begin)
        line_end = len(self._text) if line_break is None else line_break.start()
        return min(begin + max(0, column), line_end)

    # ----------------------------------------------------------------- module

    def _lower(self, source: Source) -> Lowered:
        """What a segment means: by LibCST what was edited, at a sixth of the cost by `ast` what a file
        holds when it is opened. Both give the same nodes."""
        return self._trees.lower(source) if self._is_edited else lower_piece(source)

    def _assemble(self) -> Module:
        refused = too_much(self._text)
        if refused is not None:
            return Module(self.path, (), (refused,), self.line_count)
        segments = self._cut()
        placer = Placer(self._stale)
        body = placer.block(segments)
        problems = tuple(placer.problems)
        self._stale_lines = tuple(placer.stale_lines)
        lines = self.line_count
        if problems and self._lines_of_text().has_guess:
            recovered = _whole_or_none(self._text)
            if recovered is not None:
                return Module(self.path, recovered, (), lines)
        return Module(self.path, body, problems, lines)

    def _lines_of_text(self) -> LineTable:
        if not self._table.ends_open:
            return self._table
        if self._relaxed is None:
            self._relaxed = LineTable.of(self._text, relaxed=True)
        return self._relaxed

    def _cut(self) -> _Segments:
        """The segments of the text as it is now, with stand-ins for those that broke."""
        if not self._is_cut:
            before, self._segments = self._segments, cut(self._text, self._lines_of_text(), self._cache)
            self._stale = self._stand_ins(before)
            self._shifts.clear()
            self._is_cut = True
        return self._segments

    # ----------------------------------------------------------------- stand-ins

    def _is_expired(self) -> bool:
        if not self._stale:
            return False
        now = self._clock()
        expired = [segment for segment, stale in self._stale.items() if stale.expires <= now]
        for segment in expired:
            del self._stale[segment]
        return bool(expired)

    def _stand_ins(self, before: _Segments) -> dict[Segment, Stale]:
        """Last good segments for each broken one; an edit does not prolong them."""
        broken = list(islice(_broken(self._segments), _MAX_STAND_INS))
        if not broken or not before:
            return {}
        now = self._clock()
        out: dict[Segment, Stale] = {}
        for line, segment in broken:
            stale = self._stale.get(segment) or self._stand_in(line, segment, before, now)
            if stale is not None and stale.expires > now:
                out[segment] = stale
        return out

    def _stand_in(self, line: int, segment: Segment, before: _Segments, now: float) -> Stale | None:
        found: list[tuple[int, Segment]] = []
        expires = now + self._stale_seconds
        last = line + max(0, segment.rows - 1)
        for start, candidate in self._overlapping(before, 0, line, last, segment):
            if not candidate.is_broken:
                found.append((min(max(0, self._moved(start) - line), segment.rows), candidate))
                continue
            stale = self._stale.get(candidate)
            if stale is not None:
                expires = min(expires, stale.expires)
                shift = self._moved(start) - line
                found += [(max(0, row + shift), one) for row, one in stale.segments]
        return Stale(tuple(found), expires) if found else None

    def _overlapping(
        self, segments: _Segments, base: int, first: int, last: int, like: Segment
    ) -> Iterator[tuple[int, Segment]]:
        """Old segments in the place of a new one, where they have its indentation."""
        for row, segment in segments:
            start = base + row
            end = start + max(0, segment.rows - 1)
            if self._moved(end) < first or self._moved(start) > last:
                continue
            if segment.is_nested == like.is_nested and segment.indent == like.indent:
                yield start, segment
            else:
                yield from self._overlapping(segment.children, start, first, last, like)

    def _moved(self, line: int) -> int:
        for shift in self._shifts:
            line = shift.moved(line)
        return line


def _broken(segments: _Segments, base: int = 0) -> Iterator[tuple[int, Segment]]:
    for row, segment in segments:
        if not segment.has_problems:
            continue
        if segment.is_broken:
            yield base + row, segment
        else:
            yield from _broken(segment.children, base + row)


def _segment_at(segments: _Segments, line: int, base: int = 0) -> tuple[int, Segment] | None:
    index = bisect_right(segments, line - base, key=lambda pair: pair[0]) - 1
    if index < 0:
        return None
    row, segment = segments[index]
    start = base + row
    if segment.is_broken:
        return None
    return _segment_at(segment.children, line, start) or (start, segment)


def _whole_or_none(text: str) -> Block | None:
    try:
        return whole(text)
    except (SyntaxError, RecursionError):
        return None


def _common_prefix(old: str, new: str) -> int:
    """Length of the common beginning, not between `\\r` and `\\n`."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old.startswith(new[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low - 1 if low and old[low - 1] == "\r" else low


def _common_suffix(old: str, new: str, start: int) -> int:
    """Length of the common end behind `start`."""
    low, high = 0, min(len(old), len(new)) - start
    while low < high:
        middle = (low + high + 1) // 2
        if old.endswith(new[len(new) - middle : len(new) - low], 0, len(old) - low):
            low = middle
        else:
            high = middle - 1
    return low


__all__ = ["STALE_SECONDS", "CommentToken", "Document", "Problem", "SegmentTree"]

"""Places of the analysed file that move with the text.

Results outlive edits, so nothing in them may say at which line of the document it stands. A file is cut
into units (top-level statements, members of classes); each unit has a block of line numbers of its own, in
which the interpreter runs it, and a `Ground` says where in the document the blocks lie now. Lines that come
in between its statements, or go, bend a block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span

BLOCK_BITS = 20
BLOCK = 1 << BLOCK_BITS  # lines of a block: more than any file has


# Lines of a block, in order, from each of which on so many lines are to be added to the block's own shift.
Bends: TypeAlias = "tuple[tuple[int, int], ...]"


class Ground:
    """How many lines each block of a file must be moved to stand in the document. Block 0 is the document."""

    __slots__ = ("_bends", "shifts")

    def __init__(self) -> None:
        self.shifts: list[int] = [0]
        self._bends: dict[int, Bends] = {}

    @property
    def layout(self) -> tuple[object, ...]:
        """The same as long as everything stands where it does."""
        return (tuple(self.shifts), tuple(self._bends.items()))

    def new_block(self, line: int) -> int:
        """The first line of a new block that begins at the document's `line`."""
        start = len(self.shifts) << BLOCK_BITS
        self.shifts.append(line - start)
        return start

    def move(self, start: int, line: int, bends: Bends = ()) -> None:
        """The block that holds the block line `start` now has it at the document's `line`."""
        block = start >> BLOCK_BITS
        self.shifts[block] = line - start
        if bends:
            self._bends[block] = bends
        elif block in self._bends:
            del self._bends[block]

    def shift(self, line: int) -> int:
        """How far up or down the document's line of a block line is."""
        block = line >> BLOCK_BITS
        shift = self.shifts[block]
        bends = self._bends.get(block) if self._bends else None
        if bends is None:
            return shift
        index = bisect_right(bends, (line, BLOCK)) - 1
        return shift if index < 0 else shift + bends[index][1]

    def line(self, line: int) -> int:
        """The document's line of a block line."""
        return line + self.shift(line)


def bends_of(moved: Sequence[tuple[int, int]]) -> Bends:
    """By lines of a block and how far what begins there moved within it."""
    found: list[tuple[int, int]] = []
    for line, by in sorted(moved):
        if by != (found[-1][1] if found else 0):
            found.append((line, by))
    return tuple(found)


_set = object.__setattr__  # places are made by the million


class Spot(Place):
    """A place by its block; `span` is where it stands in the document when it is asked.

    Equal and hashed by the block lines: edits that move it change neither.
    """

    __slots__ = ("_ground", "_span")

    _ground: Ground
    _span: Span

    def __init__(self, path: str, span: Span, ground: Ground) -> None:
        _set(self, "path", path)
        _set(self, "_span", span)
        _set(self, "_ground", ground)

    @property
    def span(self) -> Span:  # pyright: ignore[reportIncompatibleVariableOverride] - read-only there too
        span = self._span
        return span.shifted(self._ground.shift(span[0]))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Spot) and self._span == other._span and self.path == other.path
        )

    def __hash__(self) -> int:
        return hash(self._span)


def settled(place: Place) -> Place:
    """The place as it is now, for good."""
    return Place(place.path, place.span) if isinstance(place, Spot) else place

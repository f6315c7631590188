"""Places of the analysed file that move with the text.

Results outlive edits, so nothing in them may say at which line of the document it stands. A file is cut
into units (top-level statements, members of classes); each unit has a block of line numbers of its own, in
which the interpreter runs it, and a `Ground` says where in the document the blocks lie now.
"""

from __future__ import annotations

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span

BLOCK_BITS = 20
BLOCK = 1 << BLOCK_BITS  # lines of a block: more than any file has


class Ground:
    """How many lines each block of a file must be moved to stand in the document. Block 0 is the document."""

    __slots__ = ("shifts",)

    def __init__(self) -> None:
        self.shifts: list[int] = [0]

    def new_block(self, line: int) -> int:
        """The first line of a new block that begins at the document's `line`."""
        start = len(self.shifts) << BLOCK_BITS
        self.shifts.append(line - start)
        return start

    def move(self, start: int, line: int) -> None:
        """The block that holds the block line `start` now has it at the document's `line`."""
        self.shifts[start >> BLOCK_BITS] = line - start

    def line(self, line: int) -> int:
        """The document's line of a block line."""
        return line + self.shifts[line >> BLOCK_BITS]


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
        return span.shifted(self._ground.shifts[span[0] >> BLOCK_BITS])

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Spot) and self._span == other._span and self.path == other.path
        )

    def __hash__(self) -> int:
        return hash(self._span)


def settled(place: Place) -> Place:
    """The place as it is now, for good."""
    return Place(place.path, place.span) if isinstance(place, Spot) else place

"""Lower a whole file that nobody is editing: batch work and libraries read as text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchwise_analysis.source.collector import collector_paused
from torchwise_analysis.source.lines import count_breaks, line_starts
from torchwise_analysis.source.lower_ast import AstLowering, parse, taken
from torchwise_analysis.source.nodes import Block, Module, Placed, Problem, Span
from torchwise_analysis.source.scanner import LineTable
from torchwise_analysis.source.segments import Placer, SegmentCache, cut, key_of, pieces

# Four times those of the largest programs that people keep in one file.
_MOST_BRACKETS = 200_000

# The tree of a text takes hundreds of times its size; that of a piece of this many characters is small.
_PIECE = 400_000


class Parsed:
    """The syntax trees of a text: of its pieces, one after the other.

    Whoever looks at them before the text is lowered shares the tree of a text of one piece with the lowering.
    """

    __slots__ = ("_kept", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._kept: ast.Module | None = None

    def trees(self) -> Iterator[ast.Module]:
        """The trees, to be left as they are. Raises SyntaxError or RecursionError."""
        if too_much(self._text) is not None:
            raise SyntaxError("more than any program has")
        for row, piece in pieces(self._text, _PIECE):
            tree = parse(piece)
            if row == 0 and len(piece) == len(self._text):
                self._kept = tree
            yield tree

    def take(self) -> ast.Module | None:
        """The tree of the whole text, if it was made, for whoever takes it apart."""
        kept, self._kept = self._kept, None
        return kept


def lower_text(path: str, text: str, parsed: Parsed | None = None) -> Module:
    """The module of a text; never raises. `parsed`: of this text, if its trees were looked at.

    A text that the running Python cannot parse is lowered segment by segment: newer syntax by
    LibCST, and what does not parse at all becomes `Broken`.
    """
    with collector_paused():
        return _lowered(path, text, parsed.take() if parsed is not None else None)


def _lowered(path: str, text: str, tree: ast.Module | None) -> Module:
    lines = count_breaks(text) + 1
    refused = too_much(text)
    if refused is not None:
        return Module(path, (), (refused,), lines)
    try:
        return Module(path, whole(text, tree), (), lines)
    except (SyntaxError, RecursionError):
        pass
    table = LineTable.of(text)
    if table.ends_open:
        table = LineTable.of(text, relaxed=True)
    placer = Placer()
    body = placer.block(cut(text, table, SegmentCache()))
    return Module(path, body, tuple(placer.problems), lines)


def too_much(text: str) -> Problem | None:
    """Why a text is not parsed at all: a million brackets, each a node of a kilobyte, are no program.

    A semicolon stands for a statement, which is two nodes at the least; one line of them cannot be cut up.
    """
    if len(text) < _MOST_BRACKETS or sum(map(text.count, "([{;;")) <= _MOST_BRACKETS:
        return None
    return Problem(Span(0, 0, 0, 0), "not analysed: more brackets or semicolons than any program has")


def whole(text: str, tree: ast.Module | None = None) -> Block:
    """The statements of a text by `ast.parse`; raises SyntaxError or RecursionError. `tree`: of the text, if
    it is there; it is taken apart."""
    if tree is not None:
        return tuple(_placed(text, 0, tree))
    return tuple(
        [placed for row, piece in pieces(text, _PIECE) for placed in _placed(piece, row, parse(piece))]
    )


def _placed(text: str, row: int, tree: ast.Module) -> Iterator[Placed]:
    """The statements of a text whose first line is the line `row` of its file."""
    starts = [*line_starts(text), len(text)]
    lowering = AstLowering(text)
    for group in _by_lines(tree.body):
        first = lowering.base = lowering.first_line(group[0])
        body = lowering.statements(taken(group))
        last = body[-1].span
        key = key_of(text[starts[first] : starts[first + last.end_line + 1]])
        line = row + first
        span = Span(line, body[0].span.column, line + last.end_line, last.end_column)
        yield Placed(span, line, body, key)


def _by_lines(statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Statements that share a line (semicolons) stay together."""
    group: list[ast.stmt] = []
    for statement in taken(statements):
        if group and statement.lineno > (group[-1].end_lineno or 0):
            yield group
            group = []
        group.append(statement)
    if group:
        yield group

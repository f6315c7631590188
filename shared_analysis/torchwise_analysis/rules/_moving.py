"""Moving a statement within its block, for rules whose cure is another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TypeAlias, cast

from torchwise_analysis.findings import Edit, Place
from torchwise_analysis.fixes import SourceFile, insert_at, insert_statement_after, statements
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span


def moved_before(file: SourceFile, moving: Place, target: Place) -> tuple[Edit, ...] | None:
    """The statement that holds `moving`, put above the one that holds `target`, both in one block.

    An `if` around the moving statement alone moves with it. None where that takes more than whole lines.
    """
    found = _parted(file, moving, target)
    if found is None:
        return None
    (_, span), anchor = found[0][0], found[1][0]
    if not all(_guards_only(outer) for outer, _ in found[0][:-1]):
        return None
    if not (_has_lines_of_its_own(file, span) and _has_lines_of_its_own(file, anchor[1])):
        return None
    text = "".join(file.lines[span.line : span.end_line + 1])
    if not text.endswith(("\n", "\r")):
        text += file.newline
    return (insert_at(file, anchor[1].line, 0, text), _cut(file, span))


def moved_behind(file: SourceFile, moving: Place, target: Place) -> tuple[Edit, ...] | None:
    """The statement of one line that holds `moving`, put right below the one that holds `target`.

    It may go down into an `if`. None where that takes more than a line.
    """
    found = _parted(file, moving, target)
    if found is None or len(found[0]) != 1:
        return None
    (_, span), (_, anchor) = found[0][0], found[1][-1]
    if not all(isinstance(outer, nodes.If) for outer, _ in found[1][:-1]) or span.line != span.end_line:
        return None
    if not (_has_lines_of_its_own(file, span) and _has_lines_of_its_own(file, anchor)):
        return None
    edit = insert_statement_after(file, anchor, file.line(span.line).strip())
    return None if edit is None else (edit, _cut(file, span))


def removed(file: SourceFile, place: Place) -> Edit | None:
    """The simple statement at `place` taken out with its lines; None where its block would be empty."""
    chain = _chain(file, place.span)
    if not chain or place.path != file.path or not _has_lines_of_its_own(file, chain[-1][1]):
        return None
    block = _block_of(chain[-2][0] if len(chain) > 1 else None, chain[-1][0], file)
    return None if len(block) < 2 else _cut(file, chain[-1][1])


_Chain: TypeAlias = "list[tuple[nodes.Stmt, Span]]"


def _parted(file: SourceFile, moving: Place, target: Place) -> tuple[_Chain, _Chain] | None:
    """The statements around both places from the block on in which they part; both stand in that block."""
    if moving.path != file.path or target.path != file.path:
        return None
    first, second = _chain(file, moving.span), _chain(file, target.span)
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    if common in (len(first), len(second)):
        return None
    block = _block_of(first[common - 1][0] if common else None, first[common][0], file)
    if len(block) < 2 or not any(entry is second[common][0] for entry in block):
        return None
    return first[common:], second[common:]


def _chain(file: SourceFile, span: Span) -> _Chain:
    """The statements that hold a range, outermost first."""
    return [(statement, place) for statement, place in statements(file.module) if _holds(place, span)]


def _holds(outer: Span, inner: Span) -> bool:
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    return starts and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)


def _guards_only(statement: nodes.Stmt) -> bool:
    """An `if` without `else` around a single statement."""
    return isinstance(statement, nodes.If) and len(_flat(statement.body)) == 1 and not statement.orelse


def _block_of(parent: nodes.Stmt | None, statement: nodes.Stmt, file: SourceFile) -> tuple[nodes.Stmt, ...]:
    """The statements among which `statement` stands."""
    if parent is None:
        return _flat(file.module.body)
    for block in _blocks(parent):
        flat = _flat(block)
        if any(entry is statement for entry in flat):
            return flat
    return ()


def _blocks(node: nodes.Node) -> Iterator[tuple[nodes.Node, ...]]:
    for entry in fields(node):
        value = getattr(node, entry.name)
        if not isinstance(value, tuple) or isinstance(value, Span):
            continue
        children = tuple(item for item in cast("tuple[object, ...]", value) if isinstance(item, nodes.Node))
        if any(isinstance(item, nodes.Stmt) for item in children):
            yield children
        for item in children:
            if isinstance(item, nodes.Handler | nodes.MatchCase):
                yield from _blocks(item)


def _flat(block: tuple[nodes.Node, ...]) -> tuple[nodes.Stmt, ...]:
    out: list[nodes.Stmt] = []
    for node in block:
        if isinstance(node, nodes.Placed):
            out += _flat(node.body)
        elif isinstance(node, nodes.Stmt):
            out.append(node)
    return tuple(out)


def _has_lines_of_its_own(file: SourceFile, span: Span) -> bool:
    before = file.line(span.line)[: span.column]
    behind = file.line(span.end_line)[span.end_column :].strip()
    return not before.strip() and (not behind or behind.startswith("#"))


def _cut(file: SourceFile, span: Span) -> Edit:
    return Edit(Place(file.path, Span(span.line, 0, span.end_line + 1, 0)), "")

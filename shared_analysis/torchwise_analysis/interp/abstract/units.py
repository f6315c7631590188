"""One file under edit as the interpreter runs it: cut into units that keep their identity.

Every top-level statement is a unit, and so is every member of a class. A unit keeps the nodes and the block
of lines it was first seen with for as long as its source stays the same, wherever it moves. `Source.take`
says what an edit changed: nothing, bodies of functions (their `Code` is counted up), or more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, cast

from torchwise_analysis.interp.abstract.places import Ground
from torchwise_analysis.interp.abstract.static import Mentions, mentions_of, walk
from torchwise_analysis.interp.abstract.values import Code
from torchwise_analysis.source import nodes as nd

_NO_SPAN = nd.Span(0, 0, 0, 0)
# Blocks that no unit stands on any more, before all units get new ones.
_MOST_LEFT_BLOCKS = 2_000


class Change(Enum):
    """What is different from the text before."""

    NOTHING = "lines have moved at most"
    BODIES = "bodies of functions changed"
    MODULE = "what the module defines or runs changed"


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A top-level statement.

    key: of its text; empty when the text does not tell all (it is broken in places). placed: as it is run,
    in its blocks. line: where it stands in the document. blocks: first lines of its own and of those of the
    members of its classes, with the distance of each from `line` in the document.
    called: names that it calls or hands to a call.
    """

    key: str
    placed: nd.Placed
    line: int
    blocks: tuple[tuple[int, int], ...]
    called: frozenset[str]
    mentions: Mentions


class Source:
    """The units of one file, kept from text to text."""

    def __init__(self) -> None:
        self.ground = Ground()
        self.codes: dict[tuple[int, int], Code[Any]] = {}
        self.units: tuple[Unit, ...] = ()
        self.edited: set[Code[Any]] = set()  # whose source changed; whoever wants to know clears it
        self.broken: tuple[nd.Broken, ...] = ()
        self._taken: nd.Module | None = None

    @property
    def body(self) -> nd.Block:
        """The statements to run."""
        return tuple(unit.placed for unit in self.units)

    def take(self, module: nd.Module) -> Change:
        """Make this the text."""
        if module is self._taken:
            return Change.NOTHING
        is_first, self._taken = self._taken is None, module
        if len(self.ground.shifts) > _MOST_LEFT_BLOCKS + 2 * sum(len(unit.blocks) for unit in self.units):
            self.ground, self.units, is_first = Ground(), (), True
        self.broken = tuple(_broken(module.body)) if module.problems else ()
        new = _keyed(module)
        old = self.units
        head, tail = _common_ends(old, new)
        before, after = old[head : len(old) - tail], new[head : len(new) - tail]
        edits = _edits(before, after)
        if is_first or edits is None:
            change = Change.MODULE
            self.codes.clear()
            known = {unit.key: unit for unit in before if unit.key}
            middle = [
                # each unit has a block of its own, so an old one is used again but once
                self._put(known.pop(key), placed.line) if key in known else self._made(key, placed)
                for key, placed in after
            ]
        else:
            change = Change.BODIES if any(edit.changed for edit in edits) else Change.NOTHING
            middle = [self._applied(edit) for edit in edits]
        below = new[len(new) - tail :]
        self.units = (
            *(self._moved(unit, new[i][1].line) for i, unit in enumerate(old[:head])),
            *middle,
            *(self._moved(unit, below[i][1].line) for i, unit in enumerate(old[len(old) - tail :])),
        )
        return change

    def keeps_definitions(self, module: nd.Module) -> bool:
        """Would taking this text change bodies of functions at most?"""
        new = _keyed(module)
        head, tail = _common_ends(self.units, new)
        middle = self.units[head : len(self.units) - tail]
        return bool(self.units) and _edits(middle, new[head : len(new) - tail]) is not None

    # ------------------------------------------------------------------ making and moving

    def _made(self, key: str, placed: nd.Placed) -> Unit:
        start = self.ground.new_block(placed.line)
        blocks = [(start, 0)]
        body: list[nd.Stmt] = []
        for statement in placed.body:
            if isinstance(statement, nd.ClassDef):
                members = tuple(
                    self._member(part, placed.line, blocks) for part in _parts(statement, placed.line)
                )
                body.append(replace(statement, body=members))
            else:
                body.append(_shifted(statement, start - placed.line))
        return _unit(key, nd.Placed(_NO_SPAN, start, tuple(body), placed.key), placed.line, blocks)

    def _member(self, part: _Part, line: int, blocks: list[tuple[int, int]]) -> nd.Placed:
        start = self.ground.new_block(part.start)
        blocks.append((start, part.start - line))
        return part.placed_at(start)

    def _moved(self, unit: Unit, line: int) -> Unit:
        return unit if unit.line == line else self._put(unit, line)

    def _put(self, unit: Unit, line: int) -> Unit:
        for start, distance in unit.blocks:
            self.ground.move(start, line + distance)
        return replace(unit, line=line)

    # ------------------------------------------------------------------ comparing

    def _applied(self, edit: _Edit) -> Unit:
        for changed in edit.changed:
            self._count_up(changed)
        return self._put(edit.unit, edit.unit.line)

    def _count_up(self, changed: _Changed) -> None:
        code = self.codes.pop((id(changed.old), changed.old_line), None)
        if code is not None:
            code.node, code.line, code.version = changed.new, changed.new_line, code.version + 1
            self.codes[id(changed.new), changed.new_line] = code
            self.edited.add(code)


@dataclass(frozen=True, slots=True)
class _Changed:
    old: nd.Stmt
    old_line: int
    new: nd.Stmt
    new_line: int


@dataclass(frozen=True, slots=True)
class _Edit:
    """A unit as it would be, and the definitions in it whose bodies changed."""

    unit: Unit
    changed: tuple[_Changed, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """A member of a class: statements whose spans count from the document's `line`, and its first line."""

    body: nd.Block
    line: int
    start: int
    key: str

    def placed_at(self, start: int) -> nd.Placed:
        """The member with its first line at the block line `start`."""
        shift = start - self.start
        return nd.Placed(_NO_SPAN, self.line + shift, tuple(_shifted(s, shift) for s in self.body), self.key)


def _edits(before: Sequence[Unit], after: Sequence[tuple[str, nd.Placed]]) -> list[_Edit] | None:
    """What makes these units those of this source; None when more than bodies changed."""
    if len(before) != len(after):
        return None
    edits: list[_Edit] = []
    for unit, (key, placed) in zip(before, after, strict=True):
        edit = _edit(unit, key, placed)
        if edit is None:
            return None
        edits.append(edit)
    return edits


def _edit(unit: Unit, key: str, placed: nd.Placed) -> _Edit | None:
    """What makes the unit one of this source; None when more than bodies changed."""
    old = unit.placed
    if len(old.body) != len(placed.body):
        return None
    start = old.line
    blocks = [(start, 0)]
    rest = list(unit.blocks[1:])
    body: list[nd.Stmt] = []
    changes: list[_Changed] = []
    for a, b in zip(old.body, placed.body, strict=True):
        if isinstance(a, nd.ClassDef) and isinstance(b, nd.ClassDef):
            members = _edited_members(a, b, key, placed.line, rest, blocks, changes)
            if members is None or not _same_class_header(a, b):
                return None
            body.append(a if _is_same(a.body, members) else replace(b, body=members))
            if body[-1] is not a:
                changes.append(_Changed(a, start, body[-1], start))
            continue
        moved = _shifted(b, start - placed.line)
        if a == moved:
            body.append(a)
        elif (
            isinstance(a, nd.FunctionDef) and isinstance(moved, nd.FunctionDef) and _same_header(a, moved, 0)
        ):
            changes.append(_Changed(a, start, moved, start))
            body.append(moved)
        else:
            return None
    if not changes:
        return _Edit(replace(unit, key=key, line=placed.line, blocks=tuple(blocks)))
    new = nd.Placed(_NO_SPAN, start, tuple(body), placed.key)
    return _Edit(_unit(key, new, placed.line, blocks), tuple(changes))


def _edited_members(
    old: nd.ClassDef,
    new: nd.ClassDef,
    key: str,
    line: int,
    rest: list[tuple[int, int]],
    blocks: list[tuple[int, int]],
    changes: list[_Changed],
) -> nd.Block | None:
    parts = list(_parts(new, line))
    if len(parts) != len(old.body):
        return None
    members: list[nd.Stmt] = []
    for before, part in zip(old.body, parts, strict=True):
        assert isinstance(before, nd.Placed)  # as made by `_member`
        start = rest.pop(0)[0]
        blocks.append((start, part.start - line))
        if key and part.key and before.key == part.key:
            members.append(before)
            continue
        after = part.placed_at(start)
        if before.line == after.line and before.body == after.body:
            members.append(before)
            continue
        if len(before.body) != 1 or len(after.body) != 1:
            return None
        a, b = before.body[0], after.body[0]
        down = before.line - after.line
        if _alike(a, b, down):
            members.append(before)
        elif isinstance(a, nd.FunctionDef) and isinstance(b, nd.FunctionDef) and _same_header(a, b, down):
            changes.append(_Changed(a, before.line, b, after.line))
            members.append(after)
        else:
            return None
    return tuple(members)


def _parts(cls: nd.ClassDef, line: int) -> Iterator[_Part]:
    for member in cls.body:
        if isinstance(member, nd.Placed):
            if member.body:
                yield _Part(member.body, member.line, member.line + member.body[0].span.line, member.key)
        elif not isinstance(member, nd.Broken):
            yield _Part((member,), line, line + member.span.line, "")


def _unit(key: str, placed: nd.Placed, line: int, blocks: Sequence[tuple[int, int]]) -> Unit:
    return Unit(key, placed, line, tuple(blocks), called_names(placed), mentions_of((placed,)))


def _keyed(module: nd.Module) -> list[tuple[str, nd.Placed]]:
    """Top-level statements with their keys; without one where a part is broken and something stands in."""
    rows = [problem.span.line for problem in module.problems]
    return [
        ("" if any(s.line <= row <= s.span.end_line for row in rows) else s.key, s)
        for s in module.body
        if isinstance(s, nd.Placed)
    ]


def _common_ends(old: Sequence[Unit], new: Sequence[tuple[str, nd.Placed]]) -> tuple[int, int]:
    """How many units are the same at the beginning, and how many of the others at the end."""
    head = _common(old, new)
    return head, _common(old[head:][::-1], new[head:][::-1])


def _common(old: Sequence[Unit], new: Sequence[tuple[str, nd.Placed]]) -> int:
    count = 0
    for unit, (key, _) in zip(old, new, strict=False):
        if not key or unit.key != key:
            break
        count += 1
    return count


def _shifted(statement: nd.Stmt, lines: int) -> nd.Stmt:
    """The statement with the absolute lines inside it moved; what is broken left out."""
    if isinstance(statement, nd.Placed):
        return nd.Placed(
            _NO_SPAN, statement.line + lines, _shifted_block(statement.body, lines), statement.key
        )
    if isinstance(statement, (nd.FunctionDef, nd.ClassDef)) and any(
        isinstance(inner, (nd.Placed, nd.Broken)) for inner in statement.body
    ):
        return replace(statement, body=_shifted_block(statement.body, lines))
    return statement


def _shifted_block(body: nd.Block, lines: int) -> nd.Block:
    return tuple(_shifted(inner, lines) for inner in body if not isinstance(inner, nd.Broken))


def _broken(body: nd.Block) -> Iterator[nd.Broken]:
    for statement in body:
        if isinstance(statement, nd.Broken):
            yield statement
        elif isinstance(statement, (nd.Placed, nd.FunctionDef, nd.ClassDef)):
            yield from _broken(statement.body)


def _is_same(a: nd.Block, b: nd.Block) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _same_header(a: nd.FunctionDef, b: nd.FunctionDef, down: int) -> bool:
    return (
        (a.name, a.is_async, a.scope.is_generator) == (b.name, b.is_async, b.scope.is_generator)
        and _alike(a.header, b.header, down)
        and a.span.column == b.span.column
        and a.span.line + down == b.span.line
        and _alike(a.params, b.params, down)
        and _alike(a.decorators, b.decorators, down)
        and _alike(a.returns, b.returns, down)
    )


def _same_class_header(a: nd.ClassDef, b: nd.ClassDef) -> bool:
    return (a.name, a.header, a.bases, a.keywords, a.decorators, a.span.line, a.span.column) == (
        b.name,
        b.header,
        b.bases,
        b.keywords,
        b.decorators,
        b.span.line,
        b.span.column,
    )


def _alike(a: object, b: object, down: int) -> bool:
    """Are both the same but for `b` standing `down` lines further down?"""
    if isinstance(a, nd.Span):
        return isinstance(b, nd.Span) and a.shifted(down) == b
    if type(a) is not type(b) or isinstance(a, nd.Placed):
        return False
    if isinstance(a, tuple):
        first, second = cast("tuple[object, ...]", a), cast("tuple[object, ...]", b)
        return len(first) == len(second) and all(
            _alike(x, y, down) for x, y in zip(first, second, strict=True)
        )
    if isinstance(a, nd.Node):
        return all(_alike(getattr(a, name), getattr(b, name), down) for name in _names(type(a)))
    return a == b and repr(a) == repr(b)


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type[nd.Node]) -> tuple[str, ...]:
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return found


def called_names(root: nd.Stmt) -> frozenset[str]:
    """Names that are called, or handed to a call: whoever got a function calls it."""
    names: set[str] = set()
    for node in walk(root):
        if isinstance(node, nd.Call):
            func = node.func
            if isinstance(func, nd.Name):
                names.add(func.id)
            elif isinstance(func, nd.Attribute):
                names.add(func.attr)
            names.update(a.id for a in node.args if isinstance(a, nd.Name))
    return frozenset(names)

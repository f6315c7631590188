"""One file under edit as the interpreter runs it: cut into units that keep their identity.

Every top-level statement is a unit; every member of a class, and of a class in it, has a block of lines of
its own. A unit keeps the nodes and the blocks it was first seen with for as long as its source stays the
same, wherever it moves. `Source.take` says what an edit changed: nothing, bodies of functions (their `Code`
is counted up), or more. A dotted name that stands alone does nothing, nor does one given to a variable that
nobody reads; both are left out: most letters of a statement that is being typed make one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

from torchwise_analysis.interp.abstract.places import Bends, Ground, bends_of
from torchwise_analysis.interp.abstract.static import Mentions, Said, children, said_in, walk
from torchwise_analysis.interp.abstract.values import Code
from torchwise_analysis.source import nodes as nd

_NO_SPAN = nd.Span(0, 0, 0, 0)
# Versions of a body before the present one that are known again.
_MOST_EARLIER = 2
# Blocks that no unit stands on any more, before all units get new ones.
_MOST_LEFT_BLOCKS = 2_000


class Change(Enum):
    """What is different from the text before."""

    NOTHING = "lines have moved at most"
    BODIES = "bodies of functions changed"
    MODULE = "what the module defines or runs changed"


class Block(NamedTuple):
    """The lines of a unit or of a member of a class in it.

    start: the first one. away: how far that is from the first line of the unit, in the document. key: of the
    text that was last found to do the same as the nodes, if it tells all. bends: where its lines are now.
    """

    start: int
    away: int
    key: str = ""
    bends: Bends = ()


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A top-level statement.

    key: of its text; empty when the text does not tell all (it is broken in places). placed: as it is run,
    in its blocks. line: where it stands in the document. blocks: its own and those of the members of its
    classes.
    called: names that it calls or hands to a call. said: what the members of its classes say, by id().
    """

    key: str
    placed: nd.Placed
    line: int
    blocks: tuple[Block, ...]
    called: frozenset[str]
    mentions: Mentions
    said: _SaidBy = field(repr=False)


class Source:
    """The units of one file, kept from text to text."""

    def __init__(self) -> None:
        self.ground = Ground()
        self.codes: dict[tuple[int, int], Code[Any]] = {}
        self.units: tuple[Unit, ...] = ()
        self.edited: set[Code[Any]] = set()  # whose source changed; whoever wants to know clears it
        self.broken: tuple[nd.Broken, ...] = ()
        self._taken: nd.Module | None = None
        self._rows: tuple[int, ...] = ()  # lines at which something stands in for what does not parse

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
        self._rows = _rows(module)
        new = _keyed(module, self._rows)
        old = self.units
        head, tail = _common_ends(old, new)
        before, after = old[head : len(old) - tail], new[head : len(new) - tail]
        edits = _edits(before, after, self._rows, self.codes)
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
            is_changed = any(not changed.is_same for edit in edits for changed in edit.changed)
            change = Change.BODIES if is_changed else Change.NOTHING
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
        rows = _rows(module)
        new = _keyed(module, rows)
        head, tail = _common_ends(self.units, new)
        middle = self.units[head : len(self.units) - tail]
        return bool(self.units) and _edits(middle, new[head : len(new) - tail], rows, self.codes) is not None

    # ------------------------------------------------------------------ making and moving

    def _made(self, key: str, placed: nd.Placed) -> Unit:
        start = self.ground.new_block(placed.line)
        blocks = [Block(start, 0)]
        body: list[nd.Stmt] = []
        for statement in placed.body:
            if isinstance(statement, nd.ClassDef):
                body.append(self._class(statement, placed.line, placed.line, blocks))
            else:
                body.append(_shifted(statement, start - placed.line))
        return _unit(key, nd.Placed(_NO_SPAN, start, tuple(body), placed.key), placed.line, blocks, {})

    def _class(self, cls: nd.ClassDef, line: int, unit: int, blocks: list[Block]) -> nd.ClassDef:
        """The class, whose spans count from `line`, with its members in blocks; the unit stands at `unit`."""
        members: list[nd.Stmt] = []
        for part in _parts(cls, line, self._rows):
            start = self.ground.new_block(part.start)
            blocks.append(Block(start, part.start - unit, part.key))
            inner = _only_class(part.body)
            body = None if inner is None else (self._class(inner, part.line, unit, blocks),)
            members.append(part.placed_at(start, body))
        return replace(cls, body=tuple(members))

    def _moved(self, unit: Unit, line: int) -> Unit:
        return unit if unit.line == line else self._put(unit, line)

    def _put(self, unit: Unit, line: int) -> Unit:
        for block in unit.blocks:
            self.ground.move(block.start, line + block.away, block.bends)
        return replace(unit, line=line)

    # ------------------------------------------------------------------ comparing

    def _applied(self, edit: _Edit) -> Unit:
        for changed in edit.changed:
            self._count_up(changed)
        return self._put(edit.unit, edit.unit.line)

    def _count_up(self, changed: _Changed) -> None:
        code = self.codes.pop((id(changed.old), changed.old_line), None)
        if code is not None:
            if not changed.is_same:
                before = (code.node, code.line, code.version)
                known = (one for one in code.earlier if one[2] != changed.version)
                is_function = isinstance(code.node, nd.FunctionDef)
                code.earlier = (before, *known)[:_MOST_EARLIER] if is_function else ()
                code.latest += changed.version is None
                code.version = code.latest if changed.version is None else changed.version
            code.node, code.line = changed.new, changed.new_line
            self.codes[id(changed.new), changed.new_line] = code
            self.edited.add(code)


@dataclass(frozen=True, slots=True)
class _Changed:
    """is_same: it does what it did. version: the earlier one that it is again."""

    old: nd.Stmt
    old_line: int
    new: nd.Stmt
    new_line: int
    is_same: bool = False
    version: int | None = None


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

    def placed_at(self, start: int, body: nd.Block | None = None) -> nd.Placed:
        """The member, or `body` instead of it, with its first line at the block line `start`."""
        shift = start - self.start
        if body is None:
            body = tuple(_shifted(s, shift) for s in self.body)
        return nd.Placed(_NO_SPAN, self.line + shift, body, self.key)


def _edits(
    before: Sequence[Unit], after: Sequence[tuple[str, nd.Placed]], rows: Sequence[int], codes: _Codes
) -> list[_Edit] | None:
    """What makes these units those of this source; None when more than bodies changed."""
    if len(before) != len(after):
        return None
    edits: list[_Edit] = []
    for unit, (key, placed) in zip(before, after, strict=True):
        edit = _edit(unit, key, placed, rows, codes)
        if edit is None:
            return None
        edits.append(edit)
    return edits


def _edit(unit: Unit, key: str, placed: nd.Placed, rows: Sequence[int], codes: _Codes) -> _Edit | None:
    """What makes the unit one of this source; None when more than bodies changed."""
    old = unit.placed
    if len(old.body) != len(placed.body):
        return None
    start = old.line
    comparison = _Comparison(placed.line, rows, codes, iter(unit.blocks[1:]), [Block(start, 0)])
    body: list[nd.Stmt] = []
    moved: list[tuple[int, int]] = []
    after: nd.Stmt | None
    for a, b in zip(old.body, placed.body, strict=True):
        if isinstance(a, nd.ClassDef) and isinstance(b, nd.ClassDef):
            after = comparison.cls(a, start, b, placed.line, start)
        else:
            after = comparison.statement(a, start, _shifted(b, start - placed.line), start, moved)
        if after is None:
            return None
        body.append(after)
    changes, blocks = comparison.changes, comparison.blocks
    blocks[0] = Block(start, 0, bends=bends_of(moved))
    if not changes:
        return _Edit(replace(unit, key=key, line=placed.line, blocks=tuple(blocks)))
    new = nd.Placed(_NO_SPAN, start, tuple(body), placed.key)
    return _Edit(_unit(key, new, placed.line, blocks, unit.said), tuple(changes))


@dataclass(slots=True)
class _Comparison:
    """Of a unit with its source after an edit, which stands at `line`.

    rest: blocks of the unit that were not come to. blocks: those that were, where they stand now.
    """

    line: int
    rows: Sequence[int]
    codes: _Codes
    rest: Iterator[Block]
    blocks: list[Block]
    changes: list[_Changed] = field(default_factory=list[_Changed])

    def cls(
        self, old: nd.ClassDef, old_line: int, new: nd.ClassDef, line: int, new_line: int
    ) -> nd.ClassDef | None:
        """`old`, or what replaces it; `new` counts its lines from `line`, and is to do so from `new_line`."""
        parts = list(_parts(new, line, self.rows))
        if len(parts) != len(old.body) or not _same_class_header(old, new, old_line - new_line):
            return None
        members: list[nd.Stmt] = []
        for before, part in zip(old.body, parts, strict=True):
            assert isinstance(before, nd.Placed)  # as made by `Source`
            after = self._member(before, part)
            if after is None:
                return None
            members.append(after)
        if not _is_same(old.body, members):
            replaced = replace(new, body=tuple(members))
            self.changes.append(_Changed(old, old_line, replaced, new_line))
            return replaced
        span = new.span.shifted(new_line - old_line)
        if span == old.span:
            return old
        moved = replace(old, span=span)  # it ends further down or up
        self.changes.append(_Changed(old, old_line, moved, old_line, is_same=True))
        return moved

    def _member(self, before: nd.Placed, part: _Part) -> nd.Placed | None:
        block = next(self.rest)
        start, away = block.start, part.start - self.line
        if part.key and block.key == part.key:
            self.blocks.append(block._replace(away=away))
            further = away - block.away
            inner = islice(self.rest, _blocks_within(before))
            self.blocks.extend(one._replace(away=one.away + further) for one in inner)
            return before
        index = len(self.blocks)
        self.blocks.append(Block(start, away, part.key))
        a, b = _only_class(before.body), _only_class(part.body)
        if a is not None and b is not None:
            line = part.line + start - part.start  # where it counts from in its block
            cls = self.cls(a, before.line, b, part.line, line)
            if cls is None or cls is a:
                return None if cls is None else before
            if cls.body is a.body:
                return replace(before, body=(cls,))
            return part.placed_at(start, (cls,))
        after = part.placed_at(start)
        if a is not None or b is not None:
            return None
        if before.line == after.line and before.body == after.body:
            return before
        if len(before.body) != 1 or len(after.body) != 1:
            return None
        moved: list[tuple[int, int]] = []
        kept = self.statement(before.body[0], before.line, after.body[0], after.line, moved)
        if kept is None or kept is after.body[0]:
            return None if kept is None else after
        self.blocks[index] = Block(start, away, part.key, bends_of(moved))
        if kept is before.body[0]:
            return before
        return nd.Placed(_NO_SPAN, self.changes[-1].new_line, (kept,), part.key)

    def statement(
        self, old: nd.Stmt, old_line: int, new: nd.Stmt, new_line: int, moved: list[tuple[int, int]]
    ) -> nd.Stmt | None:
        """`old`, what it was earlier, or `new`: the first that does the same as `new`. None when more than
        the body of a function changed.

        moved: gets, when it is not `new`, how far its statements are from where they were.
        """
        down = old_line - new_line
        if _alike(old, new, down):
            return old
        if not isinstance(old, nd.FunctionDef) or not isinstance(new, nd.FunctionDef):
            return None
        if not _same_header(old, new, down):
            return None
        if _is_again(old, old_line, new, new_line, moved):
            return old
        code = self.codes.get((id(old), old_line))
        for node, line, version in code.earlier if code is not None else ():
            if _is_again(node, line, new, new_line, moved):
                self.changes.append(_Changed(old, old_line, node, line, version=version))
                return cast("nd.FunctionDef", node)
        self.changes.append(_Changed(old, old_line, new, new_line))
        return new


def _is_again(
    old: nd.FunctionDef, old_line: int, new: nd.FunctionDef, new_line: int, moved: list[tuple[int, int]]
) -> bool:
    """Does the function do the same?"""
    if not _same_names(old.scope, new.scope) or not _same_header(old, new, old_line - new_line):
        return False
    found: list[tuple[int, int]] = []
    if not _do_the_same(old.body, old_line, new.body, new_line, found):
        return False
    if len(set(found)) != len(dict(found)):  # what shared a line does so no more
        return False
    moved += found
    return True


def _do_the_same(
    old: nd.Block, old_line: int, new: nd.Block, new_line: int, moved: list[tuple[int, int]]
) -> bool:
    """Are the statements the same, wherever their lines are? moved: by lines of `old`, how far they moved."""
    first, second = list(_flat(old, old_line)), list(_flat(new, new_line))
    return len(first) == len(second) and all(
        _does_the_same(*a, *b, moved) for a, b in zip(first, second, strict=True)
    )


def _flat(body: nd.Block, line: int) -> Iterator[tuple[nd.Stmt, int]]:
    """Statements, each with the line that its spans count from."""
    for statement in body:
        if isinstance(statement, nd.Placed):
            yield from _flat(statement.body, statement.line)
        else:
            yield statement, line


def _does_the_same(
    a: nd.Stmt | nd.Handler, a_line: int, b: nd.Stmt | nd.Handler, b_line: int, moved: list[tuple[int, int]]
) -> bool:
    if type(a) is not type(b) or a.span.column != b.span.column:
        return False
    down = b.span.line - a.span.line
    moved.append((a_line + a.span.line, b_line - a_line + down))
    if a is b:  # so nothing in it says at which line of the block it stands
        return True
    if isinstance(a, nd.FunctionDef) and isinstance(b, nd.FunctionDef):
        is_same = _same_header(a, b, down) and _same_names(a.scope, b.scope)
        return is_same and _do_the_same(a.body, a_line, b.body, b_line, moved)
    blocks = _BLOCKS.get(type(a), ())
    if not blocks:
        return _alike(a, b, down)
    plain = (name for name in _names(type(a)) if name not in blocks and name not in ("span", "handlers"))
    if not all(_alike(getattr(a, name), getattr(b, name), down) for name in plain):
        return False
    if not all(_do_the_same(getattr(a, name), a_line, getattr(b, name), b_line, moved) for name in blocks):
        return False
    if not isinstance(a, nd.Try) or not isinstance(b, nd.Try):
        return True
    return len(a.handlers) == len(b.handlers) and all(
        _does_the_same(one, a_line, other, b_line, moved)
        for one, other in zip(a.handlers, b.handlers, strict=True)
    )


def _only_class(body: nd.Block) -> nd.ClassDef | None:
    first = body[0] if len(body) == 1 else None
    return first if isinstance(first, nd.ClassDef) else None


def _blocks_within(member: nd.Placed) -> int:
    """How many blocks the members of a class have that is a member itself."""
    cls = _only_class(member.body)
    if cls is None:
        return 0
    return sum(1 + _blocks_within(inner) for inner in cls.body if isinstance(inner, nd.Placed))


def _parts(cls: nd.ClassDef, line: int, rows: Sequence[int]) -> Iterator[_Part]:
    """The members of a class whose spans count from `line`. Where something stands in for what does not parse
    (at `rows`), the key does not tell what that is."""
    for member in cls.body:
        if _does_nothing(member):
            continue
        if isinstance(member, nd.Placed):
            key = "" if _is_broken(member, rows) else member.key
            yield _Part(member.body, member.line, member.line + member.body[0].span.line, key)
        else:
            yield _Part((member,), line, line + member.span.line, "")


_Codes: TypeAlias = "dict[tuple[int, int], Code[Any]]"
_SaidBy: TypeAlias = "dict[int, tuple[nd.Placed, Said]]"


def _unit(key: str, placed: nd.Placed, line: int, blocks: Sequence[Block], known: _SaidBy) -> Unit:
    """`known`: what members said before; those that are the same say the same."""
    whole = _Whole(known)
    whole.add(placed.body, ())
    names = {name: frozenset(found) for name, found in whole.names.items()}
    mentions = Mentions(names, tuple(whole.imports))
    return Unit(key, placed, line, tuple(blocks), frozenset(whole.called), mentions, whole.said)


@dataclass(slots=True)
class _Whole:
    """What a unit says, from what its members say."""

    known: _SaidBy
    said: _SaidBy = field(default_factory=dict[int, "tuple[nd.Placed, Said]"])
    names: dict[str, set[str]] = field(default_factory=dict[str, "set[str]"])
    imports: list[nd.Import | nd.ImportFrom] = field(default_factory=list[Any])
    called: set[str] = field(default_factory=set[str])

    def add(self, body: nd.Block, inside: tuple[set[str], ...]) -> None:
        for statement in body:
            if isinstance(statement, nd.ClassDef):
                outer = (*inside, self.names.setdefault(statement.name, set()))
                self._take(said_in(children(replace(statement, body=()))), outer)
                self.add(statement.body, outer)
            elif isinstance(statement, nd.Placed):
                if _only_class(statement.body) is not None:
                    self.add(statement.body, inside)
                    continue
                found = self.known.get(id(statement))
                if found is None:
                    found = statement, said_in(statement.body)
                self.said[id(statement)] = found
                self._take(found[1], inside)
            else:
                self._take(said_in((statement,)), inside)

    def _take(self, said: Said, inside: tuple[set[str], ...]) -> None:
        for name, mentioned in said.by_definition.items():
            self.names.setdefault(name, set()).update(mentioned)
        for outer in inside:
            outer.update(said.names)
        self.imports += said.imports
        self.called |= said.called


def _rows(module: nd.Module) -> tuple[int, ...]:
    return tuple(problem.span.line for problem in module.problems)


def _is_broken(placed: nd.Placed, rows: Sequence[int]) -> bool:
    """Does the text not tell all, as something stands in for a part of it?"""
    return any(placed.line <= row <= placed.span.end_line for row in rows)


def _keyed(module: nd.Module, rows: Sequence[int]) -> list[tuple[str, nd.Placed]]:
    """Top-level statements with their keys; without one where a part is broken and something stands in."""
    return [
        ("" if _is_broken(s, rows) else s.key, s)
        for s in module.body
        if isinstance(s, nd.Placed) and not _does_nothing(s)
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


def _shifted(statement: nd.Stmt, lines: int, unread: frozenset[str] = frozenset()) -> nd.Stmt:
    """The statement with the absolute lines inside it moved; without what is broken or does nothing.

    unread: variables of the function around it that nobody reads.
    """
    if isinstance(statement, nd.Placed):
        body = _shifted_block(statement.body, lines, unread)
        return nd.Placed(_NO_SPAN, statement.line + lines, body, "")
    if isinstance(statement, nd.FunctionDef):
        body = _shifted_block(statement.body, lines, _unread(statement))
        return statement if _is_same(body, statement.body) else replace(statement, body=body)
    if isinstance(statement, nd.ClassDef) and any(
        isinstance(inner, (nd.Placed, nd.Broken)) for inner in statement.body
    ):
        return replace(statement, body=_shifted_block(statement.body, lines, frozenset()))
    return statement


def _shifted_block(body: nd.Block, lines: int, unread: frozenset[str]) -> nd.Block:
    moved = [
        _shifted(_acting(inner, unread), lines, unread) for inner in body if not _does_nothing(inner, unread)
    ]
    return tuple(one for one in moved if not isinstance(one, nd.Placed) or one.body)


def _does_nothing(statement: nd.Stmt, unread: frozenset[str] = frozenset()) -> bool:
    if isinstance(statement, nd.ExprStmt):
        return _is_dotted(statement.value)
    if isinstance(statement, nd.Assign):
        return bool(unread) and _given_a_name(statement) in unread
    if isinstance(statement, nd.Placed):
        return all(_does_nothing(inner, unread) for inner in statement.body)
    return isinstance(statement, nd.Broken)


def _is_dotted(node: nd.Expr) -> bool:
    while isinstance(node, nd.Attribute):
        node = node.value
    return isinstance(node, nd.Name)


def _given_a_name(statement: nd.Stmt) -> str | None:
    """`x` in `x = model.head`."""
    if not isinstance(statement, nd.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.id if isinstance(target, nd.Name) and _is_dotted(statement.value) else None


def _unread(function: nd.FunctionDef) -> frozenset[str]:
    """Variables that get a dotted name, and occur nowhere else in the function."""
    names = {_given_a_name(statement) for statement in _statements(function.body)}
    found = (names - {None} - function.scope.captured) & function.scope.local
    if not found:
        return frozenset()
    count = Counter(node.id for node in walk(function) if isinstance(node, nd.Name))
    if not _READING_ALL.isdisjoint(count):
        return frozenset()
    return frozenset(name for name in found if name is not None and count[name] == 1)


_READING_ALL = frozenset(["locals", "vars", "eval", "exec"])


def _statements(body: nd.Block) -> Iterator[nd.Stmt]:
    """Statements of a function, not of those that are defined in it."""
    for statement in body:
        if isinstance(statement, nd.Placed):
            yield from _statements(statement.body)
            continue
        yield statement
        for name in _BLOCKS.get(type(statement), ()):
            yield from _statements(getattr(statement, name))
        if isinstance(statement, nd.Try):
            for handler in statement.handlers:
                yield from _statements(handler.body)


def _acting(statement: nd.Stmt, unread: frozenset[str]) -> nd.Stmt:
    """A compound statement without what does nothing."""
    names = _BLOCKS.get(type(statement))
    if names is None:
        return statement
    changes: dict[str, object] = {}
    for name in names:
        block: nd.Block = getattr(statement, name)
        left = _acting_block(block, unread)
        if left is not block:
            changes[name] = left
    if isinstance(statement, nd.Try):
        handlers = tuple(_acting_handler(handler, unread) for handler in statement.handlers)
        if any(new is not old for new, old in zip(handlers, statement.handlers, strict=True)):
            changes["handlers"] = handlers
    if not changes:
        return statement
    acting: nd.Stmt = replace(statement, **cast("Any", changes))
    last = _last(acting).span
    span = nd.Span(statement.span.line, statement.span.column, last.end_line, last.end_column)
    return replace(acting, span=span)


def _last(statement: nd.Stmt) -> nd.Stmt:
    """The statement that ends where the compound statement does."""
    blocks: list[nd.Block] = [getattr(statement, name) for name in _BLOCKS[type(statement)]]
    if isinstance(statement, nd.Try):
        blocks[1:1] = [handler.body for handler in statement.handlers]
    return [block for block in blocks if block][-1][-1]


_BLOCKS: dict[type, tuple[str, ...]] = {
    nd.If: ("body", "orelse"),
    nd.For: ("body", "orelse"),
    nd.While: ("body", "orelse"),
    nd.With: ("body",),
    nd.Handler: ("body",),
    nd.Try: ("body", "orelse", "final"),
}


def _acting_block(body: nd.Block, unread: frozenset[str]) -> nd.Block:
    """Never empty where `body` is not."""
    acting = tuple(_acting(inner, unread) for inner in body if not _does_nothing(inner, unread)) or body[:1]
    return body if _is_same(body, acting) else acting


def _acting_handler(handler: nd.Handler, unread: frozenset[str]) -> nd.Handler:
    body = _acting_block(handler.body, unread)
    return handler if body is handler.body else replace(handler, body=body)


def _broken(body: nd.Block) -> Iterator[nd.Broken]:
    for statement in body:
        if isinstance(statement, nd.Broken):
            yield statement
        elif isinstance(statement, (nd.Placed, nd.FunctionDef, nd.ClassDef)):
            yield from _broken(statement.body)


def _is_same(a: Sequence[nd.Stmt], b: Sequence[nd.Stmt]) -> bool:
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


def _same_names(a: nd.Scope, b: nd.Scope) -> bool:
    """Do names mean the same in both? A name that stands alone is among the free ones, and means nothing."""
    return (a.captured, a.global_, a.nonlocal_) == (b.captured, b.global_, b.nonlocal_)


def _same_class_header(a: nd.ClassDef, b: nd.ClassDef, down: int) -> bool:
    return (
        a.name == b.name
        and a.span.column == b.span.column
        and a.span.line + down == b.span.line
        and _alike(a.header, b.header, down)
        and _alike(a.bases, b.bases, down)
        and _alike(a.keywords, b.keywords, down)
        and _alike(a.decorators, b.decorators, down)
    )


def _alike(a: object, b: object, down: int) -> bool:
    """Are both the same but for `b` counting its lines from `down` lines further up?"""
    if a is b and down == 0:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, nd.Span):
        return a.shifted(down) == b
    if isinstance(a, tuple):
        first, second = cast("tuple[object, ...]", a), cast("tuple[object, ...]", b)
        return len(first) == len(second) and all(
            _alike(x, y, down) for x, y in zip(first, second, strict=True)
        )
    if isinstance(a, nd.Placed):
        assert isinstance(b, nd.Placed)
        return a.line == b.line and _alike(a.body, b.body, 0)
    if isinstance(a, nd.Scope):
        assert isinstance(b, nd.Scope)
        return a.is_generator == b.is_generator and _same_names(a, b)
    if isinstance(a, nd.Node):
        return all(_alike(getattr(a, name), getattr(b, name), down) for name in _names(type(a)))
    return a == b and repr(a) == repr(b)


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type[nd.Node]) -> tuple[str, ...]:
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return found

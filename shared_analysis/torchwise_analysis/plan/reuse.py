"""Whether an answer holds for an edited file: nothing that the runs read has changed.

A run executes a file's top level, class bodies included, and the functions that it calls. An edit inside any
other function changes nothing but the lines of what stands below it; these are moved along in the answer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from torchwise_analysis.plan.stated import read_statements
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Module
from torchwise_memory.report import Origin, TextEdit

_Answer = TypeVar("_Answer")
_LINE = re.compile(r"\bline \d+|\.(?:py|ipynb):\d+")


@dataclass(frozen=True, slots=True)
class Shift:
    """Where lines (from 1) of the earlier file stand now: `deltas[i]` from `starts[i]` on."""

    starts: tuple[int, ...]
    deltas: tuple[int, ...]

    @property
    def is_none(self) -> bool:
        return not any(self.deltas)

    def line(self, line: int) -> int:
        index = bisect_right(self.starts, line) - 1
        return line + (self.deltas[index] if index >= 0 else 0)


def shift_between(
    old: Module, old_text: str, new: Module, new_text: str, entered: frozenset[int] | None
) -> Shift | None:
    """How lines moved from one version to the next; None where more changed than what no run entered.

    entered: lines (from 1) in the old version of the functions that ran, None for all.
    """
    found: list[tuple[int, int]] = []
    if old.problems != new.problems or not _is_alike(old.body, new.body, (0, 0), entered, found):
        return None
    found.sort()
    shift = Shift(tuple(start for start, _ in found), tuple(delta for _, delta in found))
    before, now = read_statements(old.path, old_text), read_statements(new.path, new_text)
    if {shift.line(line): said for line, said in before.by_line.items()} != now.by_line:
        return None
    names = {name: value for name, (value, _) in before.by_name.items()}
    return shift if names == {name: value for name, (value, _) in now.by_name.items()} else None


def _is_alike(
    old: nodes.Block,
    new: nodes.Block,
    bases: tuple[int, int],
    entered: frozenset[int] | None,
    found: list[tuple[int, int]],
) -> bool:
    if len(old) != len(new):
        return False
    return all(_same(a, b, bases, entered, found) for a, b in zip(old, new, strict=True))


def _same(
    old: nodes.Stmt,
    new: nodes.Stmt,
    bases: tuple[int, int],
    entered: frozenset[int] | None,
    found: list[tuple[int, int]],
) -> bool:
    """Whether two statements run the same; where they are placed is noted."""
    if isinstance(old, nodes.Placed) and isinstance(new, nodes.Placed):
        found.append((old.line + 1, new.line - old.line))
        if old.body is new.body:
            return _moves_with(old.body, new.line - old.line)
        return _is_alike(old.body, new.body, (old.line, new.line), entered, found)
    if isinstance(old, nodes.ClassDef) and isinstance(new, nodes.ClassDef):
        return _header(old) == _header(new) and _is_alike(old.body, new.body, bases, entered, found)
    if isinstance(old, nodes.FunctionDef) and isinstance(new, nodes.FunctionDef):
        runs = entered is None or bases[0] + old.span.line + 1 in entered
        is_alike = not runs or _is_alike(old.body, new.body, bases, entered, found)
        return is_alike and _header(old) == _header(new)
    return old == new


def _moves_with(body: nodes.Block, delta: int) -> bool:
    """Whether shared text holds no lines of its own, or did not move: inner places are absolute."""
    return not delta or not any(isinstance(member, nodes.Placed) for member in _inner(body))


def _inner(block: nodes.Block) -> list[nodes.Stmt]:
    found: list[nodes.Stmt] = []
    for statement in block:
        found.append(statement)
        if isinstance(statement, (nodes.ClassDef, nodes.FunctionDef, nodes.Placed)):
            found += _inner(statement.body)
    return found


def _header(node: nodes.ClassDef | nodes.FunctionDef) -> tuple[object, ...]:
    """All of a definition but its body and where it ends."""
    kept = [getattr(node, f.name) for f in fields(node) if f.name not in ("span", "body", "scope")]
    return (type(node), node.span.line, *kept)


def moved(answer: _Answer, path: str, shift: Shift) -> _Answer | None:
    """An answer with the lines of `path` where they stand now; None where its words name some."""
    if shift.is_none:
        return answer
    name = path.rpartition("/")[2]
    return None if _names_lines(answer, name) else cast(_Answer, _moved(answer, path, shift))


def _names_lines(value: object, name: str) -> bool:
    if isinstance(value, str):
        return name in value and _LINE.search(value) is not None
    return any(_names_lines(inner, name) for inner in _parts(value))


def _parts(value: object) -> list[object]:
    if isinstance(value, (tuple, list, frozenset)):
        return list(cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        return list(cast("Mapping[object, object]", value).values())
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name) for f in fields(value)]
    return []


def _moved(value: object, path: str, shift: Shift) -> object:
    if isinstance(value, Origin):
        return Origin(path, shift.line(value.line)) if value.path == path else value
    if isinstance(value, TextEdit):
        if value.path != path:
            return value
        first, last = shift.line(value.line + 1) - 1, shift.line(value.end_line + 1) - 1
        return replace(value, line=first, end_line=last)
    if isinstance(value, (tuple, list)):
        items = [_moved(inner, path, shift) for inner in cast("tuple[object, ...]", value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return {key: _moved(inner, path, shift) for key, inner in entries}
    if is_dataclass(value) and not isinstance(value, type):
        changes: dict[str, Any] = {f.name: _moved(getattr(value, f.name), path, shift) for f in fields(value)}
        return replace(value, **changes)
    return value


__all__ = ["Shift", "moved", "shift_between"]

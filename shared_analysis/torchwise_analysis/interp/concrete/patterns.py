"""`match`: which pattern fits a subject, and what it binds."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.values import MISSING, Class, Frame, Value
from torchwise_analysis.source import nodes

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_WHOLE_SUBJECT = frozenset(
    {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
)


def matches(
    it: Interpreter, pattern: nodes.Pattern, subject: Value, frame: Frame, bindings: dict[str, Value]
) -> bool:
    """Whether `pattern` matches; captured names go to `bindings`."""
    if isinstance(pattern, nodes.MatchValue):
        wanted = it.evaluate(pattern.value, frame)
        if wanted is None or isinstance(wanted, bool):
            return wanted is subject
        return operators.equal(it, subject, wanted)
    if isinstance(pattern, nodes.MatchAs):
        if pattern.pattern is not None and not matches(it, pattern.pattern, subject, frame, bindings):
            return False
        if pattern.name is not None:
            bindings[pattern.name] = subject
        return True
    if isinstance(pattern, nodes.MatchOr):
        return any(matches(it, option, subject, frame, bindings) for option in pattern.patterns)
    if isinstance(pattern, nodes.MatchSequence):
        return _sequence(it, pattern, subject, frame, bindings)
    if isinstance(pattern, nodes.MatchMapping):
        return _mapping(it, pattern, subject, frame, bindings)
    if isinstance(pattern, nodes.MatchClass):
        return _class(it, pattern, subject, frame, bindings)
    return False


def _sequence(
    it: Interpreter, pattern: nodes.MatchSequence, subject: Value, frame: Frame, bindings: dict[str, Value]
) -> bool:
    if not isinstance(subject, (list, tuple)):
        return False
    items = cast("list[Value]", list(subject))
    stars = [i for i, inner in enumerate(pattern.patterns) if isinstance(inner, nodes.MatchStar)]
    if not stars:
        return len(items) == len(pattern.patterns) and all(
            matches(it, inner, item, frame, bindings)
            for inner, item in zip(pattern.patterns, items, strict=True)
        )
    before = stars[0]
    after = len(pattern.patterns) - before - 1
    if len(items) < before + after:
        return False
    star = cast(nodes.MatchStar, pattern.patterns[before])
    if star.name is not None:
        bindings[star.name] = items[before : len(items) - after]
    ends = items[:before] + items[len(items) - after :]
    rest = pattern.patterns[:before] + pattern.patterns[before + 1 :]
    return all(matches(it, inner, item, frame, bindings) for inner, item in zip(rest, ends, strict=True))


def _mapping(
    it: Interpreter, pattern: nodes.MatchMapping, subject: Value, frame: Frame, bindings: dict[str, Value]
) -> bool:
    if not isinstance(subject, dict):
        return False
    left = cast("dict[Value, Value]", dict(subject))
    for key, inner in zip(pattern.keys, pattern.patterns, strict=True):
        wanted = it.evaluate(key, frame)
        if wanted not in left or not matches(it, inner, left.pop(wanted), frame, bindings):
            return False
    if pattern.rest is not None:
        bindings[pattern.rest] = left
    return True


def _class(
    it: Interpreter, pattern: nodes.MatchClass, subject: Value, frame: Frame, bindings: dict[str, Value]
) -> bool:
    cls = it.evaluate(pattern.cls, frame)
    if not isinstance(cls, Class) or not it.class_of(subject).is_subclass(cls):
        return False
    if pattern.patterns and cls.name in _WHOLE_SUBJECT:
        return matches(it, pattern.patterns[0], subject, frame, bindings)
    order = cls.find("__match_args__")
    names = [str(n) for n in order] if isinstance(order, (tuple, list)) else []
    wanted = [*zip(names, pattern.patterns, strict=False), *pattern.keywords]
    for attribute, inner in wanted:
        value = it.find_attribute(subject, attribute)
        if value is MISSING or not matches(it, inner, value, frame, bindings):
            return False
    return True

"""Do two runs mean the same, object for object? Values have identity only, so `==` cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import cast

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.events import Event
from torchwise_analysis.interp.abstract.values import Code

# Larger things are taken to differ: finding out would cost more than it saves.
MOST_PAIRS = 20_000


_COMPARED = (Place, frozenset, set)


def alike(a: object, b: object) -> bool:
    """Is everything that can be reached from both the same, ids, places and order of keys included?"""
    return _alike(a, b, _names)


def alike_but_orders(a: object, b: object) -> bool:
    """The same but for the orders of events."""
    return _alike(a, b, _names_but_order)


def _alike(a: object, b: object, names: Callable[[type], tuple[str, ...]]) -> bool:
    seen: set[tuple[int, int]] = set()
    todo = [(a, b)]
    while todo:
        one, other = todo.pop()
        if one is other:
            continue
        kind = type(one)
        if kind is not type(other):
            return False
        if kind in _PLAIN or issubclass(kind, _COMPARED):
            if one != other or _is_other_zero(one, other):
                return False
            continue
        pair = (id(one), id(other))
        if pair in seen:
            continue
        seen.add(pair)
        if len(seen) > MOST_PAIRS:
            return False
        first, second = _parts(one, names), _parts(other, names)
        if first is None or second is None or len(first) != len(second):
            return False
        todo.extend(zip(first, second, strict=True))
    return True


_PLAIN = frozenset([int, str, bytes, bool, float, complex, type(None)])


def _is_other_zero(a: object, b: object) -> bool:
    """0.0 and -0.0 are equal."""
    return isinstance(a, (float, complex)) and repr(a) != repr(b)


def _parts(value: object, names: Callable[[type], tuple[str, ...]]) -> list[object] | None:
    """What a value consists of; None for what only has identity."""
    if isinstance(value, tuple | list):
        return list(cast("tuple[object, ...]", value))
    if isinstance(value, dict):
        known = cast("dict[object, object]", value)
        return [*known.keys(), *known.values()]
    if isinstance(value, Code) or not is_dataclass(value):
        return None
    return [getattr(value, name) for name in names(type(value))]


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return found


_NAMES_BUT_ORDER: dict[type, tuple[str, ...]] = {}


def _names_but_order(kind: type) -> tuple[str, ...]:
    found = _NAMES_BUT_ORDER.get(kind)
    if found is None:
        names = _names(kind)
        left_out = "order" if issubclass(kind, Event) else ""
        found = _NAMES_BUT_ORDER[kind] = tuple(name for name in names if name != left_out)
    return found

"""Frozen dataclasses that are made by the million and defined by the hundred, at a fraction of the price.

A frozen dataclass sets each of its fields through `object.__setattr__`, which takes four times as long as an
assignment; a tenth of a run went there. And a definition compiles eight functions that mostly nobody calls; a
quarter of the start went there. Type checkers hold these classes to be frozen all the same, and nothing else
can change them: no object of ours is reachable from interpreted code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen, slots, eq=True):
        """`dataclasses.dataclass` for frozen classes with slots, whose functions are compiled when used."""
        assert frozen
        assert slots
        return lambda cls: _recorded(cls, eq)


__all__ = ["record", "replace"]

T = TypeVar("T")

_COPIES: dict[type, Callable[[Any], Any]] = {}
_RECORDS: set[type] = set()


def replace(value: T, **changes: object) -> T:
    """`dataclasses.replace`, several times faster for records."""
    kind = value.__class__
    copy = _COPIES.get(kind)
    if copy is None:
        if kind not in _RECORDS:
            return cast("T", dataclasses.replace(cast("Any", value), **changes))
        copy = _COPIES[kind] = _copying(kind)
    new = copy(value)
    for name, field in changes.items():
        setattr(new, name, field)
    return cast("T", new)


def _recorded(cls: type, eq: bool) -> type:
    made = cast("Any", dataclasses.dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)(cls))
    del made.__setattr__, made.__delattr__  # frozen in name: frozen classes of others derive from it
    own = _fields(made)
    if any(not (f.init and f.compare and f.repr) or f.kw_only for f in own) or "__post_init__" in vars(made):
        raise TypeError(f"{cls.__name__} has what no record has")
    made.__init__ = _first(made)
    if "__repr__" not in vars(cls):
        made.__repr__ = _shown
    if eq and "__eq__" not in vars(cls):
        made.__eq__, made.__hash__ = _compared([f.name for f in own])
    _RECORDS.add(made)
    return cast("type", made)


def _fields(cls: type) -> tuple[Field[object], ...]:
    return cast("tuple[Field[object], ...]", fields(cast("Any", cls)))


def _first(cls: Any) -> Callable[..., None]:
    """An `__init__` that gives way to the compiled one."""

    def __init__(_new: object, *args: object, **keywords: object) -> None:  # noqa: N807 - what it is called
        cls.__init__ = assigning = _assigning(cls)
        assigning(_new, *args, **keywords)

    return __init__


@recursive_repr("...")
def _shown(self: object) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in _fields(type(self)))
    return f"{type(self).__qualname__}({shown})"


def _compared(names: list[str]) -> tuple[Callable[[object, object], object], Callable[[object], int]]:
    """Equality and hash by the values of these fields."""
    get: Callable[[object], object] = attrgetter(*names) if len(names) > 1 else _few(names)

    def equal(self: object, other: object) -> object:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return get(self) == get(other)

    def hashed(self: object) -> int:
        return hash(get(self))

    return equal, hashed


def _few(names: list[str]) -> Callable[[object], object]:
    """What `attrgetter` gives of several names, for one or none."""

    def get(one: object) -> object:
        return tuple([getattr(one, name) for name in names])

    return get


def _assigning(cls: type) -> Callable[..., None]:
    known: dict[str, object] = {"MISSING": MISSING}
    parameters: list[str] = ["_new"]
    body: list[str] = []
    for field in _fields(cls):
        name, value = field.name, field.name
        if field.default is not MISSING:
            known[f"_{name}"] = field.default
            parameters.append(f"{name}=_{name}")
        elif field.default_factory is not MISSING:
            known[f"_{name}"] = field.default_factory
            parameters.append(f"{name}=MISSING")
            value = f"_{name}() if {name} is MISSING else {name}"
        else:
            parameters.append(name)
        body.append(f" _new.{name} = {value}")
    return _compiled(f"def __init__({', '.join(parameters)}):", body or [" pass"], known)


def _copying(cls: type) -> Callable[[Any], Any]:
    body = [" new = make(cls)", *(f" new.{f.name} = old.{f.name}" for f in _fields(cls)), " return new"]
    return _compiled("def copy(old):", body, {"cls": cls, "make": object.__new__})


def _compiled(header: str, body: list[str], known: dict[str, object]) -> Callable[..., Any]:
    exec("\n".join((header, *body)), known)  # noqa: S102 - of names of our own fields
    return cast("Callable[..., Any]", known[header[4 : header.index("(")]])

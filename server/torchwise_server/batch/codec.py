"""Frozen types to JSON and back, by their annotations.

JSON and not pickle: what is read back comes from a cache or from the artifact of another job, and reading it
must not be able to run anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decoder = Callable[[Any], Any]

_PLAIN = (str, int, float, bool, NoneType)


class NotOfThisKindError(Exception):
    """The JSON does not hold what was asked for."""


def encoded(value: object) -> object:
    """What `json` can write: dataclasses and tuples become lists, in the order of their fields."""
    if value is None or isinstance(value, (str, int, float)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return cast("object", value.value)
    if isinstance(value, (tuple, list)):
        return [encoded(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, frozenset):
        return sorted((encoded(item) for item in cast("frozenset[object]", value)), key=repr)
    if is_dataclass(value):
        return [encoded(getattr(value, field.name)) for field in fields(value)]
    raise TypeError(f"no code for {type(value).__name__}")


def decoded(kind: type[T], data: object) -> T:
    """The value of this type that was encoded.

    Raises:
        NotOfThisKindError: it is none.
    """
    try:
        return cast("T", _decoder(cast("Any", kind))(data))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise NotOfThisKindError(str(error)) from None


@cache
def _decoder(hint: Any) -> Decoder:
    if hint in _PLAIN:
        return _plain(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _any_of([_decoder(one) for one in inner])
    if origin in (tuple, frozenset):
        if origin is frozenset or (len(inner) == 2 and inner[1] is Ellipsis):
            return _many(origin, _decoder(inner[0]))
        return _row(tuple, [_decoder(one) for one in inner])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return _row(_made(hint), [_decoder(hints[field.name]) for field in fields(hint)])
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        named = cast("type[object]", hint)
        return _row(_made(named), [_decoder(one) for one in get_type_hints(named).values()])
    raise TypeError(f"no code for {hint}")


def _plain(kind: type) -> Decoder:
    def decode(data: Any) -> Any:
        if type(data) is not kind:
            raise ValueError(f"{kind.__name__} expected")
        return data

    return decode


def _any_of(decoders: list[Decoder]) -> Decoder:
    """The first that takes it; each plain type takes nothing but itself."""

    def decode(data: Any) -> Any:
        for one in decoders:
            try:
                return one(data)
            except (TypeError, ValueError, KeyError, IndexError):
                continue
        raise ValueError("none of the types that are expected")

    return decode


def _many(kind: Callable[[list[Any]], Any], decoder: Decoder) -> Decoder:
    return lambda data: kind([decoder(item) for item in _list(data)])


def _row(make: Callable[[list[Any]], Any], decoders: list[Decoder]) -> Decoder:
    def decode(data: Any) -> Any:
        return make([decoder(item) for decoder, item in zip(decoders, _list(data), strict=True)])

    return decode


def _made(kind: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda values: kind(*values)


def _list(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError("a list expected")
    return data  # pyright: ignore[reportUnknownVariableType] - of anything; its decoders will see

"""Closed tables of what a program can reach of our classes: constructors, attributes, methods.

Python classes of this package mark with `visible` what torch shows under which name; everything else of a
host object stays out of reach.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from torchwise_memory.operators.registry import REQUIRED, Function, Param, function_of
from torchwise_memory.runtime.errors import Unsupported

if TYPE_CHECKING:
    from torchwise_memory.runtime.world import World

_Any = TypeVar("_Any", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type[Any])

_METHOD_MARK = "__torchwise_methods__"
_STATIC_MARK = "__torchwise_statics__"
_GETTER_MARK = "__torchwise_attribute__"


@dataclass(frozen=True, slots=True)
class NativeAttribute:
    """A computed attribute: `get(w, self)`; `set(w, self, value)` is None for read-only ones."""

    get: Callable[[World, Any], object]
    set: Callable[[World, Any, Any], None] | None = None


@dataclass(frozen=True, slots=True)
class NativeClass:
    """A class of a library that a program may instantiate or derive from.

    name: qualified. bases: qualified names of native bases. params: of `__init__`, without `self`.
    make(): the bare object, before `__init__`; construct(w, self, *args, **kwargs): `__init__`.
    attributes and methods include inherited ones; a method's `call` is (w, self, *args, **kwargs), its params
    begin after `self`. statics are called on the class: (w, *args, **kwargs). Special methods go by their
    names ("__len__", "__getitem__", "__call__" ...). host: the Python class, for `isinstance` of ours only.
    """

    name: str
    bases: tuple[str, ...]
    params: tuple[Param, ...]
    make: Callable[[], Any]
    construct: Callable[..., None]
    attributes: Mapping[str, NativeAttribute]
    methods: Mapping[str, Function]
    statics: Mapping[str, Function]
    host: type[Any]


def visible(*names: str) -> Callable[[_Any], _Any]:
    """The program sees this method, whose first parameters are `self, w`, under `names`."""

    def mark(function: _Any) -> _Any:
        setattr(function, _METHOD_MARK, names)
        return function

    return mark


def static(*names: str) -> Callable[[_Any], _Any]:
    """The program calls this static method `(w, ...)` on the class, under `names`."""

    def mark(function: _Any) -> _Any:
        setattr(function, _STATIC_MARK, names)
        return function

    return mark


def attribute(name: str) -> Callable[[_Any], _Any]:
    """The program reads this method `(self, w)` as an attribute; a method `set_<name>` makes it writable."""

    def mark(function: _Any) -> _Any:
        setattr(function, _GETTER_MARK, name)
        return function

    return mark


def native_class(host: type[Any], name: str, bases: Iterable[str] = ()) -> NativeClass:
    """Reads the table entry off a host class; its `init(self, w, ...)` is torch's `__init__`.

    A class attribute `signature` stands for the parameters of an `init` that takes any.
    """
    methods: dict[str, Function] = {}
    attributes: dict[str, NativeAttribute] = {}
    statics: dict[str, Function] = {}
    for cls in reversed(host.__mro__):
        own = _marked_in(cls)
        methods.update(own.methods)
        attributes.update(own.attributes)
        statics.update(own.statics)
    return NativeClass(
        name=name,
        bases=tuple(bases),
        params=_init_params(host),
        make=host,
        construct=_with_self("init", name),
        attributes=MappingProxyType(attributes),
        methods=MappingProxyType(methods),
        statics=MappingProxyType(statics),
        host=host,
    )


def _init_params(host: type[Any]) -> tuple[Param, ...]:
    if hasattr(host, "signature"):
        signature: tuple[Param, ...] = host.signature
        return signature
    # what a library only returns (an output, a cache) has no constructor to call
    return _params(host.init) if hasattr(host, "init") else ()


@dataclass(frozen=True, slots=True)
class _Marked:
    """What one class itself shows."""

    methods: dict[str, Function]
    attributes: dict[str, NativeAttribute]
    statics: dict[str, Function]


@cache
def _marked_in(cls: type[Any]) -> _Marked:
    """Read once a class: most entries inherit everything."""
    name = str(getattr(cls, "native_name", cls.__name__))
    own = _Marked({}, {}, {})
    for member in vars(cls).values():
        for method in getattr(member, _METHOD_MARK, ()):
            qualified = f"{name}.{method}"
            own.methods[method] = Function(qualified, _params(member), _with_self(member.__name__, qualified))
        function: Callable[..., Any] = getattr(member, "__func__", member)
        for static_name in getattr(function, _STATIC_MARK, ()):
            own.statics[static_name] = function_of(f"{name}.{static_name}", function)
        getter = getattr(member, _GETTER_MARK, None)
        if getter is not None:
            setter = (
                _with_self(f"set_{getter}", f"{name}.{getter}") if hasattr(cls, f"set_{getter}") else None
            )
            own.attributes[getter] = NativeAttribute(_with_self(member.__name__, f"{name}.{getter}"), setter)
    return own


def _params(function: Callable[..., Any]) -> tuple[Param, ...]:
    """Parameters after `self, w`."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    return tuple(
        Param(p.name, REQUIRED if p.default is inspect.Parameter.empty else p.default, p.kind.name)
        for p in parameters
    )


def _with_self(method: str, qualified: str) -> Callable[..., Any]:
    def bound(w: World, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self, method)(w, *args, **kwargs)
        except (TypeError, AttributeError, ValueError, KeyError, IndexError) as error:
            raise Unsupported(qualified, f"arguments not understood ({error})") from None

    return bound

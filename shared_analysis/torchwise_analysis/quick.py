"""Frozen dataclasses that are made by the million, made at the price of plain ones.

A frozen dataclass sets each of its fields through `object.__setattr__`, which takes four times as long as an
assignment; a tenth of a run went there. Type checkers hold these classes to be frozen all the same, and
nothing else can change them: no object of ours is reachable from interpreted code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")

_COPIES: dict[type, Callable[[Any], Any]] = {}


def quicken(namespace: Mapping[str, object]) -> None:
    """Let the frozen dataclasses of a module set their fields by assignment: `quicken(vars())` at its end."""
    for value in tuple(namespace.values()):
        if isinstance(value, type) and value.__module__ == namespace["__name__"] and is_dataclass(value):
            _quicken(value)


def replace(value: T, **changes: object) -> T:
    """`dataclasses.replace`, several times faster for objects of quickened classes."""
    copy = _COPIES.get(value.__class__)
    if copy is None:
        return cast("T", dataclasses.replace(cast("Any", value), **changes))
    new = copy(value)
    for name, field in changes.items():
        setattr(new, name, field)
    return cast("T", new)


def _quicken(cls: type) -> None:
    own = vars(cls)
    if "__post_init__" in own or not getattr(cls, "__dataclass_params__").frozen:  # noqa: B009 - private to typing
        return
    if any(not field.init or field.kw_only for field in fields(cls)):
        return
    for name in ("__setattr__", "__delattr__"):
        if name in own:
            delattr(cls, name)
    if getattr(cls, "__setattr__") is not object.__setattr__:  # noqa: B009 - typed as another method
        raise TypeError(f"{cls.__name__} derives from a class that is not quick")
    setattr(cls, "__init__", _assigning(cls))  # noqa: B010 - no type checker allows it otherwise
    _COPIES[cls] = _copying(cls)


def _assigning(cls: type) -> Callable[..., None]:
    known: dict[str, object] = {"MISSING": MISSING}
    parameters: list[str] = ["_new"]
    body: list[str] = []
    for field in cast("tuple[Field[object], ...]", fields(cls)):
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
    body = [" new = make(cls)", *(f" new.{f.name} = old.{f.name}" for f in fields(cls)), " return new"]
    return _compiled("def copy(old):", body, {"cls": cls, "make": object.__new__})


def _compiled(header: str, body: list[str], known: dict[str, object]) -> Callable[..., Any]:
    exec("\n".join((header, *body)), known)  # noqa: S102 - of names of our own fields
    return cast("Callable[..., Any]", known[header[4 : header.index("(")]])

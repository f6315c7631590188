"""Frameworks that own the training loop or its step: Lightning and Accelerate, by replacement texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Function,
    Keywords,
    Namespace,
    Value,
)

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

#: Roots of which every module shows the names of one replacement text.
ROOTS = {"lightning": "lightning", "pytorch_lightning": "lightning", "accelerate": "accelerate"}

FRAMEWORK_TEXTS = frozenset(ROOTS.values())


def training_space(it: Interpreter, name: str) -> Namespace | None:
    """`lightning.pytorch.trainer` and its like: the text's names wherever a program imports them from."""
    scope = it.library.imports.replacement(ROOTS[name.partition(".")[0]])
    if scope is None:
        return None
    lookup = scope.lookup

    def resolve(member: str) -> Value:
        found = lookup(member)
        if found is MISSING and member in ("pytorch", "trainer", "core", "utilities", "callbacks", "loggers"):
            return it.library.known_module(f"{name}.{member}")
        return found

    return Namespace(name, resolve=resolve)


def helpers() -> dict[str, Value]:
    """Names that only the replacement texts see."""
    return {
        "__arguments__": Builtin("__arguments__", _arguments),
        "__entry__": Builtin("__entry__", _entry),
        "__assume__": Builtin("__assume__", _assume),
    }


def _arguments(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The arguments that an object under construction was given, by parameter."""
    return dict(it.library.arguments.get(id(args[0]), {}))


def _entry(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A function of the text whose loops stand where the program calls it."""
    function = args[0]

    def call(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        before = it.loops.stands_at
        it.loops.stands_at = it.origin()
        try:
            return it.call(function, given, named)
        finally:
            it.loops.stands_at = before

    return Builtin("entry", call)


def _assume(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.assume(text.text_of(it, args[0]))
    return None


def bound_arguments(function: Function, args: list[Value], keywords: Keywords) -> dict[str, Value]:
    """What `__init__` will be given, defaults included; the receiver is no argument."""
    names = [param.name for param in function.node.params][1:]
    given = {name: function.defaults[name] for name in names if name in function.defaults}
    given.update(zip(names, args, strict=False))
    given.update(keywords)
    return given

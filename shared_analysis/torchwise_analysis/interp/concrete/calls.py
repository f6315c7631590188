"""Binding of a call's arguments to a program's own function.

The arguments are moved: after binding only the new frame refers to them, so that a parameter that is
assigned again lets go of what the caller passed, as in CPython.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete.values import Frame, Function, Value
from torchwise_analysis.source.nodes import ParamKind

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter


# Members of an enumeration are looked up through its metaclass each time; calls are bound by the thousand.
_POSITIONAL, _POSITIONAL_ONLY = ParamKind.POSITIONAL, ParamKind.POSITIONAL_ONLY
_VAR_POSITIONAL, _VAR_KEYWORD = ParamKind.VAR_POSITIONAL, ParamKind.VAR_KEYWORD


def bind_arguments(
    it: Interpreter, function: Function, frame: Frame, args: list[Value], keywords: dict[str, Value]
) -> None:
    """Fill `frame` from the arguments and empty them. Raises the program's TypeError."""
    names = frame.names
    position = 0
    lacking: list[str] = []
    spread = ""
    for param in function.node.params:
        name = param.name
        kind = param.kind
        if kind is _POSITIONAL or kind is _POSITIONAL_ONLY:
            if not frame.first:
                frame.first = name
            if position < len(args):
                names[name] = args[position]
                position += 1
                if keywords and name in keywords and kind is _POSITIONAL:
                    raise it.error(
                        "TypeError", f"{function.name}() got multiple values for argument '{name}'"
                    )
                continue
            if name in keywords and kind is _POSITIONAL:
                names[name] = keywords.pop(name)
                continue
        elif kind is _VAR_POSITIONAL:
            names[name] = tuple(args[position:])
            position = len(args)
            continue
        elif kind is _VAR_KEYWORD:
            spread = name
            continue
        elif name in keywords:
            names[name] = keywords.pop(name)
            continue
        if name in function.defaults:
            names[name] = function.defaults[name]
        else:
            lacking.append(name)
    if position < len(args):
        raise it.error(
            "TypeError", f"{function.name}() takes {position} positional arguments but {len(args)} were given"
        )
    args.clear()
    if spread:
        names[spread] = dict(keywords)
    elif keywords:
        surplus = next(iter(keywords))
        raise it.error("TypeError", f"{function.name}() got an unexpected keyword argument '{surplus}'")
    keywords.clear()
    if lacking:
        missing = ", ".join(f"'{name}'" for name in lacking)
        raise it.error("TypeError", f"{function.name}() missing required arguments: {missing}")

"""Which argument reaches which parameter, for any kind of value.

The rules of the language reference, section "Calls". Both drivers bind calls of the program's own
functions and of library functions (whose parameters come from a table) with this one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torchwise_analysis.source.nodes import ParamKind

V = TypeVar("V")


class ParameterLike(Protocol):
    """What binding needs to know of a parameter; `nodes.Param` is one."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> ParamKind: ...


@dataclass(slots=True)
class Binding(Generic[V]):
    """The outcome of a call's binding.

    `values` holds every parameter that got an argument; `*args` and `**kwargs` parameters hold
    theirs in `extra_positional` and `extra_keywords`. `missing` lists parameters without argument
    in declaration order: the caller fills their defaults or rejects the call. `errors` says what
    CPython would raise a TypeError for.
    """

    values: dict[str, V]
    extra_positional: list[V]
    extra_keywords: dict[str, V]
    missing: list[str]
    errors: list[str]


_BY_POSITION = (ParamKind.POSITIONAL_ONLY, ParamKind.POSITIONAL)
_BY_NAME = (ParamKind.POSITIONAL, ParamKind.KEYWORD_ONLY)


def bind(params: Sequence[ParameterLike], args: Iterable[V], keywords: Mapping[str, V]) -> Binding[V]:
    """Bind `args` and `keywords` to `params` as CPython does, collecting errors instead of raising."""
    binding: Binding[V] = Binding({}, [], {}, [], [])
    positional = [p.name for p in params if p.kind in _BY_POSITION]
    takes_positional = any(p.kind is ParamKind.VAR_POSITIONAL for p in params)
    takes_keywords = any(p.kind is ParamKind.VAR_KEYWORD for p in params)
    by_name = {p.name for p in params if p.kind in _BY_NAME}
    for index, value in enumerate(args):
        if index < len(positional):
            binding.values[positional[index]] = value
        elif takes_positional:
            binding.extra_positional.append(value)
        else:
            binding.errors.append(f"takes {len(positional)} positional arguments but more were given")
            break
    for name, value in keywords.items():
        if name in by_name:
            if name in binding.values:
                binding.errors.append(f"got multiple values for argument {name!r}")
            binding.values[name] = value
        elif takes_keywords:
            binding.extra_keywords[name] = value
        else:
            binding.errors.append(f"got an unexpected keyword argument {name!r}")
    binding.missing.extend(
        p.name
        for p in params
        if p.name not in binding.values and p.kind not in (ParamKind.VAR_POSITIONAL, ParamKind.VAR_KEYWORD)
    )
    return binding

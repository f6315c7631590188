"""How operators get their names.

Operators are plain functions whose first parameter is the world; the others have torch's names and defaults.
Decorating a function leaves it as it is and notes the names; `library.py` gathers the tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.sequences import is_sequence
from torchwise_memory.runtime.world import World

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


class Required:
    """The default of a parameter that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter; kind is that of `inspect.Parameter` by name."""

    name: str
    default: object = REQUIRED
    kind: str = "POSITIONAL_OR_KEYWORD"


@dataclass(frozen=True, slots=True)
class Function:
    """Something the program may call: `call(world, *args, **kwargs)`, parameters as torch names them.

    For methods the first parameter is the tensor. A `VAR_POSITIONAL` parameter (`view(*shape)`,
    `zeros(*size)`) may also be given by keyword; `invoke` sorts that out.

    names: of all parameters; spread: of that one.
    """

    name: str
    params: tuple[Param, ...]
    call: Callable[..., Any]
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    spread: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(param.name for param in self.params))
        spread = next((param.name for param in self.params if param.kind == "VAR_POSITIONAL"), None)
        object.__setattr__(self, "spread", spread)

    def invoke(self, w: World, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Bind and run. Raises Unsupported for arguments that the signature does not take."""
        if not kwargs:
            return self._run(w, args, {})
        names, spread = self.names, self.spread
        bound: dict[str, object] = {}
        for key, value in kwargs.items():
            name = key if key in names else _OTHER_NAMES.get(key, key)
            if name == spread:
                args = (*args, *(value if is_sequence(value) else (value,)))
            else:
                bound[name] = value
        return self._run(w, args, bound)

    def _run(self, w: World, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        try:
            return self.call(w, *args, **kwargs)
        except TypeError as error:
            # Our own signature refused: the traceback ends in this frame, nothing of the operator ran.
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise Unsupported(self.name, f"arguments not understood ({error})") from None
            raise


#: Other names that torch's argument parser accepts: numpy's, and those of single overloads.
_OTHER_NAMES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "indices": "indices_or_sections",
    "sections": "indices_or_sections",
    "x2": "other",
}


@dataclass(frozen=True, slots=True)
class Registration:
    """A function, the qualified names it goes by, and the Tensor methods it is."""

    names: tuple[str, ...]
    methods: tuple[str, ...]
    call: Callable[..., Any]


_MARK = "__torchwise_registration__"


def operator(*names: str, method: str | Sequence[str] = ()) -> Callable[[_Callable], _Callable]:
    """Register under qualified names ("torch.nn.functional.linear"), and as Tensor methods where `method`
    says so.
    """
    methods = (method,) if isinstance(method, str) else tuple(method)

    def mark(function: _Callable) -> _Callable:
        registration = Registration(names, methods, function)
        setattr(function, _MARK, (*getattr(function, _MARK, ()), registration))
        return function

    return mark


def method(*names: str) -> Callable[[_Callable], _Callable]:
    """Register as Tensor methods only."""
    return operator(method=names)


def registrations(namespace: Mapping[str, object]) -> list[Registration]:
    """What the functions in a module's namespace, and in lists there (families made from tables), were marked
    with.
    """
    found: dict[int, Registration] = {}
    for value in namespace.values():
        for function in value if is_sequence(value) else (value,):
            marks: Sequence[Registration] = getattr(function, _MARK, ())
            found.update((id(mark), mark) for mark in marks)
    return list(found.values())


def function_of(name: str, call: Callable[..., Any]) -> Function:
    """The table entry: parameters are read from the Python signature, less the world."""
    parameters = list(inspect.signature(call).parameters.values())[1:]
    params = tuple(
        Param(p.name, REQUIRED if p.default is inspect.Parameter.empty else p.default, p.kind.name)
        for p in parameters
    )
    return Function(name, params, call)

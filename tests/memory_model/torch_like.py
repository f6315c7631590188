"""Lets an expression in torch's own spelling run on the runtime: `F.gelu(x)`, `torch.cat([x, y])`."""

from __future__ import annotations

from typing import Any

from torchwise_memory.library import FUNCTIONS, METHODS, TENSOR_ATTRIBUTES
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class Namespace:
    """`torch`, `torch.nn.functional` and so on, over the tables of the library."""

    def __init__(self, w: World, prefix: str) -> None:
        self._w = w
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        qualified = f"{self._prefix}.{name}"
        if qualified in FUNCTIONS:
            return lambda *args, **kwargs: wrap(
                self._w, FUNCTIONS[qualified].invoke(self._w, unwrap(args), unwrap(kwargs))
            )
        if self._prefix == "torch" and name in DTYPES:
            return DTYPES[name]
        return Namespace(self._w, qualified)

    def __repr__(self) -> str:
        return self._prefix


class Like:
    """A tensor of the program."""

    def __init__(self, w: World, tensor: Tensor) -> None:
        self.w = w
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name in TENSOR_ATTRIBUTES:
            return wrap(self.w, TENSOR_ATTRIBUTES[name].get(self.w, self.tensor))
        return self.bound(name)

    def bound(self, name: str) -> Any:
        method = METHODS[name]
        return lambda *args, **kwargs: wrap(
            self.w, method.invoke(self.w, (self.tensor, *unwrap(args)), unwrap(kwargs))
        )

    __hash__ = object.__hash__


def _dunder(name: str) -> Any:
    return lambda self, *args: self.bound(name)(*args)


for _name in [name for name in METHODS if name.startswith("__")]:
    setattr(Like, _name, _dunder(_name))
setattr(Like, "__iter__", lambda self: iter(self.bound("__iter__")()))  # noqa: B010


def wrap(w: World, value: Any) -> Any:
    if isinstance(value, Tensor):
        return Like(w, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(wrap(w, item) for item in value))
    if isinstance(value, tuple | list) and any(isinstance(item, Tensor) for item in value):
        return type(value)(wrap(w, item) for item in value)
    return value


def unwrap(value: Any) -> Any:
    if isinstance(value, Like):
        return value.tensor
    if isinstance(value, dict):
        return {key: unwrap(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(unwrap(item) for item in value)
    if isinstance(value, slice):
        return slice(unwrap(value.start), unwrap(value.stop), unwrap(value.step))
    return value

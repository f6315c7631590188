"""`torch._foreach_*`: lists of tensors at once, as hand-written optimizers and averages use them.

In place they take nothing; out of place they make one tensor a list element. They run outside the graph in
practice: operands that need a gradient are refused.
"""

from __future__ import annotations

from collections.abc import Callable

from .registry import operator
from .support import Tensor, Unsupported, World, needs_graph, tensor_list

_OPERATIONS = (
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "clamp_min",
    "clamp_max",
    "addcmul",
    "addcdiv",
    "lerp",
    "pow",
    "neg",
    "abs",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "log",
    "sign",
    "round",
    "floor",
    "ceil",
    "sigmoid",
    "tanh",
)


def _checked(w: World, name: str, tensors: object) -> list[Tensor]:
    found = tensor_list(tensors, name)
    if needs_graph(w, *found):
        raise Unsupported(name, "operands that need a gradient are not modelled")
    return found


def _define(operation: str) -> tuple[Callable[..., object], Callable[..., object]]:
    name = f"torch._foreach_{operation}"

    def plain(w: World, self: object, *args: object, **kwargs: object) -> list[Tensor]:
        return [w.like(tensor, f"_foreach_{operation}") for tensor in _checked(w, name, self)]

    def inplace(w: World, self: object, *args: object, **kwargs: object) -> None:
        for tensor in _checked(w, name + "_", self):
            tensor.storage.values = None

    return operator(name)(plain), operator(name + "_")(inplace)


GENERATED: list[Callable[..., object]] = [function for name in _OPERATIONS for function in _define(name)]


@operator("torch._foreach_copy_", "torch._foreach_zero_")
def foreach_copy_(w: World, self: object, *args: object, **kwargs: object) -> None:
    for tensor in _checked(w, "torch._foreach_copy_", self):
        tensor.storage.values = None


@operator("torch._foreach_norm")
def foreach_norm(w: World, self: object, ord: object = 2, dtype: object = None) -> list[Tensor]:
    tensors = _checked(w, "torch._foreach_norm", self)
    return [w.new((), tensor.dtype, "_foreach_norm", tensor.storage.device) for tensor in tensors]

"""Attributes of tensors that the program may read and set. Closed: nothing else of a tensor is visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from torchwise_memory.runtime.tensor import set_data

from .support import Tensor, Unsupported, World, alias
from .views import complex_part, permuted, transpose


@dataclass(frozen=True, slots=True)
class Attribute:
    """get(world, tensor), and set(world, tensor, value) where assignment is allowed."""

    get: Callable[[World, Tensor], object]
    set: Callable[[World, Tensor, object], None] | None = None


@dataclass(frozen=True, slots=True)
class GraphHandle:
    """What `grad_fn` shows: that there is a graph, and the name of the operator; no way into it."""

    name: str


def _reversed(w: World, tensor: Tensor) -> Tensor:
    return permuted(w, tensor, tuple(range(tensor.ndim - 1, -1, -1)))


def _set_grad(w: World, tensor: Tensor, value: object) -> None:
    if value is not None and not isinstance(value, Tensor):
        raise Unsupported("Tensor.grad", "assigned something that is not a tensor")
    tensor.grad = value


def _set_requires_grad(w: World, tensor: Tensor, value: object) -> None:
    if tensor.node is not None:
        if not value:
            raise Unsupported(
                "Tensor.requires_grad", "cannot be switched off for a tensor with a graph; torch raises here"
            )
        return
    if value and not tensor.dtype.is_differentiable:
        raise Unsupported(
            "Tensor.requires_grad", f"{tensor.dtype} tensors have no gradient; torch raises here"
        )
    tensor.requires_grad = bool(value)


def _set_data(w: World, tensor: Tensor, value: object) -> None:
    if not isinstance(value, Tensor):
        raise Unsupported("Tensor.data", "assigned something that is not a tensor")
    set_data(tensor, value)


def _grad_fn(w: World, tensor: Tensor) -> object:
    return None if tensor.node is None else GraphHandle(tensor.node.name)


def _constant(value: object) -> Attribute:
    return Attribute(lambda w, t: value)


TENSOR_ATTRIBUTES = MappingProxyType(
    {
        "shape": Attribute(lambda w, t: t.shape),
        "dtype": Attribute(lambda w, t: t.dtype),
        "device": Attribute(lambda w, t: t.storage.device),
        "grad": Attribute(lambda w, t: t.grad, _set_grad),
        "requires_grad": Attribute(lambda w, t: t.requires_grad, _set_requires_grad),
        "data": Attribute(lambda w, t: alias(t), _set_data),
        "grad_fn": Attribute(_grad_fn),
        "is_leaf": Attribute(lambda w, t: t.node is None),
        "ndim": Attribute(lambda w, t: t.ndim),
        "T": Attribute(_reversed),
        "mT": Attribute(lambda w, t: transpose(w, t, -2, -1)),
        "H": Attribute(_reversed),
        "mH": Attribute(lambda w, t: transpose(w, t, -2, -1)),
        "real": Attribute(lambda w, t: complex_part(w, t, "real")),
        "imag": Attribute(lambda w, t: complex_part(w, t, "imag")),
        "is_cuda": Attribute(lambda w, t: t.storage.device.on_card),
        "is_cpu": Attribute(lambda w, t: t.storage.device.type == "cpu"),
        "is_meta": Attribute(lambda w, t: t.storage.device.type == "meta"),
        "itemsize": Attribute(lambda w, t: t.dtype.itemsize),
        "nbytes": Attribute(lambda w, t: t.bytes),
        "_base": Attribute(lambda w, t: t.base),
        "retains_grad": Attribute(lambda w, t: t.node is not None and t.grad is not None),
        "output_nr": Attribute(lambda w, t: t.index),
        "is_sparse": _constant(False),
        "is_sparse_csr": _constant(False),
        "is_quantized": _constant(False),
        "is_mkldnn": _constant(False),
        "is_nested": _constant(False),
        "is_mps": _constant(False),
        "is_xla": _constant(False),
        "is_xpu": _constant(False),
        "is_vulkan": _constant(False),
        "names": Attribute(lambda w, t: (None,) * t.ndim),
        "layout": _constant("torch.strided"),
    }
)

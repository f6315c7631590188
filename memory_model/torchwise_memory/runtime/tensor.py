"""Tensors without values: a shape and strides over a storage, and the place in the autograd graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING

from .device import Device
from .dtypes import DType
from .layout import Shape, contiguous_strides, is_contiguous, is_dense
from .storage import Storage

if TYPE_CHECKING:
    from .tape import Accumulator, Node
    from .world import World

#: Called with the gradient that is about to reach a tensor; may return another one.
GradientHook = Callable[["World", "Tensor"], "Tensor | None"]
#: Called with a leaf after its `.grad` was updated.
AccumulatedHook = Callable[["World", "Tensor"], None]


class Size(tuple[int, ...]):
    """`torch.Size`."""

    __slots__ = ()

    def numel(self) -> int:
        return prod(self)


class Tensor:
    """A view of a storage.

    shape, strides, offset: in elements. node/index: the producer in the graph and which of its outputs this
    is (node None: a leaf). base: the tensor this is a differentiable view of, whose producer an in-place
    operator must re-base. accumulator: weak, a leaf does not keep its accumulator (nor itself) alive. grad:
    of leaves, and of tensors that asked to retain theirs.
    """

    __slots__ = (
        "__weakref__",
        "accumulated_hooks",
        "accumulator",
        "base",
        "dtype",
        "grad",
        "hooks",
        "index",
        "node",
        "offset",
        "requires_grad",
        "shape",
        "storage",
        "strides",
    )
    # Identity, as in torch: a tensor is usable as a key of the program's dictionaries.
    __hash__ = object.__hash__

    def __init__(
        self,
        shape: Iterable[int],
        dtype: DType,
        storage: Storage,
        strides: Shape | None = None,
        offset: int = 0,
    ) -> None:
        self.shape = shape if isinstance(shape, Size) else Size(shape)
        self.strides = contiguous_strides(self.shape) if strides is None else strides
        self.offset = offset
        self.dtype = dtype
        self.storage = storage
        self.requires_grad = False
        self.grad: Tensor | None = None
        self.node: Node | None = None
        self.index = 0
        self.base: Tensor | None = None
        self.accumulator: weakref.ref[Accumulator] | None = None
        self.hooks: list[GradientHook] | None = None
        self.accumulated_hooks: list[AccumulatedHook] | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> Device:
        return self.storage.device

    @property
    def is_leaf(self) -> bool:
        return self.node is None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements seen through this view, which may be fewer or more than the storage has."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    @property
    def is_dense(self) -> bool:
        return is_dense(self.shape, self.strides)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"<{type(self).__name__} {shape} {self.dtype.name} on {self.device}>"


class Parameter(Tensor):
    """`torch.nn.Parameter`: a leaf that modules register and autocast may cache the cast of."""

    __slots__ = ()

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.shape, data.dtype, data.storage, data.strides, data.offset)
        self.requires_grad = requires_grad


def alias(
    tensor: Tensor,
    shape: Iterable[int] | None = None,
    strides: Shape | None = None,
    offset: int | None = None,
) -> Tensor:
    """A detached tensor on the same storage."""
    if shape is None:
        shape = tensor.shape
        if strides is None:
            strides = tensor.strides
    return Tensor(shape, tensor.dtype, tensor.storage, strides, tensor.offset if offset is None else offset)


def set_data(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`: the tensor shows another storage; its place in the graph stays."""
    tensor.shape = data.shape
    tensor.strides = data.strides
    tensor.offset = data.offset
    tensor.dtype = data.dtype
    tensor.storage = data.storage


def values_of(tensor: Tensor) -> list[float] | None:
    """The elements in row-major order, None when they are not known."""
    values = tensor.storage.values
    if values is None:
        return None
    if is_contiguous(tensor.shape, tensor.strides):
        return values[tensor.offset : tensor.offset + prod(tensor.shape)]
    positions = [tensor.offset]
    for extent, stride in zip(tensor.shape, tensor.strides, strict=True):
        positions = [start + i * stride for start in positions for i in range(extent)]
    return [values[position] for position in positions]

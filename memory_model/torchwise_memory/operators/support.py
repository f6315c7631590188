"""What operator entries are written with: result types, layouts, autocast classes, in-place recording, small
values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import overload

from torchwise_memory.report import Phase
from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.device import CPU, CUDA, Device, device_of
from torchwise_memory.runtime.dtypes import BOOL, COMPLEX, FLOATING, INTEGER, DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.layout import (
    Shape,
    broadcast,
    channels_last_strides,
    elementwise_strides,
    is_contiguous,
    is_dense,
)
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.sequences import is_sequence
from torchwise_memory.runtime.tape import Backward, Gradients, Saved, needs_graph, record
from torchwise_memory.runtime.tensor import Tensor, alias, values_of
from torchwise_memory.runtime.unknown import Scalar, UnknownItems, UnknownScalar
from torchwise_memory.runtime.world import World

__all__ = [
    "BOOL",
    "COMPLEX",
    "CPU",
    "CUDA",
    "FLOATING",
    "INTEGER",
    "Backward",
    "DType",
    "Device",
    "Gradients",
    "Operand",
    "Saved",
    "Scalar",
    "Shape",
    "StorageKind",
    "Tensor",
    "UnknownItems",
    "UnknownScalar",
    "Unsupported",
    "World",
    "alias",
    "autocast_dtype",
    "cast",
    "device_from",
    "dim_of",
    "dims_of",
    "dtypes",
    "elementwise",
    "extent",
    "factory_kind",
    "float_result",
    "formatted_strides",
    "gather_values",
    "high",
    "integers",
    "is_contiguous",
    "is_dense",
    "low",
    "needs_graph",
    "pass_through",
    "prod",
    "record",
    "record_inplace",
    "result_type",
    "scalar_dtype",
    "set_values",
    "shape_of",
    "store_values",
    "tensor_list",
    "values_of",
    "widest",
]

Operand = Tensor | Scalar

#: Tensors with more elements never carry values.
VALUE_LIMIT = 4096


# --- arguments


def extent(value: object, name: str = "shape") -> int:
    """A whole number the program gave, also as a small tensor."""
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, Tensor):
            known = values_of(value)
            if known is not None and len(known) == 1:
                return int(known[0])
        raise Unsupported(name, f"an extent is not known ({_described(value)})")
    return value


def integers(value: object, name: str = "argument") -> tuple[int, ...]:
    """One whole number or a sequence of them."""
    if is_sequence(value):
        return tuple(extent(item, name) for item in value)
    if isinstance(value, Tensor) and value.ndim == 1:
        known = values_of(value)
        if known is None:
            raise Unsupported(name, "extents held in a tensor are not known")
        return tuple(int(item) for item in known)
    return (extent(value, name),)


def shape_of(args: Sequence[object], name: str = "shape") -> tuple[int, ...]:
    """`*size` arguments: separate numbers or one sequence."""
    if len(args) == 1 and is_sequence(args[0]):
        return integers(args[0], name)
    return tuple(extent(value, name) for value in args)


def dim_of(dim: object, ndim: int, name: str = "dim") -> int:
    """A dimension counted from the front. Scalars count as one-dimensional."""
    number = extent(dim, name)
    size = max(ndim, 1)
    if not -size <= number < size:
        raise Unsupported(name, f"dimension {number} out of range for {ndim} dimensions")
    return number % size


def dims_of(dim: object, ndim: int, name: str = "dim") -> tuple[int, ...]:
    """Dimensions counted from the front; None and an empty sequence mean all."""
    if dim is None or (is_sequence(dim) and not dim):
        return tuple(range(ndim))
    return tuple(dim_of(item, ndim, name) for item in integers(dim, name))


def tensor_list(tensors: object, name: str) -> list[Tensor]:
    """A list or tuple of tensors, or the rows of one tensor."""
    if not is_sequence(tensors):
        raise Unsupported(name, f"expected a sequence of tensors, got {_described(tensors)}")
    found: list[Tensor] = []
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise Unsupported(name, f"expected tensors, got {_described(tensor)}")
        found.append(tensor)
    return found


def device_from(w: World, device: object, like: Tensor | None = None) -> Device:
    """The device a factory writes to."""
    if device is not None:
        return device_of(device)
    if like is not None:
        return like.storage.device
    return w.default_device or CPU


def _described(value: object) -> str:
    if isinstance(value, UnknownScalar | UnknownItems):
        return value.reason
    return type(value).__name__


# --- result types


def result_type(w: World, *operands: Operand) -> DType:
    """`torch.result_type`: sized tensors outrank zero-dimensional ones, which outrank plain numbers."""
    if len(operands) == 2:
        a, b = operands
        if isinstance(a, Tensor):
            if isinstance(b, Tensor):
                if a.dtype is b.dtype:
                    return a.dtype
            elif a.dtype.category == FLOATING and isinstance(b, int | float):
                return a.dtype
    groups: list[DType | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Tensor):
            rank, dtype = (0 if operand.shape else 1), operand.dtype
        else:
            rank, dtype = 2, scalar_dtype(w, operand)
        present = groups[rank]
        groups[rank] = dtype if present is None else dtypes.promote(present, dtype)
    combined = _combined(groups[0], _combined(groups[1], groups[2]))
    assert combined is not None
    return combined


def scalar_dtype(w: World, value: Scalar) -> DType:
    """The type a number of the program counts as."""
    if isinstance(value, UnknownScalar):
        return {"bool": dtypes.boolean, "int": dtypes.int64}.get(value.kind, w.default_dtype)
    if isinstance(value, bool):
        return dtypes.boolean
    if isinstance(value, int):
        return dtypes.int64
    if isinstance(value, float):
        return w.default_dtype
    return dtypes.complex_of(w.default_dtype)


def float_result(w: World, dtype: DType) -> DType:
    """Integers become the default floating type, as in `div`, `exp`, `sigmoid`."""
    return dtype if dtype.category >= FLOATING else w.default_dtype


def _combined(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.category == COMPLEX:
        return higher
    if higher.category == FLOATING:
        return dtypes.complex_of(higher) if lower.category == COMPLEX else higher
    if higher.category == BOOL or lower.category >= FLOATING:
        return dtypes.promote(higher, lower)
    return higher


# --- results


def elementwise(w: World, name: str, dtype: DType, *tensors: Tensor) -> Tensor:
    """The result of an elementwise operator over broadcast tensors, in TensorIterator's layout."""
    first, others = tensors[0], tensors[1:]
    if all(t.shape == first.shape for t in others):
        shape: Shape = first.shape
        if not others and is_contiguous(shape, first.strides):
            strides = None
        elif is_dense(shape, first.strides) and 0 not in first.strides:
            strides = first.strides
        else:
            strides = elementwise_strides(shape, [(t.shape, t.strides) for t in tensors])
    else:
        shape = first.shape
        for tensor in others:
            common = broadcast(shape, tensor.shape)
            if common is None:
                raise Unsupported(name, f"shapes {tuple(shape)} and {tuple(tensor.shape)} do not broadcast")
            shape = common
        sized = [(t.shape, t.strides) for t in tensors if t.shape]
        strides = elementwise_strides(shape, sized) if sized else None
    device = first.storage.device if not others else _common_device(name, tensors)
    return w.new(shape, dtype, name, device, strides)


def _common_device(name: str, tensors: Sequence[Tensor]) -> Device:
    device = tensors[0].storage.device
    for tensor in tensors:
        other = tensor.storage.device
        if other is device or other == device:
            continue
        if not tensor.shape and other.type == "cpu":
            continue
        if device.type == "cpu" and all(not t.shape for t in tensors if t.storage.device == device):
            device = other
            continue
        raise Unsupported(name, f"tensors on different devices ({device} and {other}); torch raises here")
    return device


def formatted_strides(shape: Shape, memory_format: object) -> Shape | None:
    """Strides of a memory format the program named; None for row-major."""
    name = str(memory_format).removeprefix("torch.")
    if name in ("channels_last", "channels_last_3d"):
        if len(shape) != (4 if name == "channels_last" else 5):
            raise Unsupported("memory_format", f"{name} of a tensor with {len(shape)} dimensions")
        return channels_last_strides(shape)
    if name in ("contiguous_format", "preserve_format", "None"):
        return None
    raise Unsupported("memory_format", f"{name} is not modelled")


# --- autocast classes


def autocast_dtype(w: World, tensor: Tensor) -> DType | None:
    """What autocast turns this tensor's matrix products into, None where it does not act."""
    kind = tensor.storage.device.type
    return w.autocast_dtype if kind == "cuda" else w.autocast_cpu_dtype if kind == "cpu" else None


def low(w: World, tensor: Tensor) -> Tensor:
    """Operand of an operator of the class "lower precision". Casts of trainable fp32 leaves are made once a
    region.
    """
    target = autocast_dtype(w, tensor)
    source = tensor.dtype
    if target is None or source is target or source.category != FLOATING or source is dtypes.float64:
        return tensor
    cacheable = (
        w.autocast_cache_enabled
        and source is dtypes.float32
        and tensor.node is None
        and tensor.requires_grad
        and tensor.base is None
    )
    if not cacheable:
        return cast(w, tensor, target)
    entry = w.autocast_cache.get(id(tensor))
    if entry is not None and entry[0]() is tensor:
        return entry[1]
    result = cast(w, tensor, target)
    w.autocast_cache[id(tensor)] = (weakref.ref(tensor), result)
    return result


def high(w: World, tensor: Tensor) -> Tensor:
    """Operand of an operator of the class "fp32"."""
    if tensor.dtype in dtypes.HALF_TYPES and autocast_dtype(w, tensor) is not None:
        return cast(w, tensor, dtypes.float32)
    return tensor


def widest(w: World, *tensors: Tensor) -> list[Tensor]:
    """Operands of an operator of the class "promote": all in the widest floating type among them."""
    if autocast_dtype(w, tensors[0]) is None:
        return list(tensors)
    floating = [t.dtype for t in tensors if t.dtype.category == FLOATING and t.dtype is not dtypes.float64]
    if not floating:
        return list(tensors)
    target = dtypes.float32 if dtypes.float32 in floating else floating[0]
    for dtype in floating:
        target = dtypes.promote(target, dtype)
    return [cast(w, t, target) if t.dtype.category == FLOATING else t for t in tensors]


def cast(w: World, tensor: Tensor, dtype: DType) -> Tensor:
    """`tensor.to(dtype)`: the tensor itself when nothing changes, else a copy whose backward casts back."""
    if tensor.dtype is dtype:
        return tensor
    result = w.like(tensor, "to", dtype)
    set_values(result, lambda x: x, tensor)
    if dtype.is_differentiable and tensor.dtype.is_differentiable:
        record(w, "ToCopy", (tensor,), (), _CastBack(tensor.dtype), result)
    return result


class _CastBack:
    __slots__ = ("dtype",)

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [gradient if gradient.dtype is self.dtype else w.like(gradient, "to", self.dtype)]


# --- recording


def pass_through(w: World, saved: Saved, gradients: Gradients) -> Gradients:
    """The gradient of the only input is that of the output."""
    return [gradients[0]]


def record_inplace(
    w: World,
    name: str,
    target: Tensor,
    others: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
    backward: Backward,
) -> Tensor:
    """Re-base `target` on a node of an in-place operator; `backward` gives gradients of target, then of
    `others`.

    A view re-bases the tensor it is a view of, through a copy of the whole gradient.
    """
    target.storage.values = None
    target.storage.share = None
    if not needs_graph(w, target, target.base, *others):
        return target
    if target.requires_grad and target.node is None and target.base is None:
        raise Unsupported(name, "a leaf that requires a gradient is changed in place; torch raises here")
    base = target.base
    if base is None or not (base.requires_grad or any(t is not None and t.requires_grad for t in others)):
        record(w, name, (target, *others), saved, backward, target)
        return target
    if base.requires_grad and base.node is None:
        raise Unsupported(
            name, "a view of a leaf that requires a gradient is changed in place; torch raises here"
        )
    record(w, "CopySlices", (base, *others), saved, _CopySlices(backward, target), base)
    record(w, "AsStrided", (base,), (), _AsStridedBack(base.shape), target)
    return target


class _CopySlices:
    """The gradient of the base is copied whole; its part under the view goes through `backward`."""

    def __init__(self, backward: Backward, view: Tensor) -> None:
        self.backward = backward
        self.shape: Shape = view.shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        whole = w.like(gradient, "copy_slices")
        part = w.new(self.shape, gradient.dtype, "copy_slices", gradient.storage.device)
        rest = list(self.backward(w, saved, [part]))[1:]
        return [whole, *rest]


class _AsStridedBack:
    __slots__ = ("shape",)

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(self.shape, gradient.dtype, "as_strided_backward", gradient.storage.device)]


# --- small values


@overload
def set_values(result: Tensor, function: Callable[[float], float], a: Operand, /) -> None: ...


@overload
def set_values(
    result: Tensor, function: Callable[[float, float], float], a: Operand, b: Operand, /
) -> None: ...


@overload
def set_values(
    result: Tensor, function: Callable[[float, float, float], float], a: Operand, b: Operand, c: Operand, /
) -> None: ...


def set_values(result: Tensor, function: Callable[..., float], *operands: Operand) -> None:
    """Give a small CPU result its elements where those of all operands are known."""
    if result.storage.device.type != "cpu" or prod(result.shape) > VALUE_LIMIT:
        return
    columns: list[list[float]] = []
    for operand in operands:
        if isinstance(operand, Tensor):
            known = gather_values(operand, result.shape)
            if known is None:
                return
            columns.append(known)
        elif isinstance(operand, bool | int | float):
            columns.append([operand] * prod(result.shape))
        else:
            return
    if not is_contiguous(result.shape, result.strides):
        return
    try:
        values = [function(*row) for row in zip(*columns, strict=True)]
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return
    store_values(result, values)


_WHOLE = {int, bool}


def store_values(result: Tensor, values: Sequence[float]) -> None:
    """Set the elements of a fresh contiguous CPU tensor, in the terms of its type."""
    if result.storage.device.type != "cpu" or len(values) > VALUE_LIMIT:
        return
    category = result.dtype.category
    kinds = set(map(type, values))
    if kinds <= _WHOLE:
        if category == INTEGER:
            result.storage.values = list(map(int, values))
            return
    elif any(isinstance(value, complex) or value != value for value in values):
        return
    try:
        if category == BOOL:
            result.storage.values = [bool(value) for value in values]
        elif category == INTEGER:
            result.storage.values = [int(value) for value in values]
        elif category == FLOATING:
            result.storage.values = [float(value) for value in values]
    except (OverflowError, ValueError):
        return


def fill_values(result: Tensor, value: float, count: int) -> None:
    """`store_values` of `count` times the same number."""
    store_values(result, [value])
    if result.storage.values is not None:
        result.storage.values *= count


def gather_values(tensor: Tensor, shape: Shape) -> list[float] | None:
    """Elements of a tensor broadcast to `shape`, row-major; None when they are not known."""
    if tensor.storage.values is None:
        return None
    if tensor.shape == shape:
        return values_of(tensor)
    lead = len(shape) - len(tensor.shape)
    strides = (0,) * lead + tuple(
        0 if old == 1 and new != 1 else stride
        for old, new, stride in zip(tensor.shape, shape[lead:], tensor.strides, strict=True)
    )
    return values_of(alias(tensor, shape, strides))


def factory_kind(w: World) -> StorageKind | None:
    """Tensors made outside any module are inputs of the step; inside they are intermediate results."""
    if w.module_depth == 0 and w.ledger.phase is Phase.FORWARD:
        return StorageKind.INPUT
    return None

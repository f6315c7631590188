"""Views, and the copies that stand in for them where strides do not allow a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchwise_memory.runtime.device import device_of
from torchwise_memory.runtime.layout import (
    channels_last_strides,
    contiguous_strides,
    expanded_strides,
    view_strides,
)
from torchwise_memory.runtime.sequences import is_sequence

from .registry import method, operator
from .support import (
    DType,
    Gradients,
    Saved,
    Shape,
    StorageKind,
    Tensor,
    UnknownScalar,
    Unsupported,
    World,
    alias,
    cast,
    dim_of,
    dims_of,
    dtypes,
    extent,
    formatted_strides,
    integers,
    is_contiguous,
    pass_through,
    prod,
    record,
    set_values,
    shape_of,
    tensor_list,
)

# --- building blocks


def make_view(base: Tensor, shape: Shape, strides: Shape, offset: int) -> Tensor:
    """A differentiable view: in-place operators on it re-base what it is a view of."""
    result = Tensor(shape, base.dtype, base.storage, strides, offset)
    result.base = base if base.base is None else base.base
    return result


class ReshapeBack:
    """The gradient in the shape of the input: a view, or a copy where strides do not allow one."""

    __slots__ = ("shape",)

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [reshaped(w, gradient, self.shape)]


def reshaped(w: World, tensor: Tensor, shape: Shape) -> Tensor:
    """`tensor.reshape(shape)` outside the graph."""
    strides = view_strides(tensor.shape, tensor.strides, shape)
    if strides is not None:
        return alias(tensor, shape, strides)
    return w.new(shape, tensor.dtype, "clone", tensor.storage.device)


class _ZeroPadBack:
    """The gradient of a part: zeros of the whole, into which the part is copied."""

    __slots__ = ("name", "shape")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(self.shape, gradient.dtype, self.name, gradient.storage.device)]


class _JoinBack:
    """The gradient of all parts: zeros for those without one, then one new tensor."""

    __slots__ = ("name", "parts", "shape")

    def __init__(self, name: str, shape: Shape, parts: list[Shape]) -> None:
        self.name = name
        self.shape = shape
        self.parts = parts

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        first = next(gradient for gradient in gradients if gradient is not None)
        device = first.storage.device
        zeros = [
            w.new(part, first.dtype, "zeros", device)
            for part, gradient in zip(self.parts, gradients, strict=True)
            if gradient is None
        ]
        result = w.new(self.shape, first.dtype, self.name, device)
        zeros.clear()
        return [result]


class _PermuteBack:
    __slots__ = ("order",)

    def __init__(self, order: Shape) -> None:
        self.order = order

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        shape = tuple(gradient.shape[i] for i in self.order)
        return [alias(gradient, shape, tuple(gradient.strides[i] for i in self.order))]


# --- shape


@method("view")
def view(w: World, self: Tensor, *shape: object) -> Tensor:
    """Never copies. Refuses what torch refuses."""
    if len(shape) == 1 and isinstance(shape[0], DType):
        return _reinterpreted(w, self, shape[0])
    wanted = _resolved(self, shape_of(shape, "Tensor.view"), "Tensor.view")
    strides = view_strides(self.shape, self.strides, wanted)
    if strides is None:
        raise Unsupported(
            "Tensor.view",
            f"{tuple(self.shape)} with these strides cannot be seen as {wanted}; torch raises here",
        )
    return _viewed(w, self, wanted, strides)


@operator("torch.reshape")
def torch_reshape(w: World, input: Tensor, shape: object) -> Tensor:
    return reshape_to(w, input, _resolved(input, integers(shape, "torch.reshape"), "torch.reshape"))


@method("reshape")
def reshape(w: World, self: Tensor, *shape: object) -> Tensor:
    return reshape_to(w, self, _resolved(self, shape_of(shape, "Tensor.reshape"), "Tensor.reshape"))


def reshape_to(w: World, tensor: Tensor, shape: Shape) -> Tensor:
    """A view where strides allow, else a copy."""
    strides = view_strides(tensor.shape, tensor.strides, shape)
    if strides is not None:
        return _viewed(w, tensor, shape, strides)
    return _viewed(w, contiguous(w, tensor), shape, contiguous_strides(shape))


@method("view_as", "reshape_as")
def view_as(w: World, self: Tensor, other: Tensor) -> Tensor:
    return reshape_to(w, self, other.shape)


def _resolved(tensor: Tensor, shape: Shape, name: str) -> Shape:
    count = tensor.numel
    if -1 in shape:
        known = prod(d for d in shape if d != -1)
        if shape.count(-1) > 1 or known == 0 or count % known:
            raise Unsupported(name, f"{tuple(tensor.shape)} cannot become {shape}")
        shape = tuple(count // known if d == -1 else d for d in shape)
    if prod(shape) != count:
        raise Unsupported(name, f"{tuple(tensor.shape)} cannot become {shape}")
    return shape


def _viewed(w: World, tensor: Tensor, shape: Shape, strides: Shape) -> Tensor:
    result = make_view(tensor, shape, strides, tensor.offset)
    record(w, "view", (tensor,), (), ReshapeBack(tensor.shape), result)
    return result


def _reinterpreted(w: World, tensor: Tensor, dtype: DType) -> Tensor:
    """`view(dtype)`: the same bytes as another type; the last extent follows."""
    old, new = tensor.dtype.itemsize, dtype.itemsize
    shape = list(tensor.shape)
    if old != new:
        if not shape or not tensor.is_contiguous or shape[-1] * old % new:
            raise Unsupported("Tensor.view", f"{tensor.dtype} cannot be seen as {dtype}")
        shape[-1] = shape[-1] * old // new
    result = Tensor(
        shape, dtype, tensor.storage, tensor.strides if old == new else None, tensor.offset * old // new
    )
    result.base = tensor if tensor.base is None else tensor.base
    return result


@operator("torch.flatten", method="flatten")
def flatten(w: World, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if not input.shape:
        return reshape_to(w, input, (1,))
    first, last = dim_of(start_dim, input.ndim), dim_of(end_dim, input.ndim)
    if first == last:
        return input
    return reshape_to(
        w, input, (*input.shape[:first], prod(input.shape[first : last + 1]), *input.shape[last + 1 :])
    )


@operator("torch.ravel", method="ravel")
def ravel(w: World, input: Tensor) -> Tensor:
    return reshape_to(w, input, (input.numel,))


@operator("torch.unflatten", method="unflatten")
def unflatten(w: World, input: Tensor, dim: int, sizes: object) -> Tensor:
    dim = dim_of(dim, input.ndim)
    parts = list(integers(sizes, "torch.unflatten"))
    if -1 in parts:
        known = prod(part for part in parts if part != -1)
        parts[parts.index(-1)] = input.shape[dim] // max(known, 1)
    if prod(parts) != input.shape[dim]:
        raise Unsupported("torch.unflatten", f"{input.shape[dim]} is not the product of {tuple(parts)}")
    return reshape_to(w, input, (*input.shape[:dim], *parts, *input.shape[dim + 1 :]))


@operator("torch.unsqueeze", method=("unsqueeze", "unsqueeze_"))
def unsqueeze(w: World, input: Tensor, dim: int) -> Tensor:
    at = dim_of(dim, input.ndim + 1)
    stride = input.shape[at] * input.strides[at] if at < input.ndim else 1
    shape = (*input.shape[:at], 1, *input.shape[at:])
    return _viewed(w, input, shape, (*input.strides[:at], stride, *input.strides[at:]))


@operator("torch.squeeze", method=("squeeze", "squeeze_"))
def squeeze(w: World, input: Tensor, dim: object = None) -> Tensor:
    dims: set[int] = set(dims_of(dim, input.ndim)) if input.shape else set()
    kept = [i for i in range(input.ndim) if i not in dims or input.shape[i] != 1]
    return _viewed(w, input, tuple(input.shape[i] for i in kept), tuple(input.strides[i] for i in kept))


@operator("torch.permute")
def torch_permute(w: World, input: Tensor, dims: object) -> Tensor:
    return permuted(w, input, dims_of(dims, input.ndim))


@method("permute")
def permute(w: World, self: Tensor, *dims: object) -> Tensor:
    return permuted(w, self, tuple(dim_of(dim, self.ndim) for dim in shape_of(dims, "Tensor.permute")))


def permuted(w: World, tensor: Tensor, order: Shape) -> Tensor:
    """Dimensions in another order; always a view."""
    if sorted(order) != list(range(tensor.ndim)):
        raise Unsupported("torch.permute", f"{order} does not name all {tensor.ndim} dimensions once")
    shape = tuple(tensor.shape[i] for i in order)
    result = make_view(tensor, shape, tuple(tensor.strides[i] for i in order), tensor.offset)
    if tensor.requires_grad:
        record(
            w,
            "permute",
            (tensor,),
            (),
            _PermuteBack(tuple(order.index(i) for i in range(len(order)))),
            result,
        )
    return result


@operator("torch.transpose", "torch.swapdims", method=("transpose", "swapdims", "transpose_"))
def transpose(w: World, input: Tensor, dim0: int, dim1: int) -> Tensor:
    if not input.shape:
        return input
    a, b = dim_of(dim0, input.ndim), dim_of(dim1, input.ndim)
    order = list(range(input.ndim))
    order[a], order[b] = b, a
    return permuted(w, input, tuple(order))


@operator("torch.swapaxes", method="swapaxes")
def swapaxes(w: World, input: Tensor, axis0: int, axis1: int) -> Tensor:
    return transpose(w, input, axis0, axis1)


@operator("torch.t", method=("t", "t_"))
def t(w: World, input: Tensor) -> Tensor:
    return input if input.ndim < 2 else transpose(w, input, 0, 1)


@operator("torch.adjoint", method="adjoint")
def adjoint(w: World, input: Tensor) -> Tensor:
    return transpose(w, input, -2, -1)


@operator("torch.movedim", "torch.moveaxis", method=("movedim", "moveaxis"))
def movedim(w: World, input: Tensor, source: object, destination: object) -> Tensor:
    moved = [dim_of(dim, input.ndim) for dim in integers(source)]
    places = [dim_of(dim, input.ndim) for dim in integers(destination)]
    rest = iter(i for i in range(input.ndim) if i not in moved)
    order = [moved[places.index(i)] if i in places else next(rest) for i in range(input.ndim)]
    return permuted(w, input, tuple(order))


@method("expand")
def expand(w: World, self: Tensor, *size: object) -> Tensor:
    return expand_to(w, self, shape_of(size, "Tensor.expand"))


@method("expand_as")
def expand_as(w: World, self: Tensor, other: Tensor) -> Tensor:
    return expand_to(w, self, other.shape)


@operator("torch.broadcast_to", method="broadcast_to")
def broadcast_to(w: World, input: Tensor, *size: Any) -> Tensor:
    return expand_to(w, input, integers(size[0] if len(size) == 1 else size))


def expand_to(w: World, tensor: Tensor, size: Shape) -> Tensor:
    """A broadcast view; the engine sums its gradient back."""
    lead = len(size) - tensor.ndim
    if lead < 0:
        raise Unsupported("Tensor.expand", f"{tuple(tensor.shape)} to fewer dimensions {size}")
    shape = tuple(
        (tensor.shape[i - lead] if i >= lead else 0) if wanted == -1 else wanted
        for i, wanted in enumerate(size)
    )
    for old, new in zip(tensor.shape, shape[lead:], strict=True):
        if old not in (1, new):
            raise Unsupported(
                "Tensor.expand", f"{tuple(tensor.shape)} does not broadcast to {shape}; torch raises here"
            )
    result = make_view(tensor, shape, expanded_strides(tensor.shape, tensor.strides, shape), tensor.offset)
    record(w, "expand", (tensor,), (), pass_through, result)
    return result


@operator("torch.broadcast_tensors")
def broadcast_tensors(w: World, *tensors: Tensor) -> list[Tensor]:
    from torchwise_memory.runtime.layout import broadcast

    shape: Shape = ()
    for tensor in tensors:
        common = broadcast(shape, tensor.shape)
        if common is None:
            raise Unsupported("torch.broadcast_tensors", "shapes do not broadcast")
        shape = common
    return [expand_to(w, tensor, shape) for tensor in tensors]


@operator("torch.atleast_1d")
def atleast_1d(w: World, *tensors: Tensor) -> object:
    results = [tensor if tensor.ndim else unsqueeze(w, tensor, 0) for tensor in tensors]
    return results[0] if len(results) == 1 else tuple(results)


# --- parts


def part(w: World, tensor: Tensor, shape: Shape, strides: Shape, offset: int, name: str) -> Tensor:
    """A view of some of the elements; its gradient is zeros of the whole."""
    result = make_view(tensor, shape, strides, offset)
    record(w, name, (tensor,), (), _ZeroPadBack(name + "_backward", tensor.shape), result)
    return result


@operator("torch.narrow", method="narrow")
def narrow(w: World, input: Tensor, dim: int, start: object, length: int) -> Tensor:
    at = dim_of(dim, input.ndim)
    first, count = extent(start, "torch.narrow"), extent(length, "torch.narrow")
    first = first + input.shape[at] if first < 0 else first
    if first + count > input.shape[at]:
        raise Unsupported("torch.narrow", f"{first} + {count} exceeds {input.shape[at]}")
    shape = (*input.shape[:at], count, *input.shape[at + 1 :])
    return part(w, input, shape, input.strides, input.offset + first * input.strides[at], "slice")


@operator("torch.select", method="select")
def select(w: World, input: Tensor, dim: int, index: int) -> Tensor:
    at = dim_of(dim, input.ndim)
    place = extent(index, "torch.select")
    if not -input.shape[at] <= place < input.shape[at]:
        raise Unsupported("torch.select", f"index {place} out of range for extent {input.shape[at]}")
    offset = input.offset + place % input.shape[at] * input.strides[at]
    shape, strides = input.shape[:at] + input.shape[at + 1 :], input.strides[:at] + input.strides[at + 1 :]
    return part(w, input, shape, strides, offset, "select")


@method("split")
def split_method(w: World, input: Tensor, split_size: object, dim: int = 0) -> tuple[Tensor, ...]:
    """`Tensor.split`, whose size goes by another name than that of `torch.split`."""
    return split(w, input, split_size, dim)


@operator("torch.split")
def split(w: World, tensor: Tensor, split_size_or_sections: object, dim: int = 0) -> tuple[Tensor, ...]:
    """One node with all parts as outputs."""
    at = dim_of(dim, tensor.ndim)
    whole = tensor.shape[at]
    if is_sequence(split_size_or_sections):
        sizes = _sizes_of_parts(w, split_size_or_sections, whole)
    else:
        size = extent(split_size_or_sections, "torch.split")
        sizes = (
            [min(size, whole - start) for start in range(0, whole, size)] if size > 0 and whole else [whole]
        )
    if sum(sizes) != whole:
        raise Unsupported("torch.split", f"{sizes} do not add up to {whole}; torch raises here")
    return _split(w, tensor, at, sizes)


def _sizes_of_parts(w: World, given: Sequence[object], whole: int) -> list[int]:
    """Sizes that are not known (tokens of each expert) are taken to be equal."""
    if not given or not all(isinstance(size, UnknownScalar) for size in given):
        return list(integers(given))
    w.assume("torch.split: parts of unknown sizes are equally large")
    return [whole // len(given) + (i < whole % len(given)) for i in range(len(given))]


def _split(w: World, tensor: Tensor, at: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    parts: list[Tensor] = []
    offset = tensor.offset
    for size in sizes:
        shape = (*tensor.shape[:at], size, *tensor.shape[at + 1 :])
        parts.append(make_view(tensor, shape, tensor.strides, offset))
        offset += size * tensor.strides[at]
    if tensor.requires_grad:
        back = _JoinBack("split_backward", tensor.shape, [piece.shape for piece in parts])
        record(w, "split", (tensor,), (), back, *parts)
    return tuple(parts)


@operator("torch.split_with_sizes", method="split_with_sizes")
def split_with_sizes(w: World, input: Tensor, split_sizes: object, dim: int = 0) -> tuple[Tensor, ...]:
    return split(w, input, integers(split_sizes), dim)


@operator("torch.chunk", method="chunk")
def chunk(w: World, input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    at = dim_of(dim, input.ndim)
    return split(w, input, max(-(-input.shape[at] // extent(chunks, "torch.chunk")), 1), at)


@operator("torch.tensor_split", method="tensor_split")
def tensor_split(w: World, input: Tensor, indices_or_sections: object, dim: int = 0) -> tuple[Tensor, ...]:
    at = dim_of(dim, input.ndim)
    whole = input.shape[at]
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        sizes = [whole // count + (i < whole % count) for i in range(count)]
    else:
        ends = [*integers(indices_or_sections), whole]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return _split(w, input, at, sizes)


@operator("torch.unbind", method="unbind")
def unbind(w: World, input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    at = dim_of(dim, input.ndim)
    shape, strides = input.shape[:at] + input.shape[at + 1 :], input.strides[:at] + input.strides[at + 1 :]
    parts = [
        make_view(input, shape, strides, input.offset + i * input.strides[at]) for i in range(input.shape[at])
    ]
    if input.requires_grad and parts:
        back = _JoinBack("unbind_backward", input.shape, [piece.shape for piece in parts])
        record(w, "unbind", (input,), (), back, *parts)
    return tuple(parts)


@method("__iter__")
def iterate(w: World, self: Tensor) -> tuple[Tensor, ...]:
    if not self.shape:
        raise Unsupported("iter", "iteration over a zero-dimensional tensor; torch raises here")
    return unbind(w, self, 0)


@operator("torch.diagonal", method="diagonal")
def diagonal(w: World, input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim_of(dim1, input.ndim), dim_of(dim2, input.ndim)
    rows, columns = input.shape[a] + min(offset, 0), input.shape[b] - max(offset, 0)
    start = input.offset + (offset * input.strides[b] if offset > 0 else -offset * input.strides[a])
    rest = [i for i in range(input.ndim) if i not in (a, b)]
    shape = (*(input.shape[i] for i in rest), max(min(rows, columns), 0))
    strides = (*(input.strides[i] for i in rest), input.strides[a] + input.strides[b])
    return part(w, input, shape, strides, start, "diagonal")


@method("unfold")
def unfold(w: World, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    at = dim_of(dimension, self.ndim)
    count = (self.shape[at] - size) // step + 1
    shape = (*self.shape[:at], count, *self.shape[at + 1 :], size)
    strides = (*self.strides[:at], self.strides[at] * step, *self.strides[at + 1 :], self.strides[at])
    return part(w, self, shape, strides, self.offset, "unfold")


@operator("torch.as_strided", method="as_strided")
def as_strided(
    w: World, input: Tensor, size: object, stride: object, storage_offset: int | None = None
) -> Tensor:
    offset = input.offset if storage_offset is None else storage_offset
    return part(w, input, integers(size), integers(stride), offset, "as_strided")


# --- copies


@method("contiguous")
def contiguous(w: World, self: Tensor, memory_format: object = None) -> Tensor:
    """The tensor itself where it has the layout already, else a copy."""
    wanted = formatted_strides(self.shape, memory_format)
    if (
        is_contiguous(self.shape, self.strides) if wanted is None else _laid_out(self, wanted)
    ) or not self.numel:
        return self
    result = w.new(self.shape, self.dtype, "clone", self.storage.device, wanted)
    set_values(result, lambda x: x, self)
    record(w, "clone", (self,), (), pass_through, result)
    return result


def _laid_out(tensor: Tensor, strides: Shape) -> bool:
    return all(d == 1 or a == b for d, a, b in zip(tensor.shape, tensor.strides, strides, strict=True))


@method("is_contiguous")
def is_contiguous_method(w: World, self: Tensor, memory_format: object = None) -> bool:
    wanted = formatted_strides(self.shape, memory_format)
    return is_contiguous(self.shape, self.strides) if wanted is None else _laid_out(self, wanted)


@operator("torch.detach", method="detach")
def detach(w: World, input: Tensor) -> Tensor:
    return alias(input)


@method("detach_")
def detach_(w: World, self: Tensor) -> Tensor:
    self.node, self.index, self.requires_grad = None, 0, False
    return self


@method("to")
def to(w: World, self: Tensor, *args: object, **kwargs: object) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(other)` and their mixtures. A copy only where something changes."""
    dtype, device, memory_format = self.dtype, self.storage.device, kwargs.pop("memory_format", None)
    copy = bool(kwargs.pop("copy", False))
    kwargs.pop("non_blocking", None)
    for value in (*args, *kwargs.values()):
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, Tensor):
            dtype, device = value.dtype, value.storage.device
        elif isinstance(value, DType):
            dtype = value
        else:
            device = device_of(value)
    return convert(w, self, dtype, device, memory_format, copy)


class _MoveBack:
    __slots__ = ("device", "dtype")

    def __init__(self, source: Tensor) -> None:
        self.dtype = source.dtype
        self.device = source.storage.device

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [
            w.new(
                gradient.shape, self.dtype, "to", self.device, gradient.strides if gradient.is_dense else None
            )
        ]


def convert(
    w: World, tensor: Tensor, dtype: DType, device: object, memory_format: object = None, copy: bool = False
) -> Tensor:
    """The tensor in another type, place or layout."""
    target = device_of(device)
    wanted = formatted_strides(tensor.shape, memory_format)
    same_layout = wanted is None or _laid_out(tensor, wanted)
    if target == tensor.storage.device and same_layout and not copy:
        return cast(w, tensor, dtype)
    dense = tensor.is_contiguous or tensor.is_dense
    moves = target != tensor.storage.device
    kind = StorageKind.INPUT if moves and not tensor.requires_grad else None
    strides = wanted if wanted is not None else tensor.strides if dense else None
    result = w.new(tensor.shape, dtype, "to", target, strides, kind)
    set_values(result, lambda x: x, tensor)
    if dtype.is_differentiable and tensor.dtype.is_differentiable:
        record(w, "ToCopy", (tensor,), (), _MoveBack(tensor), result)
    return result


@method("type_as")
def type_as(w: World, self: Tensor, other: Tensor) -> Tensor:
    return convert(w, self, other.dtype, other.storage.device)


@method("type")
def type_(w: World, self: Tensor, dtype: object = None, non_blocking: bool = False) -> object:
    if dtype is None:
        place = "cuda." if self.storage.device.on_card else ""
        return f"torch.{place}{_TYPE_NAMES.get(self.dtype, 'FloatTensor')}"
    if isinstance(dtype, DType):
        return cast(w, self, dtype)
    names = {name: found for found, name in _TYPE_NAMES.items()}
    found = names.get(str(dtype).rpartition(".")[2])
    if found is None:
        raise Unsupported("Tensor.type", f"{dtype!r} is not modelled")
    return convert(w, self, found, "cuda" if ".cuda." in str(dtype) else "cpu")


_TYPE_NAMES = {
    dtypes.float32: "FloatTensor",
    dtypes.float64: "DoubleTensor",
    dtypes.float16: "HalfTensor",
    dtypes.bfloat16: "BFloat16Tensor",
    dtypes.int64: "LongTensor",
    dtypes.int32: "IntTensor",
    dtypes.int16: "ShortTensor",
    dtypes.int8: "CharTensor",
    dtypes.uint8: "ByteTensor",
    dtypes.boolean: "BoolTensor",
}


@method("cuda")
def cuda(
    w: World, self: Tensor, device: object = None, non_blocking: bool = False, memory_format: object = None
) -> Tensor:
    return convert(w, self, self.dtype, "cuda", memory_format)


@method("cpu")
def cpu(w: World, self: Tensor, memory_format: object = None) -> Tensor:
    return convert(w, self, self.dtype, "cpu", memory_format)


def _caster(name: str, dtype: DType) -> object:
    def convert_to(w: World, self: Tensor, memory_format: object = None) -> Tensor:
        return cast(w, self, dtype)

    return method(name)(convert_to)


CASTERS: list[object] = [
    _caster(name, dtype)
    for name, dtype in {
        "float": dtypes.float32,
        "double": dtypes.float64,
        "half": dtypes.float16,
        "bfloat16": dtypes.bfloat16,
        "long": dtypes.int64,
        "int": dtypes.int32,
        "short": dtypes.int16,
        "char": dtypes.int8,
        "byte": dtypes.uint8,
        "bool": dtypes.boolean,
        "cfloat": dtypes.complex64,
        "cdouble": dtypes.complex128,
    }.items()
]


# --- complex


def complex_part(w: World, tensor: Tensor, name: str) -> Tensor:
    """`.real` and `.imag`: every other element of the storage."""
    if not tensor.dtype.is_complex:
        if name == "imag":
            raise Unsupported("torch.imag", "the tensor is not complex; torch raises here")
        return tensor
    part_of = view_as_real(w, tensor)
    return select(w, part_of, -1, 0 if name == "real" else 1)


@operator("torch.view_as_real")
def view_as_real(w: World, input: Tensor) -> Tensor:
    dtype = dtypes.real_of(input.dtype)
    strides = (*(2 * stride for stride in input.strides), 1)
    result = Tensor((*input.shape, 2), dtype, input.storage, strides, 2 * input.offset)
    result.base = input if input.base is None else input.base
    record(w, "view_as_real", (input,), (), _AsComplexBack(input.dtype), result)
    return result


@operator("torch.view_as_complex")
def view_as_complex(w: World, input: Tensor) -> Tensor:
    if not input.shape or input.shape[-1] != 2:
        raise Unsupported("torch.view_as_complex", "the last extent is not 2; torch raises here")
    dtype = dtypes.complex_of(input.dtype)
    strides = tuple(stride // 2 for stride in input.strides[:-1])
    result = Tensor(input.shape[:-1], dtype, input.storage, strides, input.offset // 2)
    result.base = input if input.base is None else input.base
    record(w, "view_as_complex", (input,), (), _as_real_back, result)
    return result


def _as_real_back(w: World, saved: Saved, gradients: Gradients) -> Gradients:
    gradient = gradients[0]
    assert gradient is not None
    strides = (*(2 * stride for stride in gradient.strides), 1)
    return [Tensor((*gradient.shape, 2), dtypes.real_of(gradient.dtype), gradient.storage, strides)]


class _AsComplexBack:
    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        whole = (
            gradient
            if gradient.is_contiguous
            else w.new(gradient.shape, gradient.dtype, "clone", gradient.device)
        )
        return [Tensor(whole.shape[:-1], self.dtype, whole.storage)]


# --- joining


class _CatBack:
    """Each input gets a view of its part of the gradient."""

    __slots__ = ("dim", "sizes")

    def __init__(self, dim: int, sizes: list[int]) -> None:
        self.dim = dim
        self.sizes = sizes

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        results: Gradients = []
        offset = gradient.offset
        for size in self.sizes:
            shape = (*gradient.shape[: self.dim], size, *gradient.shape[self.dim + 1 :])
            results.append(alias(gradient, shape, gradient.strides, offset))
            offset += size * gradient.strides[self.dim]
        return results


@operator("torch.cat", "torch.concat", "torch.concatenate")
def cat(w: World, tensors: object, dim: int = 0, *, out: None = None) -> Tensor:
    from .support import result_type, widest

    parts = [tensor for tensor in tensor_list(tensors, "torch.cat") if tensor.shape != (0,)] or tensor_list(
        tensors, "torch.cat"
    )
    if not parts:
        raise Unsupported("torch.cat", "no tensors; torch raises here")
    parts = widest(w, *parts)
    first = parts[0]
    at = dim_of(dim, first.ndim)
    for tensor in parts[1:]:
        rest = tensor.shape[:at] + tensor.shape[at + 1 :]
        if rest != first.shape[:at] + first.shape[at + 1 :]:
            raise Unsupported(
                "torch.cat",
                f"{tuple(tensor.shape)} beside {tuple(first.shape)} along {at}; torch raises here",
            )
    shape = (*first.shape[:at], sum(tensor.shape[at] for tensor in parts), *first.shape[at + 1 :])
    same = all(t.dtype is first.dtype for t in parts)
    dtype = first.dtype if same else result_type(w, *parts)
    strides = _joined_strides(parts, shape)
    result = w.new(shape, dtype, "cat", first.storage.device, strides)
    _cat_values(result, parts, at)
    record(w, "cat", parts, (), _CatBack(at, [tensor.shape[at] for tensor in parts]), result)
    return result


def _joined_strides(parts: list[Tensor], shape: Shape) -> Shape | None:
    """Channels-last only when every part prefers it."""
    from torchwise_memory.runtime.layout import prefers_channels_last

    if all(prefers_channels_last(t.shape, t.strides) for t in parts):
        return channels_last_strides(shape)
    return None


def _cat_values(result: Tensor, parts: list[Tensor], at: int) -> None:
    from .support import store_values, values_of

    columns = [values_of(tensor) for tensor in parts]
    if at == 0 and all(column is not None for column in columns):
        store_values(result, [value for column in columns for value in column or ()])
    shares = [tensor.storage.share for tensor in parts]
    if result.numel and all(share is not None for share in shares):
        true = sum(tensor.numel * (tensor.storage.share or 0.0) for tensor in parts)
        result.storage.share = true / result.numel


@operator("torch.stack")
def stack(w: World, tensors: object, dim: int = 0, *, out: None = None) -> Tensor:
    parts = tensor_list(tensors, "torch.stack")
    if not parts:
        raise Unsupported("torch.stack", "no tensors; torch raises here")
    at = dim_of(dim, parts[0].ndim + 1)
    return cat(w, [unsqueeze(w, tensor, at) for tensor in parts], at)


@operator("torch.hstack")
def hstack(w: World, tensors: object, *, out: None = None) -> Tensor:
    parts = tensor_list(tensors, "torch.hstack")
    return cat(w, parts, 0 if parts and parts[0].ndim < 2 else 1)


@operator("torch.vstack")
def vstack(w: World, tensors: object, *, out: None = None) -> Tensor:
    parts = [t if t.ndim > 1 else unsqueeze(w, t, 0) for t in tensor_list(tensors, "torch.vstack")]
    return cat(w, parts, 0)


class _SumPartsBack:
    """The gradient of something repeated: summed down to the input."""

    __slots__ = ("name", "shape")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(self.shape, gradient.dtype, self.name, gradient.storage.device)]


@method("repeat")
def repeat(w: World, self: Tensor, *repeats: object) -> Tensor:
    counts = shape_of(repeats, "Tensor.repeat")
    lead = len(counts) - self.ndim
    if lead < 0:
        raise Unsupported(
            "Tensor.repeat", f"{len(counts)} repeats for {self.ndim} dimensions; torch raises here"
        )
    shape = tuple(n * (self.shape[i - lead] if i >= lead else 1) for i, n in enumerate(counts))
    result = w.new(shape, self.dtype, "repeat", self.storage.device)
    if self.ndim <= 1 and self.storage.values is not None:
        from .support import store_values, values_of

        store_values(result, (values_of(self) or []) * prod(counts))
    record(w, "repeat", (self,), (), _SumPartsBack("repeat_backward", self.shape), result)
    return result


@operator("torch.tile")
def torch_tile(w: World, input: Tensor, dims: object) -> Tensor:
    return tile(w, input, *integers(dims))


@method("tile")
def tile(w: World, self: Tensor, *dims: object) -> Tensor:
    counts = shape_of(dims, "Tensor.tile")
    return repeat(w, self, *((1,) * (self.ndim - len(counts)) + counts))


@operator("torch.repeat_interleave", method="repeat_interleave")
def repeat_interleave(
    w: World, input: Tensor, repeats: object, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    from .support import values_of

    if dim is None:
        input, dim = reshape_to(w, input, (input.numel,)), 0
    at = dim_of(dim, input.ndim)
    if isinstance(repeats, Tensor) and repeats.numel > 1:
        counts = values_of(repeats)
        total = output_size if output_size is not None else None if counts is None else int(sum(counts))
        if total is None:
            raise Unsupported("torch.repeat_interleave", "the repeats are not known")
    else:
        total = input.shape[at] * extent(repeats, "torch.repeat_interleave")
    shape = (*input.shape[:at], total, *input.shape[at + 1 :])
    result = w.new(shape, input.dtype, "repeat_interleave", input.storage.device)
    record(
        w, "repeat_interleave", (input,), (), _SumPartsBack("repeat_interleave_backward", input.shape), result
    )
    return result


class _SameSizeBack:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(gradient.shape, gradient.dtype, self.name, gradient.storage.device)]


def _moved(w: World, input: Tensor, name: str) -> Tensor:
    """A full copy with elements at other places; so is its gradient."""
    result = w.new(input.shape, input.dtype, name, input.storage.device)
    record(w, name, (input,), (), _SameSizeBack(name), result)
    return result


@operator("torch.roll", method="roll")
def roll(w: World, input: Tensor, shifts: object, dims: object = None) -> Tensor:
    return _moved(w, input, "roll")


@operator("torch.flip", method="flip")
def torch_flip(w: World, input: Tensor, *dims: object) -> Tensor:
    result = _moved(w, input, "flip")
    if input.ndim == 1 and input.storage.values is not None:
        from .support import store_values, values_of

        store_values(result, (values_of(input) or [])[::-1])
    return result


@operator("torch.fliplr", "torch.flipud", method=("fliplr", "flipud"))
def fliplr(w: World, input: Tensor) -> Tensor:
    return _moved(w, input, "flip")


@operator("torch.rot90", method="rot90")
def rot90(w: World, input: Tensor, k: int = 1, dims: object = (0, 1)) -> Tensor:
    a, b = (dim_of(dim, input.ndim) for dim in integers(dims))
    copy = _moved(w, input, "flip")
    return transpose(w, copy, a, b) if k % 2 else copy


@operator("torch.tril", method="tril")
def tril(w: World, input: Tensor, diagonal: int = 0, *, out: None = None) -> Tensor:
    return _triangle(w, input, "tril", diagonal)


@operator("torch.triu", method="triu")
def triu(w: World, input: Tensor, diagonal: int = 0, *, out: None = None) -> Tensor:
    return _triangle(w, input, "triu", diagonal)


def _triangle(w: World, input: Tensor, name: str, diagonal: int) -> Tensor:
    result = w.like(input, name)
    record(w, name, (input,), (), _SameSizeBack(name), result)
    return result


@method("tril_", "triu_")
def tril_(w: World, self: Tensor, diagonal: int = 0) -> Tensor:
    from .support import record_inplace

    return record_inplace(w, "tril_", self, (), (), _SameSizeBack("tril"))


@operator("torch.diag", method="diag")
def diag(w: World, input: Tensor, diagonal: int = 0, *, out: None = None) -> Tensor:
    if input.ndim == 1:
        return diag_embed(w, input, diagonal)
    from .pointwise import clone

    return clone(w, _diagonal(w, input, diagonal))


def _diagonal(w: World, input: Tensor, offset: int) -> Tensor:
    return diagonal(w, input, offset)


@operator("torch.diag_embed", method="diag_embed")
def diag_embed(w: World, input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    size = input.shape[-1] + abs(offset)
    result = w.new((*input.shape[:-1], size, size), input.dtype, "diag_embed", input.storage.device)
    record(w, "diag_embed", (input,), (), _SumPartsBack("diagonal", input.shape), result)
    return result


@operator("torch.meshgrid")
def meshgrid(w: World, *tensors: object, indexing: str | None = None) -> tuple[Tensor, ...]:
    axes = tensor_list(
        tensors[0] if len(tensors) == 1 and is_sequence(tensors[0]) else tensors,
        "torch.meshgrid",
    )
    shape = tuple(axis.numel for axis in axes)
    swap = indexing == "xy" and len(axes) > 1
    grids: list[Tensor] = []
    for i, axis in enumerate(axes):
        own = tuple(shape[i] if j == i else 1 for j in range(len(axes)))
        grid = expand_to(w, reshape_to(w, axis, own), shape)
        grids.append(transpose(w, grid, 0, 1) if swap else grid)
    return tuple(grids)


@operator("torch.nn.functional.pad")
def pad(w: World, input: Tensor, pad: object, mode: str = "constant", value: object = None) -> Tensor:
    """Pairs from the last dimension on; negative ones crop. A copy even where nothing is added (not for no
    pads).
    """
    sizes = integers(pad, "torch.nn.functional.pad")
    shape = list(input.shape)
    for i in range(len(sizes) // 2):
        shape[-1 - i] += sizes[2 * i] + sizes[2 * i + 1]
    result = w.new(shape, input.dtype, "pad", input.storage.device)
    keeps = (input,) if mode in ("reflect", "replicate") else ()
    record(w, "pad", (input,), keeps, _SumPartsBack("pad_backward", input.shape), result)
    return result


@operator("torch.nn.functional.pixel_shuffle", "torch.pixel_shuffle")
def pixel_shuffle(w: World, input: Tensor, upscale_factor: int) -> Tensor:
    *lead, channels, height, width = input.shape
    r = extent(upscale_factor)
    shape = (*lead, channels // (r * r), height * r, width * r)
    result = w.new(shape, input.dtype, "pixel_shuffle", input.storage.device)
    record(w, "pixel_shuffle", (input,), (), _SumPartsBack("pixel_unshuffle", input.shape), result)
    return result


@operator("torch.nn.functional.pixel_unshuffle", "torch.pixel_unshuffle")
def pixel_unshuffle(w: World, input: Tensor, downscale_factor: int) -> Tensor:
    *lead, channels, height, width = input.shape
    r = extent(downscale_factor)
    shape = (*lead, channels * r * r, height // r, width // r)
    result = w.new(shape, input.dtype, "pixel_unshuffle", input.storage.device)
    record(w, "pixel_unshuffle", (input,), (), _SumPartsBack("pixel_shuffle", input.shape), result)
    return result


@operator("torch.channel_shuffle", "torch.nn.functional.channel_shuffle")
def channel_shuffle(w: World, input: Tensor, groups: int) -> Tensor:
    return _moved(w, input, "channel_shuffle")

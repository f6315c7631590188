"""Tensors from nothing: constants, ranges, random numbers. Small ones on the CPU know their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchwise_memory.runtime.device import Device
from torchwise_memory.runtime.sequences import is_sequence

from .registry import method, operator
from .support import (
    VALUE_LIMIT,
    DType,
    Scalar,
    Shape,
    Tensor,
    UnknownScalar,
    Unsupported,
    World,
    cast,
    device_from,
    dtypes,
    extent,
    factory_kind,
    fill_values,
    formatted_strides,
    integers,
    prod,
    record_inplace,
    scalar_dtype,
    shape_of,
    store_values,
)


def make(
    w: World,
    name: str,
    shape: Shape,
    dtype: DType,
    device: Device,
    requires_grad: bool = False,
    fill: float | None = None,
    strides: Shape | None = None,
) -> Tensor:
    """A fresh leaf. fill: the value of every element where it is known."""
    result = w.new(shape, dtype, name, device, strides, factory_kind(w))
    if fill is not None and device.type == "cpu" and prod(shape) <= VALUE_LIMIT:
        fill_values(result, fill, prod(shape))
    result.requires_grad = requires_grad
    return result


def _dtype(w: World, dtype: object, otherwise: DType | None = None) -> DType:
    if isinstance(dtype, DType):
        return dtype
    if dtype is None:
        return otherwise or w.default_dtype
    raise Unsupported("dtype", f"{dtype!r} is not a known type")


@operator("torch.empty")
def empty(
    w: World,
    *size: object,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: object = None,
) -> Tensor:
    shape = shape_of(size, "torch.empty")
    strides = formatted_strides(shape, memory_format)
    return make(w, "empty", shape, _dtype(w, dtype), device_from(w, device), requires_grad, strides=strides)


@operator("torch.zeros")
def zeros(
    w: World,
    *size: object,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    shape = shape_of(size, "torch.zeros")
    return make(w, "zeros", shape, _dtype(w, dtype), device_from(w, device), requires_grad, 0)


@operator("torch.ones")
def ones(
    w: World,
    *size: object,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    shape = shape_of(size, "torch.ones")
    return make(w, "ones", shape, _dtype(w, dtype), device_from(w, device), requires_grad, 1)


@operator("torch.full")
def full(
    w: World,
    size: object,
    fill_value: Scalar,
    *,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    fill, inferred = _fill(w, fill_value)
    shape = integers(size, "torch.full")
    return make(w, "full", shape, _dtype(w, dtype, inferred), device_from(w, device), requires_grad, fill)


def _fill(w: World, value: object) -> tuple[float | None, DType]:
    if isinstance(value, Tensor):
        from .support import values_of

        known = values_of(value)
        return (known[0] if known else None), value.dtype
    if isinstance(value, UnknownScalar):
        return None, scalar_dtype(w, value)
    if isinstance(value, bool | int | float):
        return value, scalar_dtype(w, value)
    raise Unsupported("fill_value", "the value is not a number")


def _like(
    w: World,
    name: str,
    input: Tensor,
    dtype: object,
    device: object,
    requires_grad: bool,
    memory_format: object,
    fill: float | None = None,
) -> Tensor:
    target = device_from(w, device, input)
    if memory_format in (None, "preserve_format") or str(memory_format).endswith("preserve_format"):
        strides = input.strides if input.is_dense else None
    else:
        strides = formatted_strides(input.shape, memory_format)
    return make(w, name, input.shape, _dtype(w, dtype, input.dtype), target, requires_grad, fill, strides)


@operator("torch.empty_like")
def empty_like(
    w: World,
    input: Tensor,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    return _like(w, "empty_like", input, dtype, device, requires_grad, memory_format)


@operator("torch.zeros_like")
def zeros_like(
    w: World,
    input: Tensor,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    return _like(w, "zeros_like", input, dtype, device, requires_grad, memory_format, 0)


@operator("torch.ones_like")
def ones_like(
    w: World,
    input: Tensor,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    return _like(w, "ones_like", input, dtype, device, requires_grad, memory_format, 1)


@operator("torch.full_like")
def full_like(
    w: World,
    input: Tensor,
    fill_value: Scalar,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    return _like(w, "full_like", input, dtype, device, requires_grad, memory_format, _fill(w, fill_value)[0])


@operator("torch.rand_like")
def rand_like(
    w: World,
    input: Tensor,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
    generator: object = None,
) -> Tensor:
    return _like(w, "rand_like", input, dtype, device, requires_grad, memory_format)


@operator("torch.randn_like")
def randn_like(
    w: World,
    input: Tensor,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
    generator: object = None,
) -> Tensor:
    return _like(w, "randn_like", input, dtype, device, requires_grad, memory_format)


@operator("torch.randint_like")
def randint_like(
    w: World,
    input: Tensor,
    low: int = 0,
    high: int | None = None,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    return _like(w, "randint_like", input, dtype, device, requires_grad, memory_format)


@operator("torch.rand")
def rand(
    w: World,
    *size: object,
    generator: object = None,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    return make(
        w, "rand", shape_of(size, "torch.rand"), _dtype(w, dtype), device_from(w, device), requires_grad
    )


@operator("torch.randn")
def randn(
    w: World,
    *size: object,
    generator: object = None,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    return make(
        w, "randn", shape_of(size, "torch.randn"), _dtype(w, dtype), device_from(w, device), requires_grad
    )


@operator("torch.randint")
def randint(
    w: World,
    low: object,
    high: object = None,
    size: object = None,
    *,
    generator: object = None,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randint(low, high, size)` and `randint(high, size)`."""
    if size is None:
        size = high
    shape = integers(size, "torch.randint")
    return make(w, "randint", shape, _dtype(w, dtype, dtypes.int64), device_from(w, device), requires_grad)


@operator("torch.randperm")
def randperm(
    w: World,
    n: int,
    *,
    generator: object = None,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    return make(
        w, "randperm", (extent(n),), _dtype(w, dtype, dtypes.int64), device_from(w, device), requires_grad
    )


@operator("torch.normal")
def normal(
    w: World,
    mean: object,
    std: object = 1.0,
    size: object = None,
    *,
    generator: object = None,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    shaped = mean if isinstance(mean, Tensor) else std if isinstance(std, Tensor) else None
    if shaped is not None:
        return w.like(shaped, "normal")
    return make(w, "normal", integers(size), _dtype(w, dtype), device_from(w, device), requires_grad)


@operator("torch.bernoulli", method="bernoulli")
def bernoulli(
    w: World, input: Tensor, p: object = None, *, generator: object = None, out: None = None
) -> Tensor:
    return w.like(input, "bernoulli")


@operator("torch.multinomial", method="multinomial")
def multinomial(
    w: World,
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: object = None,
    out: None = None,
) -> Tensor:
    return w.new((*input.shape[:-1], extent(num_samples)), dtypes.int64, "multinomial", input.storage.device)


@operator("torch.arange", "torch.range")
def arange(
    w: World,
    start: object,
    end: object = None,
    step: object = 1,
    *,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    """The length must be known; the elements are, for a short one on the CPU."""
    if end is None:
        start, end = 0, start
    first, last, by = (_number(value, "torch.arange") for value in (start, end, step))
    whole = all(isinstance(value, int) for value in (first, last, by))
    count = max(0, math.ceil((last - first) / by)) if by else 0
    target = device_from(w, device)
    result = make(
        w, "arange", (count,), _dtype(w, dtype, dtypes.int64 if whole else None), target, requires_grad
    )
    if count <= VALUE_LIMIT:
        store_values(result, [first + i * by for i in range(count)])
    return result


@operator("torch.linspace")
def linspace(
    w: World,
    start: object,
    end: object,
    steps: int,
    *,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    count = extent(steps, "torch.linspace")
    result = make(w, "linspace", (count,), _dtype(w, dtype), device_from(w, device), requires_grad)
    if not isinstance(start, UnknownScalar) and not isinstance(end, UnknownScalar) and count <= VALUE_LIMIT:
        first, last = _number(start, "torch.linspace"), _number(end, "torch.linspace")
        store_values(result, [first + (last - first) * i / max(count - 1, 1) for i in range(count)])
    return result


@operator("torch.logspace")
def logspace(
    w: World,
    start: object,
    end: object,
    steps: int,
    base: float = 10.0,
    *,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    return make(w, "logspace", (extent(steps),), _dtype(w, dtype), device_from(w, device), requires_grad)


def _number(value: object, name: str) -> float:
    if isinstance(value, Tensor):
        from .support import values_of

        known = values_of(value)
        if known is not None and len(known) == 1:
            return known[0]
    if isinstance(value, bool | int | float):
        return value
    raise Unsupported(name, "a bound is not known")


@operator("torch.eye")
def eye(
    w: World,
    n: int,
    m: int | None = None,
    *,
    out: None = None,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    shape = (extent(n), extent(n if m is None else m))
    return make(w, "eye", shape, _dtype(w, dtype), device_from(w, device), requires_grad)


@operator("torch.tril_indices", "torch.triu_indices")
def tril_indices(
    w: World,
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: object = None,
    device: object = None,
    layout: object = None,
) -> Tensor:
    rows, columns = extent(row), extent(col)
    count = sum(min(max(i + offset + 1, 0), columns) for i in range(rows))
    return make(w, "tril_indices", (2, count), _dtype(w, dtype, dtypes.int64), device_from(w, device))


@operator("torch.hann_window", "torch.hamming_window", "torch.blackman_window", "torch.kaiser_window")
def window(
    w: World,
    window_length: int,
    periodic: bool = True,
    *,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    return make(
        w, "window", (extent(window_length),), _dtype(w, dtype), device_from(w, device), requires_grad
    )


@operator("torch.tensor")
def tensor(
    w: World,
    data: object,
    *,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A copy of nested lists of numbers, or of a tensor."""
    if isinstance(data, Tensor):
        target = device_from(w, device, data)
        result = make(w, "tensor", data.shape, _dtype(w, dtype, data.dtype), target, requires_grad)
        from .support import set_values

        set_values(result, lambda x: x, data)
        return result
    shape, flat = _nested(data)
    result = make(
        w, "tensor", shape, _dtype(w, dtype, _inferred(w, flat)), device_from(w, device), requires_grad
    )
    if not any(isinstance(item, UnknownScalar) for item in flat):
        store_values(result, [item for item in flat if isinstance(item, bool | int | float)])
    return result


@operator("torch.as_tensor", "torch.asarray")
def as_tensor(w: World, data: object, dtype: object = None, device: object = None) -> Tensor:
    """The tensor itself where nothing changes."""
    if isinstance(data, Tensor):
        from .views import convert

        return convert(w, data, _dtype(w, dtype, data.dtype), device_from(w, device, data))
    return tensor(w, data, dtype=dtype, device=device)


@operator("torch.scalar_tensor")
def scalar_tensor(
    w: World, s: object, *, dtype: object = None, device: object = None, layout: object = None
) -> Tensor:
    return tensor(w, s, dtype=dtype or w.default_dtype, device=device)


@operator("torch.from_numpy")
def from_numpy(w: World, ndarray: object) -> Tensor:
    if isinstance(ndarray, Tensor):
        return ndarray
    raise Unsupported("torch.from_numpy", "the array is not known")


_Legacy = {
    "FloatTensor": dtypes.float32,
    "DoubleTensor": dtypes.float64,
    "HalfTensor": dtypes.float16,
    "BFloat16Tensor": dtypes.bfloat16,
    "LongTensor": dtypes.int64,
    "IntTensor": dtypes.int32,
    "ByteTensor": dtypes.uint8,
    "BoolTensor": dtypes.boolean,
}


def _legacy(name: str, dtype: DType) -> object:
    def construct(w: World, *data: object) -> Tensor:
        if len(data) == 1 and is_sequence(data[0]):
            return tensor(w, data[0], dtype=dtype)
        if len(data) == 1 and isinstance(data[0], Tensor):
            return cast(w, data[0], dtype)
        return make(w, name, shape_of(data, name), dtype, device_from(w, None))

    names = [f"torch.{name}"] + (["torch.Tensor"] if name == "FloatTensor" else [])
    return operator(*names)(construct)


LEGACY: list[object] = [_legacy(name, dtype) for name, dtype in _Legacy.items()]


def _nested(data: object) -> tuple[Shape, list[object]]:
    """Shape and row-major items of nested sequences; zero-dimensional tensors count as numbers."""
    if isinstance(data, Tensor):
        from .support import values_of

        known = values_of(data)
        kind = "float" if data.dtype.is_floating_point else "int"
        items: Sequence[object] = (
            known if known is not None else [UnknownScalar(kind, "element of a tensor")] * data.numel
        )
        return data.shape, list(items)
    if not is_sequence(data):
        if isinstance(data, bool | int | float | complex | UnknownScalar):
            return (), [data]
        raise Unsupported("torch.tensor", f"an element is not known ({type(data).__name__})")
    if not data:
        return (0,), []
    rows = [_nested(row) for row in data]
    inner = rows[0][0]
    if any(shape != inner for shape, _ in rows):
        raise Unsupported("torch.tensor", "rows of different lengths; torch raises here")
    return (len(data), *inner), [item for _, row in rows for item in row]


def _inferred(w: World, flat: Sequence[object]) -> DType:
    if not flat:
        return w.default_dtype
    found = None
    for item in flat:
        if isinstance(item, bool | int | float | complex | UnknownScalar):
            dtype = scalar_dtype(w, item)
            found = dtype if found is None else dtypes.promote(found, dtype)
    return found or w.default_dtype


# --- new_* methods


@method("new_empty")
def new_empty(
    w: World,
    self: Tensor,
    *size: object,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
    layout: object = None,
    pin_memory: bool = False,
) -> Tensor:
    return _new(w, self, size, dtype, device, requires_grad, None)


@method("new_zeros")
def new_zeros(
    w: World,
    self: Tensor,
    *size: object,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
    layout: object = None,
    pin_memory: bool = False,
) -> Tensor:
    return _new(w, self, size, dtype, device, requires_grad, 0)


@method("new_ones")
def new_ones(
    w: World,
    self: Tensor,
    *size: object,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
    layout: object = None,
    pin_memory: bool = False,
) -> Tensor:
    return _new(w, self, size, dtype, device, requires_grad, 1)


@method("new_full")
def new_full(
    w: World,
    self: Tensor,
    size: object,
    fill_value: Scalar,
    *,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
    layout: object = None,
    pin_memory: bool = False,
) -> Tensor:
    return _new(w, self, (size,), dtype, device, requires_grad, _fill(w, fill_value)[0])


@method("new_tensor")
def new_tensor(
    w: World,
    self: Tensor,
    data: object,
    *,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    return tensor(
        w, data, dtype=dtype or self.dtype, device=device or self.storage.device, requires_grad=requires_grad
    )


@method("new")
def new(w: World, self: Tensor, *size: object) -> Tensor:
    return _new(w, self, size or ((0,),), None, None, False, None)


def _new(
    w: World,
    self: Tensor,
    size: Sequence[object],
    dtype: object,
    device: object,
    requires_grad: bool,
    fill: float | None,
) -> Tensor:
    shape = shape_of(size, "Tensor.new")
    return make(
        w, "new", shape, _dtype(w, dtype, self.dtype), device_from(w, device, self), requires_grad, fill
    )


# --- filling in place


def _no_gradient(w: World, saved: object, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    gradient = gradients[0]
    assert gradient is not None
    return [w.like(gradient, "zeros_like")]


def _randomized(w: World, tensor: Tensor) -> Tensor:
    return record_inplace(w, "random_", tensor, (), (), _no_gradient)


@method("uniform_")
def uniform_(
    w: World, self: Tensor, from_: object = 0, to: object = 1, *, generator: object = None
) -> Tensor:
    """The first bound is called `from` in C++, which no program can write as a keyword."""
    return _randomized(w, self)


@method("normal_", "log_normal_")
def normal_(w: World, self: Tensor, mean: object = 0, std: object = 1, *, generator: object = None) -> Tensor:
    return _randomized(w, self)


@method("bernoulli_", "geometric_")
def bernoulli_(w: World, self: Tensor, p: object = 0.5, *, generator: object = None) -> Tensor:
    return _randomized(w, self)


@method("exponential_")
def exponential_(w: World, self: Tensor, lambd: object = 1, *, generator: object = None) -> Tensor:
    return _randomized(w, self)


@method("cauchy_")
def cauchy_(
    w: World, self: Tensor, median: object = 0, sigma: object = 1, *, generator: object = None
) -> Tensor:
    return _randomized(w, self)


@method("random_")
def random_(
    w: World, self: Tensor, from_: object = None, to: object = None, *, generator: object = None
) -> Tensor:
    return _randomized(w, self)


@method("zero_")
def zero_(w: World, self: Tensor) -> Tensor:
    return fill_(w, self, 0)


@method("fill_")
def fill_(w: World, self: Tensor, value: object) -> Tensor:
    record_inplace(w, "fill_", self, (), (), _no_gradient)
    whole = self.is_contiguous and self.bytes == self.storage.bytes
    if isinstance(value, bool | int | float) and whole and self.numel <= VALUE_LIMIT:
        store_values(self, [value] * self.numel)
    return self


@method("fill_diagonal_")
def fill_diagonal_(w: World, self: Tensor, fill_value: object, wrap: bool = False) -> Tensor:
    return record_inplace(w, "fill_diagonal_", self, (), (), _no_gradient)


class _CopyBack:
    """The old value gets zeros, the source a (cast) view of the gradient."""

    def __call__(self, w: World, saved: object, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [w.like(gradient, "zeros_like"), gradient]


@method("copy_")
def copy_(w: World, self: Tensor, src: object, non_blocking: bool = False) -> Tensor:
    source = src if isinstance(src, Tensor) else None
    return record_inplace(w, "copy_", self, (source,), (), _CopyBack())

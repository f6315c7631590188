"""Sums, means, extrema, softmax, scans, sorting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from torchwise_memory.runtime.layout import expanded_strides

from .registry import method, operator
from .support import (
    FLOATING,
    DType,
    Gradients,
    Saved,
    Scalar,
    Shape,
    Tensor,
    UnknownItems,
    UnknownScalar,
    Unsupported,
    World,
    alias,
    autocast_dtype,
    cast,
    dim_of,
    dims_of,
    dtypes,
    elementwise,
    extent,
    high,
    prod,
    record,
    record_inplace,
    store_values,
    values_of,
)


class ValuesIndices(NamedTuple):
    """What `max(dim)`, `topk`, `sort` and others return."""

    values: Tensor
    indices: Tensor


def reduced_shape(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    """The shape with `dims` gone, or of extent one."""
    if keepdim:
        return tuple(1 if i in dims else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in dims)


def _reduce(w: World, name: str, input: Tensor, dim: object, keepdim: bool, dtype: DType) -> Tensor:
    dims = dims_of(dim, input.ndim, name)
    return w.new(reduced_shape(input.shape, dims, keepdim), dtype, name, input.storage.device)


def _set_optional_dtype(w: World, input: Tensor, dtype: DType | None) -> DType | None:
    """Autocast class "fp32 by the dtype argument": accumulate half inputs into fp32, no copy of the input."""
    if dtype is None and input.dtype in dtypes.HALF_TYPES and autocast_dtype(w, input) is not None:
        return dtypes.float32
    return dtype


class ExpandBack:
    """Every element gets the gradient of its group: a broadcast view of it."""

    __slots__ = ("dims", "keepdim", "shape")

    def __init__(self, shape: Shape, dims: Sequence[int], keepdim: bool) -> None:
        self.shape = shape
        self.dims = tuple(dims)
        self.keepdim = keepdim

    def expand(self, gradient: Tensor) -> Tensor:
        kept = reduced_shape(self.shape, self.dims, True)
        if self.keepdim or not self.shape:
            strides = gradient.strides
        else:
            source = iter(gradient.strides)
            strides = tuple(1 if i in self.dims else next(source) for i in range(len(self.shape)))
        return alias(gradient, self.shape, expanded_strides(kept, strides, self.shape))

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [self.expand(gradient)]


class _MeanBack(ExpandBack):
    """The expanded gradient divided by the count: full-size."""

    __slots__ = ()

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(self.shape, gradient.dtype, "mean_backward", gradient.storage.device)]


class _SteppedBack:
    """`temporaries` full-size tensors in a row, then the full-size gradient."""

    __slots__ = ("name", "shape", "temporaries")

    def __init__(self, name: str, shape: Shape, temporaries: int) -> None:
        self.name = name
        self.shape = shape
        self.temporaries = temporaries

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = next(g for g in gradients if g is not None)
        step: Tensor | None = None
        for _ in range(self.temporaries):
            step = w.new(self.shape, gradient.dtype, self.name, gradient.storage.device)
        result = w.new(self.shape, gradient.dtype, self.name, gradient.storage.device)
        del step
        return [result]


@operator("torch.sum", method="sum")
def total(
    w: World,
    input: Tensor,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: None = None,
) -> Tensor:
    dtype = _set_optional_dtype(w, input, dtype)
    target = dtype or (dtypes.int64 if input.dtype.category < FLOATING else input.dtype)
    result = _reduce(w, "sum", input, dim, keepdim, target)
    _total(result, input, lambda values: math.fsum(values))
    record(w, "sum", (input,), (), ExpandBack(input.shape, dims_of(dim, input.ndim), keepdim), result)
    return result


@operator("torch.nansum", method="nansum")
def nansum(
    w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    result = _reduce(w, "nansum", input, dim, keepdim, dtype or input.dtype)
    record(w, "nansum", (input,), (input,), _SteppedBack("nansum_backward", input.shape, 1), result)
    return result


@operator("torch.mean", method="mean")
def mean(
    w: World,
    input: Tensor,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: None = None,
) -> Tensor:
    if (dtype or input.dtype).category < FLOATING:
        raise Unsupported("torch.mean", f"the mean of {input.dtype} is not defined; torch raises here")
    result = _reduce(w, "mean", input, dim, keepdim, dtype or input.dtype)
    _total(result, input, lambda values: math.fsum(values) / len(values))
    record(w, "mean", (input,), (), _MeanBack(input.shape, dims_of(dim, input.ndim), keepdim), result)
    return result


def _total(result: Tensor, input: Tensor, function: Callable[[list[float]], float]) -> None:
    """Value of a full reduction of a small known tensor."""
    from .support import store_values

    if result.numel == 1 and input.storage.values is not None:
        values = values_of(input)
        if values:
            store_values(result, [function(values)])


@operator("torch.nanmean", method="nanmean")
def nanmean(
    w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    return mean(w, input, dim, keepdim, dtype=dtype)


@operator("torch.prod", method="prod")
def prod_(
    w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    dtype = _set_optional_dtype(w, input, dtype)
    target = dtype or (dtypes.int64 if input.dtype.category < FLOATING else input.dtype)
    result = _reduce(w, "prod", input, dim, keepdim, target)
    _total(result, input, math.prod)
    record(w, "prod", (input,), (input, result), _SteppedBack("prod_backward", input.shape, 2), result)
    return result


@operator("torch.var", method="var")
def var(
    w: World,
    input: Tensor,
    dim: object = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
    out: None = None,
) -> Tensor:
    result = _reduce(w, "var", input, _var_dim(dim), keepdim, input.dtype)
    record(w, "var", (input,), (input,), _SteppedBack("var_backward", input.shape, 1), result)
    return result


def _var_dim(dim: object) -> object:
    return None if isinstance(dim, bool) else dim


@operator("torch.std", method="std")
def std(
    w: World,
    input: Tensor,
    dim: object = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
    out: None = None,
) -> Tensor:
    result = _reduce(w, "std", input, _var_dim(dim), keepdim, input.dtype)
    record(w, "std", (input,), (input, result), _SteppedBack("std_backward", input.shape, 1), result)
    return result


@operator("torch.var_mean", "torch.std_mean")
def var_mean(
    w: World,
    input: Tensor,
    dim: object = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
    out: None = None,
) -> tuple[Tensor, Tensor]:
    variance = _reduce(w, "var_mean", input, _var_dim(dim), keepdim, input.dtype)
    average = _reduce(w, "var_mean", input, _var_dim(dim), keepdim, input.dtype)
    record(
        w,
        "var_mean",
        (input,),
        (input,),
        _SteppedBack("var_mean_backward", input.shape, 2),
        variance,
        average,
    )
    return variance, average


@operator("torch.norm", method="norm")
def norm(
    w: World,
    input: Tensor,
    p: object = "fro",
    dim: object = None,
    keepdim: bool = False,
    out: None = None,
    dtype: DType | None = None,
) -> Tensor:
    return vector_norm(w, input, 2, dim, keepdim, dtype=dtype)


@operator("torch.linalg.vector_norm")
def vector_norm(
    w: World,
    input: Tensor,
    ord: object = 2,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: None = None,
) -> Tensor:
    """Keeps input and norm; the backward scales the input by grad / norm."""
    dtype = _set_optional_dtype(w, input, dtype)
    result = _reduce(w, "norm", input, dim, keepdim, dtype or dtypes.real_of(input.dtype))
    record(w, "norm", (input,), (input, result), _SteppedBack("norm_backward", input.shape, 0), result)
    return result


@operator("torch.linalg.norm")
def linalg_norm(
    w: World,
    input: Tensor,
    ord: object = None,
    dim: object = None,
    keepdim: bool = False,
    *,
    out: None = None,
    dtype: DType | None = None,
) -> Tensor:
    return vector_norm(w, input, 2, dim, keepdim, dtype=dtype)


@operator("torch.linalg.matrix_norm")
def matrix_norm(
    w: World,
    input: Tensor,
    ord: object = "fro",
    dim: object = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: None = None,
) -> Tensor:
    return vector_norm(w, input, 2, dim, keepdim, dtype=dtype)


@operator("torch.logsumexp", "torch.special.logsumexp", method="logsumexp")
def logsumexp(w: World, input: Tensor, dim: object, keepdim: bool = False, *, out: None = None) -> Tensor:
    x = high(w, input)
    result = _reduce(w, "logsumexp", x, dim, keepdim, x.dtype)
    scratch = w.like(x, "exp")
    del scratch
    record(w, "logsumexp", (x,), (x, result), _SteppedBack("logsumexp_backward", x.shape, 2), result)
    return result


@operator("torch.max", method="max")
def max_(
    w: World,
    input: Tensor,
    dim: object = None,
    keepdim: bool = False,
    *,
    other: object = None,
    out: None = None,
) -> object:
    return _extremum(w, "max", input, dim if other is None else other, keepdim)


@operator("torch.min", method="min")
def min_(
    w: World,
    input: Tensor,
    dim: object = None,
    keepdim: bool = False,
    *,
    other: object = None,
    out: None = None,
) -> object:
    return _extremum(w, "min", input, dim if other is None else other, keepdim)


def _extremum(w: World, name: str, input: Tensor, dim: object, keepdim: bool) -> object:
    if isinstance(dim, Tensor):
        from .pointwise import maximum, minimum

        return (maximum if name == "max" else minimum)(w, input, dim)
    if dim is None:
        result = w.new((), input.dtype, name, input.storage.device)
        _total(result, input, max if name == "max" else min)
        record(w, name, (input,), (input, result), _SteppedBack(name + "_backward", input.shape, 1), result)
        return result
    return _select(w, name, input, dim, keepdim)


def _select(w: World, name: str, input: Tensor, dim: object, keepdim: bool) -> ValuesIndices:
    """Keeps the indices; the backward scatters into zeros."""
    at = dim_of(dim, input.ndim, name)
    shape = reduced_shape(input.shape, (at,), keepdim)
    values = w.new(shape, input.dtype, name, input.storage.device)
    indices = w.new(shape, dtypes.int64, name, input.storage.device)
    record(w, name, (input,), (indices,), _SteppedBack(name + "_backward", input.shape, 0), values)
    return ValuesIndices(values, indices)


@operator("torch.amax", method="amax")
def amax(w: World, input: Tensor, dim: object = (), keepdim: bool = False, *, out: None = None) -> Tensor:
    return _amaximum(w, "amax", input, dim, keepdim)


@operator("torch.amin", method="amin")
def amin(w: World, input: Tensor, dim: object = (), keepdim: bool = False, *, out: None = None) -> Tensor:
    return _amaximum(w, "amin", input, dim, keepdim)


def _amaximum(w: World, name: str, input: Tensor, dim: object, keepdim: bool) -> Tensor:
    result = _reduce(w, name, input, dim, keepdim, input.dtype)
    record(w, name, (input,), (input, result), _SteppedBack(name + "_backward", input.shape, 1), result)
    return result


@operator("torch.aminmax", method="aminmax")
def aminmax(
    w: World, input: Tensor, *, dim: int | None = None, keepdim: bool = False, out: None = None
) -> tuple[Tensor, Tensor]:
    return _amaximum(w, "amin", input, dim, keepdim), _amaximum(w, "amax", input, dim, keepdim)


@operator("torch.median", "torch.nanmedian", method="median")
def median(w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, out: None = None) -> object:
    return _extremum(w, "median", input, dim, keepdim)


@operator("torch.mode", method="mode")
def mode(w: World, input: Tensor, dim: int = -1, keepdim: bool = False, *, out: None = None) -> ValuesIndices:
    return _select(w, "mode", input, dim, keepdim)


@operator("torch.kthvalue", method="kthvalue")
def kthvalue(
    w: World, input: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, out: None = None
) -> ValuesIndices:
    return _select(w, "kthvalue", input, dim, keepdim)


@operator("torch.quantile", "torch.nanquantile", method="quantile")
def quantile(
    w: World,
    input: Tensor,
    q: object,
    dim: object = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: None = None,
) -> Tensor:
    lead = q.shape if isinstance(q, Tensor) else ()
    dims = dims_of(dim, input.ndim)
    shape = (*lead, *reduced_shape(input.shape, dims, keepdim))
    device = input.storage.device
    ordered = w.new(input.shape, input.dtype, "sort", device)
    places = w.new(input.shape, dtypes.int64, "sort", device)
    ranks = [w.new(shape, dtypes.int64, "quantile", device) for _ in range(2)]
    weight = w.new(shape, input.dtype, "quantile", device)
    result = w.new(shape, input.dtype, "quantile", device)
    saved = (ordered, places, *ranks, weight)
    record(w, "quantile", (input,), saved, _SteppedBack("quantile_backward", input.shape, 2), result)
    return result


@operator("torch.argmax", method="argmax")
def argmax(w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, out: None = None) -> Tensor:
    result = _reduce(w, "argmax", input, dim, keepdim, dtypes.int64)
    _total(result, input, lambda values: values.index(max(values)))
    return result


@operator("torch.argmin", method="argmin")
def argmin(w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, out: None = None) -> Tensor:
    result = _reduce(w, "argmin", input, dim, keepdim, dtypes.int64)
    _total(result, input, lambda values: values.index(min(values)))
    return result


@operator("torch.any", method="any")
def any_(w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, out: None = None) -> Tensor:
    result = _reduce(w, "any", input, dim, keepdim, dtypes.boolean)
    _total(result, input, lambda values: any(values))
    return result


@operator("torch.all", method="all")
def all_(w: World, input: Tensor, dim: object = None, keepdim: bool = False, *, out: None = None) -> Tensor:
    result = _reduce(w, "all", input, dim, keepdim, dtypes.boolean)
    _total(result, input, lambda values: all(values))
    return result


@operator("torch.count_nonzero", method="count_nonzero")
def count_nonzero(w: World, input: Tensor, dim: object = None) -> Tensor:
    result = _reduce(w, "count_nonzero", input, dim, False, dtypes.int64)
    _total(result, input, lambda values: len([value for value in values if value]))
    return result


@operator("torch.equal", method="equal")
def equal(w: World, input: Tensor, other: Tensor) -> object:
    if input.shape != other.shape:
        return False
    a, b = values_of(input), values_of(other)
    return UnknownScalar("bool", "whether two tensors are equal") if a is None or b is None else a == b


@operator("torch.allclose", method="allclose")
def allclose(
    w: World, input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> object:
    return UnknownScalar("bool", "whether two tensors are close")


# --- softmax


class _SoftmaxBack:
    """One gradient, from the output alone. A fused cast writes the input's type at once."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        output = saved[0]
        assert output is not None
        return [w.new(output.shape, self.dtype, self.name, output.storage.device)]


def _softmax(w: World, name: str, input: Tensor, dim: object, dtype: DType | None) -> Tensor:
    if dim is not None:
        dim_of(dim, input.ndim, name)
    # CUDA converts fp16 to fp32 inside the kernel; every other conversion is a copy first.
    if (
        dtype is not None
        and input.dtype is dtypes.float16
        and dtype is dtypes.float32
        and input.device.on_card
    ):
        x = input
    elif dtype is not None:
        x = cast(w, input, dtype)
    else:
        x = input
    if x.dtype.category < FLOATING:
        raise Unsupported(f"torch.{name}", f"not defined for {x.dtype}; torch raises here")
    result = w.new(x.shape, dtype or x.dtype, name, x.storage.device)
    record(w, name, (x,), (result,), _SoftmaxBack(name + "_backward", x.dtype), result)
    return result


@operator("torch.softmax", "torch.special.softmax", method="softmax")
def softmax(w: World, input: Tensor, dim: object, dtype: DType | None = None, *, out: None = None) -> Tensor:
    return _softmax(w, "softmax", input, dim, _set_optional_dtype(w, input, dtype))


@operator("torch.nn.functional.softmax")
def functional_softmax(
    w: World, input: Tensor, dim: object = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    return _softmax(w, "softmax", input, dim, _set_optional_dtype(w, input, dtype))


@operator("torch.nn.functional.softmin")
def softmin(
    w: World, input: Tensor, dim: object = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    from .pointwise import negative

    return functional_softmax(w, negative(w, input), dim, dtype=dtype)


@operator("torch.log_softmax", "torch.special.log_softmax", method="log_softmax")
def log_softmax(
    w: World, input: Tensor, dim: object, dtype: DType | None = None, *, out: None = None
) -> Tensor:
    return _softmax(w, "log_softmax", input, dim, _set_optional_dtype(w, input, dtype))


@operator("torch.nn.functional.log_softmax")
def functional_log_softmax(
    w: World, input: Tensor, dim: object = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    return _softmax(w, "log_softmax", input, dim, _set_optional_dtype(w, input, dtype))


def log_softmax_as_is(w: World, input: Tensor, dim: int) -> Tensor:
    """As called with an explicit type inside `cross_entropy_loss`: autocast does not change it."""
    return _softmax(w, "log_softmax", input, dim, None)


@operator("torch.nn.functional.gumbel_softmax")
def gumbel_softmax(
    w: World, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    from .pointwise import add, div, sub

    noise = w.like(logits, "exponential")
    gumbels = w.like(noise, "log")
    del noise
    gumbels = w.like(gumbels, "neg")
    soft = softmax(w, div(w, add(w, logits, gumbels), tau), dim)
    del gumbels
    if not hard:
        return soft
    one_hot = w.like(soft, "scatter")
    return add(w, sub(w, one_hot, alias(soft)), soft)


# --- scans


@operator("torch.cumsum", method="cumsum")
def cumsum(w: World, input: Tensor, dim: object, *, dtype: DType | None = None, out: None = None) -> Tensor:
    dtype = _set_optional_dtype(w, input, dtype)
    target = dtype or (dtypes.int64 if input.dtype.category < FLOATING else input.dtype)
    result = elementwise(w, "cumsum", target, input)
    if input.ndim == 1 and input.storage.values is not None:
        from itertools import accumulate

        from .support import store_values

        store_values(result, list(accumulate(values_of(input) or [])))
    record(w, "cumsum", (input,), (), _SteppedBack("cumsum_backward", input.shape, 2), result)
    return result


@method("cumsum_", "cumprod_")
def cumsum_(w: World, self: Tensor, dim: object, *, dtype: DType | None = None) -> Tensor:
    return record_inplace(w, "cumsum_", self, (), (), _SteppedBack("cumsum_backward", self.shape, 2))


@operator("torch.cumprod", method="cumprod")
def cumprod(w: World, input: Tensor, dim: object, *, dtype: DType | None = None, out: None = None) -> Tensor:
    dtype = _set_optional_dtype(w, input, dtype)
    result = elementwise(w, "cumprod", dtype or input.dtype, input)
    record(w, "cumprod", (input,), (input, result), _SteppedBack("cumprod_backward", input.shape, 3), result)
    return result


@operator("torch.logcumsumexp", method="logcumsumexp")
def logcumsumexp(w: World, input: Tensor, dim: object, *, out: None = None) -> Tensor:
    result = elementwise(w, "logcumsumexp", input.dtype, input)
    record(
        w,
        "logcumsumexp",
        (input,),
        (input, result),
        _SteppedBack("logcumsumexp_backward", input.shape, 3),
        result,
    )
    return result


@operator("torch.cummax", "torch.cummin", method=("cummax", "cummin"))
def cummax(w: World, input: Tensor, dim: object, *, out: None = None) -> ValuesIndices:
    values = elementwise(w, "cummax", input.dtype, input)
    indices = elementwise(w, "cummax", dtypes.int64, input)
    record(w, "cummax", (input,), (input, indices), _SteppedBack("cummax_backward", input.shape, 0), values)
    return ValuesIndices(values, indices)


@operator("torch.diff", method="diff")
def diff(
    w: World, input: Tensor, n: int = 1, dim: int = -1, prepend: object = None, append: object = None
) -> Tensor:
    from .pointwise import sub
    from .views import cat, narrow

    at = dim_of(dim, input.ndim)
    parts = [part for part in (prepend, input, append) if isinstance(part, Tensor)]
    x = cat(w, parts, at) if len(parts) > 1 else input
    for _ in range(n):
        length = x.shape[at] - 1
        x = sub(w, narrow(w, x, at, 1, length), narrow(w, x, at, 0, length))
    return x


# --- sorting


@operator("torch.topk", method="topk")
def topk(
    w: World,
    input: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: None = None,
) -> ValuesIndices:
    at = dim_of(dim, input.ndim)
    count = extent(k, "torch.topk")
    if count > input.shape[at]:
        raise Unsupported(
            "torch.topk", f"k = {count} exceeds the extent {input.shape[at]}; torch raises here"
        )
    shape = (*input.shape[:at], count, *input.shape[at + 1 :])
    values = w.new(shape, input.dtype, "topk", input.storage.device)
    indices = w.new(shape, dtypes.int64, "topk", input.storage.device)
    record(w, "topk", (input,), (indices,), _SteppedBack("topk_backward", input.shape, 0), values)
    return ValuesIndices(values, indices)


@operator("torch.sort", method="sort")
def sort(
    w: World,
    input: Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool = False,
    *,
    out: None = None,
) -> ValuesIndices:
    values = elementwise(w, "sort", input.dtype, input)
    indices = elementwise(w, "sort", dtypes.int64, input)
    record(w, "sort", (input,), (indices,), _SteppedBack("sort_backward", input.shape, 0), values)
    return ValuesIndices(values, indices)


@operator("torch.argsort", method="argsort")
def argsort(w: World, input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    values = elementwise(w, "sort", input.dtype, input)
    indices = elementwise(w, "argsort", dtypes.int64, input)
    del values
    return indices


@operator("torch.unique_consecutive", method="unique_consecutive")
def unique_consecutive(
    w: World,
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> object:
    """Runs of equal elements; where values are not known, as for `torch.unique`."""
    known = values_of(input) if dim is None else None
    if known is None:
        return unique(w, input, True, return_inverse, return_counts, dim)
    runs = [(value, len(list(run))) for value, run in groupby(known)]
    values = _numbers(w, input, (len(runs),), [value for value, _ in runs], input.dtype)
    made = [values]
    if return_inverse:
        places = [float(place) for place, (_, count) in enumerate(runs) for _ in range(count)]
        made.append(_numbers(w, input, input.shape, places))
    if return_counts:
        made.append(_numbers(w, input, (len(runs),), [float(count) for _, count in runs]))
    return tuple(made) if len(made) > 1 else values


def _numbers(
    w: World, like: Tensor, shape: Shape, numbers: list[float], dtype: DType = dtypes.int64
) -> Tensor:
    made = w.new(shape, dtype, "unique", like.storage.device)
    store_values(made, numbers)
    return made


@operator("torch.unique", method="unique")
def unique(
    w: World,
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> object:
    """Where values are not known, all elements count as different: the most memory it can take."""
    known = values_of(input) if dim is None else None
    if known is not None:
        return _unique_of(w, input, known, return_inverse, return_counts)
    w.assume("torch.unique: every element counted as distinct")
    count = input.numel if dim is None else input.shape[dim]
    shape = (count,) if dim is None else input.shape
    values = w.new(shape, input.dtype, "unique", input.storage.device)
    extra: list[Tensor] = []
    if return_inverse:
        extra.append(
            w.new(input.shape if dim is None else (count,), dtypes.int64, "unique", input.storage.device)
        )
    if return_counts:
        extra.append(w.new((count,), dtypes.int64, "unique", input.storage.device))
    return (values, *extra) if extra else values


def _unique_of(w: World, input: Tensor, known: list[float], with_inverse: bool, with_counts: bool) -> object:
    counts = Counter(known)
    distinct = sorted(counts)
    values = _numbers(w, input, (len(distinct),), distinct, input.dtype)
    made = [values]
    if with_inverse:
        place = {value: float(index) for index, value in enumerate(distinct)}
        made.append(_numbers(w, input, input.shape, [place[value] for value in known]))
    if with_counts:
        made.append(_numbers(w, input, (len(distinct),), [float(counts[value]) for value in distinct]))
    return tuple(made) if len(made) > 1 else values


@operator("torch.bincount", method="bincount")
def bincount(w: World, input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    known = values_of(input)
    if known is None and not minlength:
        raise Unsupported("torch.bincount", "the largest element is not known")
    length = max(minlength, int(max(known)) + 1 if known else 0)
    dtype = dtypes.int64 if weights is None else weights.dtype
    return w.new((length,), dtype, "bincount", input.storage.device)


@operator("torch.histc", method="histc")
def histc(
    w: World, input: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: None = None
) -> Tensor:
    return w.new((bins,), input.dtype, "histc", input.storage.device)


@operator("torch.searchsorted")
def searchsorted(
    w: World,
    sorted_sequence: Tensor,
    input: object,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    out: None = None,
) -> Tensor:
    dtype = dtypes.int32 if out_int32 else dtypes.int64
    shape = input.shape if isinstance(input, Tensor) else ()
    return w.new(shape, dtype, "searchsorted", sorted_sequence.storage.device)


@operator("torch.bucketize")
def bucketize(
    w: World,
    input: Tensor,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    out: None = None,
) -> Tensor:
    return w.new(input.shape, dtypes.int32 if out_int32 else dtypes.int64, "bucketize", input.storage.device)


# --- leaving the tensor world


@method("item", "__float__", "__int__", "__index__", "__bool__", "__complex__")
def item(w: World, self: Tensor) -> object:
    """The element of a small known CPU tensor, else a number of unknown value."""
    if self.numel != 1:
        raise Unsupported(
            "Tensor.item", f"a tensor of {self.numel} elements is not one number; torch raises here"
        )
    known = values_of(self)
    if known is not None:
        return known[0]
    return UnknownScalar(_kind(self.dtype), "an element of a tensor")


@method("tolist", "numpy")
def tolist(w: World, self: Tensor, *, force: bool = False) -> object:
    known = values_of(self)
    if known is None:
        return UnknownItems(tuple(self.shape), _kind(self.dtype), "the elements of a tensor")
    return _rows(known, self.shape)


def _rows(values: list[float], shape: Shape) -> object:
    if not shape:
        return values[0]
    step = prod(shape[1:])
    return [_rows(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _kind(dtype: DType) -> str:
    return ("bool", "int", "float", "float")[dtype.category]

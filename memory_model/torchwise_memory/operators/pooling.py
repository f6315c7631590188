"""Pooling and resampling."""

from __future__ import annotations

import math

from torchwise_memory.runtime.layout import channels_last_strides, prefers_channels_last
from torchwise_memory.runtime.sequences import is_sequence

from .convolution import spread
from .registry import operator
from .support import (
    DType,
    Gradients,
    Saved,
    Shape,
    Tensor,
    Unsupported,
    World,
    dtypes,
    high,
    record,
)


def pooled_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil_mode: bool = False
) -> int:
    """The extent after pooling, by torch's `pooling_output_shape`."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)
    count = reach // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    return count


def _result(w: World, name: str, input: Tensor, shape: Shape, dtype: DType | None = None) -> Tensor:
    last = prefers_channels_last(input.shape, input.strides)
    strides = channels_last_strides(shape) if last and len(shape) == input.ndim else None
    return w.new(shape, dtype or input.dtype, name, input.storage.device, strides)


class _InputLikeBack:
    """One gradient in shape and layout of the input."""

    __slots__ = ("last", "name", "shape")

    def __init__(self, name: str, input: Tensor) -> None:
        self.name = name
        self.shape: Shape = input.shape
        self.last = prefers_channels_last(input.shape, input.strides)

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        strides = channels_last_strides(self.shape) if self.last else None
        return [w.new(self.shape, gradient.dtype, self.name, gradient.storage.device, strides)]


def _windows(
    name: str,
    dims: int,
    input: Tensor,
    kernel_size: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
) -> Shape:
    if input.ndim not in (dims + 1, dims + 2):
        raise Unsupported(name, f"input of {input.ndim} dimensions; torch raises here")
    kernel = spread(kernel_size, dims, name)
    steps = kernel if stride is None or stride == [] else spread(stride, dims, name)
    spatial = tuple(
        pooled_size(size, k, s, p, d, ceil_mode)
        for size, k, s, p, d in zip(
            input.shape[-dims:],
            kernel,
            steps,
            spread(padding, dims, name),
            spread(dilation, dims, name),
            strict=True,
        )
    )
    if any(size <= 0 for size in spatial):
        raise Unsupported(name, f"no output for input {tuple(input.shape)}; torch raises here")
    return spatial


def _max_pool(
    w: World,
    name: str,
    dims: int,
    input: Tensor,
    kernel_size: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
    return_indices: bool,
) -> object:
    """Keeps the input and int64 indices of the output's size."""
    spatial = _windows(name, dims, input, kernel_size, stride, padding, dilation, ceil_mode)
    shape = (*input.shape[:-dims], *spatial)
    result = _result(w, "max_pool", input, shape)
    indices = _result(w, "max_pool indices", input, shape, dtypes.int64)
    record(w, "max_pool", (input,), (input, indices), _InputLikeBack("max_pool_backward", input), result)
    return (result, indices) if return_indices else result


@operator("torch.nn.functional.max_pool1d")
def max_pool1d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> object:
    name = "torch.nn.functional.max_pool1d"
    return _max_pool(w, name, 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@operator("torch.nn.functional.max_pool2d")
def max_pool2d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> object:
    name = "torch.nn.functional.max_pool2d"
    return _max_pool(w, name, 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@operator("torch.nn.functional.max_pool3d")
def max_pool3d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> object:
    name = "torch.nn.functional.max_pool3d"
    return _max_pool(w, name, 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@operator("torch.max_pool1d")
def torch_max_pool1d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
) -> object:
    return max_pool1d(w, input, kernel_size, stride, padding, dilation, ceil_mode)


@operator("torch.max_pool2d")
def torch_max_pool2d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
) -> object:
    return max_pool2d(w, input, kernel_size, stride, padding, dilation, ceil_mode)


def _avg_pool(
    w: World,
    name: str,
    dims: int,
    input: Tensor,
    kernel_size: object,
    stride: object,
    padding: object,
    ceil_mode: bool,
) -> Tensor:
    """Keeps the input, whose values the backward does not even need."""
    spatial = _windows(name, dims, input, kernel_size, stride, padding, 1, ceil_mode)
    result = _result(w, "avg_pool", input, (*input.shape[:-dims], *spatial))
    record(w, "avg_pool", (input,), (input,), _InputLikeBack("avg_pool_backward", input), result)
    return result


@operator("torch.nn.functional.avg_pool1d", "torch.avg_pool1d")
def avg_pool1d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    return _avg_pool(w, "torch.nn.functional.avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode)


@operator("torch.nn.functional.avg_pool2d")
def avg_pool2d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    return _avg_pool(w, "torch.nn.functional.avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode)


@operator("torch.nn.functional.avg_pool3d")
def avg_pool3d(
    w: World,
    input: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    return _avg_pool(w, "torch.nn.functional.avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode)


@operator("torch.nn.functional.lp_pool2d")
def lp_pool2d(
    w: World,
    input: Tensor,
    norm_type: float,
    kernel_size: object,
    stride: object = None,
    ceil_mode: bool = False,
) -> Tensor:
    from .pointwise import mul, power

    pooled = avg_pool2d(w, power(w, input, norm_type), kernel_size, stride, 0, ceil_mode)
    return power(w, mul(w, pooled, math.prod(spread(kernel_size, 2, "lp_pool2d"))), 1.0 / norm_type)


def _adaptive_size(name: str, dims: int, input: Tensor, output_size: object) -> Shape:
    sizes = output_size if is_sequence(output_size) else [output_size] * dims
    source = input.shape[-dims:]
    whole = [source[i] if size is None else size for i, size in enumerate(sizes)]
    return spread(whole, dims, name)


def _adaptive_avg(w: World, name: str, dims: int, input: Tensor, output_size: object) -> Tensor:
    size = _adaptive_size(name, dims, input, output_size)
    if all(extent == 1 for extent in size):
        from .reductions import mean

        return mean(w, input, list(range(-dims, 0)), True)
    result = _result(w, "adaptive_avg_pool", input, (*input.shape[:-dims], *size))
    record(
        w,
        "adaptive_avg_pool",
        (input,),
        (input,),
        _InputLikeBack("adaptive_avg_pool_backward", input),
        result,
    )
    return result


@operator("torch.nn.functional.adaptive_avg_pool1d", "torch.adaptive_avg_pool1d")
def adaptive_avg_pool1d(w: World, input: Tensor, output_size: object) -> Tensor:
    return _adaptive_avg(w, "torch.nn.functional.adaptive_avg_pool1d", 1, input, output_size)


@operator("torch.nn.functional.adaptive_avg_pool2d")
def adaptive_avg_pool2d(w: World, input: Tensor, output_size: object) -> Tensor:
    return _adaptive_avg(w, "torch.nn.functional.adaptive_avg_pool2d", 2, input, output_size)


@operator("torch.nn.functional.adaptive_avg_pool3d")
def adaptive_avg_pool3d(w: World, input: Tensor, output_size: object) -> Tensor:
    return _adaptive_avg(w, "torch.nn.functional.adaptive_avg_pool3d", 3, input, output_size)


def _adaptive_max(
    w: World, name: str, dims: int, input: Tensor, output_size: object, return_indices: bool
) -> object:
    shape = (*input.shape[:-dims], *_adaptive_size(name, dims, input, output_size))
    result = _result(w, "adaptive_max_pool", input, shape)
    indices = _result(w, "adaptive_max_pool indices", input, shape, dtypes.int64)
    back = _InputLikeBack("adaptive_max_pool_backward", input)
    record(w, "adaptive_max_pool", (input,), (input, indices), back, result)
    return (result, indices) if return_indices else result


@operator("torch.nn.functional.adaptive_max_pool1d")
def adaptive_max_pool1d(w: World, input: Tensor, output_size: object, return_indices: bool = False) -> object:
    return _adaptive_max(w, "torch.nn.functional.adaptive_max_pool1d", 1, input, output_size, return_indices)


@operator("torch.nn.functional.adaptive_max_pool2d")
def adaptive_max_pool2d(w: World, input: Tensor, output_size: object, return_indices: bool = False) -> object:
    return _adaptive_max(w, "torch.nn.functional.adaptive_max_pool2d", 2, input, output_size, return_indices)


@operator("torch.nn.functional.adaptive_max_pool3d")
def adaptive_max_pool3d(w: World, input: Tensor, output_size: object, return_indices: bool = False) -> object:
    return _adaptive_max(w, "torch.nn.functional.adaptive_max_pool3d", 3, input, output_size, return_indices)


# --- resampling


@operator("torch.nn.functional.interpolate")
def interpolate(
    w: World,
    input: Tensor,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Of the autocast class "fp32". Keeps nothing. "area" is adaptive average pooling."""
    name = "torch.nn.functional.interpolate"
    dims = input.ndim - 2
    if dims < 1:
        raise Unsupported(name, f"input of {input.ndim} dimensions; torch raises here")
    spatial = _resized(name, input.shape[2:], size, scale_factor)
    if mode == "area":
        return _adaptive_avg(w, name, dims, input, spatial)
    x = high(w, input)
    result = _result(w, "upsample_" + mode, x, (*x.shape[:2], *spatial))
    record(w, "upsample", (x,), (), _InputLikeBack("upsample_backward", x), result)
    return result


@operator("torch.nn.functional.upsample")
def upsample(
    w: World,
    input: Tensor,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    return interpolate(w, input, size, scale_factor, mode, align_corners)


@operator("torch.nn.functional.upsample_nearest")
def upsample_nearest(w: World, input: Tensor, size: object = None, scale_factor: object = None) -> Tensor:
    return interpolate(w, input, size, scale_factor)


@operator("torch.nn.functional.upsample_bilinear")
def upsample_bilinear(w: World, input: Tensor, size: object = None, scale_factor: object = None) -> Tensor:
    return interpolate(w, input, size, scale_factor, "bilinear", True)


def _resized(name: str, source: Shape, size: object, scale_factor: object) -> Shape:
    if size is not None:
        return spread(size, len(source), name)
    factors = list(scale_factor) if is_sequence(scale_factor) else [scale_factor] * len(source)
    result: list[int] = []
    for extent, factor in zip(source, factors, strict=True):
        if not isinstance(factor, int | float):
            raise Unsupported(name, "neither size nor scale_factor is known")
        result.append(math.floor(extent * factor))
    return tuple(result)


class _GridBack:
    def __init__(self, shapes: tuple[Shape, Shape], needs: tuple[bool, bool]) -> None:
        self.shapes = shapes
        self.needs = needs

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [
            w.new(shape, gradient.dtype, "grid_sampler_backward", gradient.storage.device) if needed else None
            for shape, needed in zip(self.shapes, self.needs, strict=True)
        ]


@operator("torch.nn.functional.grid_sample")
def grid_sample(
    w: World,
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Of the autocast class "promote". Keeps input and grid; the gradient of the grid is always made."""
    from .support import widest

    x, places = widest(w, input, grid)
    result = w.new((*x.shape[:2], *places.shape[1:-1]), x.dtype, "grid_sampler", x.storage.device)
    back = _GridBack((x.shape, places.shape), (x.requires_grad, True))
    record(w, "grid_sampler", (x, places), (x, places), back, result)
    return result


@operator("torch.nn.functional.affine_grid")
def affine_grid(w: World, theta: Tensor, size: object, align_corners: bool | None = None) -> Tensor:
    from .support import integers

    shape = integers(size)
    result = w.new((shape[0], *shape[2:], len(shape) - 2), theta.dtype, "affine_grid", theta.storage.device)
    record(w, "affine_grid", (theta,), (), _GridBack((theta.shape, theta.shape), (True, False)), result)
    return result

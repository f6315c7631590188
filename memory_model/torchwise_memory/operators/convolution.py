"""Convolutions of one to three dimensions, their transposes, and im2col.

cuDNN's workspaces are left out: they depend on the algorithm it picks, and what was measured on a T4 agrees
without.
"""

from __future__ import annotations

from torchwise_memory.runtime.device import Device
from torchwise_memory.runtime.dtypes import float32, uint8
from torchwise_memory.runtime.layout import channels_last_strides, prefers_channels_last
from torchwise_memory.runtime.ledger import StorageKind

from .registry import operator
from .support import (
    Gradients,
    Saved,
    Shape,
    Tensor,
    Unsupported,
    World,
    extent,
    integers,
    low,
    prod,
    record,
)


def spread(value: object, count: int, name: str) -> Shape:
    """A number for each spatial dimension, from one number or a sequence."""
    numbers = integers(value, name)
    if len(numbers) == 1:
        return numbers * count
    if len(numbers) != count:
        raise Unsupported(name, f"{numbers} for {count} spatial dimensions; torch raises here")
    return numbers


class _ConvBack:
    """dx in the layout of x, dw, db."""

    __slots__ = ("channels_last", "needs", "scratch", "shapes", "strides")

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        needs: tuple[bool, bool, bool],
        channels_last: bool,
        channels: int,
        scratch: int = 0,
    ) -> None:
        self.scratch = scratch
        self.shapes: tuple[Shape, Shape, Shape] = (x.shape, weight.shape, (channels,))
        self.needs = needs
        self.channels_last = channels_last

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        device, dtype = gradient.storage.device, gradient.dtype
        results: Gradients = []
        working = _workspace(w, self.scratch, device)
        for i, (shape, needed) in enumerate(zip(self.shapes, self.needs, strict=True)):
            strides = channels_last_strides(shape) if self.channels_last and i < 2 else None
            results.append(w.new(shape, dtype, _GRADIENT_NAMES[i], device, strides) if needed else None)
        del working
        return results


def _workspace(w: World, bytes_: int, device: Device) -> Tensor | None:
    if not bytes_:
        return None
    return w.new((bytes_,), uint8, "convolution workspace", device, kind=StorageKind.WORKSPACE)


def winograd_bytes(x: Shape, weight: Shape, spatial: Shape) -> int:
    """Workspace of cuDNN's non-fused Winograd kernels F(4x4, 3x3) in fp32: input, output and weight of a 3 by
    3 convolution with stride 1, each in tiles of 6 by 6 (Lavin and Gray, arXiv 1509.09308).
    """
    tiles = x[0] * -(-spatial[0] // 4) * -(-spatial[1] // 4)
    return 4 * 36 * (tiles * (weight[0] + weight[1]) + weight[0] * weight[1])


_GRADIENT_NAMES = ("convolution_dx", "convolution_dw", "convolution_db")


def _convolve(
    w: World,
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    spatial: Shape,
    out_channels: int,
    groups: int,
    scratch: int = 0,
) -> Tensor:
    """The node that all convolutions share. Keeps input and weight; works in `scratch` bytes."""
    x, kernel = input, weight
    if x.dtype is not kernel.dtype:
        raise Unsupported(name, f"input {x.dtype} and weight {kernel.dtype}; torch raises here")
    shape = (x.shape[0], out_channels, *spatial)
    last = prefers_channels_last(x.shape, x.strides) or prefers_channels_last(kernel.shape, kernel.strides)
    if any(size <= 0 for size in spatial):
        raise Unsupported(name, f"no output for input {tuple(x.shape)}; torch raises here")
    strides = channels_last_strides(shape) if last else None
    result = w.new(shape, x.dtype, "convolution", x.storage.device, strides)
    working = _workspace(w, scratch, x.storage.device)
    del working
    needs = (x.requires_grad, kernel.requires_grad, bias is not None and bias.requires_grad)
    if any(needs):
        back = _ConvBack(x, kernel, needs, last, out_channels, scratch)
        record(w, "convolution", (x, kernel, bias), (x, kernel), back, result)
    return result


def _conv(
    w: World,
    name: str,
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: object,
    padding: object,
    dilation: object,
    groups: object,
) -> Tensor:
    x, kernel = low(w, input), low(w, weight)
    offset = None if bias is None else low(w, bias)
    single = x.ndim == dims + 1
    if single:
        from .views import unsqueeze

        x = unsqueeze(w, x, 0)
    if x.ndim != dims + 2 or kernel.ndim != dims + 2:
        raise Unsupported(name, f"input {tuple(x.shape)} and weight {tuple(kernel.shape)}; torch raises here")
    parts = extent(groups, name)
    if x.shape[1] != kernel.shape[1] * parts:
        raise Unsupported(
            name, f"{x.shape[1]} channels by {kernel.shape[1]} x {parts} groups; torch raises here"
        )
    steps, holes = spread(stride, dims, name), spread(dilation, dims, name)
    sizes = kernel.shape[2:]
    pads = _padding(padding, sizes, holes, name)
    spatial = tuple(
        (size + before + after - hole * (k - 1) - 1) // step + 1
        for size, (before, after), hole, k, step in zip(x.shape[2:], pads, holes, sizes, steps, strict=True)
    )
    scratch = 0
    if w.convolution_workspaces and dims == 2 and x.dtype is float32 and parts == 1 and sizes == (3, 3):
        regular = steps == (1, 1) and holes == (1, 1)
        tiled = winograd_bytes(x.shape, kernel.shape, spatial) if regular else 0
        scratch = int(tiled * w.convolution_workspaces)
    result = _convolve(w, name, x, kernel, offset, spatial, kernel.shape[0], parts, scratch)
    if single:
        from .views import squeeze

        result = squeeze(w, result, 0)
    return result


def _padding(padding: object, sizes: Shape, holes: Shape, name: str) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(sizes)
    if padding == "same":
        totals = [hole * (k - 1) for hole, k in zip(holes, sizes, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in spread(padding, len(sizes), name)]


@operator("torch.nn.functional.conv1d", "torch.conv1d")
def conv1d(
    w: World,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
) -> Tensor:
    return _conv(w, "torch.nn.functional.conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@operator("torch.nn.functional.conv2d", "torch.conv2d")
def conv2d(
    w: World,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
) -> Tensor:
    return _conv(w, "torch.nn.functional.conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@operator("torch.nn.functional.conv3d", "torch.conv3d")
def conv3d(
    w: World,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
) -> Tensor:
    return _conv(w, "torch.nn.functional.conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    w: World,
    name: str,
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: object,
    padding: object,
    output_padding: object,
    groups: object,
    dilation: object,
) -> Tensor:
    x, kernel = low(w, input), low(w, weight)
    offset = None if bias is None else low(w, bias)
    parts = extent(groups, name)
    if x.ndim != dims + 2 or x.shape[1] != kernel.shape[0]:
        raise Unsupported(name, f"input {tuple(x.shape)} and weight {tuple(kernel.shape)}; torch raises here")
    spatial = tuple(
        (size - 1) * step - 2 * pad + hole * (k - 1) + extra + 1
        for size, step, pad, hole, k, extra in zip(
            x.shape[2:],
            spread(stride, dims, name),
            spread(padding, dims, name),
            spread(dilation, dims, name),
            kernel.shape[2:],
            spread(output_padding, dims, name),
            strict=True,
        )
    )
    return _convolve(w, name, x, kernel, offset, spatial, kernel.shape[1] * parts, parts)


@operator("torch.nn.functional.conv_transpose1d", "torch.conv_transpose1d")
def conv_transpose1d(
    w: World,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    groups: int = 1,
    dilation: object = 1,
) -> Tensor:
    name = "torch.nn.functional.conv_transpose1d"
    return _conv_transpose(w, name, 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@operator("torch.nn.functional.conv_transpose2d", "torch.conv_transpose2d")
def conv_transpose2d(
    w: World,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    groups: int = 1,
    dilation: object = 1,
) -> Tensor:
    name = "torch.nn.functional.conv_transpose2d"
    return _conv_transpose(w, name, 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@operator("torch.nn.functional.conv_transpose3d", "torch.conv_transpose3d")
def conv_transpose3d(
    w: World,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    groups: int = 1,
    dilation: object = 1,
) -> Tensor:
    name = "torch.nn.functional.conv_transpose3d"
    return _conv_transpose(w, name, 3, input, weight, bias, stride, padding, output_padding, groups, dilation)


class _ShapedBack:
    __slots__ = ("name", "shape")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(self.shape, gradient.dtype, self.name, gradient.storage.device)]


@operator("torch.nn.functional.unfold")
def unfold(
    w: World,
    input: Tensor,
    kernel_size: object,
    dilation: object = 1,
    padding: object = 0,
    stride: object = 1,
) -> Tensor:
    name = "torch.nn.functional.unfold"
    sizes = spread(kernel_size, 2, name)
    blocks = _blocks(
        input.shape[-2:], sizes, spread(dilation, 2, name), spread(padding, 2, name), spread(stride, 2, name)
    )
    shape = (*input.shape[:-3], input.shape[-3] * prod(sizes), prod(blocks))
    result = w.new(shape, input.dtype, "im2col", input.storage.device)
    record(w, "im2col", (input,), (), _ShapedBack("col2im", input.shape), result)
    return result


@operator("torch.nn.functional.fold")
def fold(
    w: World,
    input: Tensor,
    output_size: object,
    kernel_size: object,
    dilation: object = 1,
    padding: object = 0,
    stride: object = 1,
) -> Tensor:
    name = "torch.nn.functional.fold"
    sizes = spread(kernel_size, 2, name)
    shape = (*input.shape[:-2], input.shape[-2] // prod(sizes), *spread(output_size, 2, name))
    result = w.new(shape, input.dtype, "col2im", input.storage.device)
    record(w, "col2im", (input,), (), _ShapedBack("im2col", input.shape), result)
    return result


def _blocks(size: Shape, kernel: Shape, dilation: Shape, padding: Shape, stride: Shape) -> Shape:
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    )

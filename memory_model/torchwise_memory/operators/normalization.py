"""Normalizations."""

from __future__ import annotations

from .registry import operator
from .support import (
    DType,
    Gradients,
    Saved,
    Shape,
    Tensor,
    Unsupported,
    World,
    cast,
    dtypes,
    extent,
    high,
    integers,
    prod,
    record,
)
from .views import contiguous, reshape_to


class _NormBack:
    """dx like the input; dw and db like the weight, each only where needed."""

    __slots__ = ("contiguous", "name", "needs", "parameter_dtype", "parameter_shape")

    def __init__(
        self, name: str, input: Tensor, weight: Tensor | None, bias: Tensor | None, contiguous: bool
    ) -> None:
        self.name = name
        self.needs = (input.requires_grad, _trains(weight), _trains(bias))
        parameter = weight if weight is not None else bias
        self.parameter_shape: Shape = parameter.shape if parameter is not None else ()
        self.parameter_dtype = parameter.dtype if parameter is not None else input.dtype
        self.contiguous = contiguous

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient, x = gradients[0], saved[0]
        assert gradient is not None and x is not None
        device = gradient.storage.device
        if self.contiguous and not gradient.is_contiguous:
            gradient = w.new(gradient.shape, gradient.dtype, "clone", device)
        dx = w.like(x, self.name) if self.needs[0] else None
        dw = w.new(self.parameter_shape, self.parameter_dtype, self.name, device) if self.needs[1] else None
        db = w.new(self.parameter_shape, self.parameter_dtype, self.name, device) if self.needs[2] else None
        return [dx, dw, db]


def _trains(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def _statistics_dtype(x: Tensor) -> DType:
    return dtypes.float32 if x.dtype.itemsize <= 4 else x.dtype


@operator("torch.nn.functional.layer_norm")
def layer_norm(
    w: World,
    input: Tensor,
    normalized_shape: object,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Of the autocast class "fp32". Keeps its input, a mean and a reciprocal deviation (fp32) a row, and the
    weight.
    """
    shape = integers(normalized_shape, "torch.nn.functional.layer_norm")
    if tuple(input.shape[input.ndim - len(shape) :]) != shape:
        raise Unsupported(
            "torch.nn.functional.layer_norm",
            f"{tuple(input.shape)} does not end in {shape}; torch raises here",
        )
    x = contiguous(w, high(w, input))
    scale = None if weight is None else high(w, weight)
    shift = None if bias is None else high(w, bias)
    rows = (*x.shape[: x.ndim - len(shape)], *(1 for _ in shape))
    result = w.new(x.shape, x.dtype, "layer_norm", x.storage.device)
    mean = w.new(rows, _statistics_dtype(x), "layer_norm mean", x.storage.device)
    rstd = w.new(rows, _statistics_dtype(x), "layer_norm rstd", x.storage.device)
    back = _NormBack("layer_norm_backward", x, scale, shift, True)
    record(w, "layer_norm", (x, scale, shift), (x, mean, rstd, scale), back, result)
    return result


@operator("torch.layer_norm")
def torch_layer_norm(
    w: World,
    input: Tensor,
    normalized_shape: object,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Tensor:
    return layer_norm(w, input, normalized_shape, weight, bias, eps)


@operator("torch.nn.functional.rms_norm", "torch.rms_norm")
def rms_norm(
    w: World,
    input: Tensor,
    normalized_shape: object,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Of the autocast class "fp32". Fused: keeps input, one fp32 statistic a row and the weight."""
    shape = integers(normalized_shape, "torch.nn.functional.rms_norm")
    if tuple(input.shape[input.ndim - len(shape) :]) != shape:
        raise Unsupported(
            "torch.nn.functional.rms_norm", f"{tuple(input.shape)} does not end in {shape}; torch raises here"
        )
    x = high(w, input)
    scale = None if weight is None else high(w, weight)
    # of mixed types it is a composite in every release
    fuses = w.does("rms_norm") == "fused" and (scale is None or scale.dtype is x.dtype)
    if fuses and x.device.on_card:
        return _fused_rms_norm(w, x, shape, scale)
    return _composite_rms_norm(w, x, shape, scale)


def _fused_rms_norm(w: World, input: Tensor, shape: Shape, weight: Tensor | None) -> Tensor:
    x = contiguous(w, input)
    rows = (*x.shape[: x.ndim - len(shape)], *(1 for _ in shape))
    result = w.new(x.shape, x.dtype, "rms_norm", x.storage.device)
    rstd = w.new(rows, _statistics_dtype(x), "rms_norm rstd", x.storage.device)
    record(w, "rms_norm", (x, weight), (x, rstd, weight), _RmsNormBack(x, weight), result)
    return result


class _RmsNormBack(_NormBack):
    """As of layer norm, without a bias."""

    __slots__ = ()

    def __init__(self, input: Tensor, weight: Tensor | None) -> None:
        super().__init__("rms_norm_backward", input, weight, None, True)

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        return super().__call__(w, saved, gradients)[:2]


def _composite_rms_norm(w: World, input: Tensor, shape: Shape, weight: Tensor | None) -> Tensor:
    """fp32 input, its square's mean, two products."""
    from .pointwise import UNARY, add, apply_unary, mul, power
    from .reductions import mean

    x = cast(w, input, dtypes.float32) if input.dtype in dtypes.HALF_TYPES else input
    dims = list(range(x.ndim - len(shape), x.ndim))
    scale = apply_unary(w, UNARY["rsqrt"], add(w, mean(w, power(w, x, 2), dims, True), 1e-5))
    result = mul(w, x, scale)
    del scale
    if weight is not None:
        result = mul(w, result, weight)
    return cast(w, result, input.dtype)


@operator("torch.nn.functional.group_norm")
def group_norm(
    w: World,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Of the autocast class "fp32". Keeps its input and two fp32 statistics a group."""
    groups = extent(num_groups, "torch.nn.functional.group_norm")
    if input.ndim < 2 or input.shape[1] % groups:
        raise Unsupported(
            "torch.nn.functional.group_norm", f"{tuple(input.shape)} in {groups} groups; torch raises here"
        )
    x = high(w, input)
    scale = None if weight is None else high(w, weight)
    shift = None if bias is None else high(w, bias)
    result = w.like(x, "group_norm")
    # Statistics have the type of the input, unlike those of layer norm.
    mean = w.new((x.shape[0], groups), x.dtype, "group_norm mean", x.storage.device)
    rstd = w.new((x.shape[0], groups), x.dtype, "group_norm rstd", x.storage.device)
    back = _NormBack("group_norm_backward", x, scale, shift, False)
    record(w, "group_norm", (x, scale, shift), (x, mean, rstd, scale), back, result)
    return result


@operator("torch.group_norm")
def torch_group_norm(
    w: World,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Tensor:
    return group_norm(w, input, num_groups, weight, bias, eps)


@operator("torch.nn.functional.batch_norm")
def batch_norm(
    w: World,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Keeps its input, not its output; in training two statistics a channel. Takes half inputs with fp32
    weights.
    """
    if input.ndim < 2:
        raise Unsupported(
            "torch.nn.functional.batch_norm", f"input of {input.ndim} dimensions; torch raises here"
        )
    x = input
    channels = x.shape[1]
    if weight is not None and weight.shape != (channels,):
        raise Unsupported(
            "torch.nn.functional.batch_norm",
            f"{channels} channels by weight {tuple(weight.shape)}; torch raises here",
        )
    result = w.like(x, "batch_norm")
    saved: list[Tensor | None] = [x, weight]
    if training:
        names = ("batch_norm mean", "batch_norm rstd")
        saved += [w.new((channels,), dtypes.float32, name, x.storage.device) for name in names]
    else:
        saved += [running_mean, running_var]
    record(
        w,
        "batch_norm",
        (x, weight, bias),
        saved,
        _NormBack("batch_norm_backward", x, weight, bias, False),
        result,
    )
    return result


@operator("torch.batch_norm")
def torch_batch_norm(
    w: World,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return batch_norm(w, input, running_mean, running_var, weight, bias, training, momentum, eps)


@operator("torch.nn.functional.instance_norm")
def instance_norm(
    w: World,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Batch norm of each sample's channels: the weights are repeated for every sample."""
    from .views import repeat

    batch, channels = input.shape[0], input.shape[1]
    folded = reshape_to(w, contiguous(w, input), (1, batch * channels, *input.shape[2:]))
    scale = None if weight is None else repeat(w, weight, batch)
    shift = None if bias is None else repeat(w, bias, batch)
    result = batch_norm(w, folded, None, None, scale, shift, use_input_stats or running_mean is None)
    return reshape_to(w, result, input.shape)


@operator("torch.nn.functional.local_response_norm")
def local_response_norm(
    w: World, input: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    from .pointwise import add, div, mul, power
    from .pooling import avg_pool2d
    from .views import pad, squeeze, unsqueeze

    squared = unsqueeze(w, mul(w, input, input), 1)
    flat = (
        squared
        if input.ndim == 3
        else reshape_to(w, squared, (input.shape[0], 1, input.shape[1], prod(input.shape[2:])))
    )
    padded = pad(w, flat, (0, 0, size // 2, (size - 1) // 2))
    del squared, flat
    pooled = squeeze(w, avg_pool2d(w, padded, (size, 1), 1), 1)
    scale = power(w, add(w, mul(w, reshape_to(w, pooled, input.shape), alpha), k), beta)
    return div(w, input, scale)


@operator("torch.nn.functional.normalize")
def normalize(
    w: World, input: Tensor, p: float = 2.0, dim: object = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    """x / max(|x|, eps), composed as in torch."""
    from .pointwise import clamp, div
    from .reductions import vector_norm
    from .views import expand_to

    norm = clamp(w, vector_norm(w, input, p, dim, True), eps)
    return div(w, input, expand_to(w, norm, input.shape))

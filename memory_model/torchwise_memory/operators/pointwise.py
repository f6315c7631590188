"""Elementwise operators. What each keeps and allocates follows `derivatives.yaml` of PyTorch 2.x."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .registry import method, operator
from .support import (
    BOOL,
    CPU,
    DType,
    Gradients,
    Operand,
    Saved,
    Scalar,
    Tensor,
    Unsupported,
    World,
    cast,
    dtypes,
    elementwise,
    float_result,
    formatted_strides,
    high,
    needs_graph,
    pass_through,
    record,
    record_inplace,
    result_type,
    set_values,
    widest,
)

# --- one operand


@dataclass(frozen=True, slots=True)
class Unary:
    """`keeps`: "input", "output" or "" - what the backward needs. temporaries: full-size ones the backward
    makes on the way. fp32: the autocast class. to_float: integers become floating. value: for small known
    tensors."""

    name: str
    keeps: str
    temporaries: int = 0
    fp32: bool = False
    to_float: bool = False
    value: Callable[[float], float] | None = None


class UnaryBack:
    """`temporaries` full-size tensors one after the other, two alive at a time, then the gradient."""

    __slots__ = ("name", "temporaries")

    def __init__(self, name: str, temporaries: int) -> None:
        self.name = name
        self.temporaries = temporaries

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        kept = saved[0] if saved else None
        step: Tensor | None = None
        for _ in range(self.temporaries):
            step = w.like(gradient if kept is None else kept, self.name)
        result = elementwise(w, self.name, gradient.dtype, gradient, *([kept] if kept is not None else []))
        del step
        return [result]


def apply_unary(w: World, spec: Unary, input: Tensor, fp32: bool | None = None) -> Tensor:
    """The out-of-place form."""
    source = high(w, input) if (spec.fp32 if fp32 is None else fp32) else input
    dtype = float_result(w, source.dtype) if spec.to_float else source.dtype
    result = elementwise(w, spec.name, dtype, source)
    if spec.value is not None:
        set_values(result, spec.value, source)
    kept = source if spec.keeps == "input" else result
    record(
        w,
        spec.name,
        (source,),
        (kept,) if spec.keeps else (),
        UnaryBack(spec.name + "_backward", spec.temporaries),
        result,
    )
    return result


def apply_unary_(w: World, spec: Unary, input: Tensor, keeps: str | None = None) -> Tensor:
    """The in-place form. Where the formula needs the input, autograd clones it before it is overwritten."""
    keeps = spec.keeps if keeps is None else keeps
    saved: tuple[Tensor, ...] = ()
    if keeps == "input" and needs_graph(w, input):
        saved = (w.like(input, "clone"),)
    elif keeps:
        saved = (input,)
    return record_inplace(
        w, spec.name + "_", input, (), saved, UnaryBack(spec.name + "_backward", spec.temporaries)
    )


def _raised(a: float, b: float) -> float:
    result: float = a**b
    return result


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _round(x: float) -> float:
    return float(round(x))


_UNARY = (
    Unary("abs", "input", 1, value=abs),
    Unary("acos", "input", 3, fp32=True, to_float=True, value=math.acos),
    Unary("acosh", "input", 3, to_float=True),
    Unary("asin", "input", 3, fp32=True, to_float=True, value=math.asin),
    Unary("asinh", "input", 3, to_float=True),
    Unary("atan", "input", 2, to_float=True, value=math.atan),
    Unary("atanh", "input", 2, to_float=True),
    Unary("ceil", "", value=math.ceil),
    Unary("cos", "input", 2, to_float=True, value=math.cos),
    Unary("cosh", "input", 1, fp32=True, to_float=True, value=math.cosh),
    Unary("deg2rad", "", to_float=True, value=math.radians),
    Unary("digamma", "input", 1, to_float=True),
    Unary("erf", "input", 3, to_float=True, value=math.erf),
    Unary("erfc", "input", 3, to_float=True, value=math.erfc),
    Unary("erfinv", "output", 3, fp32=True, to_float=True),
    Unary("exp", "output", fp32=True, to_float=True, value=math.exp),
    Unary("exp2", "output", 1, to_float=True, value=lambda x: 2.0**x),
    Unary("expm1", "output", 1, fp32=True, to_float=True, value=math.expm1),
    Unary("floor", "", value=math.floor),
    Unary("frac", "", value=lambda x: x - math.trunc(x)),
    Unary("lgamma", "input", 1, to_float=True, value=math.lgamma),
    Unary("log", "input", fp32=True, to_float=True, value=math.log),
    Unary("log10", "input", 1, fp32=True, to_float=True, value=math.log10),
    Unary("log1p", "input", 1, fp32=True, to_float=True, value=math.log1p),
    Unary("log2", "input", 1, fp32=True, to_float=True, value=math.log2),
    Unary("neg", "", value=lambda x: -x),
    Unary("rad2deg", "", to_float=True, value=math.degrees),
    Unary("reciprocal", "output", 2, fp32=True, to_float=True, value=lambda x: 1 / x),
    Unary("round", "", value=_round),
    Unary("rsqrt", "output", 2, fp32=True, to_float=True, value=lambda x: 1 / math.sqrt(x)),
    Unary("sigmoid", "output", to_float=True, value=_sigmoid),
    Unary("sign", "", value=lambda x: (x > 0) - (x < 0)),
    Unary("sin", "input", 1, to_float=True, value=math.sin),
    Unary("sinc", "input", 2, to_float=True),
    Unary("sinh", "input", 1, fp32=True, to_float=True, value=math.sinh),
    Unary("sqrt", "output", 1, to_float=True, value=math.sqrt),
    Unary("tan", "output", 2, fp32=True, to_float=True, value=math.tan),
    Unary("tanh", "output", to_float=True, value=math.tanh),
    Unary("trunc", "", value=math.trunc),
)
UNARY = {spec.name: spec for spec in _UNARY}


def _define(spec: Unary) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def plain(w: World, input: Tensor, *, out: None = None) -> Tensor:
        return apply_unary(w, spec, input)

    def inplace(w: World, input: Tensor) -> Tensor:
        return apply_unary_(w, spec, input)

    names = [f"torch.{spec.name}"]
    if spec.name in ("erf", "erfc", "erfinv", "exp2", "expm1", "log1p", "sinc", "digamma"):
        names.append(f"torch.special.{spec.name}")
    inplace_names = () if spec.name in ("digamma", "erfinv", "lgamma", "sign") else (f"torch.{spec.name}_",)
    return (
        operator(*names, method=spec.name)(plain),
        operator(*inplace_names, method=f"{spec.name}_")(inplace),
    )


# One pair of entries for each row of the table; `registrations` finds them by walking the dictionary below.
GENERATED: list[Callable[..., Tensor]] = [function for spec in _UNARY for function in _define(spec)]


@operator("torch.negative", method=("negative", "__neg__"))
def negative(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, UNARY["neg"], input)


@operator("torch.absolute", method=("absolute", "__abs__"))
def absolute(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, UNARY["abs"], input)


@operator("torch.nn.functional.sigmoid")
def functional_sigmoid(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, UNARY["sigmoid"], input)


@operator("torch.nn.functional.tanh")
def functional_tanh(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, UNARY["tanh"], input)


@operator("torch.special.expit")
def expit(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, UNARY["sigmoid"], input)


@operator("torch.positive", method=("positive", "__pos__"))
def positive(w: World, input: Tensor) -> Tensor:
    return input


@operator("torch.square", method="square")
def square(w: World, input: Tensor) -> Tensor:
    return power(w, input, 2)


@operator("torch.clone", method="clone")
def clone(w: World, input: Tensor, *, memory_format: object = None) -> Tensor:
    """A copy; dense inputs keep their layout unless another is asked for."""
    strides = (
        formatted_strides(input.shape, memory_format)
        if memory_format not in (None, "preserve_format")
        else None
    )
    if strides is not None:
        result = w.new(input.shape, input.dtype, "clone", input.storage.device, strides)
    else:
        result = w.like(input, "clone")
    set_values(result, lambda x: x, input)
    record(w, "clone", (input,), (), pass_through, result)
    return result


# --- activations


def _activation(
    w: World, name: str, input: Tensor, keeps: str, inplace: bool, inplace_keeps: str = ""
) -> Tensor:
    spec = Unary(name, keeps)
    if inplace:
        return apply_unary_(w, spec, input, inplace_keeps or keeps)
    return apply_unary(w, spec, input)


@operator("torch.nn.functional.relu")
def relu(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    if inplace:
        return apply_unary_(w, _RELU, input)
    return apply_unary(w, _RELU, input)


_RELU = Unary("relu", "output", value=lambda x: max(x, 0))


@operator("torch.relu", method="relu")
def torch_relu(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, _RELU, input)


@operator("torch.relu_", "torch.nn.functional.relu_", method="relu_")
def relu_(w: World, input: Tensor) -> Tensor:
    return apply_unary_(w, _RELU, input)


@operator("torch.nn.functional.relu6")
def relu6(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    return _activation(w, "hardtanh", input, "input", inplace)


@operator("torch.nn.functional.hardtanh")
def hardtanh(
    w: World, input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    return _activation(w, "hardtanh", input, "input", inplace)


@operator("torch.nn.functional.leaky_relu")
def leaky_relu(w: World, input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return _activation(w, "leaky_relu", input, "input", inplace, "output")


@operator("torch.nn.functional.elu")
def elu(w: World, input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _activation(w, "elu", input, "input", inplace, "output")


@operator("torch.nn.functional.selu")
def selu(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    return _activation(w, "elu", input, "input", inplace, "output")


@operator("torch.selu")
def torch_selu(w: World, input: Tensor) -> Tensor:
    return _activation(w, "elu", input, "input", False)


@operator("torch.nn.functional.celu")
def celu(w: World, input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _activation(w, "elu", input, "input", inplace, "output")


@operator("torch.celu")
def torch_celu(w: World, input: Tensor, alpha: float = 1.0) -> Tensor:
    return _activation(w, "elu", input, "input", False)


@operator("torch.nn.functional.gelu")
def gelu(w: World, input: Tensor, approximate: str = "none") -> Tensor:
    return apply_unary(w, Unary("gelu", "input"), input)


@operator("torch.nn.functional.silu")
def silu(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    return _activation(w, "silu", input, "input", inplace)


@operator("torch.nn.functional.mish")
def mish(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    return _activation(w, "mish", input, "input", inplace)


@operator("torch.nn.functional.hardswish")
def hardswish(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    return _activation(w, "hardswish", input, "input", inplace)


@operator("torch.nn.functional.hardsigmoid")
def hardsigmoid(w: World, input: Tensor, inplace: bool = False) -> Tensor:
    return _activation(w, "hardsigmoid", input, "input", inplace)


@operator("torch.nn.functional.softplus")
def softplus(w: World, input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return apply_unary(w, Unary("softplus", "input", fp32=True), input)


@operator("torch.nn.functional.softsign")
def softsign(w: World, input: Tensor) -> Tensor:
    return div(w, input, add(w, apply_unary(w, UNARY["abs"], input), 1))


@operator("torch.nn.functional.tanhshrink")
def tanhshrink(w: World, input: Tensor) -> Tensor:
    return sub(w, input, apply_unary(w, UNARY["tanh"], input))


@operator("torch.nn.functional.hardshrink", "torch.hardshrink", method="hardshrink")
def hardshrink(w: World, input: Tensor, lambd: float = 0.5) -> Tensor:
    return apply_unary(w, Unary("hardshrink", "input"), input)


@operator("torch.nn.functional.softshrink")
def softshrink(w: World, input: Tensor, lambd: float = 0.5) -> Tensor:
    return apply_unary(w, Unary("softshrink", "input"), input)


@operator("torch.nn.functional.logsigmoid")
def logsigmoid(w: World, input: Tensor) -> Tensor:
    return apply_unary(w, Unary("log_sigmoid", "input"), input)


@operator("torch.nn.functional.threshold")
def threshold(w: World, input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    return _activation(w, "threshold", input, "input", inplace)


@operator("torch.logit", "torch.special.logit", method="logit")
def logit(w: World, input: Tensor, eps: float | None = None, *, out: None = None) -> Tensor:
    return apply_unary(w, Unary("logit", "input", to_float=True), input)


@operator("torch.nn.functional.glu")
def glu(w: World, input: Tensor, dim: int = -1) -> Tensor:
    """Halves one dimension; keeps its input whole."""
    shape = list(input.shape)
    dim %= len(shape)
    if shape[dim] % 2:
        raise Unsupported("torch.nn.functional.glu", f"odd extent {shape[dim]}")
    shape[dim] //= 2
    result = w.new(shape, input.dtype, "glu", input.storage.device)
    record(w, "glu", (input,), (input,), _glu_back, result)
    return result


def _glu_back(w: World, saved: Saved, gradients: Gradients) -> Gradients:
    assert saved[0] is not None
    return [w.like(saved[0], "glu_backward")]


@operator("torch.prelu", "torch.nn.functional.prelu", method="prelu")
def prelu(w: World, input: Tensor, weight: Tensor) -> Tensor:
    """Keeps input and weight. The gradient of the weight is full-size before it is summed."""
    from .support import low

    x, slope = low(w, input), low(w, weight)
    result = elementwise(w, "prelu", x.dtype, x)
    record(w, "prelu", (x, slope), (x, slope), _PreluBack(slope.requires_grad, slope.shape), result)
    return result


class _PreluBack:
    def __init__(self, trains_weight: bool, shape: tuple[int, ...]) -> None:
        self.trains_weight = trains_weight
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        x = saved[0]
        assert x is not None
        grad_input = w.like(x, "prelu_backward")
        grad_weight = None
        if self.trains_weight:
            full = w.like(x, "prelu_backward")
            grad_weight = w.new(self.shape, x.dtype, "sum_to", x.storage.device)
            del full
        return [grad_input, grad_weight]


# --- clamping


@operator("torch.clamp", "torch.clip", method=("clamp", "clip"))
def clamp(
    w: World, input: Tensor, min: Operand | None = None, max: Operand | None = None, *, out: None = None
) -> Tensor:
    """Keeps the input and, as tensors, the bounds; the backward makes masks."""
    bounds = [bound for bound in (min, max) if isinstance(bound, Tensor)]
    operands: list[Operand] = [input, *(bound for bound in (min, max) if bound is not None)]
    result = elementwise(w, "clamp", result_type(w, *operands), input, *bounds)

    def value(x: float) -> float:
        low = x if min is None else _larger(x, min)
        return low if max is None else -_larger(-low, -max)  # type: ignore[operator]

    if not bounds:
        set_values(result, value, input)
    record(w, "clamp", (input, *bounds), (input, *bounds), _MaskedBack(2, 1 + len(bounds)), result)
    return result


def _larger(x: float, bound: object) -> float:
    if not isinstance(bound, int | float):
        raise ValueError("bound not known")
    return x if x > bound else bound


class _MaskedBack:
    """`masks` bool tensors alive together, then one gradient for each of `count` inputs."""

    def __init__(self, masks: int, count: int) -> None:
        self.masks = masks
        self.count = count

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        masks = [w.like(gradient, "mask", dtypes.boolean) for _ in range(self.masks)]
        results: Gradients = [w.like(gradient, "where") for _ in range(self.count)]
        masks.clear()
        return results


@operator("torch.clamp_", "torch.clip_", method=("clamp_", "clip_"))
def clamp_(w: World, input: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    saved = (w.like(input, "clone"),) if needs_graph(w, input) else ()
    return record_inplace(w, "clamp_", input, (), saved, _MaskedBack(2, 1))


@operator("torch.clamp_min", method="clamp_min")
def clamp_min(w: World, input: Tensor, min: Operand) -> Tensor:
    return clamp(w, input, min)


@operator("torch.clamp_max", method="clamp_max")
def clamp_max(w: World, input: Tensor, max: Operand) -> Tensor:
    return clamp(w, input, None, max)


@operator("torch.clamp_min_", method="clamp_min_")
def clamp_min_(w: World, input: Tensor, min: Operand) -> Tensor:
    return clamp_(w, input, min)


@operator("torch.nan_to_num", method="nan_to_num")
def nan_to_num(
    w: World,
    input: Tensor,
    nan: float | None = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: None = None,
) -> Tensor:
    return apply_unary(w, Unary("nan_to_num", "input", 1), input)


@operator("torch.nan_to_num_", method="nan_to_num_")
def nan_to_num_(
    w: World,
    input: Tensor,
    nan: float | None = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    return apply_unary_(w, Unary("nan_to_num", "input", 1), input)


# --- two operands


def _binary(w: World, name: str, a: Operand, b: Operand, dtype: DType | None = None) -> Tensor:
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    if not tensors:
        # torch takes numbers for tensors here: `torch.div(7, 2)` is one without dimensions
        return w.new((), dtype or result_type(w, a, b), name, CPU)
    return elementwise(w, name, dtype or result_type(w, a, b), *tensors)


def _tensor(x: object) -> Tensor | None:
    return x if isinstance(x, Tensor) else None


class AddBack:
    """Both inputs get the same gradient (a scaled copy where alpha is not one); the engine reduces it."""

    __slots__ = ("scaled",)

    def __init__(self, scaled: bool) -> None:
        self.scaled = scaled

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [gradient, w.like(gradient, "mul") if self.scaled else gradient]


_ADD_BACK, _SUB_BACK = AddBack(False), AddBack(True)


@operator("torch.add", method=("add", "__add__", "__radd__"))
def add(w: World, input: Operand, other: Operand, *, alpha: Scalar = 1, out: None = None) -> Tensor:
    result = _binary(w, "add", input, other)
    _linear_values(result, input, other, alpha)
    back = (
        _ADD_BACK if alpha == 1 or _tensor(other) is None or not needs_graph(w, _tensor(other)) else _SUB_BACK
    )
    record(w, "add", (_tensor(input), _tensor(other)), (), back, result)
    return result


@operator("torch.sub", "torch.subtract", method=("sub", "subtract", "__sub__"))
def sub(w: World, input: Operand, other: Operand, *, alpha: Scalar = 1, out: None = None) -> Tensor:
    result = _binary(w, "sub", input, other)
    _linear_values(result, input, other, _negated(alpha))
    record(w, "sub", (_tensor(input), _tensor(other)), (), _sub_back(other), result)
    return result


def _sub_back(other: Operand) -> AddBack:
    return _SUB_BACK if isinstance(other, Tensor) and other.requires_grad else _ADD_BACK


@operator("torch.rsub", method="__rsub__")
def rsub(w: World, input: Operand, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    result = _binary(w, "rsub", input, other)
    _linear_values(result, input, other, _negated(alpha), swapped=True)
    record(w, "rsub", (_tensor(other), _tensor(input)), (), _SUB_BACK, result)
    return result


def _negated(alpha: Scalar) -> Scalar:
    return -alpha if isinstance(alpha, int | float) else alpha


def _linear_values(
    result: Tensor, input: Operand, other: Operand, alpha: Scalar, swapped: bool = False
) -> None:
    """Elements of input + alpha * other (swapped: the other way round), where they are known."""
    if result.storage.device.type != "cpu" or not isinstance(alpha, int | float):
        return
    factor = float(alpha) if isinstance(alpha, float) else int(alpha)
    first, second = (other, input) if swapped else (input, other)
    set_values(result, lambda a, b: a + factor * b, first, second)


class MulBack:
    """grad * other for each input that needs it, full-size; the engine reduces broadcast ones afterwards."""

    __slots__ = ("first", "second")

    def __init__(self, first: bool, second: bool) -> None:
        self.first = first
        self.second = second

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        other, this = saved
        return [
            _times(w, gradient, other) if self.first else None,
            _times(w, gradient, this) if self.second else None,
        ]


def _times(w: World, gradient: Tensor, factor: Tensor | None) -> Tensor:
    if factor is None:
        return w.like(gradient, "mul")
    return elementwise(w, "mul", result_type(w, gradient, factor), gradient, factor)


@operator("torch.mul", "torch.multiply", method=("mul", "multiply", "__mul__", "__rmul__"))
def mul(w: World, input: Operand, other: Operand, *, out: None = None) -> Tensor:
    """Keeps each factor only for the sake of the other."""
    result = _binary(w, "mul", input, other)
    set_values(result, lambda a, b: a * b, input, other)
    a, b = _tensor(input), _tensor(other)
    first, second = a is not None and a.requires_grad, b is not None and b.requires_grad
    if first or second:
        record(
            w, "mul", (a, b), (b if first else None, a if second else None), MulBack(first, second), result
        )
    return result


class DivBack:
    """grad / other, and -grad * ((self / other) / other)."""

    __slots__ = ("first", "second")

    def __init__(self, first: bool, second: bool) -> None:
        self.first = first
        self.second = second

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        divisor, dividend = saved
        upper = _times(w, gradient, divisor) if self.first else None
        lower = None
        if self.second:
            negated = w.like(gradient, "neg")
            quotient = elementwise(
                w, "div", gradient.dtype, *[t for t in (dividend, divisor) if t is not None]
            )
            quotient = w.like(quotient, "div")
            lower = elementwise(w, "mul", gradient.dtype, negated, quotient)
            del negated, quotient
        return [upper, lower]


@operator(
    "torch.div", "torch.divide", "torch.true_divide", method=("div", "divide", "true_divide", "__truediv__")
)
def div(
    w: World, input: Operand, other: Operand, *, rounding_mode: str | None = None, out: None = None
) -> Tensor:
    if rounding_mode == "floor":
        return floor_divide(w, input, other)
    dtype = result_type(w, input, other)
    if rounding_mode is None:
        dtype = float_result(w, dtype)
    result = _binary(w, "div", input, other, dtype)
    if rounding_mode is None:
        set_values(result, lambda a, b: a / b, input, other)
    else:
        set_values(result, lambda a, b: math.trunc(a / b), input, other)
        return result
    a, b = _tensor(input), _tensor(other)
    first, second = a is not None and a.requires_grad, b is not None and b.requires_grad
    if first or second:
        record(w, "div", (a, b), (b, a if second else None), DivBack(first, second), result)
    return result


@method("__rtruediv__", "__rdiv__")
def rdiv(w: World, self: Tensor, other: Operand) -> Tensor:
    """torch computes `reciprocal() * other` here."""
    return mul(w, apply_unary(w, UNARY["reciprocal"], self), other)


@operator("torch.floor_divide", method=("floor_divide", "__floordiv__"))
def floor_divide(w: World, input: Operand, other: Operand, *, out: None = None) -> Tensor:
    result = _binary(w, "floor_divide", input, other)
    set_values(result, lambda a, b: a // b, input, other)
    record(w, "floor_divide", (_tensor(input), _tensor(other)), (), _no_derivative, result)
    return result


def _no_derivative(w: World, saved: Saved, gradients: Gradients) -> Gradients:
    raise Unsupported("torch.floor_divide", "has no derivative; torch raises here")


@method("__rfloordiv__")
def rfloordiv(w: World, self: Tensor, other: Operand) -> Tensor:
    return floor_divide(w, other, self)


@operator("torch.remainder", method=("remainder", "__mod__"))
def remainder(w: World, input: Operand, other: Operand, *, out: None = None) -> Tensor:
    result = _binary(w, "remainder", input, other)
    set_values(result, lambda a, b: a % b, input, other)
    record(w, "remainder", (_tensor(input),), (), pass_through, result)
    return result


@method("__rmod__")
def rmod(w: World, self: Tensor, other: Operand) -> Tensor:
    return remainder(w, other, self)


@operator("torch.fmod", method="fmod")
def fmod(w: World, input: Tensor, other: Operand, *, out: None = None) -> Tensor:
    result = _binary(w, "fmod", input, other)
    set_values(result, math.fmod, input, other)
    record(w, "fmod", (input,), (), pass_through, result)
    return result


class PowBack:
    """exponent * x.pow(exponent - 1), then times grad; and grad * (result * log(x)) for a tensor exponent."""

    __slots__ = ("exponent_needs", "input_needs")

    def __init__(self, input_needs: bool, exponent_needs: bool) -> None:
        self.input_needs = input_needs
        self.exponent_needs = exponent_needs

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        x = saved[0]
        upper = lower = None
        if self.input_needs:
            # one expression in C++: what it makes on the way lives until its end
            power = w.like(gradient if x is None else x, "pow")
            scaled = w.like(power, "mul")
            upper = elementwise(w, "mul", gradient.dtype, gradient, scaled)
            del power, scaled
        if self.exponent_needs:
            logarithm = w.like(gradient, "log")
            product = w.like(gradient, "mul")
            lower = w.like(gradient, "mul")
            del logarithm, product
        return [upper, lower]


@operator("torch.pow", method=("pow", "__pow__"))
def power(w: World, input: Operand, exponent: Operand, *, out: None = None) -> Tensor:
    base = high(w, input) if isinstance(input, Tensor) else input
    power = high(w, exponent) if isinstance(exponent, Tensor) else exponent
    result = _binary(w, "pow", base, power)
    set_values(result, _raised, base, power)
    a, b = _tensor(base), _tensor(power)
    first, second = a is not None and a.requires_grad, b is not None and b.requires_grad
    if first or second:
        # x ** 0 and x ** 1 have gradients that do not need x, but torch keeps it all the same.
        record(w, "pow", (a, b), (a, b, result if second else None), PowBack(first, second), result)
    return result


@method("__rpow__")
def rpow(w: World, self: Tensor, other: Operand) -> Tensor:
    return power(w, other, self)


@method("pow_", "__ipow__")
def pow_(w: World, self: Tensor, exponent: Operand) -> Tensor:
    saved = (w.like(self, "clone"),) if needs_graph(w, self) else (None,)
    return record_inplace(w, "pow_", self, (), saved, PowBack(True, False))


@operator("torch.float_power", method="float_power")
def float_power(w: World, input: Tensor, exponent: Operand, *, out: None = None) -> Tensor:
    return power(w, cast(w, input, dtypes.float64), exponent)


class _ExtremumBack:
    """Ties share: masks and a masked copy for each input."""

    __slots__ = ("first", "second")

    def __init__(self, first: bool, second: bool) -> None:
        self.first = first
        self.second = second

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        mask = w.like(gradient, "eq", dtypes.boolean)
        half = w.like(gradient, "div")
        first = w.like(gradient, "where") if self.first else None
        second = w.like(gradient, "where") if self.second else None
        del mask, half
        return [first, second]


def _extremum(
    w: World, name: str, input: Tensor, other: Tensor, value: Callable[[float, float], float]
) -> Tensor:
    result = _binary(w, name, input, other)
    set_values(result, value, input, other)
    back = _ExtremumBack(input.requires_grad, other.requires_grad)
    record(w, name, (input, other), (input, other), back, result)
    return result


@operator("torch.maximum", "torch.fmax", method=("maximum", "fmax"))
def maximum(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    return _extremum(w, "maximum", input, other, max)


@operator("torch.minimum", "torch.fmin", method=("minimum", "fmin"))
def minimum(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    return _extremum(w, "minimum", input, other, min)


@operator("torch.atan2", "torch.arctan2", method=("atan2", "arctan2"))
def atan2(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    input, other = widest(w, input, other)
    result = _binary(w, "atan2", input, other, float_result(w, result_type(w, input, other)))
    set_values(result, math.atan2, input, other)
    record(
        w,
        "atan2",
        (input, other),
        (input, other),
        _ExtremumBack(input.requires_grad, other.requires_grad),
        result,
    )
    return result


@operator("torch.hypot", method="hypot")
def hypot(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    result = _binary(w, "hypot", input, other)
    back = _ExtremumBack(input.requires_grad, other.requires_grad)
    record(w, "hypot", (input, other), (input, other, result), back, result)
    return result


@operator("torch.logaddexp", "torch.logaddexp2", method=("logaddexp", "logaddexp2"))
def logaddexp(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    result = _binary(w, "logaddexp", input, other)
    back = _ExtremumBack(input.requires_grad, other.requires_grad)
    record(w, "logaddexp", (input, other), (input, other), back, result)
    return result


@operator("torch.xlogy", "torch.special.xlogy", method="xlogy")
def xlogy(w: World, input: Operand, other: Operand, *, out: None = None) -> Tensor:
    result = _binary(w, "xlogy", input, other, float_result(w, result_type(w, input, other)))
    a, b = _tensor(input), _tensor(other)
    first, second = a is not None and a.requires_grad, b is not None and b.requires_grad
    record(w, "xlogy", (a, b), (a, b), MulBack(first, second), result)
    return result


class _LerpBack:
    def __init__(self, tensor_weight: bool) -> None:
        self.tensor_weight = tensor_weight

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        results: Gradients = [w.like(gradient, "mul"), w.like(gradient, "mul")]
        if self.tensor_weight:
            results.append(w.like(gradient, "mul"))
        return results


@operator("torch.lerp", method="lerp")
def lerp(w: World, input: Tensor, end: Tensor, weight: Operand, *, out: None = None) -> Tensor:
    tensors = [input, end, *([weight] if isinstance(weight, Tensor) else [])]
    result = elementwise(w, "lerp", input.dtype, *tensors)
    saved = (input, end, weight) if isinstance(weight, Tensor) else ()
    record(w, "lerp", tensors, saved, _LerpBack(isinstance(weight, Tensor)), result)
    return result


@method("lerp_")
def lerp_(w: World, self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return record_inplace(w, "lerp_", self, (end,), (), _LerpBack(False))


class _AddcBack:
    def __init__(self, needs: tuple[bool, bool, bool], divides: bool) -> None:
        self.needs = needs
        self.divides = divides

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        results: Gradients = [gradient if self.needs[0] else None]
        for needed in self.needs[1:]:
            step = w.like(gradient, "mul") if needed else None
            results.append(w.like(gradient, "mul") if needed else None)
            del step
        return results


def _addc(w: World, name: str, input: Tensor, tensor1: Tensor, tensor2: Tensor) -> Tensor:
    input, tensor1, tensor2 = widest(w, input, tensor1, tensor2)
    result = elementwise(w, name, result_type(w, input, tensor1, tensor2), input, tensor1, tensor2)
    needs = (input.requires_grad, tensor1.requires_grad, tensor2.requires_grad)
    divides = name == "addcdiv"
    saved = (tensor2 if needs[1] or (divides and needs[2]) else None, tensor1 if needs[2] else None)
    record(w, name, (input, tensor1, tensor2), saved, _AddcBack(needs, divides), result)
    return result


@operator("torch.addcmul", method="addcmul")
def addcmul(
    w: World, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1, out: None = None
) -> Tensor:
    return _addc(w, "addcmul", input, tensor1, tensor2)


@operator("torch.addcdiv", method="addcdiv")
def addcdiv(
    w: World, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1, out: None = None
) -> Tensor:
    return _addc(w, "addcdiv", input, tensor1, tensor2)


@method("addcmul_", "addcdiv_")
def addc_(w: World, self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    needs = (self.requires_grad, tensor1.requires_grad, tensor2.requires_grad)
    back = _AddcBack(needs, False)
    return record_inplace(w, "addc_", self, (tensor1, tensor2), (tensor2, tensor1), back)


# --- two operands, in place


@method("add_", "__iadd__")
def add_(w: World, self: Tensor, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    back = _ADD_BACK if alpha == 1 else _SUB_BACK
    return record_inplace(w, "add_", self, (_tensor(other),), (), back)


@method("sub_", "subtract_", "__isub__")
def sub_(w: World, self: Tensor, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    return record_inplace(w, "sub_", self, (_tensor(other),), (), _sub_back(other))


@method("mul_", "multiply_", "__imul__")
def mul_(w: World, self: Tensor, other: Operand) -> Tensor:
    """Needs its old value only where the other factor trains."""
    b = _tensor(other)
    second = b is not None and b.requires_grad
    old = w.like(self, "clone") if second and w.grad_enabled else None
    return record_inplace(w, "mul_", self, (b,), (b, old), MulBack(self.requires_grad, second))


@method("div_", "divide_", "true_divide_", "__itruediv__")
def div_(w: World, self: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    b = _tensor(other)
    second = b is not None and b.requires_grad
    old = w.like(self, "clone") if second and w.grad_enabled else None
    return record_inplace(w, "div_", self, (b,), (b, old), DivBack(self.requires_grad, second))


@method("floor_divide_", "remainder_", "fmod_", "__ifloordiv__", "__imod__")
def floor_divide_(w: World, self: Tensor, other: Operand) -> Tensor:
    return record_inplace(w, "remainder_", self, (), (), pass_through)


# --- comparisons and logic: never differentiable


def _comparison(name: str, value: Callable[[float, float], float], *dunder: str) -> Callable[..., Tensor]:
    def compare(w: World, input: Operand, other: Operand, *, out: None = None) -> Tensor:
        result = _binary(w, name, input, other, dtypes.boolean)
        set_values(result, value, input, other)
        return result

    spelled = [f"torch.{other}" for other in (name, *dunder) if not other.startswith("__")]
    return operator(*spelled, method=(name, *dunder))(compare)


COMPARISONS: list[Callable[..., Tensor]] = [
    _comparison("eq", lambda a, b: a == b, "__eq__"),
    _comparison("ne", lambda a, b: a != b, "__ne__", "not_equal"),
    _comparison("lt", lambda a, b: a < b, "__lt__", "less"),
    _comparison("le", lambda a, b: a <= b, "__le__", "less_equal"),
    _comparison("gt", lambda a, b: a > b, "__gt__", "greater"),
    _comparison("ge", lambda a, b: a >= b, "__ge__", "greater_equal"),
    _comparison("logical_and", lambda a, b: bool(a) and bool(b)),
    _comparison("logical_or", lambda a, b: bool(a) or bool(b)),
    _comparison("logical_xor", lambda a, b: bool(a) != bool(b)),
]


def _bitwise(name: str, value: Callable[[float, float], float], *dunder: str) -> Callable[..., Tensor]:
    def combine(w: World, input: Operand, other: Operand, *, out: None = None) -> Tensor:
        result = _binary(w, name, input, other)
        set_values(result, value, input, other)
        if name == "bitwise_or" and isinstance(input, Tensor) and isinstance(other, Tensor):
            first, second = input.storage.share, other.storage.share
            if first is not None and second is not None:
                result.storage.share = min(1.0, first + second)
        return result

    return operator(f"torch.{name}", method=(name, *dunder))(combine)


BITWISE: list[Callable[..., Tensor]] = [
    _bitwise("bitwise_and", lambda a, b: int(a) & int(b), "__and__", "__rand__"),
    _bitwise("bitwise_or", lambda a, b: int(a) | int(b), "__or__", "__ror__"),
    _bitwise("bitwise_xor", lambda a, b: int(a) ^ int(b), "__xor__", "__rxor__"),
    _bitwise("bitwise_left_shift", lambda a, b: int(a) << int(b), "__lshift__"),
    _bitwise("bitwise_right_shift", lambda a, b: int(a) >> int(b), "__rshift__"),
]


@method("__iand__", "__ior__", "__ixor__", "bitwise_and_", "bitwise_or_", "logical_and_", "logical_or_")
def bitwise_(w: World, self: Tensor, other: Operand) -> Tensor:
    return record_inplace(w, "bitwise_", self, (), (), pass_through)


@operator("torch.bitwise_not", method=("bitwise_not", "__invert__"))
def bitwise_not(w: World, input: Tensor, *, out: None = None) -> Tensor:
    result = elementwise(w, "bitwise_not", input.dtype, input)
    is_bool = input.dtype.category == BOOL
    set_values(result, lambda x: not x if is_bool else ~int(x), input)
    return result


@operator("torch.logical_not", method="logical_not")
def logical_not(w: World, input: Tensor, *, out: None = None) -> Tensor:
    result = elementwise(w, "logical_not", dtypes.boolean, input)
    set_values(result, lambda x: not x, input)
    return result


def _test(name: str, value: Callable[[float], float]) -> Callable[..., Tensor]:
    def test(w: World, input: Tensor) -> Tensor:
        result = elementwise(w, name, dtypes.boolean, input)
        set_values(result, value, input)
        return result

    return operator(f"torch.{name}", method=name)(test)


TESTS: list[Callable[..., Tensor]] = [
    _test("isnan", math.isnan),
    _test("isinf", math.isinf),
    _test("isfinite", math.isfinite),
    _test("signbit", lambda x: x < 0),
    _test("isposinf", lambda x: x == math.inf),
    _test("isneginf", lambda x: x == -math.inf),
]


@method("eq_", "ne_", "lt_", "le_", "gt_", "ge_")
def compare_(w: World, self: Tensor, other: Operand) -> Tensor:
    return record_inplace(w, "compare_", self, (), (), pass_through)


@operator("torch.isclose", method="isclose")
def isclose(
    w: World, input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    return _binary(w, "isclose", input, other, dtypes.boolean)


# --- selection


class _WhereBack:
    def __init__(self, first: bool, second: bool) -> None:
        self.first = first
        self.second = second

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [
            w.like(gradient, "where") if self.first else None,
            w.like(gradient, "where") if self.second else None,
        ]


@operator("torch.where")
def torch_where(
    w: World,
    condition: Tensor,
    input: Operand | None = None,
    other: Operand | None = None,
    *,
    out: None = None,
) -> object:
    """With one argument it is `nonzero(as_tuple=True)`."""
    if input is None or other is None:
        from .indexing import nonzero

        return nonzero(w, condition, as_tuple=True)
    return where(w, condition, input, other)


def where(w: World, condition: Tensor, input: Operand, other: Operand) -> Tensor:
    """Keeps the condition."""
    tensors = [x for x in (input, other) if isinstance(x, Tensor)]
    result = elementwise(w, "where", result_type(w, input, other), condition, *tensors)
    set_values(result, lambda c, a, b: a if c else b, condition, input, other)
    a, b = _tensor(input), _tensor(other)
    back = _WhereBack(a is not None and a.requires_grad, b is not None and b.requires_grad)
    record(w, "where", (a, b), (condition,), back, result)
    return result


@method("where")
def where_method(w: World, self: Tensor, condition: Tensor, other: Operand) -> Tensor:
    return where(w, condition, self, other)


@operator("torch.masked_fill", method="masked_fill")
def masked_fill(w: World, input: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Keeps the mask."""
    result = elementwise(w, "masked_fill", input.dtype, input, mask)
    set_values(result, lambda x, m, v: v if m else x, input, mask, value)
    record(w, "masked_fill", (input,), (mask,), _masked_fill_back, result)
    return result


def _masked_fill_back(w: World, saved: Saved, gradients: Gradients) -> Gradients:
    gradient = gradients[0]
    assert gradient is not None
    return [w.like(gradient, "masked_fill")]


@method("masked_fill_")
def masked_fill_(w: World, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return record_inplace(w, "masked_fill_", self, (), (mask,), _masked_fill_back)


@operator("torch.heaviside", method="heaviside")
def heaviside(w: World, input: Tensor, values: Tensor, *, out: None = None) -> Tensor:
    return _binary(w, "heaviside", input, values)


@operator("torch.copysign", method="copysign")
def copysign(w: World, input: Tensor, other: Operand, *, out: None = None) -> Tensor:
    result = _binary(w, "copysign", input, other)
    record(w, "copysign", (input,), (result,), UnaryBack("copysign_backward", 1), result)
    return result


@operator("torch.fix", method="fix")
def fix(w: World, input: Tensor, *, out: None = None) -> Tensor:
    return apply_unary(w, UNARY["trunc"], input)


@operator("torch.sgn", method="sgn")
def sgn(w: World, input: Tensor, *, out: None = None) -> Tensor:
    return apply_unary(w, UNARY["sign"], input)


@operator("torch.real", method="real")
def real(w: World, input: Tensor) -> Tensor:
    from .views import complex_part

    return complex_part(w, input, "real")


@operator("torch.imag", method="imag")
def imag(w: World, input: Tensor) -> Tensor:
    from .views import complex_part

    return complex_part(w, input, "imag")


@operator(
    "torch.conj",
    "torch.conj_physical",
    "torch.resolve_conj",
    method=("conj", "conj_physical", "resolve_conj"),
)
def conj(w: World, input: Tensor) -> Tensor:
    """A lazy view for complex types; real tensors are returned as they are."""
    return input


@operator("torch.angle", method="angle")
def angle(w: World, input: Tensor, *, out: None = None) -> Tensor:
    result = elementwise(w, "angle", float_result(w, dtypes.real_of(input.dtype)), input)
    record(w, "angle", (input,), (input,), UnaryBack("angle_backward", 1), result)
    return result


@operator("torch.polar")
def polar(w: World, abs: Tensor, angle: Tensor, *, out: None = None) -> Tensor:
    result = elementwise(w, "polar", dtypes.complex_of(abs.dtype), abs, angle)
    back = _ExtremumBack(abs.requires_grad, angle.requires_grad)
    record(w, "polar", (abs, angle), (result,), back, result)
    return result


@operator("torch.complex")
def complex_(w: World, real: Tensor, imag: Tensor, *, out: None = None) -> Tensor:
    result = elementwise(w, "complex", dtypes.complex_of(real.dtype), real, imag)
    record(
        w, "complex", (real, imag), (real, imag), _WhereBack(real.requires_grad, imag.requires_grad), result
    )
    return result

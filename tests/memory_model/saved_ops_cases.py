"""The operator snippets behind `tests/memory_model/data/saved_ops.jsonl`, written on the runtime."""

from __future__ import annotations

from collections.abc import Callable

from tests.memory_model.runtime_kit import Kit

from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.tensor import Tensor

Case = Callable[[Kit, Tensor], object]


def _linear(out_factor: int, bias: bool) -> Case:
    def run(k: Kit, x: Tensor) -> object:
        h = x.shape[-1]
        weight = k.parameter(out_factor * h, h)
        return k.F("linear", x, weight, k.parameter(out_factor * h) if bias else None)

    return run


def _layer_norm(k: Kit, x: Tensor) -> object:
    h = x.shape[-1]
    return k.F("layer_norm", x, (h,), k.parameter(h), k.parameter(h))


def _rms_norm(k: Kit, x: Tensor) -> object:
    h = x.shape[-1]
    return k.F("rms_norm", x, (h,), k.parameter(h))


def _llama_norm(k: Kit, x: Tensor) -> object:
    weight = k.parameter(x.shape[-1])
    source = x.dtype
    h = k.M("to", x, dtypes.float32)
    variance = k.M("mean", k.M("pow", h, 2), -1, keepdim=True)
    h = k.M("mul", h, k.T("rsqrt", k.M("add", variance, 1e-6)))
    return k.M("__mul__", weight, k.M("to", h, source))


def _gelu_new(k: Kit, x: Tensor) -> object:
    cubic = k.M("__mul__", k.T("pow", x, 3.0), 0.044715)
    inner = k.M("__mul__", k.M("__add__", x, cubic), 0.79788456)
    return k.M("__mul__", k.M("__mul__", x, 0.5), k.M("__add__", k.T("tanh", inner), 1.0))


def _quick_gelu(k: Kit, x: Tensor) -> object:
    return k.M("__mul__", x, k.T("sigmoid", k.M("__mul__", x, 1.702)))


def _f(name: str, *args: object, **kwargs: object) -> Case:
    return lambda k, x: k.F(name, x, *args, **kwargs)


def _m(name: str, *args: object, **kwargs: object) -> Case:
    return lambda k, x: k.M(name, x, *args, **kwargs)


def _mask(k: Kit, x: Tensor, *shape: int) -> Tensor:
    return k.tensor(*shape, dtype=dtypes.boolean)


def _cross_entropy(k: Kit, x: Tensor, **kwargs: object) -> object:
    return k.F("cross_entropy", x, k.tensor(x.shape[0], dtype=dtypes.int64), **kwargs)


def _upcast_cross_entropy(k: Kit, x: Tensor) -> object:
    return _cross_entropy(k, k.M("float", x))


def _sdpa(**kwargs: object) -> Case:
    return lambda k, x: k.F("scaled_dot_product_attention", x, x, x, **kwargs)


def _sdpa_masked(k: Kit, x: Tensor) -> object:
    mask = _mask(k, x, x.shape[0], 1, x.shape[2], x.shape[2])
    return k.F("scaled_dot_product_attention", x, x, x, attn_mask=mask)


def _sdpa_grouped(k: Kit, x: Tensor) -> object:
    batch, heads, tokens, size = x.shape
    q = k.tensor(batch, 4 * heads, tokens, size, dtype=x.dtype)
    return k.F("scaled_dot_product_attention", q, x, x, is_causal=True, enable_gqa=True)


def _eager(explicit: bool, dropout: float) -> Case:
    def run(k: Kit, scores: Tensor) -> object:
        value = k.tensor(*scores.shape[:3], 64, dtype=scores.dtype, requires_grad=True)
        if explicit:
            weights = k.M("to", k.F("softmax", scores, dim=-1, dtype=dtypes.float32), scores.dtype)
        else:
            weights = k.F("softmax", scores, dim=-1)
        return k.T("matmul", k.F("dropout", weights, dropout, True), value)

    return run


def _conv(k: Kit, x: Tensor) -> Tensor:
    result = k.F("conv2d", x, k.parameter(64, x.shape[1], 3, 3), None, 1, 1)
    assert isinstance(result, Tensor)
    return result


def _batch_norm(k: Kit, x: Tensor) -> Tensor:
    running = k.tensor(64), k.tensor(64)
    result = k.F("batch_norm", x, *running, k.parameter(64), k.parameter(64), True)
    assert isinstance(result, Tensor)
    return result


def _conv_block(inplace: bool) -> Case:
    return lambda k, x: k.F("relu", _batch_norm(k, _conv(k, x)), inplace)


def _group_norm(k: Kit, x: Tensor) -> object:
    return k.F("group_norm", x, 32, k.parameter(64), k.parameter(64))


def _transposed(k: Kit, x: Tensor) -> object:
    return k.M("contiguous", k.M("transpose", x, 1, 2))


CASES: dict[str, Case] = {
    "Linear(H,H) bias": _linear(1, True),
    "Linear(H,4H) no bias": _linear(4, False),
    "LayerNorm": _layer_norm,
    "nn.RMSNorm": _rms_norm,
    "HF LlamaRMSNorm": _llama_norm,
    "HF act gelu": _f("gelu"),
    "HF act gelu_new": _gelu_new,
    "HF act gelu_pytorch_tanh": _f("gelu", approximate="tanh"),
    "HF act silu": _f("silu"),
    "HF act relu": _f("relu"),
    "HF act quick_gelu": _quick_gelu,
    "F.gelu on half input": _f("gelu"),
    "ReLU": _f("relu"),
    "ReLU inplace": lambda k, x: k.F("relu", k.M("__mul__", x, 1.0), True),
    "SiLU": _f("silu"),
    "GELU": _f("gelu"),
    "LeakyReLU": _f("leaky_relu", 0.01),
    "Sigmoid": _m("sigmoid"),
    "Tanh": _m("tanh"),
    "Hardswish": _f("hardswish"),
    "Dropout p=0.1": _f("dropout", 0.1),
    "Dropout p=0": _f("dropout", 0.0),
    "softmax": _m("softmax", -1),
    "softmax on half input": _m("softmax", -1),
    "log_softmax": _m("log_softmax", -1),
    "x + y (residual)": lambda k, x: k.M("__add__", x, x),
    "x * y": lambda k, x: k.M("__mul__", x, x),
    "x * scalar": _m("__mul__", 3.0),
    "x / tensor-scalar": lambda k, x: k.M("__truediv__", x, k.tensor(dtype=dtypes.float32)),
    "transpose+contiguous": _transposed,
    "cat with itself": lambda k, x: k.T("cat", [x, x], -1),
    "masked_fill": lambda k, x: k.M("masked_fill", x, _mask(k, x, *x.shape[1:]), 0.0),
    "where(mask,x,c)": lambda k, x: k.T("where", _mask(k, x, *x.shape[1:]), x, 0.0),
    "pow(2).mean": lambda k, x: k.M("mean", k.M("pow", k.M("float", x), 2)),
    "MSE": lambda k, x: k.F("mse_loss", x, k.tensor(*x.shape, dtype=x.dtype)),
    "BCEWithLogits": lambda k, x: k.F(
        "binary_cross_entropy_with_logits", x, k.tensor(*x.shape, dtype=x.dtype)
    ),
    "L1": lambda k, x: k.F("l1_loss", x, k.tensor(*x.shape, dtype=x.dtype)),
    "F.cross_entropy": _cross_entropy,
    "F.cross_entropy on half logits": _cross_entropy,
    "F.cross_entropy(x.float())": _upcast_cross_entropy,
    "F.cross_entropy(x.float()) on half logits": _upcast_cross_entropy,
    "F.cross_entropy label_smoothing": lambda k, x: _cross_entropy(k, x, label_smoothing=0.1),
    "HF ForCausalLMLoss": _upcast_cross_entropy,
    "HF ForCausalLMLoss on half logits": _upcast_cross_entropy,
    "SDPA causal": _sdpa(is_causal=True),
    "SDPA causal half inputs": _sdpa(is_causal=True),
    "SDPA causal dropout 0.1": _sdpa(is_causal=True, dropout_p=0.1),
    "SDPA bool mask [B,1,S,S]": _sdpa_masked,
    "SDPA GQA 16/4 enable_gqa": _sdpa_grouped,
    "eager attention probabilities: softmax -> dropout 0.1 -> @v": _eager(False, 0.1),
    "HF eager: softmax(dtype=fp32).to(x.dtype) -> dropout 0.1 -> @v": _eager(True, 0.1),
    "HF eager: softmax(dtype=fp32).to(x.dtype) -> @v (no dropout)": _eager(True, 0.0),
    "Conv2d 3x3 64->64": _conv,
    "BatchNorm2d": _batch_norm,
    "conv+bn+relu inplace": _conv_block(True),
    "conv+bn+relu": _conv_block(False),
    "GroupNorm": _group_norm,
    "MaxPool2d 2": _f("max_pool2d", 2),
    "AvgPool2d 2": _f("avg_pool2d", 2),
    "AdaptiveAvgPool2d 1": _f("adaptive_avg_pool2d", 1),
    "interpolate nearest x2": _f("interpolate", scale_factor=2),
    "interpolate bilinear x2": _f("interpolate", scale_factor=2, mode="bilinear"),
}

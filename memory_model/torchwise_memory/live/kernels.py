"""Operators that keep other tensors for backward on a card than on the CPU, as a card runs them.

A step that is traced on the CPU gets these where PyTorch's Python looks up what it is written in, so
that what is born, kept and dies is the card's: dropout, RMS norm, scaled dot-product attention,
recurrent layers and their cells, and under autocast what a card computes in 32 bit. They compute
nothing. The rules are those of `torchwise_memory.operators` and `torchwise_memory.modules.rnn`, which
name PyTorch's sources. Other calls, and all with real tensors, go to PyTorch's own.
"""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportUntypedBaseClass=false
from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

#: Elements that cuDNN keeps for each hidden element, layer, direction and step.
_RESERVES = {"lstm": 6, "gru": 5, "rnn_tanh": 2, "rnn_relu": 2}
_HALF_TYPES = (torch.float16, torch.bfloat16)
#: From this release on `rms_norm` is one kernel.
_FUSES_RMS_NORM = (2, 9)


@contextmanager
def as_on_a_card(sm: int) -> Generator[None]:
    """Fake tensors on the CPU are treated as a card of this compute capability (80: 8.0) treats its own."""
    kept = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in _places(sm)]
    try:
        for owner, name, ours in _places(sm):
            setattr(owner, name, _chosen(ours, getattr(owner, name)))
        yield
    finally:
        for owner, name, own in kept:
            if own is None:
                delattr(owner, name)  # the owner has it from elsewhere
            else:
                setattr(owner, name, own)


def _places(sm: int) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Module or class, a name in it, and what stands there meanwhile."""
    plain: Any = torch
    variables: Any = torch._VF
    layers: Any = torch._C._nn
    return [
        (variables, "dropout", _dropout),
        (plain, "dropout", _dropout),
        *([(plain, "rms_norm", _rms_norm)] if torch.__version__ >= _FUSES_RMS_NORM else []),
        (torch.nn.functional, "scaled_dot_product_attention", functools.partial(_attention, sm)),
        *((variables, name, functools.partial(_recurrent, size)) for name, size in _RESERVES.items()),
        (variables, "lstm_cell", _lstm_cell),
        (variables, "gru_cell", _gru_cell),
        (layers, "cross_entropy_loss", _cross_entropy),
        # what autocast computes in 32 bit on a card and not always on the CPU (aten/src/ATen/autocast_mode.h)
        *((layers, name, _in_full_precision) for name in ("nll_loss_nd", "mse_loss", "l1_loss")),
        *((layers, name, _in_full_precision) for name in ("smooth_l1_loss", "huber_loss")),
        *((plain, name, _in_full_precision) for name in ("layer_norm", "group_norm", "kl_div")),
        (plain, "binary_cross_entropy_with_logits", _in_full_precision),
        *((owner, "softmax", _in_full_precision) for owner in (plain, torch.Tensor)),
        *((owner, "log_softmax", _in_full_precision) for owner in (plain, torch.Tensor)),
    ]


def _chosen(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], FakeTensor) and args[0].device.type == "cpu":
            return ours(original, *args, **kwargs)
        return original(*args, **kwargs)

    return call


def _low(tensor: Any) -> Any:
    """In the type of an autocast that is on."""
    if torch.is_autocast_enabled("cpu") and tensor.dtype is torch.float32:
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def _high(value: Any) -> Any:
    """In 32 bit where autocast is on."""
    is_half = isinstance(value, torch.Tensor) and value.dtype in _HALF_TYPES
    return value.float() if is_half and torch.is_autocast_enabled("cpu") else value


def _in_full_precision(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*map(_high, args), **{name: _high(value) for name, value in kwargs.items()})


def _cross_entropy(original: Any, input: Any, target: Any, *rest: Any) -> Any:
    """Log-probabilities stay in the type of the scores, and what is picked of them is picked in 32 bit.

    rest: weight, reduction, ignore_index, label_smoothing.
    """
    if input.dtype not in _HALF_TYPES or not torch.is_autocast_enabled("cpu"):
        return original(input, target, *rest)
    with torch.autocast("cpu", enabled=False):
        if target.is_floating_point() or len(rest) != 4 or rest[3]:
            return original(input, target, *rest)
        probabilities = torch.log_softmax(input, 1 if input.ndim > 1 else 0)
        return torch._C._nn.nll_loss_nd(probabilities.float(), target, *rest[:3])


def _bytes(size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8)


# --------------------------------------------------------------------------- dropout


def _dropout(original: Any, input: Any, p: float, train: bool) -> Any:
    return _Dropout.apply(input) if train and p else input


class _Dropout(torch.autograd.Function):
    """Keeps a mask of one byte."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.empty_like(gradient)


# --------------------------------------------------------------------------- RMS norm


def _rms_norm(original: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    input, weight = _high(input), _high(weight)
    if weight is not None and weight.dtype is not input.dtype:
        return original(input, normalized_shape, weight, eps)
    return _RmsNorm.apply(input, weight, len(normalized_shape))


class _RmsNorm(torch.autograd.Function):
    """Keeps its input, one number a row, and the weight."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, dimensions: int) -> Any:
        x = x.contiguous()
        rows = (*x.shape[: x.ndim - dimensions], *(1 for _ in range(dimensions)))
        ctx.save_for_backward(x, torch.empty(rows, dtype=torch.float32), weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, _, weight = ctx.saved_tensors
        gradient.contiguous()
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight), None


# --------------------------------------------------------------------------- attention


def _attention(
    sm: int,
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    q, k, v = _low(query), _low(key), _low(value)
    if not _is_fused(q, k, v) or (attn_mask is not None and attn_mask.requires_grad):
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
    half = q.dtype in _HALF_TYPES
    if attn_mask is None and half and sm >= 80 and q.shape[-1] <= 256 and q.shape[-1] % 8 == 0:
        return _Attention.apply(q, k, v, None, True)
    alignment = 8 if half and sm >= 75 else 4 if sm >= 80 else 1
    if k.shape[1] != q.shape[1] or q.shape[-1] % alignment or v.shape[-1] % alignment:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
    return _Attention.apply(q, k, v, _prepared(attn_mask, q), False)


def _is_fused(q: Any, k: Any, v: Any) -> bool:
    """What both kernels ask for."""
    return (
        q.ndim == k.ndim == v.ndim == 4
        and q.dtype is k.dtype is v.dtype
        and q.dtype in (*_HALF_TYPES, torch.float32)
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1] == v.shape[1]
        and q.shape[1] % k.shape[1] == 0
        and q.shape[-1] == v.shape[-1]
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    )


def _prepared(mask: Any, q: Any) -> Any:
    """As the memory-efficient kernel takes it: in the type of the scores, rows at multiples of eight."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.empty(mask.shape, dtype=q.dtype)
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        length = mask.shape[-1]
        mask = torch.empty((*mask.shape[:-1], length + 8 - length % 8), dtype=mask.dtype)[..., :length]
    return mask


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class _Attention(torch.autograd.Function):
    """Keeps queries, keys, values, the mask, the result and one number for each query."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, is_flash: bool) -> Any:
        ctx.is_flash = is_flash
        batch, heads, tokens, _ = q.shape
        shape = (batch, heads, tokens, v.shape[-1])
        if is_flash:
            result = torch.empty_like(q)
        else:  # heads lie inside of tokens
            result = torch.empty((batch, tokens, heads, v.shape[-1]), dtype=q.dtype).transpose(1, 2)
        assert result.shape == shape
        rows = tokens if is_flash else _up(tokens, 32)
        sums = torch.empty((batch, heads, rows), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, mask, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        q, k, v, _, _, _ = ctx.saved_tensors
        if not gradient.is_contiguous() and not gradient.transpose(1, 2).is_contiguous():
            gradient = gradient.contiguous()
        results = [torch.empty_like(each) for each in (q, k, v)]
        batch, heads, tokens, head = q.shape
        if ctx.is_flash:
            width = _up(head, 32) if head <= 128 else _up(head, 64)
            sizes = [4 * batch * heads * _up(tokens, 128) * width, 4 * batch * heads * _up(tokens, 128)]
            if k.shape[1] != heads:
                sizes.append(2 * batch * k.shape[2] * heads * head * q.dtype.itemsize)
        else:
            half = q.dtype in _HALF_TYPES
            sizes = [4 * batch * heads * _up(tokens, 64) * _up(head, 32)] if half else []
            sizes.append(4 * batch * heads * _up(tokens, 32))
        scratch = [_bytes(size) for size in sizes]
        scratch.clear()
        return (*results, None, None)


# --------------------------------------------------------------------------- recurrent layers


def _recurrent(reserve: int, original: Any, input: Any, *rest: Any) -> Any:
    """(input, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first), or packed:
    (data, batch_sizes, hx, weights, has_biases, layers, dropout, train, bidirectional).
    """
    is_packed = isinstance(rest[0], torch.Tensor) and isinstance(rest[2], (list, tuple))
    states, weights, _, layers, _, _, bidirectional = (rest[1:] if is_packed else rest)[:7]
    has_cell = isinstance(states, (list, tuple))
    listed = list(states) if has_cell else [states]
    x = _low(input)
    if x is not input:
        listed = [_low(each) for each in listed]
    directions = 2 if bidirectional else 1
    hidden = listed[-1].shape[-1]
    kept = x.numel() // x.shape[-1] * hidden * layers * directions * reserve
    width = listed[0].shape[-1] * directions
    output, *finals = _Recurrent.apply(kept, width, len(listed), x, *listed, *weights)
    return (output, *finals)


class _Recurrent(torch.autograd.Function):
    """Keeps inputs, states, the output, cuDNN's reserve and, in another type, a copy of all weights."""

    @staticmethod
    def forward(ctx: Any, kept: int, width: int, states: int, x: Any, *others: Any) -> Any:
        ctx.set_materialize_grads(False)
        output = torch.empty((*x.shape[:-1], width), dtype=x.dtype)
        finals = [torch.empty_like(each) for each in others[:states]]
        reserve = _bytes(kept * x.dtype.itemsize)
        weights: Sequence[Any] = others[states:]
        if weights[0].dtype is not x.dtype:
            weights = [torch.empty(sum(each.numel() for each in weights), dtype=x.dtype)]
        ctx.save_for_backward(x, *others[:states], output, reserve, *weights)
        ctx.shapes = [each.shape for each in (x, *others)]
        ctx.dtype = x.dtype
        return (output, *finals)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = [torch.empty(shape, dtype=ctx.dtype) for shape in ctx.shapes]
        return (None, None, None, *made)


def _lstm_cell(
    original: Any, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    linear = torch.nn.functional.linear
    return _Cell.apply(4, linear(input, w_ih, b_ih), linear(hx[0], w_hh, b_hh), hx[1])


def _gru_cell(
    original: Any, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    linear = torch.nn.functional.linear
    return _Cell.apply(3, linear(input, w_ih, b_ih), linear(hx, w_hh, b_hh), hx)


class _Cell(torch.autograd.Function):
    """One kernel behind two products: keeps the activated gates, and of an LSTM its states."""

    @staticmethod
    def forward(ctx: Any, gates: int, gates_in: Any, gates_state: Any, state: Any) -> Any:
        ctx.gates = gates
        ctx.set_materialize_grads(False)
        kept = torch.empty((*state.shape[:-1], gates * state.shape[-1]), dtype=gates_in.dtype)
        new = torch.empty(state.shape, dtype=gates_in.dtype)
        if gates != 4:
            ctx.save_for_backward(kept, state)
            return new
        cell = torch.empty_like(new)
        ctx.save_for_backward(kept, state, cell)
        return new, cell

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        state = ctx.saved_tensors[1]
        wide = (*state.shape[:-1], ctx.gates * state.shape[-1])
        made = [torch.empty(shape, dtype=state.dtype) for shape in (wide, wide, state.shape)]
        return (None, *made)

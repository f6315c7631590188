"""Attention of models that transformers knows no shared path for: BLOOM, GPT-Neo and MPT write scores out.

Each function keeps its results alive for as long as the names in the library's function do, which is until
the output projection has run; that decides the peak of a checkpointed layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torchwise_memory.families.base import add
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import boolean, float32
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tape import Gradients, Saved, record
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True, eq=False)
class OwnMask:
    """What a model makes once for all its layers.

    seen: (batch, 1, queries, keys), to add or (boolean) to fill; bias: by distance, one row for all queries,
    None where there is none.
    """

    seen: Tensor
    bias: Tensor | None


#: Puts attention's result, (batch, length, heads * size), through the output projection.
Out = Callable[[Any], Any]
_Attention = Callable[[World, OwnMask, Tensor | None, Any, Any, Any, float, Out], Any]


def own_mask(w: World, kind: str, heads: int, x: Tensor, keys: int) -> OwnMask:
    """x: (batch, queries, hidden)."""
    batch, queries = x.shape[0], x.shape[1]
    seen = w.new((batch, 1, queries, keys), boolean if kind == "mpt" else x.dtype, "causal mask", x.device)
    bias = None
    if kind == "bloom":
        bias = w.new((batch * heads, 1, keys), x.dtype, "alibi", x.device)
    if kind == "mpt":
        bias = w.new((heads, 1, keys), float32, "alibi", x.device)
    return OwnMask(seen, bias)


def own_table(w: World, kind: str, positions: int) -> Tensor | None:
    """The buffer of a layer; None where there is none."""
    if kind != "gpt_neo":
        return None
    return w.new((1, 1, positions, positions), boolean, "causal table", kind=StorageKind.BUFFERS)


def own_attention(
    w: World,
    kind: str,
    mask: OwnMask,
    table: Tensor | None,
    query: Any,
    key: Any,
    value: Any,
    dropout: float,
    out: Out,
) -> Any:
    """query, key and value: (batch, heads, length, size); the layer's output."""
    return _KINDS[kind](w, mask, table, query, key, value, dropout, out)


def _bloom(
    w: World, mask: OwnMask, table: Tensor | None, query: Any, key: Any, value: Any, dropout: float, out: Out
) -> Any:
    """`BloomAttention`: all heads in one batched product with a bias, scores kept beside masked ones."""
    batch, heads, length, size = query.shape
    query, key, value = (method(w, "reshape", t, batch * heads, -1, size) for t in (query, key, value))
    dtype = query.dtype
    scores = method(w, "baddbmm", mask.bias, query, method(w, "transpose", key, -1, -2), alpha=0.1)
    weights = add(w, method(w, "view", scores, batch, heads, length, -1), mask.seen)
    chances = method(w, "to", functional(w, "softmax", weights, -1, dtype=float32), dtype)
    chances = functional(w, "dropout", chances, dropout, dropout > 0)
    context = torch_function(w, "torch.bmm", method(w, "view", chances, batch * heads, length, -1), value)
    context = method(w, "permute", method(w, "view", context, batch, heads, length, size), 0, 2, 1, 3)
    return out(method(w, "reshape", context, batch, length, heads * size))


def _gpt_neo(
    w: World, mask: OwnMask, table: Tensor | None, query: Any, key: Any, value: Any, dropout: float, out: Out
) -> Any:
    """`GPTNeoSelfAttention`: scores in fp32, and a table of the layer beside the mask."""
    assert table is not None
    query, key = method(w, "to", query, float32), method(w, "to", key, float32)
    weights = torch_function(w, "torch.matmul", query, method(w, "transpose", key, -1, -2))
    queries, keys = weights.shape[-2:]
    everything = slice(None)
    seen = method(w, "__getitem__", table, (everything, everything, slice(keys - queries, keys), slice(keys)))
    least = w.new((), float32, "tensor", query.device)
    weights = torch_function(w, "torch.where", seen, weights, least)
    weights = add(w, weights, mask.seen)
    weights = functional(w, "softmax", weights, -1)
    weights = method(w, "to", weights, value.dtype)
    weights = functional(w, "dropout", weights, dropout, dropout > 0)
    return _joined(w, weights, value, out)


def _mpt(
    w: World, mask: OwnMask, table: Tensor | None, query: Any, key: Any, value: Any, dropout: float, out: Out
) -> Any:
    """`MptAttention`: the bias is fp32, and so are the scores from there on."""
    scores = torch_function(w, "torch.matmul", query, method(w, "transpose", key, -1, -2))
    scores = torch_function(w, "torch.mul", scores, 0.1)
    scores = add(w, scores, mask.bias)
    scores = method(w, "masked_fill", scores, mask.seen, -1.0)
    weights = functional(w, "softmax", method(w, "to", scores, float32), -1)
    weights = method(w, "to", weights, value.dtype)
    weights = functional(w, "dropout", weights, dropout, dropout > 0)
    return _joined(w, weights, value, out)


def _joined(w: World, weights: Any, value: Any, out: Out) -> Any:
    context = torch_function(w, "torch.matmul", weights, value)
    batch, heads, length, size = context.shape
    context = method(w, "contiguous", method(w, "permute", context, 0, 2, 1, 3))
    return out(method(w, "view", context, batch, length, heads * size))


_KINDS: Mapping[str, _Attention] = MappingProxyType({"bloom": _bloom, "gpt_neo": _gpt_neo, "mpt": _mpt})


def bloom_gelu(w: World, x: Tensor) -> Any:
    """`GeLUFunction`: keeps its input, and goes through several intermediate results both ways."""
    f = partial(torch_function, w)
    enabled, w.grad_enabled = w.grad_enabled, False
    try:
        result = f("torch.mul", f("torch.mul", x, 0.5), add(w, f("torch.tanh", _inner(w, x)), 1.0))
    finally:
        w.grad_enabled = enabled
    record(w, "GeLUFunction", (x,), (x,), _bloom_gelu_back, result)
    return result


def _inner(w: World, x: Tensor) -> Any:
    """0.79788456 * x * (1 + 0.044715 * x * x)"""
    f = partial(torch_function, w)
    cubic = f("torch.mul", x, 0.79788456)
    return f("torch.mul", cubic, add(w, f("torch.mul", f("torch.mul", x, 0.044715), x), 1))


def _bloom_gelu_back(w: World, saved: Saved, gradients: Gradients) -> Gradients:
    x, gradient = saved[0], gradients[0]
    assert x is not None and gradient is not None
    f = partial(torch_function, w)
    tanh = f("torch.tanh", _inner(w, x))
    half = f("torch.mul", x, 0.5)
    slope = f("torch.sub", 1, f("torch.mul", tanh, tanh))
    slope = f("torch.mul", slope, add(w, f("torch.mul", f("torch.mul", x, 0.1070322243), x), 0.79788456))
    slope = f("torch.mul", half, slope)
    del half
    slope = add(w, slope, f("torch.mul", add(w, tanh, 1), 0.5))
    return [f("torch.mul", slope, gradient)]

"""`torch.nn.functional.multi_head_attention_forward`, step by step as torch's Python code does it."""

from __future__ import annotations

import math

from .attention import scaled_dot_product_attention
from .factories import zeros_like
from .indexing import getitem
from .matmul import baddbmm, bmm, linear
from .pointwise import add, masked_fill_, mul
from .random import dropout
from .reductions import functional_softmax, mean
from .registry import operator
from .support import Tensor, Unsupported, World
from .views import (
    chunk,
    contiguous,
    expand,
    permute,
    reshape,
    split,
    squeeze,
    transpose,
    unflatten,
    unsqueeze,
    view,
)

_NAME = "torch.nn.functional.multi_head_attention_forward"


@operator(_NAME)
def multi_head_attention_forward(
    w: World,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Tensors are (length, batch, features), or without the batch. Returns the output, and the weights as
    (batch, length, source), by head where they are not averaged, None where nobody needs them.

    Raises Unsupported for a bias of keys and values, zero attention, and keys that are given whole.
    """
    if add_zero_attn or not (bias_k is bias_v is static_k is static_v is None):
        raise Unsupported(_NAME, "a bias of keys and values, add_zero_attn and static keys are not modelled")
    batched = query.ndim == 3
    if not batched:
        same_key, same_value = key is query, value is key
        query = unsqueeze(w, query, 1)
        key = query if same_key else unsqueeze(w, key, 1)
        value = key if same_value else unsqueeze(w, value, 1)
        if key_padding_mask is not None:
            key_padding_mask = unsqueeze(w, key_padding_mask, 0)
    target, batch, features = query.shape
    source = key.shape[0]
    if features != embed_dim_to_check or features % num_heads:
        raise Unsupported(_NAME, f"{features} features, {num_heads} heads; torch raises here")
    head = features // num_heads
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None
    else:
        attn_mask = float_mask(w, attn_mask, query)
        is_causal = is_causal and key_padding_mask is None
    key_padding_mask = float_mask(w, key_padding_mask, query)
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        q, k, v = _projected_apart(w, (query, key, value), weights, in_proj_bias)
    else:
        q, k, v = _projected(w, query, key, value, in_proj_weight, in_proj_bias)
    q = transpose(w, view(w, q, target, batch * num_heads, head), 0, 1)
    k = transpose(w, view(w, k, source, batch * num_heads, head), 0, 1)
    v = transpose(w, view(w, v, source, batch * num_heads, head), 0, 1)
    if attn_mask is not None and attn_mask.ndim == 2:
        attn_mask = unsqueeze(w, attn_mask, 0)
    if key_padding_mask is not None:
        padding = view(w, key_padding_mask, batch, 1, 1, source)
        padding = expand(w, padding, -1, num_heads, -1, -1)
        padding = reshape(w, padding, batch * num_heads, 1, source)
        attn_mask = padding if attn_mask is None else add(w, attn_mask, padding)
        del padding
    dropout_p = dropout_p if training else 0.0
    if need_weights:
        attended, shares = _written_out(w, q, k, v, attn_mask, dropout_p)
        output = contiguous(w, transpose(w, attended, 0, 1))
        del attended
        flat = linear(w, view(w, output, target * batch, features), out_proj_weight, out_proj_bias)
        output = view(w, flat, target, batch, flat.shape[1])
        shares = view(w, shares, batch, num_heads, target, source)
        if average_attn_weights:
            shares = mean(w, shares, 1)
        return (output, shares) if batched else (squeeze(w, output, 1), squeeze(w, shares, 0))
    attended = _fused(w, q, k, v, attn_mask, dropout_p, is_causal, batch)
    output = contiguous(w, permute(w, attended, 2, 0, 1, 3))
    del attended
    flat = linear(w, view(w, output, batch * target, features), out_proj_weight, out_proj_bias)
    output = view(w, flat, target, batch, flat.shape[1])
    return output if batched else squeeze(w, output, 1), None


def _written_out(
    w: World, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    scaled = mul(w, q, math.sqrt(1.0 / q.shape[-1]))
    keys = transpose(w, k, -2, -1)
    shares = bmm(w, scaled, keys) if mask is None else baddbmm(w, mask, scaled, keys)
    shares = functional_softmax(w, shares, -1)
    if dropout_p > 0.0:
        shares = dropout(w, shares, dropout_p)
    return bmm(w, shares, v), shares


def _fused(
    w: World,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    batch: int,
) -> Tensor:
    heads, target, head, source = q.shape[0] // batch, q.shape[1], q.shape[2], k.shape[1]
    if mask is not None:
        if mask.shape[0] == 1 and mask.ndim == 3:
            mask = unsqueeze(w, mask, 0)
        else:
            mask = view(w, mask, batch, heads, -1, source)
    q = view(w, q, batch, heads, target, head)
    k = view(w, k, batch, heads, source, head)
    v = view(w, v, batch, heads, source, head)
    return scaled_dot_product_attention(w, q, k, v, mask, dropout_p, is_causal)


def _projected_apart(
    w: World, inputs: tuple[Tensor, ...], weights: tuple[Tensor | None, ...], bias: Tensor | None
) -> list[Tensor]:
    biases = (None,) * 3 if bias is None else chunk(w, bias, 3)
    found: list[Tensor] = []
    for x, weight, b in zip(inputs, weights, biases, strict=True):
        if weight is None:
            raise Unsupported(_NAME, "a projection without its weight; torch raises here")
        found.append(linear(w, x, weight, b))
    return found


def _projected(
    w: World, query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None
) -> list[Tensor]:
    """`_in_projection_packed`: what is the same tensor is projected at once."""
    if weight is None:
        raise Unsupported(_NAME, "no weight of the projection; torch raises here")
    features = query.shape[-1]
    if key is value and query is key:
        return _packed(w, query, weight, bias, 3)
    if key is value:
        sizes = [features, 2 * features]
        w_q, w_kv = split(w, weight, sizes)
        b_q, b_kv = (None, None) if bias is None else split(w, bias, sizes)
        return [linear(w, query, w_q, b_q), *_packed(w, key, w_kv, b_kv, 2)]
    weights = chunk(w, weight, 3)
    biases = (None,) * 3 if bias is None else chunk(w, bias, 3)
    return [linear(w, x, weights[i], biases[i]) for i, x in enumerate((query, key, value))]


def _packed(w: World, x: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> list[Tensor]:
    """One product for several projections, copied so that each part is contiguous."""
    packed = unflatten(w, linear(w, x, weight, bias), -1, (parts, x.shape[-1]))
    packed = transpose(w, unsqueeze(w, packed, 0), 0, -2)
    packed = contiguous(w, squeeze(w, packed, -2))
    return [getitem(w, packed, i) for i in range(parts)]


def float_mask(w: World, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A bool mask becomes an additive one of the query's type."""
    if mask is None or mask.dtype.is_floating_point:
        return mask
    zeros = zeros_like(w, mask, dtype=like.dtype)
    return masked_fill_(w, zeros, mask, float("-inf"))

"""Tokens to their experts and back, as `grouped_mm_experts_forward` of transformers does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import float32, int32
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: Rows sorted by expert, and where the rows of each end.
Product = Callable[[World, Any, Any], Any]


def routed(
    w: World,
    x: Tensor,
    chosen: Tensor,
    scores: Tensor,
    experts: int,
    first: Product,
    gated: Callable[[World, Any], Any],
    last: Product,
    biases: tuple[Any, Any] = (None, None),
) -> Any:
    """Every pair of token and expert is computed once, sorted by expert.

    x (tokens, hidden); chosen and scores (tokens, experts a token); biases (experts, rows) of the products,
    None without. The library's function holds what is named here until it returns.
    """
    each = chosen.shape[-1]
    weights = method(w, "reshape", scores, -1)
    ids = method(w, "reshape", chosen, -1)
    sorted_ids, order = torch_function(w, "torch.sort", ids)
    taken = method(w, "__getitem__", x, torch_function(w, "torch.floor_divide", order, each))
    sorted_weights = method(w, "__getitem__", weights, order)
    counted = method(w, "to", sorted_ids, int32)
    counts = torch_function(w, "torch.histc", counted, experts, 0, experts - 1)
    ends = torch_function(w, "torch.cumsum", counts, 0, dtype=int32)
    bias = None if biases[0] is None else method(w, "__getitem__", biases[0], sorted_ids)
    out = _biased(w, first(w, taken, ends), bias)
    out = gated(w, out)
    bias = None if biases[1] is None else method(w, "__getitem__", biases[1], sorted_ids)
    out = _biased(w, last(w, out, ends), bias)
    weighted = torch_function(w, "torch.mul", out, method(w, "unsqueeze", sorted_weights, -1))
    back = torch_function(w, "torch.empty_like", order)
    places = torch_function(w, "torch.arange", order.shape[0], device=order.device)
    method(w, "__setitem__", back, order, places)
    del places
    weighted = method(w, "__getitem__", weighted, back)
    final = method(w, "sum", method(w, "view", weighted, x.shape[0], each, x.shape[1]), 1)
    return method(w, "to", final, x.dtype)


def _biased(w: World, product: Any, bias: Any) -> Any:
    return product if bias is None else method(w, "add_", product, bias)


def chosen_experts(w: World, logits: Any, used: int, normalises: bool, sigmoid: bool) -> tuple[Any, Any]:
    """Scores in fp32 and which experts they are of: (tokens, used) each."""
    if sigmoid:
        probabilities = torch_function(w, "torch.sigmoid", method(w, "to", logits, float32))
    else:
        probabilities = functional(w, "softmax", logits, -1, dtype=float32)
    scores, experts = torch_function(w, "torch.topk", probabilities, used, -1)
    if normalises:
        scores = torch_function(w, "torch.div", scores, method(w, "sum", scores, -1, True))
    return scores, experts

"""Decoder-only language models: one parametrised architecture on the runtime.

`DecoderShape` holds the facts of a `config.json` that decide sizes; `Style` how a library computes the same
layer, which decides what is kept for backward. Both together run Llama, Mistral, Mixtral, Qwen, Gemma, Phi,
Falcon, MPT, OPT, BLOOM, GPT-2/J/NeoX/BigCode and their kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import Any

from torchwise_memory.families.base import (
    Block,
    activation,
    add,
    dropout_layer,
    embedding,
    layer_norm,
    members,
    merge_heads,
    module_list,
    repeat_kv,
    split_heads,
)
from torchwise_memory.families.fused import (
    cross_entropy_fused,
    fused,
    selective,
    to_card,
    to_host,
)
from torchwise_memory.families.own_attention import (
    OwnMask,
    bloom_gelu,
    own_attention,
    own_mask,
    own_table,
)
from torchwise_memory.families.projections import Projection, Projections, Prompt, PromptShape
from torchwise_memory.families.routing import chosen_experts, routed
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.linear import Identity
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.checkpoint import checkpoint
from torchwise_memory.runtime.dtypes import boolean, complex64, float32
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and structure.

    inner: width of the feed-forward (of one expert). norm: "rms", "layer" or "plain" (no parameters);
    norm_bias: of layer norms. sandwich: norms after attention and feed-forward too; only_after: no norms
    before them (OLMo 2). parallel: attention and feed-forward read the same residual; shared_norm: through
    one norm. rotary: share of the head that rotates, 0 for none. positions: rows of a learned table.
    qk_norm: "" or "head" or "all" (over all heads). experts: 0 for a dense feed-forward; dense_layers: how
    many leading layers stay dense, with `dense_inner`. embed_size: of the token table where it differs
    (OPT). norm_wide: RMS norms multiply by their weight in fp32 (Gemma, OLMo 2); norm "wide" is a layer
    norm made of operators in fp32 (Cohere). rotary_copies: turned heads are copied beside what does not
    turn, be that nothing; rotary_wide: heads turn in fp32; rotary_complex: as complex numbers. splits: how
    transformers takes heads out of one product: "" slices, "copied", "interleaved" (by head), "shared" (a key
    for all), "groups" (a key a group, copied to its queries). scores: whose own attention it is. masked: a
    mask is made where the kernel would know. holds_attended: attention's output has a name of its own in
    transformers' layer, which lives through the feed-forward. broadcasts_kv: attention gets fewer keys than
    queries without being told so (Falcon's multi-query). latent: keys and values from a latent vector, in
    place of heads of their own. eager_only: transformers has no fused attention for it. sinks: a learned
    score a head that takes attention away. experts_bias: of expert products; router: "softmax" over all
    experts, "wide" (those of the chosen made to add up, in fp32), "narrow" (then cast to the type of the
    logits), "sigmoid" (a product in fp32), "scaled" (that, with softmax). experts_see_all: every expert reads
    every token (Llama 4). experts_every: of so many layers the last has experts, the others are dense with
    `dense_inner`. full_every: of so many layers the last sees everything, the others `window` positions; 0
    windows all. still_full: heads of those that see everything are scaled by position, not turned and normed.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    gated: bool = True
    act: str = "silu"
    norm: str = "rms"
    norm_bias: bool = True
    sandwich: bool = False
    only_after: bool = False
    parallel: bool = False
    shared_norm: bool = False
    final_norm: bool = True
    embed_norm: bool = False
    rotary: float = 1.0
    positions: int = 0
    alibi: bool = False
    q_bias: bool = False
    kv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied: bool = False
    fused_qkv: bool = False
    fused_gate: bool = False
    qk_norm: str = ""
    experts: int = 0
    experts_used: int = 0
    shared_inner: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    dense_inner: int = 0
    embed_size: int = 0
    attention_softcap: bool = False
    logit_softcap: bool = False
    window: int | None = None
    norm_wide: bool = False
    rotary_copies: bool = False
    rotary_wide: bool = False
    rotary_complex: bool = False
    splits: str = ""
    scores: str = ""
    masked: bool = False
    holds_attended: bool = False
    broadcasts_kv: bool = False
    latent: Latent | None = None
    sinks: bool = False
    eager_only: bool = False
    experts_bias: bool = False
    router: str = "softmax"
    experts_see_all: bool = False
    experts_every: int = 1
    full_every: int = 0
    still_full: bool = False
    embed_dropout: float = 0.0
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @property
    def period(self) -> int:
        """After how many layers the kinds of layers repeat."""
        return lcm(self.experts_every if self.experts else 1, self.full_every or 1)

    def has_experts(self, index: int) -> bool:
        return self.experts > 0 and index >= self.dense_layers and (index + 1) % self.experts_every == 0

    def turns(self, index: int) -> bool:
        """Whether heads of that layer turn, where any do."""
        return not self.still_full or not self.full_every or (index + 1) % self.full_every != 0

    def is_windowed(self, index: int) -> bool:
        return self.window is not None and (not self.full_every or (index + 1) % self.full_every != 0)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: ranks of the compressed queries (0 for none) and of keys with values, and
    the sizes of a head's parts without and with rotation, and of its value.
    """

    query_rank: int
    rank: int
    still: int
    turning: int
    value: int


@dataclass(frozen=True, slots=True)
class Style:
    """How a library runs it.

    fused: a compiler fuses what is elementwise and keeps only inputs; fused_loss: that of the loss too.
    attention: "sdpa", "flash", "eager". expand_kv: keys and values are copied to every query head.
    norm_fp32: RMS norms compute on an fp32 copy. logits_fp32: a wrapper converts the model's output. loss:
    "float" (upcast, shifted by padding), "shifted" (upcast, shifted by a copy), "plain" (in the type of the
    logits), "chunked" (head and loss over `loss_chunk` positions a time). checkpointing: "none", "full",
    "selective" (products kept in turn, attention kept), "half" (every second layer). norm_wide: RMS norms
    multiply in fp32, whatever the model. by_transformers: its code without flash attention's kernels:
    windows and sinks are made by masks. offload: saved tensors go to the host. cache: a key/value cache is
    filled while training.
    """

    fused: bool = False
    fused_loss: bool = False
    attention: str = "sdpa"
    expand_kv: bool = False
    norm_fp32: bool = True
    logits_fp32: bool = False
    loss: str = "float"
    loss_chunk: int = 0
    checkpointing: str = "none"
    reentrant: bool = False
    offload: bool = False
    cache: bool = False
    training: bool = True
    norm_wide: bool = False
    by_transformers: bool = False


class Norm(Module):
    native_name = "torchwise.RMSNorm"

    def build(
        self, w: World, size: int, style: Style, is_wide: bool = False, has_weight: bool = True
    ) -> None:
        self.style = style
        self.is_wide = is_wide or style.norm_wide
        self.parameters["weight"] = None
        if has_weight:
            self.new_parameter(w, "weight", (size,), None, None)

    def forward(self, w: World, x: Any) -> Any:
        weight = self.parameter("weight")
        if self.style.fused:
            inputs = (x,) if weight is None else (x, weight)
            return fused(w, "rms_norm", inputs, x.shape, x.dtype, saved=(x,))
        dtype = x.dtype
        wide = method(w, "to", x, float32) if self.style.norm_fp32 else x
        variance = method(w, "mean", method(w, "pow", wide, 2), -1, True)
        scale = torch_function(w, "torch.rsqrt", add(w, variance, 1e-6))
        wide = torch_function(w, "torch.mul", wide, scale)
        del scale, variance
        if weight is None:
            return method(w, "to", wide, dtype)
        if self.is_wide:
            wide = torch_function(w, "torch.mul", wide, method(w, "to", weight, float32))
            return method(w, "to", wide, dtype)
        return torch_function(w, "torch.mul", weight, method(w, "to", wide, dtype))


class WideLayerNorm(Module):
    """`CohereLayerNorm`: a layer norm without bias, operator by operator in fp32."""

    native_name = "torchwise.WideLayerNorm"

    def build(self, w: World, size: int, style: Style) -> None:
        self.style = style
        self.new_parameter(w, "weight", (size,), None, None)

    def forward(self, w: World, x: Any) -> Any:
        weight, dtype = self.tensor("weight"), x.dtype
        if self.style.fused:
            return fused(w, "layer_norm", (x, weight), x.shape, dtype, saved=(x,))
        f = partial(torch_function, w)
        x = method(w, "to", x, float32)
        mean = method(w, "mean", x, -1, True)
        variance = method(w, "mean", method(w, "pow", f("torch.sub", x, mean), 2), -1, True)
        x = f("torch.mul", f("torch.sub", x, mean), f("torch.rsqrt", add(w, variance, 1e-5)))
        x = f("torch.mul", method(w, "to", weight, float32), x)
        return method(w, "to", x, dtype)


def make_norm(w: World, shape: DecoderShape, style: Style, size: int = 0) -> Module:
    size = size or shape.hidden
    if shape.norm == "rms":
        norm = Norm()
        norm.build(w, size, style, shape.norm_wide)
        return norm
    if shape.norm == "wide":
        wide = WideLayerNorm()
        wide.build(w, size, style)
        return wide
    layer = layer_norm(w, size, 1e-5)
    if shape.norm == "plain":
        layer.parameters["weight"] = layer.parameters["bias"] = None
    elif not shape.norm_bias:
        layer.parameters["bias"] = None
    return layer


class Attention(Module):
    native_name = "torchwise.DecoderAttention"

    def build(self, w: World, shape: DecoderShape, style: Style, make: Projections) -> None:
        self.shape, self.style = shape, style
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if shape.sinks:
            self.new_parameter(w, "sinks", (shape.heads,), None, None)
        if shape.fused_qkv:
            self.children["qkv"] = make(w, "qkv", shape.hidden, q + 2 * kv, shape.q_bias)
        else:
            self.children["q"] = make(w, "q", shape.hidden, q, shape.q_bias)
            self.children["k"] = make(w, "k", shape.hidden, kv, shape.kv_bias)
            self.children["v"] = make(w, "v", shape.hidden, kv, shape.kv_bias)
        self.children["o"] = make(w, "o", q, shape.hidden, shape.out_bias)
        if shape.qk_norm == "plain":
            bare = Norm()
            bare.build(w, shape.head_dim, style, has_weight=False)
            self.children["q_norm"] = self.children["k_norm"] = bare
        elif shape.qk_norm:
            wide = shape.qk_norm == "all"
            self.children["q_norm"] = make_norm(w, shape, style, q if wide else shape.head_dim)
            self.children["k_norm"] = make_norm(w, shape, style, kv if wide else shape.head_dim)
        if style.by_transformers and (table := own_table(w, shape.scores, shape.positions)) is not None:
            self.buffers["table"] = table
        #: learned keys and values before those of the text, while a step runs
        self.prefix: tuple[Any, Any] | None = None

    def forward(self, w: World, x: Any, rotary: Any, mask: Any) -> Any:
        # the product that heads were copied from is a name of the library's frame
        query, key, value, product = self._heads(w, x)
        del x
        if rotary is not None:
            query, key = self._both_rotated(w, query, key, rotary)
        elif self.shape.still_full:
            query = _scaled_by_position(w, query)
        if self._norms_turned and rotary is not None:
            query, key = self.run(w, "q_norm", query), self.run(w, "k_norm", key)
        if self.prefix is not None:
            key = torch_function(w, "torch.cat", (self.prefix[0], key), -2)
            value = torch_function(w, "torch.cat", (self.prefix[1], value), -2)
            self.prefix = (key, value)
        if isinstance(mask, OwnMask):
            dropout = self.shape.attention_dropout if self.training else 0.0
            kind, out = self.shape.scores, partial(self.run, w, "o")
            return own_attention(w, kind, mask, self.buffer("table"), query, key, value, dropout, out)
        # kernels with sinks are those of flash attention
        sinks = self.parameter("sinks") if self.shape.sinks and self.style.by_transformers else None
        output = attend(w, self.shape, self.style, query, key, value, mask, self.training, sinks)
        del query, key, value, product
        return self.run(w, "o", output)

    @property
    def _norms_turned(self) -> bool:
        """Whether heads are normed after they turned."""
        return self.shape.qk_norm == "plain"

    def _heads(self, w: World, x: Any) -> tuple[Any, Any, Any, Any]:
        """Queries, keys and values, (batch, heads, length, size), and the one product they come from."""
        size, mixed = self.shape.head_dim, None
        if self.shape.fused_qkv:
            mixed = self.run(w, "qkv", x)
            if self._splits:
                q, k, v = (method(w, "transpose", t, 1, 2) for t in self._split(w, mixed))
                return q, k, v, mixed
            widths = [self.shape.heads * size, self.shape.kv_heads * size, self.shape.kv_heads * size]
            q, k, v = torch_function(w, "torch.split", mixed, widths, -1)
        else:
            q, k, v = (self.run(w, name, x) for name in ("q", "k", "v"))
        if self.shape.qk_norm == "all":
            q, k = self.run(w, "q_norm", q), self.run(w, "k_norm", k)
        batch, length = q.shape[0], q.shape[1]
        q, k, v = (method(w, "reshape", t, batch, length, -1, size) for t in (q, k, v))
        if self.shape.qk_norm in ("head", "plain") and not self._norms_turned:
            q, k = self.run(w, "q_norm", q), self.run(w, "k_norm", k)
        q, k, v = (method(w, "transpose", t, 1, 2) for t in (q, k, v))
        return q, k, v, mixed

    @property
    def _splits(self) -> str:
        """How transformers takes heads apart; "" by slices, also where divided heads leave no groups."""
        shape, style = self.shape, self.style
        if not style.by_transformers or style.fused or self.prefix is not None:
            return ""
        whole = shape.heads == shape.kv_heads if shape.splits == "interleaved" else True
        return shape.splits if whole and shape.heads % shape.kv_heads == 0 else ""

    def _split(self, w: World, mixed: Any) -> tuple[Any, Any, Any]:
        """(batch, length, heads, size) each."""
        shape, kind = self.shape, self._splits
        batch, length = mixed.shape[0], mixed.shape[1]
        every, rest, size = slice(None), slice(None, -2), shape.head_dim
        picked: list[Any]
        if kind == "copied":
            widths = [shape.heads * size, shape.kv_heads * size, shape.kv_heads * size]
            picked = [method(w, "contiguous", t) for t in torch_function(w, "torch.split", mixed, widths, -1)]
            picked = [method(w, "view", t, batch, length, -1, size) for t in picked]
        elif kind == "interleaved":
            mixed = method(w, "view", mixed, batch, length, -1, 3, size)
            picked = [method(w, "__getitem__", mixed, (Ellipsis, part, every)) for part in range(3)]
        elif kind == "shared":
            mixed = method(w, "view", mixed, batch, length, -1, size)
            picked = [method(w, "__getitem__", mixed, (Ellipsis, t, every)) for t in (rest, [-2], [-1])]
        else:
            mixed = method(w, "view", mixed, batch, length, shape.kv_heads, -1, size)
            parts = (rest, [-2], [-1])
            picked = [method(w, "__getitem__", mixed, (every, every, every, part)) for part in parts]
            picked[1:] = [method(w, "broadcast_to", t, picked[0].shape) for t in picked[1:]]
            picked = [method(w, "flatten", t, 2, 3) for t in picked]
        return picked[0], picked[1], picked[2]

    def _both_rotated(self, w: World, query: Any, key: Any, rotary: Any) -> tuple[Any, Any]:
        if self.shape.rotary_complex and not self.style.fused:
            return turned_complex(w, query, key, rotary)
        if self._splits == "copied":
            query, key = (self._turned_alone(w, t, rotary) for t in (query, key))
            return query, key
        return self._rotated(w, query, rotary), self._rotated(w, key, rotary)

    def _turned_alone(self, w: World, x: Any, rotary: Any) -> Any:
        """`CodeGenAttention`: turned before heads come first, which attention's result then follows; tables
        are repeated for queries and for keys.
        """
        repeated: list[Any] = []
        for table in rotary:
            half = method(w, "__getitem__", table, (Ellipsis, slice(None, table.shape[-1] // 2)))
            half = method(w, "transpose", half, 1, 2)
            repeated.append(torch_function(w, "torch.repeat_interleave", half, 2, 3))
        turned = self._rotated(w, method(w, "transpose", x, 1, 2), repeated)
        return method(w, "transpose", turned, 1, 2)

    def _rotated(self, w: World, x: Any, rotary: Any) -> Any:
        size = self.shape.head_dim
        turning = int(size * self.shape.rotary)
        if self.style.fused:
            return fused(w, "rope", (x,), x.shape, x.dtype, saved=())
        cos, sin = rotary
        if turning < size or self.shape.rotary_copies:
            still = method(w, "__getitem__", x, (Ellipsis, slice(turning, None)))
            x = method(w, "__getitem__", x, (Ellipsis, slice(None, turning)))
            return torch_function(w, "torch.cat", (_rotate(w, x, cos, sin), still), -1)
        dtype = x.dtype
        if self.shape.rotary_wide:
            x = method(w, "to", x, float32)
        return method(w, "to", _rotate(w, x, cos, sin), dtype)


class LatentAttention(Module):
    """`DeepseekV3Attention`: queries and keys with values through narrow products, each with a norm."""

    native_name = "torchwise.LatentAttention"

    def build(self, w: World, shape: DecoderShape, style: Style, make: Projections) -> None:
        assert shape.latent is not None
        self.shape, self.style, self.latent = shape, style, shape.latent
        latent, hidden, heads = shape.latent, shape.hidden, shape.heads
        size = latent.still + latent.turning
        if latent.query_rank:
            self.children["q_a"] = make(w, "q", hidden, latent.query_rank, shape.q_bias)
            self.children["q_norm"] = make_norm(w, shape, style, latent.query_rank)
            self.children["q_b"] = make(w, "q", latent.query_rank, heads * size, False)
        else:
            self.children["q"] = make(w, "q", hidden, heads * size, False)
        self.children["kv_a"] = make(w, "k", hidden, latent.rank + latent.turning, shape.q_bias)
        self.children["kv_norm"] = make_norm(w, shape, style, latent.rank)
        self.children["kv_b"] = make(w, "k", latent.rank, heads * (latent.still + latent.value), False)
        self.children["o"] = make(w, "o", heads * latent.value, hidden, shape.out_bias)

    def forward(self, w: World, x: Any, rotary: Any, mask: Any) -> Any:
        latent, batch, length = self.latent, x.shape[0], x.shape[1]
        parts = partial(torch_function, w, "torch.split")
        if latent.query_rank:
            query = self.run(w, "q_b", self.run(w, "q_norm", self.run(w, "q_a", x)))
        else:
            query = self.run(w, "q", x)
        query = method(w, "view", query, batch, length, -1, latent.still + latent.turning)
        query = method(w, "transpose", query, 1, 2)
        still, turned = parts(query, [latent.still, latent.turning], -1)
        narrow = self.run(w, "kv_a", x)
        del x, query
        narrow, key_turned = parts(narrow, [latent.rank, latent.turning], -1)
        narrow = self.run(w, "kv_norm", narrow)
        key_turned = method(w, "view", key_turned, batch, 1, length, latent.turning)
        if self.shape.rotary_complex and not self.style.fused:
            turned, key_turned = turned_complex(w, turned, key_turned, rotary)
        else:
            turned, key_turned = self._turned(w, turned, rotary), self._turned(w, key_turned, rotary)
        query = torch_function(w, "torch.cat", (still, turned), -1)
        del still, turned
        both = method(w, "view", self.run(w, "kv_b", narrow), batch, length, -1, latent.still + latent.value)
        key_still, value = parts(method(w, "transpose", both, 1, 2), [latent.still, latent.value], -1)
        key_turned = method(w, "expand", key_turned, -1, key_still.shape[1], -1, -1)
        key = torch_function(w, "torch.cat", (key_still, key_turned), -1)
        del both, narrow, key_still, key_turned
        output = attend(w, self.shape, self.style, query, key, value, mask, self.training, None)
        del query, key, value
        return self.run(w, "o", output)

    def _turned(self, w: World, x: Any, rotary: Any) -> Any:
        """Pairs side by side: both halves are made and put together."""
        if self.style.fused:
            return fused(w, "rope", (x,), x.shape, x.dtype, saved=())
        cos, sin = rotary
        f = partial(torch_function, w)
        half = x.shape[-1] // 2
        cos, sin = (method(w, "__getitem__", t, (Ellipsis, slice(None, half))) for t in (cos, sin))
        one, two = (method(w, "__getitem__", x, (Ellipsis, slice(start, None, 2))) for start in (0, 1))
        first = f("torch.sub", f("torch.mul", one, cos), f("torch.mul", two, sin))
        second = add(w, f("torch.mul", two, cos), f("torch.mul", one, sin))
        return f("torch.cat", (first, second), -1)


def _scaled_by_position(w: World, query: Any) -> Any:
    """Llama 4's temperatures, in fp32: (batch, heads, length, size)."""
    scales = w.new((1, 1, query.shape[2], 1), float32, "add", query.device)
    return method(w, "to", torch_function(w, "torch.mul", query, scales), query.dtype)


def turned_complex(w: World, query: Any, key: Any, rotary: Any) -> tuple[Any, Any]:
    """Pairs side by side as complex numbers in fp32: both are copied before either turns."""
    made: list[Any] = []
    for x in (query, key):
        wide = method(w, "to", x, float32)
        wide = method(w, "reshape", wide, *wide.shape[:-1], -1, 2)
        made.append(torch_function(w, "torch.view_as_complex", wide))
        del wide
    turned: list[Any] = []
    for x in made:
        product = torch_function(w, "torch.view_as_real", torch_function(w, "torch.mul", x, rotary[0]))
        turned.append(method(w, "flatten", product, 3))
        del product
    return method(w, "to", turned[0], query.dtype), method(w, "to", turned[1], key.dtype)


def _rotate(w: World, x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    first = method(w, "__getitem__", x, (Ellipsis, slice(None, half)))
    second = method(w, "__getitem__", x, (Ellipsis, slice(half, None)))
    turned = torch_function(w, "torch.cat", (torch_function(w, "torch.neg", second), first), -1)
    return method(
        w,
        "to",
        add(w, torch_function(w, "torch.mul", x, cos), torch_function(w, "torch.mul", turned, sin)),
        x.dtype,
    )


def attend(
    w: World,
    shape: DecoderShape,
    style: Style,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    training: bool,
    sinks: Any = None,
) -> Any:
    """(batch, heads, length, size) in, (batch, length, heads * size) out."""
    groups = query.shape[1] // key.shape[1]
    dropout = shape.attention_dropout if training else 0.0
    if _writes_out(shape, style) or sinks is not None:
        return merge_heads(w, _eager(w, shape, query, key, value, mask, dropout, groups, sinks))
    broadcasts = shape.broadcasts_kv and style.by_transformers
    expand = (style.expand_kv or mask is not None) and not broadcasts
    if groups > 1 and expand:
        key, value = repeat_kv(w, key, groups), repeat_kv(w, value, groups)
    output = functional(
        w,
        "scaled_dot_product_attention",
        query,
        key,
        value,
        mask,
        dropout,
        mask is None and query.shape[2] > 1,
        enable_gqa=groups > 1 and not expand and not broadcasts,
    )
    del query, key, value
    output = method(w, "transpose", output, 1, 2)
    return method(w, "reshape", output, *output.shape[:2], -1)


def _writes_out(shape: DecoderShape, style: Style) -> bool:
    """Whether scores are made as a tensor: by choice, or since the model's code knows no other way."""
    return (
        style.attention == "eager" or shape.attention_softcap or (shape.eager_only and style.by_transformers)
    )


def _eager(
    w: World,
    shape: DecoderShape,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    dropout: float,
    groups: int,
    sinks: Any = None,
) -> Any:
    if groups > 1:
        k, v = repeat_kv(w, k, groups), repeat_kv(w, v, groups)
    dtype = q.dtype
    weights = torch_function(
        w, "torch.mul", torch_function(w, "torch.matmul", q, method(w, "transpose", k, -1, -2)), 0.1
    )
    del q, k
    if shape.attention_softcap:
        weights = torch_function(w, "torch.div", weights, 50.0)
        weights = torch_function(w, "torch.tanh", weights)
        weights = torch_function(w, "torch.mul", weights, 50.0)
    if mask is not None:
        weights = add(w, weights, mask)
    if sinks is None:
        weights = method(w, "to", functional(w, "softmax", weights, -1, dtype=float32), dtype)
    else:
        weights = _with_sinks(w, weights, sinks)
    weights = functional(w, "dropout", weights, dropout, dropout > 0)
    output = torch_function(w, "torch.matmul", weights, v)
    return method(w, "contiguous", method(w, "transpose", output, 1, 2))


def _with_sinks(w: World, weights: Any, sinks: Any) -> Any:
    """`gpt_oss`: a column of learned scores takes part in softmax and is dropped."""
    f = partial(torch_function, w)
    batch, heads, rows, _ = weights.shape
    column = method(w, "expand", method(w, "reshape", sinks, 1, -1, 1, 1), batch, heads, rows, -1)
    weights = f("torch.cat", (weights, column), -1)
    greatest = method(w, "max", weights, -1, True)
    weights = f("torch.sub", weights, greatest[0])
    del greatest
    weights = functional(w, "softmax", weights, -1)
    return method(w, "__getitem__", weights, (Ellipsis, slice(None, -1)))


class FeedForward(Module):
    native_name = "torchwise.DecoderFeedForward"

    def build(
        self, w: World, shape: DecoderShape, style: Style, make: Projections, inner: int, kind: str = ""
    ) -> None:
        self.shape, self.style = shape, style
        bias = shape.mlp_bias
        if shape.gated and shape.fused_gate:
            self.children["gate_up"] = make(w, "gate_up", shape.hidden, 2 * inner, bias)
        elif shape.gated:
            self.children["gate"] = make(w, "gate", shape.hidden, inner, bias)
            self.children["up"] = make(w, "up", shape.hidden, inner, bias)
        else:
            self.children["up"] = make(w, "up", shape.hidden, inner, bias)
        self.children["down"] = make(w, "down", inner, shape.hidden, bias)

    def forward(self, w: World, x: Any) -> Any:
        return self.run(w, "down", self._inner(w, x))

    def _inner(self, w: World, x: Any) -> Any:
        if not self.shape.gated:
            up = self.run(w, "up", x)
            blooms = self.shape.act == "bloom_gelu"
            if self.style.fused or (blooms and not self.style.by_transformers):
                return fused(w, "activation", (up,), up.shape, up.dtype, saved=(up,))
            if blooms:
                return bloom_gelu(w, up)
            return activation(w, self.shape.act, up)
        if self.shape.fused_gate:
            gate, up = torch_function(w, "torch.chunk", self.run(w, "gate_up", x), 2, -1)
        else:
            gate, up = self.run(w, "gate", x), None
        if self.style.fused:
            up = self.run(w, "up", x) if up is None else up
            return fused(w, "gated activation", (gate, up), gate.shape, gate.dtype, saved=(gate, up))
        gate = activation(w, self.shape.act, gate)
        return torch_function(w, "torch.mul", gate, self.run(w, "up", x) if up is None else up)


class Experts(Module):
    """A router and experts over the tokens sent to them; tokens divide evenly, whichever expert gets them."""

    native_name = "torchwise.Experts"

    def build(self, w: World, shape: DecoderShape, style: Style, make: Projections) -> None:
        self.shape, self.style = shape, style
        self.children["router"] = make(w, "router", shape.hidden, shape.experts, shape.experts_bias)
        for name, rows, columns in (
            ("gate_up", 2 * shape.inner, shape.hidden),
            ("down", shape.hidden, shape.inner),
        ):
            self.children[name] = make.grouped(w, shape.experts, rows, columns, shape.experts_bias)
        if shape.shared_inner:
            shared = FeedForward()
            shared.build(w, shape, style, make, shape.shared_inner)
            self.children["shared"] = shared
        if shape.shared_gate:
            self.children["shared_gate"] = make(w, "shared_gate", shape.hidden, 1, False)

    def forward(self, w: World, x: Any) -> Any:
        batch, length, hidden = x.shape
        flat = method(w, "reshape", x, batch * length, hidden)
        # the gated shared expert of Qwen comes first, others after
        shared = self.run(w, "shared", x) if self.shape.shared_gate else None
        if self.style.fused:
            result = self._sent(w, flat)
        elif self._sees_all:
            return method(w, "view", self._read_by_all(w, flat), batch, length, hidden)
        else:
            scores, chosen = self._chosen(w, flat)
            biases = (self._bias("gate_up"), self._bias("down"))
            count = self.shape.experts
            result = routed(w, flat, chosen, scores, count, self._first, self._gated, self._last, biases)
            del scores, chosen
        result = method(w, "view", result, batch, length, hidden)
        if shared is not None:
            gate = torch_function(w, "torch.sigmoid", self.run(w, "shared_gate", x))
            shared = torch_function(w, "torch.mul", gate, shared)
            return add(w, result, shared)
        if "shared" in self.children:
            result = add(w, result, self.run(w, "shared", x))
        return result

    @property
    def _sees_all(self) -> bool:
        """Only transformers sends every token to every expert; others sort them."""
        return self.shape.experts_see_all and self.style.by_transformers

    def _chosen(self, w: World, flat: Any) -> tuple[Any, Any]:
        """Scores and numbers of the experts of each token."""
        shape = self.shape
        if shape.router in ("sigmoid", "scaled"):
            weight = method(w, "to", self.child("router").tensor("weight"), float32)
            logits = functional(w, "linear", method(w, "to", flat, float32), weight)
        else:
            logits = self.run(w, "router", flat)
        used, sigmoid = shape.experts_used, shape.router == "sigmoid"
        normalises = shape.router not in ("softmax", "scaled")
        scores, chosen = chosen_experts(w, logits, used, normalises, sigmoid)
        if shape.router == "scaled":
            scores = torch_function(w, "torch.mul", scores, 1.0)
        if shape.router == "narrow":
            scores = method(w, "to", scores, logits.dtype)
        return scores, chosen

    def _first(self, w: World, x: Any, ends: Any) -> Any:
        return call(w, self.child("gate_up"), (x, False), {})

    def _last(self, w: World, x: Any, ends: Any) -> Any:
        return call(w, self.child("down"), (x, False), {})

    def _bias(self, name: str) -> Any:
        return self.child(name).parameter("bias")

    def _read_by_all(self, w: World, flat: Any) -> Any:
        """`Llama4TextMoe`: every expert gets all tokens, scaled by its score or by nothing."""
        f, shape = partial(torch_function, w), self.shape
        logits = self.run(w, "router", flat)
        top, chosen = f("torch.topk", logits, shape.experts_used, 1)
        scores = method(w, "scatter_", f("torch.full_like", logits, 0.0), 1, chosen, top)
        scores = method(w, "to", f("torch.sigmoid", method(w, "to", scores, float32)), logits.dtype)
        del top, chosen
        taken = method(w, "repeat", flat, shape.experts, 1)
        taken = f("torch.mul", taken, method(w, "reshape", method(w, "transpose", scores, 0, 1), -1, 1))
        given = self._grouped(w, "down", self._gated(w, self._grouped(w, "gate_up", taken)))
        out = self.run(w, "shared", flat)
        given = method(w, "sum", method(w, "reshape", given, shape.experts, *flat.shape), 0)
        return method(w, "add_", out, given)

    def _sent(self, w: World, flat: Any) -> Any:
        """All in one kernel a product, or (Llama 4) every token to every expert."""
        scores = functional(w, "softmax", self.run(w, "router", flat), -1, dtype=float32)
        shape, dtype = self.shape, flat.dtype
        tokens, hidden = flat.shape
        rows = tokens * (shape.experts if self._sees_all else shape.experts_used)
        # indices are kept, not tokens
        picked = fused(w, "index", (flat,), (rows, hidden), dtype, saved=())
        if self._sees_all:
            # copies of all tokens are scaled by their scores before, and summed after
            picked = fused(w, "mul", (picked, scores), (rows, hidden), dtype, saved=(picked, scores))
        both = self._grouped(w, "gate_up", picked)
        del picked
        inner = self._gated(w, both)
        del both
        out = self._grouped(w, "down", inner)
        del inner
        if self._sees_all:
            return fused(w, "sum", (out,), (tokens, hidden), dtype, saved=())
        weighted = fused(w, "mul", (out, scores), (rows, hidden), dtype, saved=(out, scores))
        del out
        return fused(w, "index_add", (weighted,), (tokens, hidden), dtype, saved=())

    def _gated(self, w: World, both: Any) -> Any:
        rows, wide = both.shape
        if self.style.fused:
            return fused(w, "gated activation", (both,), (rows, wide // 2), both.dtype, saved=(both,))
        gate, up = torch_function(w, "torch.chunk", both, 2, -1)
        if self.shape.act == "clamped":
            return _clamped(w, gate, up)
        return torch_function(w, "torch.mul", activation(w, self.shape.act, gate), up)

    def _grouped(self, w: World, name: str, x: Any) -> Any:
        return call(w, self.child(name), (x,), {})


def _clamped(w: World, gate: Any, up: Any) -> Any:
    """The gate of gpt-oss: both halves clamped, a sigmoid of the scaled gate."""
    f = partial(torch_function, w)
    gate, up = f("torch.clamp", gate, None, 7.0), f("torch.clamp", up, -7.0, 7.0)
    glu = f("torch.mul", gate, f("torch.sigmoid", f("torch.mul", gate, 1.702)))
    return f("torch.mul", add(w, up, 1), glu)


class DecoderLayer(Block):
    native_name = "torchwise.DecoderLayer"

    def build(self, w: World, shape: DecoderShape, style: Style, make: Projections, index: int) -> None:
        self.shape, self.style = shape, style
        attention = Attention() if shape.latent is None else LatentAttention()
        attention.build(w, shape, style, make)
        self.children["attention"] = attention
        mlp: Module
        if shape.has_experts(index):
            mlp = experts = Experts()
            experts.build(w, shape, style, make)
        else:
            mlp = dense = FeedForward()
            dense.build(w, shape, style, make, (shape.experts and shape.dense_inner) or shape.inner)
        self.children["mlp"] = mlp
        names = ["norm1"] if shape.parallel and shape.shared_norm else ["norm1", "norm2"]
        if shape.sandwich:
            names += ["norm3", "norm4"]
        for name in names:
            self.children[name] = make_norm(w, shape, style)
        if shape.dropout:
            self.children["dropout"] = dropout_layer(w, shape.dropout)

    def forward(self, w: World, x: Any, rotary: Any, mask: Any) -> Any:
        shape = self.shape
        if shape.only_after:
            x = add(w, x, self.run(w, "norm1", self.run(w, "attention", x, rotary, mask)))
            return add(w, x, self.run(w, "norm2", self.run(w, "mlp", x)))
        residual = x
        h = self.run(w, "norm1", x)
        if shape.parallel:
            attended = self._dropped(w, self.run(w, "attention", h, rotary, mask))
            if not shape.shared_norm:
                h = self.run(w, "norm2", residual)
            h = self._dropped(w, self.run(w, "mlp", h))
            return add(w, add(w, attended, h), residual)
        h = self.run(w, "attention", h, rotary, mask)
        if shape.sandwich:
            h = self.run(w, "norm3", h)
        x = add(w, residual, self._dropped(w, h))
        if self.style.by_transformers and not shape.holds_attended:
            del h
        residual = x
        h = self.run(w, "mlp", self.run(w, "norm2", x))
        if shape.sandwich:
            h = self.run(w, "norm4", h)
        return add(w, residual, self._dropped(w, h))

    def _dropped(self, w: World, x: Any) -> Any:
        return self.run(w, "dropout", x) if "dropout" in self.children else x


class Decoder(Module):
    """The language model with its head and loss."""

    native_name = "torchwise.Decoder"

    def build(
        self,
        w: World,
        shape: DecoderShape,
        style: Style,
        make: Projections,
        layers: int | None = None,
        prompt: PromptShape | None = None,
    ) -> None:
        self.shape, self.style = shape, style
        width = shape.embed_size or shape.hidden
        self.children["embed"] = embedding(w, shape.vocab, width)
        if shape.positions:
            self.children["positions"] = embedding(w, shape.positions, shape.hidden)
        if width != shape.hidden:
            self.children["project_in"] = make(w, "project_in", width, shape.hidden, False)
            self.children["project_out"] = make(w, "project_out", shape.hidden, width, False)
        if shape.embed_norm:
            self.children["embed_norm"] = make_norm(w, shape, style)
        blocks: list[Module] = []
        for index in range(shape.layers if layers is None else layers):
            layer = DecoderLayer()
            layer.build(w, shape, style, make, index)
            blocks.append(layer)
        self.children["layers"] = module_list(blocks)
        self.children["norm"] = make_norm(w, shape, style) if shape.final_norm else Identity()
        if prompt is not None:
            learned = Prompt()
            pairs = 2 * shape.kv_heads * shape.head_dim * len(blocks)
            learned.build(w, prompt, pairs if prompt.method == "prefix" else width)
            self.children["prompt"] = learned
        head = make(w, "lm_head", width, shape.vocab, shape.head_bias)
        if shape.tied and isinstance(head, Projection):
            head.share(self.child("embed"))
        self.children["head"] = head

    @property
    def blocks(self) -> list[Module]:
        return members(self.child("layers"))

    def forward(self, w: World, tokens: Any, labels: Any = None, last_only: bool = False) -> Any:
        """The loss, or the logits where there are no labels."""
        x = self._embedded(w, tokens)
        before = self._give_prefix(w, x)
        rotary = self._tables(w, x)
        mask, windowed = self._mask(w, x, before), self._window_mask(w, x, before)
        for index, layer in enumerate(self.blocks):
            its = windowed if windowed is not None and self.shape.is_windowed(index) else mask
            turning = rotary if self.shape.turns(index) else None
            x = self._layer(w, index, layer, x, turning, its)
            del its, turning
        del rotary, mask, windowed
        if before:
            for layer in self.blocks:
                _attention_of(layer).prefix = None
        x = self.run(w, "norm", x)
        if last_only:
            x = method(w, "__getitem__", x, (slice(None), slice(-1, None)))
        if "project_out" in self.children:
            x = self.run(w, "project_out", x)
        return self._answer(w, x, labels)

    def _embedded(self, w: World, tokens: Any) -> Any:
        x = self.run(w, "embed", tokens)
        if self.fields.get("input_require_grads"):
            x.requires_grad = True
        prompt = self.children.get("prompt")
        if isinstance(prompt, Prompt) and prompt.shape.method != "prefix":
            learned = method(w, "to", call(w, prompt, (x.shape[0],), {}), x.dtype)
            x = torch_function(w, "torch.cat", (learned, x), 1)
            del learned
        if "project_in" in self.children:
            x = self.run(w, "project_in", x)
        if "positions" in self.children:
            rows = torch_function(w, "torch.arange", x.shape[1], device=x.device)
            x = add(w, x, self.run(w, "positions", method(w, "unsqueeze", rows, 0)))
        if "embed_norm" in self.children:
            x = self.run(w, "embed_norm", x)
        if self.shape.embed_dropout and self.training:
            x = functional(w, "dropout", x, self.shape.embed_dropout, True)
        return x

    def _tables(self, w: World, x: Any) -> Any:
        if not self.shape.rotary or self.style.fused:
            return (None, None) if self.shape.rotary else None
        shape = self.shape
        size = int(shape.head_dim * shape.rotary) if shape.latent is None else shape.latent.turning
        if shape.rotary_complex:
            return (w.new((1, 1, x.shape[1], size // 2), complex64, "rotary table", x.device),)
        return tuple(w.new((1, 1, x.shape[1], size), x.dtype, "rotary table", x.device) for _ in "cs")

    def _give_prefix(self, w: World, x: Any) -> int:
        """Hands each layer its learned keys and values, copied as a cache copies them; how many there are."""
        prompt = self.children.get("prompt")
        if not isinstance(prompt, Prompt) or prompt.shape.method != "prefix":
            return 0
        shape, tokens, batch = self.shape, prompt.shape.tokens, x.shape[0]
        pairs = method(w, "to", call(w, prompt, (batch,), {}), x.dtype)
        pairs = method(w, "view", pairs, batch, tokens, 2 * len(self.blocks), shape.kv_heads, shape.head_dim)
        pairs = method(w, "permute", pairs, 2, 0, 3, 1, 4)
        for index, layer in enumerate(self.blocks):
            states = [method(w, "__getitem__", pairs, 2 * index + part) for part in (0, 1)]
            key, value = (torch_function(w, "torch.cat", [each], -2) for each in states)
            _attention_of(layer).prefix = (key, value)
        return tokens

    def _window_mask(self, w: World, x: Any, before: int) -> Any:
        """Of layers that see a window, where the text is longer."""
        length, window = x.shape[1], self.shape.window
        style = self.style
        if window is None or not style.by_transformers or style.fused:
            return None
        writes = _writes_out(self.shape, style) or self.shape.sinks
        if length <= window and not (writes and self.shape.full_every and length > 1):
            return None
        dtype = x.dtype if writes else boolean
        batch = x.shape[0] if dtype is not boolean else 1
        return w.new((batch, 1, length, length + before), dtype, "window mask", x.device)

    def _mask(self, w: World, x: Any, before: int) -> Any:
        """before: keys that every query sees besides those of the text."""
        length = x.shape[1]
        if length == 1:
            return None
        by_transformers = self.style.by_transformers and not self.style.fused
        if by_transformers and self._attends_its_way(length + before):
            return own_mask(w, self.shape.scores, self.shape.heads, x, length + before)
        if self.shape.alibi:
            batch = x.shape[0] if self.shape.masked and by_transformers else 1
            return w.new((batch, self.shape.heads, length, length + before), x.dtype, "alibi mask", x.device)
        sinks = self.shape.sinks and self.style.by_transformers
        if _writes_out(self.shape, self.style) or sinks:
            return w.new((x.shape[0], 1, length, length + before), x.dtype, "causal mask", x.device)
        if self.shape.masked and by_transformers:
            return w.new((x.shape[0], 1, length, length + before), boolean, "causal mask", x.device)
        if before and not self.style.fused:
            return w.new((x.shape[0], 1, length, length + before), boolean, "causal mask", x.device)
        return None

    def _attends_its_way(self, keys: int) -> bool:
        """Whether the model's own attention runs; its library knows no shared keys and no more positions."""
        shape = self.shape
        fits = shape.scores != "gpt_neo" or keys <= shape.positions
        return bool(shape.scores) and shape.heads == shape.kv_heads and fits

    def _layer(self, w: World, index: int, layer: Module, x: Any, rotary: Any, mask: Any) -> Any:
        kind = self.style.checkpointing
        if not self.training or kind == "none" or (kind == "half" and index % 2):
            return call(w, layer, (x, rotary, mask), {})
        if kind == "selective":
            x = selective(w, x, self._kept_bytes(x))
        offload = self.style.offload
        if offload:
            x = to_host(w, x)

        def body(x: Any, *rest: object) -> object:
            return call(w, layer, (to_card(w, x) if offload else x, *rest), {})

        return checkpoint(w, body, (x, rotary, mask), {}, reentrant=self.style.reentrant)

    def _kept_bytes(self, x: Any) -> int:
        """What selective checkpointing keeps a layer: attention's output and every second product."""
        shape = self.shape
        tokens = int(x.shape[0]) * int(x.shape[1])
        size = 2 if w_half(x) else 4
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if shape.latent is not None:
            q = shape.heads * (shape.latent.still + shape.latent.turning)
            kv = shape.latent.rank
        products = [q, kv, kv, shape.hidden, shape.inner, shape.inner, shape.hidden]
        kept = sum(products[1::2])
        return tokens * (size * (q + kept) + 4 * shape.heads)

    def _answer(self, w: World, x: Any, labels: Any) -> Any:
        style = self.style
        if labels is None:
            return self.run(w, "head", x)
        if style.loss == "chunked":
            return self._chunked(w, x, labels)
        logits = self._logits(w, x)
        del x
        return loss_of(w, style, logits, labels)

    def _logits(self, w: World, x: Any) -> Any:
        logits = self.run(w, "head", x)
        if self.shape.logit_softcap and not self.style.fused:
            logits = torch_function(w, "torch.div", logits, 30.0)
            logits = torch_function(w, "torch.tanh", logits)
            logits = torch_function(w, "torch.mul", logits, 30.0)
        if self.style.logits_fp32:
            logits = method(w, "float", logits)
        return logits

    def _chunked(self, w: World, x: Any, labels: Any) -> Any:
        """Head and loss over some positions a time; all chunks of the logits stay for backward."""
        size = self.style.loss_chunk or -(-x.shape[1] // 8)
        parts: Sequence[Any] = torch_function(w, "torch.split", x, size, 1)
        logits = [self._logits(w, part) for part in parts]
        del x, parts
        total: Any = None
        for index, part in enumerate(logits):
            target = labels_of(w, part.shape[0] * part.shape[1], labels)
            flat = method(w, "reshape", part, -1, part.shape[-1])
            if self.style.fused_loss:
                loss = cross_entropy_fused(w, flat, target)
            else:
                wide = method(w, "float", flat) if self.style.loss_chunk == 0 else flat
                loss = functional(w, "cross_entropy", wide, target)
                del wide
            total = loss if total is None else add(w, total, loss)
            del flat, loss, part
            if not self.style.logits_fp32:
                logits[index] = None
        return total


def _attention_of(layer: Module) -> Attention:
    attention = layer.child("attention")
    assert isinstance(attention, Attention)
    return attention


def w_half(x: Tensor) -> bool:
    return x.dtype.itemsize == 2


def labels_of(w: World, count: int, like: Any) -> Any:
    return w.new((count,), like.dtype, "labels", like.device)


def loss_of(w: World, style: Style, logits: Any, labels: Any) -> Any:
    """Cross entropy over every position, as the library writes it."""
    flat_labels = labels_of(w, logits.shape[0] * logits.shape[1], labels)
    if style.fused_loss:
        return cross_entropy_fused(w, method(w, "view", logits, -1, logits.shape[-1]), flat_labels)
    if style.loss in ("float", "shifted"):
        logits = method(w, "float", logits)
    if style.loss == "shifted":
        logits = method(w, "contiguous", method(w, "__getitem__", logits, (slice(None), slice(None, -1))))
        flat_labels = labels_of(w, logits.shape[0] * logits.shape[1], labels)
    flat = method(w, "view", logits, -1, logits.shape[-1])
    if style.loss == "split":
        pieces = torch_function(w, "torch.split", flat, 128, 0)
        losses = [
            functional(w, "cross_entropy", piece, labels_of(w, piece.shape[0], labels), reduction="none")
            for piece in pieces
        ]
        return method(w, "mean", torch_function(w, "torch.cat", losses))
    return functional(w, "cross_entropy", flat, flat_labels)


__all__ = ["Decoder", "DecoderLayer", "DecoderShape", "Style", "attend", "loss_of", "split_heads"]

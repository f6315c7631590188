"""Decoder-only language models: one parametrised architecture on the runtime.

`DecoderShape` holds the facts of a `config.json` that decide sizes; `Style` how a library computes the same
layer, which decides what is kept for backward. Both together run Llama, Mistral, Mixtral, Qwen, Gemma, Phi,
Falcon, MPT, OPT, BLOOM, GPT-2/J/NeoX/BigCode and their kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    grouped_linear,
    selective,
    to_card,
    to_host,
)
from torchwise_memory.families.projections import Projection, Projections, Prompt, PromptShape
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.linear import Identity
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.checkpoint import checkpoint
from torchwise_memory.runtime.dtypes import boolean, float32
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
    many leading layers stay dense, with `dense_inner`. embed_size: of the token table where it differs (OPT).
    gate_norms: extra elements of shared experts' gate.
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
    embed_dropout: float = 0.0
    dropout: float = 0.0
    attention_dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class Style:
    """How a library runs it.

    fused: a compiler fuses what is elementwise and keeps only inputs;
    fused_loss: that of the loss too. attention: "sdpa", "flash", "eager".
    expand_kv: keys and values are copied to every query head. norm_fp32: RMS norms compute on an fp32 copy.
    logits_fp32: a wrapper converts the model's output. loss: "float" (upcast, shifted by padding), "shifted"
    (upcast, shifted by a copy), "plain" (in the type of the logits), "chunked" (head and loss over
    `loss_chunk` positions a time). checkpointing: "none", "full", "selective" (products kept in turn,
    attention kept), "half" (every second layer). offload: saved tensors go to the host. cache: a key/value
    cache is filled while training.
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


class Norm(Module):
    native_name = "torchwise.RMSNorm"

    def build(self, w: World, size: int, style: Style) -> None:
        self.style = style
        self.new_parameter(w, "weight", (size,), None, None)

    def forward(self, w: World, x: Any) -> Any:
        weight = self.tensor("weight")
        if self.style.fused:
            return fused(w, "rms_norm", (x, weight), x.shape, x.dtype, saved=(x,))
        dtype = x.dtype
        wide = method(w, "to", x, float32) if self.style.norm_fp32 else x
        variance = method(w, "mean", method(w, "pow", wide, 2), -1, True)
        scale = torch_function(w, "torch.rsqrt", add(w, variance, 1e-6))
        wide = torch_function(w, "torch.mul", wide, scale)
        del scale, variance
        return torch_function(w, "torch.mul", weight, method(w, "to", wide, dtype))


class Gelu(Module):
    """A place for nothing: activations are functions here."""


def make_norm(w: World, shape: DecoderShape, style: Style, size: int = 0) -> Module:
    size = size or shape.hidden
    if shape.norm == "rms":
        norm = Norm()
        norm.build(w, size, style)
        return norm
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
        if shape.fused_qkv:
            self.children["qkv"] = make(w, "qkv", shape.hidden, q + 2 * kv, shape.q_bias)
        else:
            self.children["q"] = make(w, "q", shape.hidden, q, shape.q_bias)
            self.children["k"] = make(w, "k", shape.hidden, kv, shape.kv_bias)
            self.children["v"] = make(w, "v", shape.hidden, kv, shape.kv_bias)
        self.children["o"] = make(w, "o", q, shape.hidden, shape.out_bias)
        if shape.qk_norm:
            wide = shape.qk_norm == "all"
            self.children["q_norm"] = make_norm(w, shape, style, q if wide else shape.head_dim)
            self.children["k_norm"] = make_norm(w, shape, style, kv if wide else shape.head_dim)
        #: learned keys and values before those of the text, while a step runs
        self.prefix: tuple[Any, Any] | None = None

    def forward(self, w: World, x: Any, rotary: Any, mask: Any) -> Any:
        query, key, value = self._heads(w, x)
        del x
        if rotary is not None:
            query, key = self._rotated(w, query, rotary), self._rotated(w, key, rotary)
        if self.prefix is not None:
            key = torch_function(w, "torch.cat", (self.prefix[0], key), -2)
            value = torch_function(w, "torch.cat", (self.prefix[1], value), -2)
            self.prefix = (key, value)
        output = attend(w, self.shape, self.style, query, key, value, mask, self.training)
        del query, key, value
        return self.run(w, "o", output)

    def _heads(self, w: World, x: Any) -> tuple[Any, Any, Any]:
        size = self.shape.head_dim
        if self.shape.fused_qkv:
            mixed = self.run(w, "qkv", x)
            widths = [self.shape.heads * size, self.shape.kv_heads * size, self.shape.kv_heads * size]
            q, k, v = torch_function(w, "torch.split", mixed, widths, -1)
        else:
            q, k, v = (self.run(w, name, x) for name in ("q", "k", "v"))
        if self.shape.qk_norm == "all":
            q, k = self.run(w, "q_norm", q), self.run(w, "k_norm", k)
        batch, length = q.shape[0], q.shape[1]
        q, k, v = (method(w, "reshape", t, batch, length, -1, size) for t in (q, k, v))
        if self.shape.qk_norm == "head":
            q, k = self.run(w, "q_norm", q), self.run(w, "k_norm", k)
        q, k, v = (method(w, "transpose", t, 1, 2) for t in (q, k, v))
        return q, k, v

    def _rotated(self, w: World, x: Any, rotary: Any) -> Any:
        size = self.shape.head_dim
        turning = int(size * self.shape.rotary)
        if self.style.fused:
            return fused(w, "rope", (x,), x.shape, x.dtype, saved=())
        cos, sin = rotary
        if turning < size:
            still = method(w, "__getitem__", x, (Ellipsis, slice(turning, None)))
            x = method(w, "__getitem__", x, (Ellipsis, slice(None, turning)))
            return torch_function(w, "torch.cat", (_rotate(w, x, cos, sin), still), -1)
        return _rotate(w, x, cos, sin)


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
) -> Any:
    """(batch, heads, length, size) in, (batch, length, heads * size) out."""
    groups = query.shape[1] // key.shape[1]
    dropout = shape.attention_dropout if training else 0.0
    if style.attention == "eager" or shape.attention_softcap:
        return merge_heads(w, _eager(w, shape, query, key, value, mask, dropout, groups))
    expand = style.expand_kv or mask is not None
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
        enable_gqa=groups > 1 and not expand,
    )
    del query, key, value
    output = method(w, "transpose", output, 1, 2)
    return method(w, "reshape", output, *output.shape[:2], -1)


def _eager(
    w: World, shape: DecoderShape, q: Any, k: Any, v: Any, mask: Any, dropout: float, groups: int
) -> Any:
    if groups > 1:
        k, v = repeat_kv(w, k, groups), repeat_kv(w, v, groups)
    dtype = q.dtype
    weights = torch_function(
        w, "torch.mul", torch_function(w, "torch.matmul", q, method(w, "transpose", k, -1, -2)), 0.1
    )
    del q, k
    if shape.attention_softcap:
        weights = torch_function(w, "torch.tanh", torch_function(w, "torch.div", weights, 50.0))
        weights = torch_function(w, "torch.mul", weights, 50.0)
    if mask is not None:
        weights = add(w, weights, mask)
    weights = method(w, "to", functional(w, "softmax", weights, -1, dtype=float32), dtype)
    weights = functional(w, "dropout", weights, dropout, dropout > 0)
    output = torch_function(w, "torch.matmul", weights, v)
    return method(w, "contiguous", method(w, "transpose", output, 1, 2))


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
            if self.style.fused:
                return fused(w, "activation", (up,), up.shape, up.dtype, saved=(up,))
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
        self.children["router"] = make(w, "router", shape.hidden, shape.experts, False)
        for name, rows, columns in (
            ("gate", shape.inner, shape.hidden),
            ("up", shape.inner, shape.hidden),
            ("down", shape.hidden, shape.inner),
        ):
            self.children[name] = make.grouped(w, shape.experts, rows, columns)
        if shape.shared_inner:
            shared = FeedForward()
            shared.build(w, shape, style, make, shape.shared_inner)
            self.children["shared"] = shared
        if shape.shared_gate:
            self.children["shared_gate"] = make(w, "shared_gate", shape.hidden, 1, False)

    def forward(self, w: World, x: Any) -> Any:
        batch, length, hidden = x.shape
        flat = method(w, "reshape", x, batch * length, hidden)
        scores = functional(w, "softmax", self.run(w, "router", flat), -1, dtype=float32)
        rows = batch * length * self.shape.experts_used
        picked = fused(w, "index", (flat,), (rows, hidden), x.dtype, saved=())
        gate = self._grouped(w, "gate", picked)
        up = self._grouped(w, "up", picked)
        del picked
        if self.style.fused:
            inner = fused(w, "gated activation", (gate, up), gate.shape, gate.dtype, saved=(gate, up))
        else:
            inner = torch_function(w, "torch.mul", activation(w, self.shape.act, gate), up)
        del gate, up
        out = self._grouped(w, "down", inner)
        del inner
        weighted = fused(w, "mul", (out, scores), (rows, hidden), x.dtype, saved=(out, scores))
        del out
        result = fused(w, "index_add", (weighted,), (batch, length, hidden), x.dtype, saved=())
        del weighted
        if "shared" in self.children:
            result = add(w, result, self.run(w, "shared", x))
        return result

    def _grouped(self, w: World, name: str, x: Any) -> Any:
        return grouped_linear(w, x, self.child(name).tensor("weight"))


class DecoderLayer(Block):
    native_name = "torchwise.DecoderLayer"

    def build(self, w: World, shape: DecoderShape, style: Style, make: Projections, index: int) -> None:
        self.shape, self.style = shape, style
        attention = Attention()
        attention.build(w, shape, style, make)
        self.children["attention"] = attention
        mlp: Module
        if shape.experts and index >= shape.dense_layers:
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
        mask = self._mask(w, x, before)
        for index, layer in enumerate(self.blocks):
            x = self._layer(w, index, layer, x, rotary, mask)
        del rotary, mask
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
        size = int(self.shape.head_dim * self.shape.rotary)
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

    def _mask(self, w: World, x: Any, before: int) -> Any:
        """before: keys that every query sees besides those of the text."""
        length = x.shape[1]
        if length == 1:
            return None
        if self.shape.alibi:
            return w.new((1, self.shape.heads, length, length + before), x.dtype, "alibi mask", x.device)
        if self.style.attention == "eager" or self.shape.attention_softcap:
            return w.new((x.shape[0], 1, length, length + before), x.dtype, "causal mask", x.device)
        if before and not self.style.fused:
            return w.new((x.shape[0], 1, length, length + before), boolean, "causal mask", x.device)
        return None

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
            logits = torch_function(w, "torch.tanh", torch_function(w, "torch.div", logits, 30.0))
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

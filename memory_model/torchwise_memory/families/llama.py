"""Llama, Mistral, Qwen2 and Qwen3: one decoder with rotary positions, RMS norms and gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchwise_memory.families.base import (
    Block,
    Config,
    DynamicCache,
    ModelOutput,
    PreTrainedModel,
    activation,
    add,
    attend,
    causal_lm_loss,
    classification_loss,
    embedding,
    linear,
    members,
    merge_heads,
    module_list,
    repeat_kv,
    run_block,
    split_heads,
)
from torchwise_memory.families.base import attention_mask as causal_mask
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import method, torch_function
from torchwise_memory.runtime.dtypes import float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `LlamaConfig`
LLAMA: Mapping[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "use_cache": True,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "qkv_bias": False,
    "qk_norm": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "sliding_window": None,
    "num_labels": 2,
}
MISTRAL: Mapping[str, object] = {
    **LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
QWEN2: Mapping[str, object] = {
    **LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "qkv_bias": True,
}
QWEN3: Mapping[str, object] = {**QWEN2, "qkv_bias": False, "qk_norm": True, "head_dim": 128}


class RMSNorm(Module):
    """The composite of transformers, in fp32."""

    native_name = "transformers.models.llama.modeling_llama.LlamaRMSNorm"

    def build(self, w: World, size: int, eps: float) -> None:
        self.fields["variance_epsilon"] = eps
        self.new_parameter(w, "weight", (size,), None, None)

    def forward(self, w: World, hidden_states: Any) -> Any:
        dtype = hidden_states.dtype
        hidden_states = method(w, "to", hidden_states, float32)
        variance = method(w, "mean", method(w, "pow", hidden_states, 2), -1, True)
        scale = torch_function(w, "torch.rsqrt", add(w, variance, self.number("variance_epsilon")))
        hidden_states = torch_function(w, "torch.mul", hidden_states, scale)
        del scale
        return torch_function(w, "torch.mul", self.tensor("weight"), method(w, "to", hidden_states, dtype))


class RotaryEmbedding(Module):
    native_name = "transformers.models.llama.modeling_llama.LlamaRotaryEmbedding"

    def build(self, w: World, size: int) -> None:
        for name in ("inv_freq", "original_inv_freq"):
            buffer = torch_function(w, "torch.empty", (size // 2,), dtype=float32)
            self.register_buffer(w, name, buffer, persistent=False)

    def forward(self, w: World, x: Tensor, position_ids: Tensor) -> Any:
        positions = method(w, "float", method(w, "unsqueeze", position_ids, -1))
        freqs = torch_function(w, "torch.mul", positions, self.tensor("inv_freq"))
        emb = torch_function(w, "torch.cat", (freqs, freqs), -1)
        cos = torch_function(w, "torch.mul", torch_function(w, "torch.cos", emb), 1.0)
        sin = torch_function(w, "torch.mul", torch_function(w, "torch.sin", emb), 1.0)
        return method(w, "to", cos, x.dtype), method(w, "to", sin, x.dtype)


class Attention(Module):
    native_name = "transformers.models.llama.modeling_llama.LlamaAttention"

    out_name = "o_proj"

    def build(self, w: World, config: Config, layer: int) -> None:
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        self.config = config
        self.layer = layer
        self.size = head_size(config)
        key_heads = config.integer("num_key_value_heads") if config.lookup("num_key_value_heads") else heads
        self.groups = heads // key_heads
        self.project(w, config, hidden, heads * self.size, key_heads * self.size)

    def project(self, w: World, config: Config, hidden: int, query: int, key: int) -> None:
        """The products; `query` and `key` are the widths of all heads."""
        bias = config.flag("attention_bias")
        qkv_bias = bias or config.flag("qkv_bias")
        self.children["q_proj"] = linear(w, hidden, query, qkv_bias)
        self.children["k_proj"] = linear(w, hidden, key, qkv_bias)
        self.children["v_proj"] = linear(w, hidden, key, qkv_bias)
        self.children[self.out_name] = linear(w, query, hidden, bias)
        if config.flag("qk_norm"):
            for name in ("q_norm", "k_norm"):
                self.children[name] = rms_norm(w, self.size, config)

    def forward(
        self, w: World, hidden_states: Tensor, mask: Tensor | None, cache: DynamicCache | None, positions: Any
    ) -> Any:
        return self.attend_to(w, hidden_states, mask, cache, positions)

    def attend_to(self, w: World, x: Tensor, mask: Any, cache: DynamicCache | None, positions: Any) -> Any:
        query, key = self._heads(w, "q", x), self._heads(w, "k", x)
        return self.finish(w, query, key, self._heads(w, "v", x), mask, cache, positions)

    def finish(
        self,
        w: World,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        cache: DynamicCache | None,
        positions: Any,
    ) -> Any:
        """From heads (batch, heads, length, size) to the output and the probabilities.

        The caller gives its heads away: after turning, only what came of them is held.
        """
        turned = self.turned(w, query, key, positions)
        query, key = turned
        del turned
        if cache is not None:
            key, value = cache.update(w, key, value, self.layer)
        output, weights = self.attended(w, query, key, value, mask)
        return self.run(w, self.out_name, merge_heads(w, output)), weights

    def turned(self, w: World, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        return rotated(w, query, key, *positions)

    @property
    def dropout(self) -> float:
        return self.config.number("attention_dropout") if self.training else 0.0

    def attended(self, w: World, query: Any, key: Any, value: Any, mask: Tensor | None) -> tuple[Any, Any]:
        implementation = self.config.text("_attn_implementation")
        output, weights = attend(
            w,
            implementation,
            query,
            key,
            value,
            mask,
            self.dropout,
            self.size**-0.5,
            causal=True,
            groups=self.groups,
            style="llama",
        )
        return output, weights

    def _heads(self, w: World, name: str, hidden_states: Tensor) -> Any:
        if f"{name}_norm" not in self.children:
            return split_heads(w, self.run(w, f"{name}_proj", hidden_states), self.size)
        projected = self.run(w, f"{name}_proj", hidden_states)
        projected = method(w, "view", projected, *projected.shape[:-1], -1, self.size)
        return method(w, "transpose", self.run(w, f"{name}_norm", projected), 1, 2)


class MLP(Module):
    native_name = "transformers.models.llama.modeling_llama.LlamaMLP"

    def build(self, w: World, config: Config) -> None:
        hidden, inner, bias = (
            config.integer("hidden_size"),
            config.integer("intermediate_size"),
            config.flag("mlp_bias"),
        )
        self.config = config
        self.children["gate_proj"] = linear(w, hidden, inner, bias)
        self.children["up_proj"] = linear(w, hidden, inner, bias)
        self.children["down_proj"] = linear(w, inner, hidden, bias)

    def forward(self, w: World, x: Any) -> Any:
        return self.run(
            w,
            "down_proj",
            torch_function(
                w,
                "torch.mul",
                activation(w, self.config.text("hidden_act"), self.run(w, "gate_proj", x)),
                self.run(w, "up_proj", x),
            ),
        )


class DecoderLayer(Block):
    """Relatives change `attention_class`, `mlp_class`, `norms` and `make_norm`, or forward itself."""

    native_name = "transformers.models.llama.modeling_llama.LlamaDecoderLayer"
    attention_class: type[Attention] = Attention
    mlp_class: type[MLP] = MLP
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def build(self, w: World, config: Config, layer: int) -> None:
        attention, mlp = self.attention_class(), self.mlp_class()
        attention.build(w, config, layer)
        mlp.build(w, config)
        self.config = config
        self.children["self_attn"] = attention
        self.children["mlp"] = mlp
        for name in self.norms:
            self.children[name] = self.make_norm(w, config)

    def make_norm(self, w: World, config: Config) -> Module:
        return rms_norm(w, config.integer("hidden_size"), config)

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None,
        cache: DynamicCache | None,
        positions: Any,
        position_ids: Tensor | None = None,
    ) -> Any:
        """`position_ids` goes unused, yet a checkpointed layer keeps it with its arguments."""
        residual = hidden_states
        hidden_states = self.run(w, "input_layernorm", hidden_states)
        hidden_states, _ = self.run(w, "self_attn", hidden_states, mask, cache, positions)
        hidden_states = add(w, residual, hidden_states)
        residual = hidden_states
        hidden_states = self.run(w, "post_attention_layernorm", hidden_states)
        hidden_states = self.run(w, "mlp", hidden_states)
        return add(w, residual, hidden_states)


class LlamaModel(PreTrainedModel):
    """Relatives change the layer, the names of embedding and last norm, and what follows the embedding."""

    native_name = "transformers.LlamaModel"
    layer_class: type[DecoderLayer] = DecoderLayer
    embed_name = "embed_tokens"
    norm_name = "norm"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        hidden = config.integer("hidden_size")
        padding: Any = config.lookup("pad_token_id")
        self.children[self.embed_name] = embedding(w, config.integer("vocab_size"), hidden, padding)
        layers: list[Module] = []
        for index in range(config.integer("num_hidden_layers")):
            layer = self.layer_class()
            layer.build(w, config, index)
            layers.append(layer)
        self.children["layers"] = module_list(layers)
        self.children[self.norm_name] = self.make_norm(w, config)
        rotary = RotaryEmbedding()
        rotary.build(w, self.rotary_size(config))
        self.children["rotary_emb"] = rotary

    def make_norm(self, w: World, config: Config) -> Module:
        return self.layer_class().make_norm(w, config)

    def rotary_size(self, config: Config) -> int:
        """How many elements of a head turn."""
        return head_size(config)

    def started(self, w: World, embeds: Any) -> Any:
        """What the layers get."""
        return embeds

    def mask_of(self, masks: Mapping[bool, Tensor | None], index: int) -> Tensor | None:
        """masks: with the window or without; which one the layer of that index takes."""
        return masks[True]

    @property
    def tokens(self) -> Module:
        return self.child(self.embed_name)

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        embeds: Tensor = self._embed(w, input_ids) if inputs_embeds is None else inputs_embeds
        cache = cache or past_key_values or self.new_cache(use_cache)
        length = embeds.shape[1]
        seen = cache.get_seq_length(w) if cache is not None else 0
        if position_ids is None:
            position_ids = torch_function(w, "torch.arange", length, device=embeds.device)
            position_ids = method(w, "unsqueeze", add(w, position_ids, seen), 0)
        masks = self.make_masks(w, embeds, attention_mask, seen + length)
        hidden_states: Any = self.started(w, embeds)
        positions = self.positioned(w, hidden_states, position_ids)
        for index, layer in enumerate(members(self.child("layers"))):
            mask = self.mask_of(masks, index)
            turning = self.positions_of(positions, index)
            options = {"mask": mask, "cache": cache, "positions": turning, "position_ids": position_ids}
            hidden_states = run_block(w, layer, hidden_states, **options)
        hidden_states = self.ended(w, hidden_states)
        return ModelOutput(last_hidden_state=hidden_states, past_key_values=cache)

    def positioned(self, w: World, hidden_states: Any, position_ids: Any) -> Any:
        """What attention turns heads by."""
        return self.run(w, "rotary_emb", hidden_states, position_ids)

    def positions_of(self, positions: Any, index: int) -> Any:
        """Those of the layer of that index."""
        return positions

    def ended(self, w: World, hidden_states: Any) -> Any:
        return self.run(w, self.norm_name, hidden_states)

    def make_masks(
        self, w: World, embeds: Tensor, padding: Tensor | None, keys: int
    ) -> Mapping[bool, Tensor | None]:
        window: Any = self.config.lookup("sliding_window")
        windowed = causal_mask(w, self.config, embeds, padding, keys, causal=True, window=window)
        return {True: windowed}

    def _embed(self, w: World, input_ids: Tensor | None) -> Any:
        if input_ids is None:
            raise Unsupported(self.native_name, "neither input_ids nor inputs_embeds is known")
        embeds = self.run(w, self.embed_name, input_ids)
        if self.fields.get("input_require_grads"):
            embeds.requires_grad = True
        return embeds


class LlamaForCausalLM(PreTrainedModel):
    native_name = "transformers.LlamaForCausalLM"
    model_class: type[LlamaModel] = LlamaModel
    body_name = "model"
    head_bias = False

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = self.model_class()
        body.build(w, config)
        head = linear(w, config.integer("hidden_size"), config.integer("vocab_size"), bias=self.head_bias)
        if config.flag("tie_word_embeddings"):
            head.parameters["weight"] = body.tokens.parameters["weight"]
        self.children.update({self.body_name: body, "lm_head": head})

    def capped(self, w: World, logits: Any) -> Any:
        """What the head's result becomes before the loss."""
        return logits

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        past_key_values: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = self.run(
            w,
            self.body_name,
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache or past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
        )
        hidden_states = outputs.lookup("last_hidden_state")
        if logits_to_keep:
            hidden_states = method(
                w, "__getitem__", hidden_states, (slice(None), slice(-logits_to_keep, None))
            )
        logits = self.capped(w, self.run(w, "lm_head", hidden_states))
        loss = None if labels is None else causal_lm_loss(w, logits, labels)
        return ModelOutput(loss=loss, logits=logits, past_key_values=outputs.lookup("past_key_values"))


class LlamaForSequenceClassification(PreTrainedModel):
    native_name = "transformers.LlamaForSequenceClassification"
    model_class: type[LlamaModel] = LlamaModel
    body_name = "model"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = self.model_class()
        body.build(w, config)
        self.children[self.body_name] = body
        self.children["score"] = linear(
            w, config.integer("hidden_size"), config.integer("num_labels"), bias=False
        )

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.run(w, self.body_name, input_ids, **kwargs)
        logits = self.run(w, "score", outputs.lookup("last_hidden_state"))
        pooled = method(w, "__getitem__", logits, (slice(None), -1))
        loss = None if labels is None else classification_loss(w, pooled, labels, self.config)
        return ModelOutput(loss=loss, logits=pooled, past_key_values=outputs.lookup("past_key_values"))


def repeated(w: World, states: Tensor, groups: int) -> Any:
    return states if groups == 1 else repeat_kv(w, states, groups)


def head_size(config: Config) -> int:
    if config.lookup("head_dim") is not None:
        return config.integer("head_dim")
    return config.integer("hidden_size") // config.integer("num_attention_heads")


def rms_norm(w: World, size: int, config: Config) -> RMSNorm:
    layer = RMSNorm()
    layer.build(w, size, config.number("rms_norm_eps"))
    return layer


def rotated(w: World, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Any, Any]:
    """`apply_rotary_pos_emb`."""
    cos, sin = method(w, "unsqueeze", cos, 1), method(w, "unsqueeze", sin, 1)
    return rotated_one(w, query, cos, sin), rotated_one(w, key, cos, sin)


def rotated_one(w: World, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return add(
        w,
        torch_function(w, "torch.mul", x, cos),
        torch_function(w, "torch.mul", _rotate_half(w, x), sin),
    )


def _rotate_half(w: World, x: Tensor) -> Any:
    half = x.shape[-1] // 2
    first = method(w, "__getitem__", x, (Ellipsis, slice(None, half)))
    second = method(w, "__getitem__", x, (Ellipsis, slice(half, None)))
    return torch_function(w, "torch.cat", (torch_function(w, "torch.neg", second), first), -1)


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": LlamaModel,
    "AutoModelForCausalLM": LlamaForCausalLM,
    "AutoModelForSequenceClassification": LlamaForSequenceClassification,
}

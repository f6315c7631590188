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

    def build(self, w: World, config: Config, layer: int) -> None:
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        self.config = config
        self.layer = layer
        self.size = head_size(config)
        key_heads = config.integer("num_key_value_heads") if config.lookup("num_key_value_heads") else heads
        self.groups = heads // key_heads
        bias = config.flag("attention_bias")
        qkv_bias = bias or config.flag("qkv_bias")
        self.children["q_proj"] = linear(w, hidden, heads * self.size, qkv_bias)
        self.children["k_proj"] = linear(w, hidden, key_heads * self.size, qkv_bias)
        self.children["v_proj"] = linear(w, hidden, key_heads * self.size, qkv_bias)
        self.children["o_proj"] = linear(w, heads * self.size, hidden, bias)
        if config.flag("qk_norm"):
            for name in ("q_norm", "k_norm"):
                self.children[name] = rms_norm(w, self.size, config)

    def forward(
        self, w: World, hidden_states: Tensor, mask: Tensor | None, cache: DynamicCache | None, positions: Any
    ) -> Any:
        query, key = self._heads(w, "q", hidden_states), self._heads(w, "k", hidden_states)
        value = self._heads(w, "v", hidden_states)
        query, key = rotated(w, query, key, *positions)
        if cache is not None:
            key, value = cache.update(w, key, value, self.layer)
        dropout = self.config.number("attention_dropout") if self.training else 0.0
        implementation = self.config.text("_attn_implementation")
        output, weights = attend(
            w,
            implementation,
            query,
            key,
            value,
            mask,
            dropout,
            self.size**-0.5,
            causal=True,
            groups=self.groups,
            style="llama",
        )
        output = merge_heads(w, output)
        return self.run(w, "o_proj", output), weights

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
    native_name = "transformers.models.llama.modeling_llama.LlamaDecoderLayer"

    def build(self, w: World, config: Config, layer: int) -> None:
        attention, mlp = Attention(), MLP()
        attention.build(w, config, layer)
        mlp.build(w, config)
        self.children["self_attn"] = attention
        self.children["mlp"] = mlp
        for name in ("input_layernorm", "post_attention_layernorm"):
            self.children[name] = rms_norm(w, config.integer("hidden_size"), config)

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
    native_name = "transformers.LlamaModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        hidden = config.integer("hidden_size")
        padding: Any = config.lookup("pad_token_id")
        self.children["embed_tokens"] = embedding(w, config.integer("vocab_size"), hidden, padding)
        layers: list[Module] = []
        for index in range(config.integer("num_hidden_layers")):
            layer = DecoderLayer()
            layer.build(w, config, index)
            layers.append(layer)
        self.children["layers"] = module_list(layers)
        self.children["norm"] = rms_norm(w, hidden, config)
        rotary = RotaryEmbedding()
        rotary.build(w, head_size(config))
        self.children["rotary_emb"] = rotary

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
        window: Any = self.config.lookup("sliding_window")
        mask = causal_mask(w, self.config, embeds, attention_mask, seen + length, causal=True, window=window)
        hidden_states: Any = embeds
        positions = self.run(w, "rotary_emb", hidden_states, position_ids)
        for layer in members(self.child("layers")):
            options = {"mask": mask, "cache": cache, "positions": positions, "position_ids": position_ids}
            hidden_states = run_block(w, layer, hidden_states, **options)
        hidden_states = self.run(w, "norm", hidden_states)
        return ModelOutput(last_hidden_state=hidden_states, past_key_values=cache)

    def _embed(self, w: World, input_ids: Tensor | None) -> Any:
        if input_ids is None:
            raise Unsupported(self.native_name, "neither input_ids nor inputs_embeds is known")
        embeds = self.run(w, "embed_tokens", input_ids)
        if self.fields.get("input_require_grads"):
            embeds.requires_grad = True
        return embeds


class LlamaForCausalLM(PreTrainedModel):
    native_name = "transformers.LlamaForCausalLM"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = LlamaModel()
        body.build(w, config)
        head = linear(w, config.integer("hidden_size"), config.integer("vocab_size"), bias=False)
        if config.flag("tie_word_embeddings"):
            head.parameters["weight"] = body.child("embed_tokens").parameters["weight"]
        self.children.update(model=body, lm_head=head)

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
            "model",
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
        logits = self.run(w, "lm_head", hidden_states)
        loss = None if labels is None else causal_lm_loss(w, logits, labels)
        return ModelOutput(loss=loss, logits=logits, past_key_values=outputs.lookup("past_key_values"))


class LlamaForSequenceClassification(PreTrainedModel):
    native_name = "transformers.LlamaForSequenceClassification"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = LlamaModel()
        body.build(w, config)
        self.children["model"] = body
        self.children["score"] = linear(
            w, config.integer("hidden_size"), config.integer("num_labels"), bias=False
        )

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.run(w, "model", input_ids, **kwargs)
        logits = self.run(w, "score", outputs.lookup("last_hidden_state"))
        pooled = method(w, "__getitem__", logits, (slice(None), -1))
        loss = None if labels is None else classification_loss(w, pooled, labels, self.config)
        return ModelOutput(loss=loss, logits=pooled, past_key_values=outputs.lookup("past_key_values"))


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
    return _rotate(w, query, cos, sin), _rotate(w, key, cos, sin)


def _rotate(w: World, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
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

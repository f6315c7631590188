"""Gemma 3 (its language model) and OLMo 2: norms of queries and keys, norms after each half of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torchwise_memory.families import llama
from torchwise_memory.families.base import Config, DynamicCache, add, attention_mask, split_heads
from torchwise_memory.families.decoders import GEMMA2, Gemma2Layer, GemmaModel, GemmaNorm
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import method, torch_function
from torchwise_memory.runtime.dtypes import float32
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `Gemma3TextConfig`
GEMMA3: Mapping[str, object] = {
    **GEMMA2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "layer_types": None,
}
#: `Olmo2Config`
OLMO2: Mapping[str, object] = {**llama.LLAMA, "vocab_size": 50304, "rms_norm_eps": 1e-5, "pad_token_id": 1}
#: Every so many layers of Gemma 3 see all tokens, the others a window.
FULL_EVERY = 6


class Gemma3Attention(llama.Attention):
    native_name = "transformers.models.gemma3.modeling_gemma3.Gemma3Attention"

    def project(self, w: World, config: Config, hidden: int, query: int, key: int) -> None:
        super().project(w, config, hidden, query, key)
        for name in ("query_norm", "key_norm"):
            self.children[name] = GemmaNorm().build(w, self.size, config.number("rms_norm_eps"))

    def attend_to(self, w: World, x: Tensor, mask: Any, cache: DynamicCache | None, positions: Any) -> Any:
        query, key, value = (split_heads(w, self.run(w, f"{n}_proj", x), self.size) for n in "qkv")
        query = self.run(w, "query_norm", query)
        key = self.run(w, "key_norm", key)
        return self.finish(w, query, key, value, mask, cache, positions)


class Gemma3Layer(Gemma2Layer):
    native_name = "transformers.models.gemma3.modeling_gemma3.Gemma3DecoderLayer"
    attention_class = Gemma3Attention


class Gemma3TextModel(GemmaModel):
    """Layers with a window and without have rotary tables and masks of their own."""

    native_name = "transformers.Gemma3TextModel"
    layer_class = Gemma3Layer

    def build(self, w: World, config: Config) -> None:
        super().build(w, config)
        local = llama.RotaryEmbedding()
        local.build(w, self.rotary_size(config))
        self.children["rotary_local"] = local

    def make_masks(
        self, w: World, embeds: Tensor, padding: Tensor | None, keys: int
    ) -> Mapping[bool, Tensor | None]:
        full = attention_mask(w, self.config, embeds, padding, keys, causal=True)
        return {False: full, True: super().make_masks(w, embeds, padding, keys)[True]}

    def mask_of(self, masks: Mapping[bool, Tensor | None], index: int) -> Tensor | None:
        return masks[self.has_window(index)]

    def has_window(self, index: int) -> bool:
        """Whether the layer of that index sees a window."""
        kinds = self.config.lookup("layer_types")
        if isinstance(kinds, list | tuple):
            return str(cast("Sequence[object]", kinds)[index]) == "sliding_attention"
        return (index + 1) % FULL_EVERY != 0

    def positioned(self, w: World, hidden_states: Any, position_ids: Any) -> Any:
        tables = super().positioned(w, hidden_states, position_ids)
        return tables, self.run(w, "rotary_local", hidden_states, position_ids)

    def positions_of(self, positions: Any, index: int) -> Any:
        return positions[1 if self.has_window(index) else 0]


class Olmo2Norm(llama.RMSNorm):
    """The weight multiplies in fp32."""

    native_name = "transformers.models.olmo2.modeling_olmo2.Olmo2RMSNorm"

    def forward(self, w: World, hidden_states: Any) -> Any:
        dtype = hidden_states.dtype
        hidden_states = method(w, "to", hidden_states, float32)
        variance = method(w, "mean", method(w, "pow", hidden_states, 2), -1, True)
        scale = torch_function(w, "torch.rsqrt", add(w, variance, self.number("variance_epsilon")))
        hidden_states = torch_function(w, "torch.mul", hidden_states, scale)
        del scale
        return method(w, "to", torch_function(w, "torch.mul", self.tensor("weight"), hidden_states), dtype)


def olmo2_norm(w: World, size: int, config: Config) -> Module:
    norm = Olmo2Norm()
    norm.build(w, size, config.number("rms_norm_eps"))
    return norm


class Olmo2Rotary(llama.RotaryEmbedding):
    """Tables stay in fp32."""

    native_name = "transformers.models.olmo2.modeling_olmo2.Olmo2RotaryEmbedding"

    def forward(self, w: World, x: Tensor, position_ids: Tensor) -> Any:
        positions = method(w, "float", method(w, "unsqueeze", position_ids, -1))
        freqs = torch_function(w, "torch.mul", positions, self.tensor("inv_freq"))
        emb = torch_function(w, "torch.cat", (freqs, freqs), -1)
        cos = torch_function(w, "torch.mul", torch_function(w, "torch.cos", emb), 1.0)
        return cos, torch_function(w, "torch.mul", torch_function(w, "torch.sin", emb), 1.0)


class Olmo2Attention(llama.Attention):
    """Norms over all heads of queries and of keys; heads turn in fp32."""

    native_name = "transformers.models.olmo2.modeling_olmo2.Olmo2Attention"

    def project(self, w: World, config: Config, hidden: int, query: int, key: int) -> None:
        super().project(w, config, hidden, query, key)
        self.children["query_norm"] = olmo2_norm(w, query, config)
        self.children["key_norm"] = olmo2_norm(w, key, config)

    def attend_to(self, w: World, x: Tensor, mask: Any, cache: DynamicCache | None, positions: Any) -> Any:
        query = self.run(w, "query_norm", self.run(w, "q_proj", x))
        key = self.run(w, "key_norm", self.run(w, "k_proj", x))
        value = self.run(w, "v_proj", x)
        query, key, value = (split_heads(w, each, self.size) for each in (query, key, value))
        return self.finish(w, query, key, value, mask, cache, positions)

    def turned(self, w: World, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        dtypes = query.dtype, key.dtype
        query, key = llama.rotated(w, query, key, *positions)
        return method(w, "to", query, dtypes[0]), method(w, "to", key, dtypes[1])


class Olmo2Layer(llama.DecoderLayer):
    """Norms come after attention and feed-forward only."""

    native_name = "transformers.models.olmo2.modeling_olmo2.Olmo2DecoderLayer"
    attention_class = Olmo2Attention
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def make_norm(self, w: World, config: Config) -> Module:
        return olmo2_norm(w, config.integer("hidden_size"), config)

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None,
        cache: DynamicCache | None,
        positions: Any,
        position_ids: Tensor | None = None,
    ) -> Any:
        residual = hidden_states
        hidden_states, _ = self.run(w, "self_attn", hidden_states, mask, cache, positions)
        hidden_states = self.run(w, "post_attention_layernorm", hidden_states)
        hidden_states = add(w, residual, hidden_states)
        residual = hidden_states
        hidden_states = self.run(w, "mlp", hidden_states)
        hidden_states = self.run(w, "post_feedforward_layernorm", hidden_states)
        return add(w, residual, hidden_states)


class Olmo2Model(llama.LlamaModel):
    native_name = "transformers.Olmo2Model"
    layer_class = Olmo2Layer

    def build(self, w: World, config: Config) -> None:
        super().build(w, config)
        rotary = Olmo2Rotary()
        rotary.build(w, self.rotary_size(config))
        self.children["rotary_emb"] = rotary

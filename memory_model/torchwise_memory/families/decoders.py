"""Relatives of Llama in transformers: Gemma 1 and 2, Phi 1 to 3, GPT-NeoX, OPT, Mixtral and others.

Each follows `transformers/models/<type>/modeling_<type>.py` where it differs from Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torchwise_memory.families import llama
from torchwise_memory.families.base import (
    Config,
    DynamicCache,
    PreTrainedModel,
    activation,
    add,
    attention_mask,
    dropout_layer,
    embedding,
    layer_norm,
    linear,
    split_heads,
)
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import float32, int64
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

_BASE: Mapping[str, object] = llama.LLAMA


def plain_norm(w: World, config: Config) -> Module:
    return layer_norm(w, config.integer("hidden_size"), config.number("layer_norm_eps"))


def causal(
    kind: str, model: type[llama.LlamaModel], body: str = "model", head_bias: bool = False, cap: bool = False
) -> Mapping[str, type[PreTrainedModel]]:
    """The heads over a body: `<kind>ForCausalLM` and `<kind>ForSequenceClassification`."""

    class ForCausalLM(llama.LlamaForCausalLM):
        native_name = f"transformers.{kind}ForCausalLM"
        model_class = model

        def capped(self, w: World, logits: Any) -> Any:
            if not cap or self.config.lookup("final_logit_softcapping") is None:
                return logits
            limit = self.config.number("final_logit_softcapping")
            logits = torch_function(w, "torch.div", logits, limit)
            logits = torch_function(w, "torch.tanh", logits)
            return torch_function(w, "torch.mul", logits, limit)

    class ForSequenceClassification(llama.LlamaForSequenceClassification):
        native_name = f"transformers.{kind}ForSequenceClassification"
        model_class = model

    ForCausalLM.__name__ = f"{kind}ForCausalLM"
    ForSequenceClassification.__name__ = f"{kind}ForSequenceClassification"
    ForCausalLM.body_name = ForSequenceClassification.body_name = body
    ForCausalLM.head_bias = head_bias
    return MappingProxyType(
        {
            "AutoModel": model,
            "AutoModelForCausalLM": ForCausalLM,
            "AutoModelForSequenceClassification": ForSequenceClassification,
        }
    )


# --------------------------------------------------------------------------- Gemma

#: `GemmaConfig`
GEMMA: Mapping[str, object] = {
    **_BASE,
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
#: `Gemma2Config`
GEMMA2: Mapping[str, object] = {
    **GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


class GemmaNorm(Module):
    """In fp32, the weight as a distance from one."""

    native_name = "transformers.models.gemma.modeling_gemma.GemmaRMSNorm"

    def build(self, w: World, size: int, eps: float) -> GemmaNorm:
        self.fields["eps"] = eps
        self.new_parameter(w, "weight", (size,), None, None)
        return self

    def forward(self, w: World, x: Any) -> Any:
        output = self._normalised(w, method(w, "float", x))
        weight = add(w, method(w, "float", self.tensor("weight")), 1.0)
        output = torch_function(w, "torch.mul", output, weight)
        del weight
        return method(w, "to", output, x.dtype)

    def _normalised(self, w: World, x: Any) -> Any:
        variance = method(w, "mean", method(w, "pow", x, 2), -1, True)
        return torch_function(w, "torch.mul", x, torch_function(w, "torch.rsqrt", add(w, variance, 1e-6)))


class GemmaLayer(llama.DecoderLayer):
    native_name = "transformers.models.gemma.modeling_gemma.GemmaDecoderLayer"

    def make_norm(self, w: World, config: Config) -> Module:
        return GemmaNorm().build(w, config.integer("hidden_size"), config.number("rms_norm_eps"))


class GemmaModel(llama.LlamaModel):
    native_name = "transformers.GemmaModel"
    layer_class = GemmaLayer

    def started(self, w: World, embeds: Any) -> Any:
        return torch_function(w, "torch.mul", embeds, self.config.integer("hidden_size") ** 0.5)


class Gemma2Attention(llama.Attention):
    """Scores are capped where attention is written out; a fused kernel knows no cap."""

    native_name = "transformers.models.gemma2.modeling_gemma2.Gemma2Attention"

    def attended(self, w: World, query: Any, key: Any, value: Any, mask: Tensor | None) -> tuple[Any, Any]:
        cap = self.config.lookup("attn_logit_softcapping")
        if self.config.text("_attn_implementation") != "eager" or cap is None:
            return super().attended(w, query, key, value, mask)
        limit = self.config.number("attn_logit_softcapping")
        key, value = llama.repeated(w, key, self.groups), llama.repeated(w, value, self.groups)
        weights = torch_function(w, "torch.matmul", query, method(w, "transpose", key, 2, 3))
        weights = torch_function(w, "torch.mul", weights, self.size**-0.5)
        weights = torch_function(w, "torch.div", weights, limit)
        weights = torch_function(w, "torch.tanh", weights)
        weights = torch_function(w, "torch.mul", weights, limit)
        if mask is not None:
            weights = add(w, weights, mask)
        weights = method(w, "to", functional(w, "softmax", weights, -1, dtype=float32), query.dtype)
        weights = functional(w, "dropout", weights, self.dropout, self.training)
        output = torch_function(w, "torch.matmul", weights, value)
        return method(w, "contiguous", method(w, "transpose", output, 1, 2)), weights


class Gemma2Layer(GemmaLayer):
    native_name = "transformers.models.gemma2.modeling_gemma2.Gemma2DecoderLayer"
    attention_class: type[llama.Attention] = Gemma2Attention
    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

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
        hidden_states = self.run(w, "input_layernorm", hidden_states)
        hidden_states, _ = self.run(w, "self_attn", hidden_states, mask, cache, positions)
        hidden_states = self.run(w, "post_attention_layernorm", hidden_states)
        hidden_states = add(w, residual, hidden_states)
        residual = hidden_states
        hidden_states = self.run(w, "pre_feedforward_layernorm", hidden_states)
        hidden_states = self.run(w, "mlp", hidden_states)
        hidden_states = self.run(w, "post_feedforward_layernorm", hidden_states)
        return add(w, residual, hidden_states)


class Gemma2Model(GemmaModel):
    """Every second layer looks through a window."""

    native_name = "transformers.Gemma2Model"
    layer_class = Gemma2Layer

    def make_masks(
        self, w: World, embeds: Tensor, padding: Tensor | None, keys: int
    ) -> Mapping[bool, Tensor | None]:
        full = attention_mask(w, self.config, embeds, padding, keys, causal=True)
        return {False: full, True: super().make_masks(w, embeds, padding, keys)[True]}

    def mask_of(self, masks: Mapping[bool, Tensor | None], index: int) -> Tensor | None:
        return masks[index % 2 == 0]


# --------------------------------------------------------------------------- Phi

#: `PhiConfig`
PHI: Mapping[str, object] = {
    **_BASE,
    "vocab_size": 51200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attention_bias": True,
}
#: `Phi3Config`
PHI3: Mapping[str, object] = {
    **_BASE,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 32000,
    "partial_rotary_factor": 1.0,
    "resid_pdrop": 0.0,
}


class PartlyRotated(llama.Attention):
    """Some elements of a head turn, the rest is joined to them again."""

    native_name = "transformers.models.phi.modeling_phi.PhiAttention"
    out_name = "dense"

    def turned(self, w: World, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        count = positions[0].shape[-1]
        query_turning, query_still = self._parts(w, query, count)
        key_turning, key_still = self._parts(w, key, count)
        query_turning, key_turning = llama.rotated(w, query_turning, key_turning, *positions)
        return (
            torch_function(w, "torch.cat", (query_turning, query_still), -1),
            torch_function(w, "torch.cat", (key_turning, key_still), -1),
        )

    def _parts(self, w: World, x: Any, count: int) -> tuple[Any, Any]:
        turning = method(w, "__getitem__", x, (Ellipsis, slice(None, count)))
        return turning, method(w, "__getitem__", x, (Ellipsis, slice(count, None)))


class TwoLayers(llama.MLP):
    """`names` of the two products, an activation between them."""

    native_name = "transformers.models.phi.modeling_phi.PhiMLP"
    names = ("fc1", "fc2")
    bias = True

    def build(self, w: World, config: Config) -> None:
        self.config = config
        hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        self.children[self.names[0]] = linear(w, hidden, inner, self.bias)
        self.children[self.names[1]] = linear(w, inner, hidden, self.bias)

    def forward(self, w: World, x: Any) -> Any:
        x = self.run(w, self.names[0], x)
        x = activation(w, self.config.text("hidden_act"), x)
        return self.run(w, self.names[1], x)


class PhiLayer(llama.DecoderLayer):
    """Attention and feed-forward read the same normalised input."""

    native_name = "transformers.models.phi.modeling_phi.PhiDecoderLayer"
    attention_class = PartlyRotated
    mlp_class = TwoLayers
    norms = ("input_layernorm",)

    def build(self, w: World, config: Config, layer: int) -> None:
        super().build(w, config, layer)
        self.children["resid_dropout"] = dropout_layer(w, config.number("resid_pdrop"))

    def make_norm(self, w: World, config: Config) -> Module:
        return plain_norm(w, config)

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
        hidden_states = self.run(w, "input_layernorm", hidden_states)
        attended, _ = self.run(w, "self_attn", hidden_states, mask, cache, positions)
        attended = self.run(w, "resid_dropout", attended)
        fed = self.run(w, "resid_dropout", self.run(w, "mlp", hidden_states))
        return add(w, add(w, attended, fed), residual)


class PhiModel(llama.LlamaModel):
    native_name = "transformers.PhiModel"
    layer_class: type[llama.DecoderLayer] = PhiLayer
    norm_name = "final_layernorm"

    def rotary_size(self, config: Config) -> int:
        return int(llama.head_size(config) * config.number("partial_rotary_factor"))

    def started(self, w: World, embeds: Any) -> Any:
        return functional(w, "dropout", embeds, self.config.number("embd_pdrop"), self.training)


class Phi3Attention(llama.Attention):
    native_name = "transformers.models.phi3.modeling_phi3.Phi3Attention"

    def project(self, w: World, config: Config, hidden: int, query: int, key: int) -> None:
        self.widths = (query, key)
        self.children["o_proj"] = linear(w, query, hidden, bias=False)
        self.children["qkv_proj"] = linear(w, hidden, query + 2 * key, bias=False)

    def attend_to(self, w: World, x: Tensor, mask: Any, cache: DynamicCache | None, positions: Any) -> Any:
        qkv = self.run(w, "qkv_proj", x)
        query_width, key_width = self.widths
        ends = ((0, query_width), (query_width, query_width + key_width), (query_width + key_width, None))
        query, key, value = (
            split_heads(w, method(w, "__getitem__", qkv, (Ellipsis, slice(*end))), self.size) for end in ends
        )
        # `qkv` is a name of the library's frame and lives until attention returns
        return self.finish(w, query, key, value, mask, cache, positions)

    def turned(self, w: World, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        cos, sin = (method(w, "unsqueeze", each, 1) for each in positions)
        count = cos.shape[-1]
        made: list[Any] = []
        for x in (query, key):
            turning = method(w, "__getitem__", x, (Ellipsis, slice(None, count)))
            still = method(w, "__getitem__", x, (Ellipsis, slice(count, None)))
            made.append(torch_function(w, "torch.cat", [llama.rotated_one(w, turning, cos, sin), still], -1))
        return made[0], made[1]


class Phi3MLP(llama.MLP):
    native_name = "transformers.models.phi3.modeling_phi3.Phi3MLP"

    def build(self, w: World, config: Config) -> None:
        self.config = config
        hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        self.children["gate_up_proj"] = linear(w, hidden, 2 * inner, bias=False)
        self.children["down_proj"] = linear(w, inner, hidden, bias=False)

    def forward(self, w: World, x: Any) -> Any:
        gate, up = torch_function(w, "torch.chunk", self.run(w, "gate_up_proj", x), 2, -1)
        up = torch_function(w, "torch.mul", up, activation(w, self.config.text("hidden_act"), gate))
        return self.run(w, "down_proj", up)


class Phi3Layer(llama.DecoderLayer):
    native_name = "transformers.models.phi3.modeling_phi3.Phi3DecoderLayer"
    attention_class = Phi3Attention
    mlp_class = Phi3MLP


class Phi3Model(llama.LlamaModel):
    native_name = "transformers.Phi3Model"
    layer_class = Phi3Layer

    def rotary_size(self, config: Config) -> int:
        return int(llama.head_size(config) * config.number("partial_rotary_factor"))


# --------------------------------------------------------------------------- GPT-NeoX

#: `GPTNeoXConfig`
GPT_NEOX: Mapping[str, object] = {
    **_BASE,
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.25,
    "hidden_dropout": 0.0,
    "use_parallel_residual": True,
    "attention_bias": True,
}


class NeoXAttention(Phi3Attention):
    native_name = "transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention"
    out_name = "dense"

    def project(self, w: World, config: Config, hidden: int, query: int, key: int) -> None:
        bias = config.flag("attention_bias")
        self.children["query_key_value"] = linear(w, hidden, 3 * hidden, bias)
        self.children["dense"] = linear(w, hidden, hidden, bias)

    def attend_to(self, w: World, x: Tensor, mask: Any, cache: DynamicCache | None, positions: Any) -> Any:
        qkv = split_heads(w, self.run(w, "query_key_value", x), 3 * self.size)
        query, key, value = torch_function(w, "torch.chunk", qkv, 3, -1)
        return self.finish(w, query, key, value, mask, cache, positions)

    def turned(self, w: World, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        """All four products are there before the halves are joined."""
        cos, sin = (method(w, "unsqueeze", each, 1) for each in positions)
        count = cos.shape[-1]
        turned: list[Any] = []
        for x in (query, key):
            turning = method(w, "__getitem__", x, (Ellipsis, slice(None, count)))
            turned.append(llama.rotated_one(w, turning, cos, sin))
        for index, x in enumerate((query, key)):
            still = method(w, "__getitem__", x, (Ellipsis, slice(count, None)))
            turned[index] = torch_function(w, "torch.cat", [turned[index], still], -1)
        return turned[0], turned[1]


class NeoXMLP(TwoLayers):
    native_name = "transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXMLP"
    names = ("dense_h_to_4h", "dense_4h_to_h")


class NeoXLayer(llama.DecoderLayer):
    native_name = "transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXLayer"
    attention_class = NeoXAttention
    mlp_class = NeoXMLP

    def build(self, w: World, config: Config, layer: int) -> None:
        super().build(w, config, layer)
        self.children["attention"] = self.children.pop("self_attn")
        for name in ("post_attention_dropout", "post_mlp_dropout"):
            self.children[name] = dropout_layer(w, config.number("hidden_dropout"))

    def make_norm(self, w: World, config: Config) -> Module:
        return plain_norm(w, config)

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None,
        cache: DynamicCache | None,
        positions: Any,
        position_ids: Tensor | None = None,
    ) -> Any:
        attended, _ = self.run(
            w, "attention", self.run(w, "input_layernorm", hidden_states), mask, cache, positions
        )
        attended = self.run(w, "post_attention_dropout", attended)
        if not self.config.flag("use_parallel_residual"):
            attended = add(w, attended, hidden_states)
            fed = self.run(w, "mlp", self.run(w, "post_attention_layernorm", attended))
            return add(w, self.run(w, "post_mlp_dropout", fed), attended)
        fed = self.run(w, "mlp", self.run(w, "post_attention_layernorm", hidden_states))
        fed = self.run(w, "post_mlp_dropout", fed)
        return add(w, add(w, fed, attended), hidden_states)


class GPTNeoXModel(PhiModel):
    native_name = "transformers.GPTNeoXModel"
    layer_class = NeoXLayer
    embed_name = "embed_in"
    norm_name = "final_layer_norm"

    def started(self, w: World, embeds: Any) -> Any:
        return functional(w, "dropout", embeds, self.config.number("hidden_dropout"), self.training)


# --------------------------------------------------------------------------- OPT

#: `OPTConfig`
OPT: Mapping[str, object] = {
    **_BASE,
    "vocab_size": 50272,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "word_embed_proj_dim": None,
    "dropout": 0.1,
    "activation_function": "relu",
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}


class OPTAttention(llama.Attention):
    native_name = "transformers.models.opt.modeling_opt.OPTAttention"
    out_name = "out_proj"

    def project(self, w: World, config: Config, hidden: int, query: int, key: int) -> None:
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            self.children[name] = linear(w, hidden, hidden)

    def attend_to(self, w: World, x: Tensor, mask: Any, cache: DynamicCache | None, positions: Any) -> Any:
        query = torch_function(w, "torch.mul", self.run(w, "q_proj", x), self.size**-0.5)
        query = split_heads(w, query, self.size)
        key, value = self.run(w, "k_proj", x), self.run(w, "v_proj", x)
        key, value = split_heads(w, key, self.size), split_heads(w, value, self.size)
        return self.finish(w, query, key, value, mask, cache, positions)

    def turned(self, w: World, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        return query, key


class OPTLayer(llama.DecoderLayer):
    native_name = "transformers.models.opt.modeling_opt.OPTDecoderLayer"

    def build(self, w: World, config: Config, layer: int) -> None:
        self.config = config
        hidden, inner = config.integer("hidden_size"), config.integer("ffn_dim")
        attention = OPTAttention()
        attention.build(w, config, layer)
        self.children["self_attn"] = attention
        self.children["self_attn_layer_norm"] = self.make_norm(w, config)
        self.children["fc1"], self.children["fc2"] = linear(w, hidden, inner), linear(w, inner, hidden)
        self.children["final_layer_norm"] = self.make_norm(w, config)

    def make_norm(self, w: World, config: Config) -> Module:
        return layer_norm(w, config.integer("hidden_size"), 1e-5)

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None,
        cache: DynamicCache | None,
        positions: Any,
        position_ids: Tensor | None = None,
    ) -> Any:
        before, p = self.config.flag("do_layer_norm_before"), self.config.number("dropout")
        residual = hidden_states
        if before:
            hidden_states = self.run(w, "self_attn_layer_norm", hidden_states)
        hidden_states, _ = self.run(w, "self_attn", hidden_states, mask, cache, positions)
        hidden_states = functional(w, "dropout", hidden_states, p, self.training)
        hidden_states = add(w, residual, hidden_states)
        if not before:
            hidden_states = self.run(w, "self_attn_layer_norm", hidden_states)
        shape = hidden_states.shape
        hidden_states = method(w, "reshape", hidden_states, -1, shape[-1])
        residual = hidden_states
        if before:
            hidden_states = self.run(w, "final_layer_norm", hidden_states)
        hidden_states = self.run(w, "fc1", hidden_states)
        hidden_states = activation(w, self.config.text("activation_function"), hidden_states)
        hidden_states = self.run(w, "fc2", hidden_states)
        hidden_states = functional(w, "dropout", hidden_states, p, self.training)
        hidden_states = method(w, "view", add(w, residual, hidden_states), *shape)
        return hidden_states if before else self.run(w, "final_layer_norm", hidden_states)


class OPTDecoder(llama.LlamaModel):
    native_name = "transformers.models.opt.modeling_opt.OPTDecoder"
    layer_class = OPTLayer
    norm_name = "final_layer_norm"

    def build(self, w: World, config: Config) -> None:
        super().build(w, config)
        self.children.pop("rotary_emb")
        hidden = config.integer("hidden_size")
        positions = config.integer("max_position_embeddings") + 2
        self.children["embed_positions"] = embedding(w, positions, hidden)
        width = opt_width(config)
        if width != hidden:
            padding: Any = config.lookup("pad_token_id")
            self.children["embed_tokens"] = embedding(w, config.integer("vocab_size"), width, padding)
            self.children["project_in"] = linear(w, width, hidden, bias=False)
            self.children["project_out"] = linear(w, hidden, width, bias=False)

    def positioned(self, w: World, hidden_states: Any, position_ids: Any) -> Any:
        return None

    def started(self, w: World, embeds: Any) -> Any:
        batch, length = embeds.shape[:2]
        seen = w.new((batch, length), float32, "ones", embeds.device)
        ids = method(w, "to", torch_function(w, "torch.cumsum", seen, 1), int64)
        places = self.run(w, "embed_positions", add(w, ids, 2))
        if "project_in" in self.children:
            embeds = self.run(w, "project_in", embeds)
        return add(w, embeds, places)

    def ended(self, w: World, hidden_states: Any) -> Any:
        if self.config.flag("do_layer_norm_before"):
            hidden_states = self.run(w, "final_layer_norm", hidden_states)
        return self.run(w, "project_out", hidden_states) if "project_out" in self.children else hidden_states


def opt_width(config: Config) -> int:
    if config.lookup("word_embed_proj_dim") is None:
        return config.integer("hidden_size")
    return config.integer("word_embed_proj_dim")


class OPTModel(PreTrainedModel):
    native_name = "transformers.OPTModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        decoder = OPTDecoder()
        decoder.build(w, config)
        self.children["decoder"] = decoder

    def forward(self, w: World, *args: Any, **kwargs: Any) -> Any:
        return self.run(w, "decoder", *args, **kwargs)


class OPTForCausalLM(llama.LlamaForCausalLM):
    native_name = "transformers.OPTForCausalLM"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = OPTModel()
        body.build(w, config)
        head = linear(w, opt_width(config), config.integer("vocab_size"), bias=False)
        if config.flag("tie_word_embeddings"):
            head.parameters["weight"] = body.child("decoder").child("embed_tokens").parameters["weight"]
        self.children.update(model=body, lm_head=head)


OPT_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": OPTModel,
    "AutoModelForCausalLM": OPTForCausalLM,
}

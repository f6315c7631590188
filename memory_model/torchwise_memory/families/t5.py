"""T5, mT5 and UMT5: `transformers/models/t5/modeling_t5.py`."""

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
    dropout_layer,
    embedding,
    linear,
    members,
    module_list,
    run_block,
    weight_type,
)
from torchwise_memory.families.seq2seq import CrossCache, decoded, shifted_right
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import HALF_TYPES, boolean, float32, int64
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `T5Config`
T5: Mapping[str, object] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "use_cache": True,
    "pad_token_id": 0,
    "tie_word_embeddings": None,
    "num_labels": 2,
    "is_encoder_decoder": True,
}
#: `MT5Config`
MT5: Mapping[str, object] = {
    **T5,
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
SPELLINGS = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_SMALL = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
_LARGE = {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
_3B = {"d_model": 1024, "d_ff": 16384, "num_layers": 24, "num_heads": 32, "d_kv": 128}
_11B = {"d_model": 1024, "d_ff": 65536, "num_layers": 24, "num_heads": 128, "d_kv": 128}
_GATED: Mapping[str, Mapping[str, object]] = {
    "small": {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6, **_V1_1},
    "base": {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, **_V1_1},
    "large": {"d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16, **_V1_1},
    "xl": {"d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32, **_V1_1},
    "xxl": {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, **_V1_1},
}
#: `config.json` of the published checkpoints, where it differs from the defaults.
CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "t5-small": _SMALL,
    "t5-base": _BASE,
    "t5-large": _LARGE,
    "t5-3b": _3B,
    "t5-11b": _11B,
    **{f"flan-t5-{size}": fields for size, fields in _GATED.items()},
    **{f"t5-v1_1-{size}": fields for size, fields in _GATED.items()},
}
MT5_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    f"mt5-{size}": {name: value for name, value in fields.items() if name != "feed_forward_proj"}
    for size, fields in _GATED.items()
}


class T5LayerNorm(Module):
    """The variance in fp32, the product in the type of the input."""

    native_name = "transformers.models.t5.modeling_t5.T5LayerNorm"

    def build(self, w: World, config: Config) -> T5LayerNorm:
        self.fields["variance_epsilon"] = config.number("layer_norm_epsilon")
        self.new_parameter(w, "weight", (config.integer("d_model"),), None, None)
        return self

    def forward(self, w: World, hidden_states: Any) -> Any:
        variance = method(w, "pow", method(w, "to", hidden_states, float32), 2)
        variance = method(w, "mean", variance, -1, True)
        scale = torch_function(w, "torch.rsqrt", add(w, variance, self.number("variance_epsilon")))
        hidden_states = torch_function(w, "torch.mul", hidden_states, scale)
        del scale
        weight = self.tensor("weight")
        if weight.dtype in HALF_TYPES:
            hidden_states = method(w, "to", hidden_states, weight.dtype)
        return torch_function(w, "torch.mul", weight, hidden_states)


class FeedForward(Module):
    """`T5DenseActDense` and `T5DenseGatedActDense`."""

    native_name = "transformers.models.t5.modeling_t5.T5DenseActDense"

    def build(self, w: World, config: Config) -> FeedForward:
        hidden, inner = config.integer("d_model"), config.integer("d_ff")
        words = config.text("feed_forward_proj").split("-")
        self.gated = words[0] == "gated"
        self.act = "gelu_new" if words == ["gated", "gelu"] else words[-1]
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            self.children[name] = linear(w, hidden, inner, bias=False)
        self.children["wo"] = linear(w, inner, hidden, bias=False)
        self.children["dropout"] = dropout_layer(w, config.number("dropout_rate"))
        return self

    def forward(self, w: World, x: Any) -> Any:
        if self.gated:
            gate = activation(w, self.act, self.run(w, "wi_0", x))
            up = self.run(w, "wi_1", x)
            x = torch_function(w, "torch.mul", gate, up)
            x = self.run(w, "dropout", x)
            x = method(w, "to", x, weight_type(self.child("wo")))
            # `gate` and `up` are names of the library's frame and live until it returns
            return self.run(w, "wo", x)
        x = self.run(w, "dropout", activation(w, self.act, self.run(w, "wi", x)))
        return self.run(w, "wo", method(w, "to", x, weight_type(self.child("wo"))))


class LayerFF(Module):
    native_name = "transformers.models.t5.modeling_t5.T5LayerFF"

    def build(self, w: World, config: Config) -> LayerFF:
        self.children["DenseReluDense"] = FeedForward().build(w, config)
        self.children["layer_norm"] = T5LayerNorm().build(w, config)
        self.children["dropout"] = dropout_layer(w, config.number("dropout_rate"))
        return self

    def forward(self, w: World, hidden_states: Any) -> Any:
        forwarded = self.run(w, "layer_norm", hidden_states)
        forwarded = self.run(w, "DenseReluDense", forwarded)
        return add(w, hidden_states, self.run(w, "dropout", forwarded))


class Attention(Module):
    native_name = "transformers.models.t5.modeling_t5.T5Attention"

    def build(
        self, w: World, config: Config, decoder: bool, biased: bool, index: int, cross: bool
    ) -> Attention:
        hidden, self.heads, self.size = (config.integer(n) for n in ("d_model", "num_heads", "d_kv"))
        self.config, self.decoder, self.index, self.cross = config, decoder, index, cross
        inner = self.heads * self.size
        for name in "qkv":
            self.children[name] = linear(w, hidden, inner, bias=False)
        self.children["o"] = linear(w, inner, hidden, bias=False)
        if biased:
            buckets = config.integer("relative_attention_num_buckets")
            self.children["relative_attention_bias"] = embedding(w, buckets, self.heads)
        return self

    def forward(
        self,
        w: World,
        hidden_states: Tensor,
        mask: Tensor | None,
        key_value_states: Tensor | None,
        position_bias: Tensor | None,
        cache: CrossCache | None,
        checkpointed: bool,
    ) -> Any:
        query = self._heads(w, "q", hidden_states)
        source = hidden_states if key_value_states is None else key_value_states
        seen: DynamicCache | None = None
        past = 0
        if cache is not None:
            seen = cache.cross if self.cross else cache.own
            past = cache.own.get_seq_length(w, self.index)
        if self.cross and seen is not None and self.index in seen.layers:
            key, value = seen.layers[self.index]
        else:
            key, value = self._heads(w, "k", source), self._heads(w, "v", source)
            if seen is not None:
                key, value = seen.update(w, key, value, self.index)
        if position_bias is None:
            position_bias = self._bias(w, query, key.shape[-2], past, checkpointed)
        assert position_bias is not None
        output, weights = self._attend(w, query, key, value, mask, position_bias)
        output = method(w, "reshape", output, *hidden_states.shape[:-1], -1)
        output = self.run(w, "o", method(w, "contiguous", output))
        return output, position_bias, weights

    def _heads(self, w: World, name: str, x: Tensor) -> Any:
        x = self.run(w, name, x)
        return method(w, "transpose", method(w, "view", x, *x.shape[:-1], -1, self.size), 1, 2)

    def _bias(self, w: World, query: Tensor, keys: int, past: int, checkpointed: bool) -> Any:
        queries = query.shape[2]
        if "relative_attention_bias" not in self.children:
            zeros = w.new((1, self.heads, queries, keys), query.dtype, "zeros", query.device)
            if checkpointed:
                zeros.requires_grad = True
            return zeros
        buckets = w.new((queries, keys), int64, "add", query.device)
        values = self.run(w, "relative_attention_bias", buckets)
        return method(w, "unsqueeze", method(w, "permute", values, 2, 0, 1), 0)

    def _attend(
        self, w: World, query: Any, key: Any, value: Any, mask: Tensor | None, bias: Tensor
    ) -> tuple[Any, Any]:
        dropout = self.config.number("dropout_rate") if self.training else 0.0
        if self.config.text("_attn_implementation") == "eager":
            scores = torch_function(w, "torch.matmul", query, method(w, "transpose", key, 2, 3))
            scores = add(w, torch_function(w, "torch.mul", scores, 1.0), bias)
            if mask is not None:
                scores = add(w, scores, mask)
            scores = functional(w, "softmax", scores, -1)
            scores = functional(w, "dropout", scores, dropout, self.training)
            output = torch_function(w, "torch.matmul", scores, value)
            return method(w, "contiguous", method(w, "transpose", output, 1, 2)), scores
        causal = self.decoder and not self.cross and query.shape[2] > 1
        if mask is None and causal:
            mask = w.new((1, 1, query.shape[2], key.shape[2]), boolean, "causal mask", query.device)
        if mask is None:
            combined = method(w, "contiguous", bias)
        else:
            combined = method(w, "contiguous", torch_function(w, "torch.where", mask, bias, -1e9))
        del mask
        output = functional(
            w, "scaled_dot_product_attention", query, key, value, combined, dropout, False, scale=1.0
        )
        return method(w, "contiguous", method(w, "transpose", output, 1, 2)), None


class LayerAttention(Module):
    """`T5LayerSelfAttention` and `T5LayerCrossAttention`; `name` is that of the attention inside."""

    native_name = "transformers.models.t5.modeling_t5.T5LayerSelfAttention"

    def build(
        self, w: World, config: Config, name: str, decoder: bool, biased: bool, index: int
    ) -> LayerAttention:
        self.name = name
        cross = name == "EncDecAttention"
        self.children[name] = Attention().build(w, config, decoder, biased, index, cross)
        self.children["layer_norm"] = T5LayerNorm().build(w, config)
        self.children["dropout"] = dropout_layer(w, config.number("dropout_rate"))
        return self

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None,
        key_value_states: Tensor | None,
        position_bias: Tensor | None,
        cache: CrossCache | None,
        checkpointed: bool,
    ) -> Any:
        normed = self.run(w, "layer_norm", hidden_states)
        attended, position_bias, weights = self.run(
            w, self.name, normed, mask, key_value_states, position_bias, cache, checkpointed
        )
        return add(w, hidden_states, self.run(w, "dropout", attended)), position_bias, weights


class T5Block(Block):
    native_name = "transformers.models.t5.modeling_t5.T5Block"

    def build(self, w: World, config: Config, decoder: bool, index: int) -> T5Block:
        parts: list[Module] = [LayerAttention().build(w, config, "SelfAttention", decoder, index == 0, index)]
        if decoder:
            parts.append(LayerAttention().build(w, config, "EncDecAttention", decoder, False, index))
        parts.append(LayerFF().build(w, config))
        self.children["layer"] = module_list(parts)
        return self

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None,
        position_bias: Tensor | None,
        encoder_states: Tensor | None,
        encoder_mask: Tensor | None,
        cross_bias: Tensor | None,
        cache: CrossCache | None = None,
    ) -> Any:
        checkpointed = bool(self.fields.get("gradient_checkpointing")) and self.training
        layer = self.child("layer")
        hidden_states, own_bias, _ = layer.run(
            w, "0", hidden_states, mask, None, position_bias, cache, checkpointed
        )
        new_cross_bias: Any = None
        if encoder_states is not None:
            hidden_states, new_cross_bias, _ = layer.run(
                w, "1", hidden_states, encoder_mask, encoder_states, cross_bias, cache, checkpointed
            )
        last = str(len(layer.children) - 1)
        return layer.run(w, last, hidden_states), own_bias, new_cross_bias


class T5Stack(PreTrainedModel):
    native_name = "transformers.models.t5.modeling_t5.T5Stack"

    def build_stack(self, w: World, config: Config, shared: Module, decoder: bool) -> T5Stack:
        self.configure(config)
        self.decoder = decoder
        self.children["embed_tokens"] = shared
        count: Any = config.lookup("num_decoder_layers") if decoder else None
        layers = count if isinstance(count, int) else config.integer("num_layers")
        self.children["block"] = module_list([T5Block().build(w, config, decoder, i) for i in range(layers)])
        self.children["final_layer_norm"] = T5LayerNorm().build(w, config)
        self.children["dropout"] = dropout_layer(w, config.number("dropout_rate"))
        return self

    def forward(
        self,
        w: World,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        encoder_states: Tensor | None = None,
        encoder_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: CrossCache | None = None,
    ) -> Any:
        if input_ids is None and inputs_embeds is None:
            raise Unsupported(self.native_name, "neither input_ids nor inputs_embeds is known")
        embeds: Any = self.run(w, "embed_tokens", input_ids) if inputs_embeds is None else inputs_embeds
        mask = self._mask(w, embeds, attention_mask, embeds.shape[1])
        keys = None
        if encoder_states is not None:
            keys = self._mask(w, embeds, encoder_mask, encoder_states.shape[1])
        position_bias = cross_bias = None
        hidden_states = self.run(w, "dropout", embeds)
        for block in members(self.child("block")):
            hidden_states, position_bias, cross_bias = run_block(
                w, block, hidden_states, mask, position_bias, encoder_states, keys, cross_bias, cache=cache
            )
        hidden_states = self.run(w, "dropout", self.run(w, "final_layer_norm", hidden_states))
        return ModelOutput(last_hidden_state=hidden_states, past_key_values=cache)

    def _mask(self, w: World, embeds: Tensor, padding: Tensor | None, keys: int) -> Tensor | None:
        """Padding as a mask of the batch; which queries see which keys is part of the position bias."""
        if padding is None or not self.config.padded:
            if padding is not None:
                w.assume("no sequence of the batch is padded")
            return None
        return w.new((embeds.shape[0], 1, embeds.shape[1], keys), boolean, "attention mask", embeds.device)


class T5ForConditionalGeneration(PreTrainedModel):
    native_name = "transformers.T5ForConditionalGeneration"
    has_head = True

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        shared = embedding(w, config.integer("vocab_size"), config.integer("d_model"))
        self.children["shared"] = shared
        for name in ("encoder", "decoder"):
            self.children[name] = T5Stack().build_stack(w, config, shared, name == "decoder")
        if self.has_head:
            head = linear(w, config.integer("d_model"), config.integer("vocab_size"), bias=False)
            head.parameters["weight"] = shared.parameters["weight"]
            self.children["lm_head"] = head

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: CrossCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: CrossCache | None = None,
        **kwargs: Any,
    ) -> Any:
        if encoder_outputs is None:
            encoder_outputs = self.run(w, "encoder", input_ids, attention_mask, inputs_embeds=inputs_embeds)
        hidden_states = encoder_outputs.get_item(w, 0)
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = shifted_right(w, labels)
        target = (decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds)
        result, cache = decoded(
            w, self, hidden_states, cache or past_key_values, use_cache, attention_mask, target
        )
        sequence = result.lookup("last_hidden_state")
        if not self.has_head:
            return ModelOutput(
                last_hidden_state=sequence, past_key_values=cache, encoder_last_hidden_state=hidden_states
            )
        # T5 scales what it ties; the sign of version 1.1 is that its files say it ties nothing
        if self.config.lookup("tie_word_embeddings") is not False:
            sequence = torch_function(w, "torch.mul", sequence, self.config.integer("d_model") ** -0.5)
        logits = self.run(w, "lm_head", sequence)
        loss = None
        if labels is not None:
            flat = method(w, "view", logits, -1, logits.shape[-1])
            loss = functional(w, "cross_entropy", flat, method(w, "view", labels, -1), ignore_index=-100)
        return ModelOutput(
            loss=loss, logits=logits, past_key_values=cache, encoder_last_hidden_state=hidden_states
        )


class T5Model(T5ForConditionalGeneration):
    native_name = "transformers.T5Model"
    has_head = False


class T5EncoderModel(PreTrainedModel):
    native_name = "transformers.T5EncoderModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        shared = embedding(w, config.integer("vocab_size"), config.integer("d_model"))
        self.children["shared"] = shared
        self.children["encoder"] = T5Stack().build_stack(w, config, shared, decoder=False)

    def forward(
        self, w: World, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        return self.run(w, "encoder", input_ids, attention_mask)


class MT5ForConditionalGeneration(T5ForConditionalGeneration):
    native_name = "transformers.MT5ForConditionalGeneration"


class MT5Model(T5Model):
    native_name = "transformers.MT5Model"


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": T5Model,
    "AutoModelForSeq2SeqLM": T5ForConditionalGeneration,
    "T5EncoderModel": T5EncoderModel,
}
MT5_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": MT5Model,
    "AutoModelForSeq2SeqLM": MT5ForConditionalGeneration,
}

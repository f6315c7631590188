"""BART and its kin: mBART, Pegasus, Marian (`transformers/models/<name>/modeling_<name>.py`), and Whisper.

They differ in where norms stand, in what a position is, and in what the encoder reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    attention_mask,
    embedding,
    layer_norm,
    linear,
    members,
    module_list,
    run_block,
)
from torchwise_memory.families.seq2seq import CrossCache, decoded, shifted_right
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.conv import Conv1d
from torchwise_memory.modules.linear import Embedding
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `BartConfig`
BART: Mapping[str, object] = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "use_cache": True,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
    "num_labels": 3,
    "is_encoder_decoder": True,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
MBART: Mapping[str, object] = BART
PEGASUS: Mapping[str, object] = {**BART, "pad_token_id": 0}
MARIAN: Mapping[str, object] = {**BART, "vocab_size": 58101, "pad_token_id": 58100}
#: `BlenderbotConfig`, the published one of 3B
BLENDERBOT: Mapping[str, object] = {
    **BART,
    "vocab_size": 8008,
    "max_position_embeddings": 128,
    "encoder_layers": 2,
    "encoder_ffn_dim": 10240,
    "encoder_attention_heads": 32,
    "decoder_layers": 24,
    "decoder_ffn_dim": 10240,
    "decoder_attention_heads": 32,
    "d_model": 2560,
    "pad_token_id": 0,
}
#: `M2M100Config`; NLLB has the same architecture
M2M100: Mapping[str, object] = {
    **BART,
    "vocab_size": 128112,
    "encoder_layerdrop": 0.05,
    "decoder_layerdrop": 0.05,
    "attention_dropout": 0.1,
    "activation_function": "relu",
    "scale_embedding": True,
}
#: `WhisperConfig`
WHISPER: Mapping[str, object] = {
    **BART,
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "d_model": 384,
    "dropout": 0.0,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "pad_token_id": 50256,
}
SPELLINGS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}


def _sizes(d_model: int, layers: int, heads: int, **others: object) -> dict[str, object]:
    return {
        "d_model": d_model,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * d_model,
        "decoder_ffn_dim": 4 * d_model,
        **others,
    }


def _wide(inner: int) -> Mapping[str, object]:
    return {"encoder_ffn_dim": inner, "decoder_ffn_dim": inner}


#: `config.json` of the published checkpoints, where it differs from the defaults.
BART_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "bart-base": _sizes(768, 6, 12),
    "bart-large": {},
    "bart-large-cnn": {"vocab_size": 50264},
    "bart-large-mnli": {},
    "distilbart-cnn-12-6": {"decoder_layers": 6, "vocab_size": 50264},
}
MBART_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "mbart-large-cc25": {"vocab_size": 250027},
    "mbart-large-50": {"vocab_size": 250054},
    "mbart-large-50-many-to-many-mmt": {"vocab_size": 250054},
}
PEGASUS_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "pegasus-large": _sizes(1024, 16, 16, vocab_size=96103, activation_function="relu"),
    "pegasus-xsum": _sizes(
        1024, 16, 16, vocab_size=96103, activation_function="relu", max_position_embeddings=512
    ),
}
MARIAN_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "opus-mt-en-de": {
        **_sizes(512, 6, 8, vocab_size=58101, activation_function="swish", max_position_embeddings=512),
    },
}
BLENDERBOT_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "blenderbot-3b": {},
    "blenderbot-400m-distill": {
        **_sizes(1280, 12, 32),
        "encoder_layers": 2,
        "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120,
    },
}
M2M100_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "m2m100_418m": {},
    "m2m100_1.2b": {"encoder_layers": 24, "decoder_layers": 24, **_wide(8192)},
    "nllb-200-distilled-600m": {"vocab_size": 256206},
    "nllb-200-distilled-1.3b": {
        "vocab_size": 256206,
        "encoder_layers": 24,
        "decoder_layers": 24,
        **_wide(8192),
    },
    "nllb-200-1.3b": {"vocab_size": 256206, "encoder_layers": 24, "decoder_layers": 24, **_wide(8192)},
    "nllb-200-3.3b": {
        "vocab_size": 256206,
        "d_model": 2048,
        "encoder_layers": 24,
        "decoder_layers": 24,
        **_wide(8192),
    },
}
WHISPER_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "whisper-tiny": _sizes(384, 4, 6),
    "whisper-base": _sizes(512, 6, 8),
    "whisper-small": _sizes(768, 12, 12),
    "whisper-medium": _sizes(1024, 24, 16),
    "whisper-large": _sizes(1280, 32, 20),
    "whisper-large-v2": _sizes(1280, 32, 20),
    "whisper-large-v3": _sizes(1280, 32, 20, vocab_size=51866, num_mel_bins=128),
    "whisper-large-v3-turbo": _sizes(1280, 32, 20, decoder_layers=4, vocab_size=51866, num_mel_bins=128),
}


@dataclass(frozen=True, slots=True)
class Make:
    """pre_norm: norms stand before what they normalise; embed_norm: after the embeddings; final_norm: after
    the last layer. learned: positions are a trained table with two rows in front, else a frozen one. rows:
    how many stand in front of a trained table; buffer: the table is no parameter and looked up sample by
    sample. audio: the encoder reads a spectrogram, keys have no bias, queries are scaled beforehand.
    """

    pre_norm: bool
    embed_norm: bool
    final_norm: bool
    learned: bool
    audio: bool = False
    rows: int = 2
    buffer: bool = False


MAKES: Mapping[str, Make] = {
    "bart": Make(False, True, False, True),
    "mbart": Make(True, True, True, True),
    "pegasus": Make(True, False, True, False),
    "marian": Make(False, False, False, False),
    "whisper": Make(True, False, True, False, True),
    "blenderbot": Make(True, False, True, True, rows=0),
    "m2m_100": Make(True, False, True, False, buffer=True),
}


class Attention(Module):
    native_name = "transformers.models.bart.modeling_bart.BartAttention"

    def build(self, w: World, config: Config, heads: int, index: int, causal: bool) -> Attention:
        hidden = config.integer("d_model")
        self.config, self.size, self.index, self.causal = config, hidden // heads, index, causal
        self.audio = MAKES[config.model_type].audio
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            self.children[name] = linear(w, hidden, hidden, bias=not (self.audio and name == "k_proj"))
        return self

    def forward(
        self,
        w: World,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        cache: CrossCache | None = None,
    ) -> Any:
        query: Any = self.run(w, "q_proj", hidden_states)
        if self.audio:
            query = torch_function(w, "torch.mul", query, self.size**-0.5)
        query = self._heads(w, query)
        seen: DynamicCache | None = None
        if cache is not None:
            seen = cache.own if key_value_states is None else cache.cross
        if key_value_states is not None and seen is not None and self.index in seen.layers:
            key, value = seen.layers[self.index]
        else:
            source = hidden_states if key_value_states is None else key_value_states
            keys, values = self.run(w, "k_proj", source), self.run(w, "v_proj", source)
            key, value = self._heads(w, keys), self._heads(w, values)
            del keys, values
            if seen is not None:
                key, value = seen.update(w, key, value, self.index)
        dropout = self.config.number("attention_dropout") if self.training else 0.0
        output, weights = attend(
            w,
            self.config.text("_attn_implementation"),
            query,
            key,
            value,
            mask,
            dropout,
            1.0 if self.audio else self.size**-0.5,
            causal=self.causal,
            style="bert",
        )
        output = method(w, "reshape", output, *hidden_states.shape[:-1], -1)
        return self.run(w, "out_proj", method(w, "contiguous", output)), weights

    def _heads(self, w: World, x: Tensor) -> Any:
        x = method(w, "transpose", method(w, "view", x, *x.shape[:-1], -1, self.size), 1, 2)
        return method(w, "contiguous", x) if self.audio else x


class _Layer(Block):
    """What encoder and decoder layers share: sublayers with dropout, residual and norm."""

    def assemble(self, w: World, config: Config, part: str, index: int, parts: tuple[str, ...]) -> None:
        hidden, heads = config.integer("d_model"), config.integer(f"{part}_attention_heads")
        self.config, self.make = config, MAKES[config.model_type]
        for name in parts:
            causal = part == "decoder" and name == "self_attn"
            self.children[name] = Attention().build(w, config, heads, index, causal)
            self.children[f"{name}_layer_norm"] = layer_norm(w, hidden, 1e-5)
        inner = config.integer(f"{part}_ffn_dim")
        self.children["fc1"] = linear(w, hidden, inner)
        self.children["fc2"] = linear(w, inner, hidden)
        self.children["final_layer_norm"] = layer_norm(w, hidden, 1e-5)

    def attended(self, w: World, name: str, x: Any, *args: Any) -> Any:
        """Self-attention or attention to the encoder, with what stands around it."""
        residual = x
        if self.make.pre_norm:
            x = self.run(w, f"{name}_layer_norm", x)
        x, _ = self.run(w, name, x, *args)
        x = functional(w, "dropout", x, self.config.number("dropout"), self.training)
        x = add(w, residual, x)
        return x if self.make.pre_norm else self.run(w, f"{name}_layer_norm", x)

    def fed_forward(self, w: World, x: Any) -> Any:
        residual = x
        if self.make.pre_norm:
            x = self.run(w, "final_layer_norm", x)
        x = activation(w, self.config.text("activation_function"), self.run(w, "fc1", x))
        x = functional(w, "dropout", x, self.config.number("activation_dropout"), self.training)
        x = self.run(w, "fc2", x)
        x = functional(w, "dropout", x, self.config.number("dropout"), self.training)
        x = add(w, residual, x)
        return x if self.make.pre_norm else self.run(w, "final_layer_norm", x)


class EncoderLayer(_Layer):
    native_name = "transformers.models.bart.modeling_bart.BartEncoderLayer"

    def build(self, w: World, config: Config, index: int) -> EncoderLayer:
        self.assemble(w, config, "encoder", index, ("self_attn",))
        return self

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None = None) -> Any:
        hidden_states = self.attended(w, "self_attn", hidden_states, mask)
        return self.fed_forward(w, hidden_states)


class DecoderLayer(_Layer):
    native_name = "transformers.models.bart.modeling_bart.BartDecoderLayer"

    def build(self, w: World, config: Config, index: int) -> DecoderLayer:
        self.assemble(w, config, "decoder", index, ("self_attn", "encoder_attn"))
        return self

    def forward(
        self,
        w: World,
        hidden_states: Any,
        mask: Tensor | None = None,
        encoder_states: Tensor | None = None,
        encoder_mask: Tensor | None = None,
        cache: CrossCache | None = None,
    ) -> Any:
        hidden_states = self.attended(w, "self_attn", hidden_states, mask, None, cache)
        if encoder_states is not None:
            hidden_states = self.attended(
                w, "encoder_attn", hidden_states, encoder_mask, encoder_states, cache
            )
        return self.fed_forward(w, hidden_states)


class Positions(Embedding):
    """Learned, with two rows in front and looked up for every sample, or frozen and shared by the batch."""

    native_name = "transformers.models.bart.modeling_bart.BartLearnedPositionalEmbedding"

    def assemble(self, w: World, count: int, hidden: int, make: Make) -> Positions:
        self.learned, self.rows, self.is_buffer = make.learned, make.rows, make.buffer
        if self.is_buffer:
            table = torch_function(w, "torch.empty", (count + make.rows, hidden))
            self.register_buffer(w, "weights", table, persistent=False)
            return self
        super().init(w, count + make.rows if self.learned else count, hidden)
        weight = self.parameters["weight"]
        if not self.learned and weight is not None:
            weight.requires_grad = False
        return self

    def look_up(self, w: World, tokens: Tensor, past: int = 0, own_ids: bool = False) -> Any:
        """own_ids: the caller made the positions, so that they have no dimension for samples."""
        batch, length = tokens.shape[:2]
        ids = torch_function(w, "torch.arange", past, past + length, device=tokens.device)
        if self.is_buffer:
            table = self.tensor("weights")
            rows = method(w, "reshape", method(w, "expand", ids, batch, -1), -1)
            found = torch_function(w, "torch.index_select", table, 0, rows)
            return method(w, "view", found, batch, length, table.shape[-1])
        if self.learned and not own_ids:
            ids = method(w, "expand", ids, batch, -1)
        if self.learned and self.rows:
            ids = add(w, ids, self.rows)
        return super().forward(w, ids)


class _Stack(PreTrainedModel):
    """Encoder or decoder."""

    part = "encoder"

    def assemble(self, w: World, config: Config, tokens: Module | None, positions: str) -> None:
        self.configure(config)
        self.make = MAKES[config.model_type]
        hidden = config.integer("d_model")
        if tokens is not None:
            self.children["embed_tokens"] = tokens
        table = Positions().assemble(w, config.integer(positions), hidden, self.make)
        self.children["embed_positions"] = table
        layer = EncoderLayer if self.part == "encoder" else DecoderLayer
        count = config.integer(f"{self.part}_layers")
        self.children["layers"] = module_list([layer().build(w, config, index) for index in range(count)])
        if self.make.embed_norm:
            self.children["layernorm_embedding"] = layer_norm(w, hidden, 1e-5)
        if self.make.final_norm:
            self.children["layer_norm"] = layer_norm(w, hidden, 1e-5)

    def embedded(self, w: World, ids: Tensor | None, embeds: Tensor | None) -> Any:
        if embeds is not None:
            return embeds
        if ids is None:
            raise Unsupported(self.native_name, "neither input_ids nor inputs_embeds is known")
        tokens = self.run(w, "embed_tokens", ids)
        return tokens if self.make.audio else torch_function(w, "torch.mul", tokens, 1.0)

    def started(self, w: World, embeds: Any, positions: Any) -> Any:
        x = add(w, embeds, positions)
        if self.make.embed_norm:
            x = self.run(w, "layernorm_embedding", x)
        return functional(w, "dropout", x, self.config.number("dropout"), self.training)

    def ended(self, w: World, x: Any) -> Any:
        return self.run(w, "layer_norm", x) if self.make.final_norm else x

    @property
    def positions(self) -> Positions:
        table = self.child("embed_positions")
        assert isinstance(table, Positions)
        return table


class Encoder(_Stack):
    native_name = "transformers.models.bart.modeling_bart.BartEncoder"

    def build_stack(self, w: World, config: Config, tokens: Module | None) -> Encoder:
        if MAKES[config.model_type].audio:
            hidden = config.integer("d_model")
            for name, channels, stride in (
                ("conv1", config.integer("num_mel_bins"), 1),
                ("conv2", hidden, 2),
            ):
                layer = Conv1d()
                layer.init(w, channels, hidden, 3, stride=stride, padding=1)
                self.children[name] = layer
            self.assemble(w, config, None, "max_source_positions")
        else:
            self.assemble(w, config, tokens, "max_position_embeddings")
        return self

    def forward(
        self,
        w: World,
        ids: Tensor | None = None,
        padding: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Any:
        if self.make.audio:
            embeds, padding = self._heard(w, ids), None
        else:
            embeds = self.embedded(w, ids, inputs_embeds)
        table = self.positions.look_up(w, embeds)
        x = self.started(w, embeds, table)
        del table
        mask = attention_mask(w, self.config, embeds, padding, embeds.shape[1], causal=False)
        for layer in members(self.child("layers")):
            x = run_block(w, layer, x, mask)
        return ModelOutput(last_hidden_state=self.ended(w, x))

    def _heard(self, w: World, features: Tensor | None) -> Any:
        if features is None:
            raise Unsupported(self.native_name, "input_features are not known")
        x = functional(w, "gelu", self.run(w, "conv1", features))
        x = functional(w, "gelu", self.run(w, "conv2", x))
        return method(w, "permute", x, 0, 2, 1)


class Decoder(_Stack):
    native_name = "transformers.models.bart.modeling_bart.BartDecoder"
    part = "decoder"

    def build_stack(self, w: World, config: Config, tokens: Module) -> Decoder:
        audio = MAKES[config.model_type].audio
        self.assemble(w, config, tokens, "max_target_positions" if audio else "max_position_embeddings")
        if audio:
            # Whisper's decoder learns its positions
            weight = self.positions.parameters["weight"]
            assert weight is not None
            weight.requires_grad = True
        return self

    def forward(
        self,
        w: World,
        ids: Tensor | None = None,
        padding: Tensor | None = None,
        encoder_states: Tensor | None = None,
        encoder_padding: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: CrossCache | None = None,
    ) -> Any:
        embeds = self.embedded(w, ids, inputs_embeds)
        past = cache.get_seq_length(w) if cache is not None else 0
        length = embeds.shape[1]
        mask = attention_mask(w, self.config, embeds, padding, past + length, causal=True)
        encoder_mask = None
        if encoder_states is not None and not self.make.audio:
            encoder_mask = attention_mask(
                w, self.config, embeds, encoder_padding, encoder_states.shape[1], causal=False
            )
        if self.make.audio:
            shape = (*embeds.shape[:2], embeds.shape[2])
            table = self._indexed(w, shape)
        else:
            table = self.positions.look_up(w, embeds, past, own_ids=True)
        x = self.started(w, embeds, table)
        for layer in members(self.child("layers")):
            x = run_block(w, layer, x, mask, encoder_states, encoder_mask=encoder_mask, cache=cache)
        return ModelOutput(last_hidden_state=self.ended(w, x), past_key_values=cache)

    def _indexed(self, w: World, shape: tuple[int, ...]) -> Any:
        """`weight[position_ids]`, with the positions of every sample."""
        weight = self.positions.tensor("weight")
        ids = torch_function(w, "torch.arange", shape[1], device=weight.device)
        ids = method(w, "repeat", method(w, "unsqueeze", ids, 0), shape[0], 1)
        return method(w, "__getitem__", weight, ids)


class BartModel(PreTrainedModel):
    native_name = "transformers.BartModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        padding: Any = config.lookup("pad_token_id")
        shared = embedding(w, config.integer("vocab_size"), config.integer("d_model"), padding)
        if not MAKES[config.model_type].audio:
            self.children["shared"] = shared
        self.children["encoder"] = Encoder().build_stack(w, config, shared)
        self.children["decoder"] = Decoder().build_stack(w, config, shared)

    @property
    def tokens(self) -> Module:
        return self.child("decoder").child("embed_tokens")

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
        use_cache: bool | None = None,
        input_features: Tensor | None = None,
        past_key_values: CrossCache | None = None,
        **kwargs: Any,
    ) -> Any:
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if input_ids is None:
                raise Unsupported(self.native_name, "neither decoder_input_ids nor input_ids is known")
            decoder_input_ids = shifted_right(w, input_ids)
        if encoder_outputs is None:
            source = input_ids if input_features is None else input_features
            encoder_outputs = self.run(w, "encoder", source, attention_mask, inputs_embeds)
        states = encoder_outputs.get_item(w, 0)
        target = (decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds)
        result, cache = decoded(w, self, states, cache or past_key_values, use_cache, attention_mask, target)
        return ModelOutput(
            last_hidden_state=result.lookup("last_hidden_state"),
            past_key_values=cache,
            encoder_last_hidden_state=states,
        )


class BartForConditionalGeneration(PreTrainedModel):
    native_name = "transformers.BartForConditionalGeneration"
    head_name = "lm_head"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        model = BartModel()
        model.build(w, config)
        vocabulary = config.integer("vocab_size")
        self.children["model"] = model
        self.audio = MAKES[config.model_type].audio
        if not self.audio:
            self.register_buffer(w, "final_logits_bias", torch_function(w, "torch.zeros", (1, vocabulary)))
        head = linear(w, config.integer("d_model"), vocabulary, bias=False)
        if config.flag("tie_word_embeddings"):
            head.parameters["weight"] = model.tokens.parameters["weight"]
        self.children[self.head_name] = head

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if labels is not None:
            # Whisper fills its cache while training too
            use_cache = use_cache if self.audio else False
            if decoder_input_ids is None and kwargs.get("decoder_inputs_embeds") is None:
                decoder_input_ids = shifted_right(w, labels)
        outputs = self.run(
            w, "model", input_ids, attention_mask, decoder_input_ids, use_cache=use_cache, **kwargs
        )
        logits = self.run(w, self.head_name, outputs.lookup("last_hidden_state"))
        if not self.audio:
            logits = add(w, logits, self.tensor("final_logits_bias"))
        loss = None
        if labels is not None:
            flat = method(w, "view", logits, -1, logits.shape[-1])
            loss = functional(w, "cross_entropy", flat, method(w, "reshape", labels, -1))
        return ModelOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.lookup("past_key_values"),
            encoder_last_hidden_state=outputs.lookup("encoder_last_hidden_state"),
        )


class MBartForConditionalGeneration(BartForConditionalGeneration):
    native_name = "transformers.MBartForConditionalGeneration"


class PegasusForConditionalGeneration(BartForConditionalGeneration):
    native_name = "transformers.PegasusForConditionalGeneration"


class MarianMTModel(BartForConditionalGeneration):
    native_name = "transformers.MarianMTModel"


class BlenderbotForConditionalGeneration(BartForConditionalGeneration):
    native_name = "transformers.BlenderbotForConditionalGeneration"


class M2M100ForConditionalGeneration(BartForConditionalGeneration):
    native_name = "transformers.M2M100ForConditionalGeneration"


class WhisperForConditionalGeneration(BartForConditionalGeneration):
    native_name = "transformers.WhisperForConditionalGeneration"
    head_name = "proj_out"

    def forward(  # type: ignore[override]
        self,
        w: World,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        return super().forward(
            w,
            None,
            attention_mask,
            decoder_input_ids,
            labels,
            use_cache,
            input_features=input_features,
            **kwargs,
        )


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSeq2SeqLM": BartForConditionalGeneration,
}
MBART_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSeq2SeqLM": MBartForConditionalGeneration,
}
PEGASUS_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSeq2SeqLM": PegasusForConditionalGeneration,
}
MARIAN_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSeq2SeqLM": MarianMTModel,
}
WHISPER_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSpeechSeq2Seq": WhisperForConditionalGeneration,
}
BLENDERBOT_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSeq2SeqLM": BlenderbotForConditionalGeneration,
}
M2M100_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BartModel,
    "AutoModelForSeq2SeqLM": M2M100ForConditionalGeneration,
}

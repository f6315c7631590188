"""MPNet: `modeling_mpnet.py`, in parts of BERT and RoBERTa. Its attention is written out, with a bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchwise_memory.families import bert
from torchwise_memory.families.base import (
    Config,
    ModelOutput,
    PreTrainedModel,
    add,
    dropout_layer,
    embedding,
    layer_norm,
    linear,
    members,
    module_list,
    split_heads,
)
from torchwise_memory.families.base import attention_mask as bidirectional_mask
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import int64
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `MPNetConfig`
MPNET: Mapping[str, object] = {
    **bert.BERT,
    "vocab_size": 30527,
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
}
CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    name: {"max_position_embeddings": 514} for name in ("mpnet-base", "all-mpnet-base-v2")
}
PADDING = 1


class Embeddings(Module):
    """Words and positions, which are counted from the padding index on."""

    native_name = "transformers.models.mpnet.modeling_mpnet.MPNetEmbeddings"

    def build(self, w: World, config: Config) -> None:
        hidden, positions = config.integer("hidden_size"), config.integer("max_position_embeddings")
        self.children["word_embeddings"] = embedding(w, config.integer("vocab_size"), hidden, PADDING)
        self.children["position_embeddings"] = embedding(w, positions, hidden, PADDING)
        self.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))
        buffer = torch_function(w, "torch.empty", (1, positions), dtype=int64)
        self.register_buffer(w, "position_ids", buffer, persistent=False)

    def forward(self, w: World, input_ids: Tensor, position_ids: Tensor | None) -> Any:
        if position_ids is None:
            position_ids = bert.counted_positions(w, input_ids)
        inputs_embeds = self.run(w, "word_embeddings", input_ids)
        position_embeds = self.run(w, "position_embeddings", position_ids)
        embeddings = add(w, inputs_embeds, position_embeds)
        embeddings = self.run(w, "LayerNorm", embeddings)
        return self.run(w, "dropout", embeddings)


class SelfAttention(Module):
    """Scores are alive until the output projection has run: they have a name in the library's function."""

    native_name = "transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention"

    def build(self, w: World, config: Config) -> None:
        hidden = config.integer("hidden_size")
        self.size = hidden // config.integer("num_attention_heads")
        for name in ("q", "k", "v", "o"):
            self.children[name] = linear(w, hidden, hidden)
        self.children["dropout"] = dropout_layer(w, config.number("attention_probs_dropout_prob"))

    def forward(self, w: World, hidden_states: Any, mask: Any, bias: Any) -> Any:
        q, k, v = (split_heads(w, self.run(w, name, hidden_states), self.size) for name in ("q", "k", "v"))
        scores = torch_function(w, "torch.matmul", q, method(w, "transpose", k, -1, -2))
        scores = torch_function(w, "torch.div", scores, self.size**0.5)
        scores = method(w, "add_", scores, bias)
        if mask is not None:
            scores = add(w, scores, mask)
        chances = functional(w, "softmax", scores, -1)
        chances = self.run(w, "dropout", chances)
        c = torch_function(w, "torch.matmul", chances, v)
        c = method(w, "contiguous", method(w, "permute", c, 0, 2, 1, 3))
        c = method(w, "view", c, *c.shape[:-2], c.shape[-2] * c.shape[-1])
        return self.run(w, "o", c)


class Attention(Module):
    native_name = "transformers.models.mpnet.modeling_mpnet.MPNetAttention"

    def build(self, w: World, config: Config) -> None:
        own = SelfAttention()
        own.build(w, config)
        self.children["attn"] = own
        self.children["LayerNorm"] = layer_norm(
            w, config.integer("hidden_size"), config.number("layer_norm_eps")
        )
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))

    def forward(self, w: World, hidden_states: Any, mask: Any, bias: Any) -> Any:
        attended = self.run(w, "attn", hidden_states, mask, bias)
        return self.run(w, "LayerNorm", add(w, self.run(w, "dropout", attended), hidden_states))


class MPNetLayer(Module):
    native_name = "transformers.models.mpnet.modeling_mpnet.MPNetLayer"

    def build(self, w: World, config: Config) -> None:
        attention, intermediate, output = Attention(), bert.Intermediate(), bert.Projection()
        attention.build(w, config)
        intermediate.build(w, config)
        output.build(w, config, config.integer("intermediate_size"))
        self.children.update(attention=attention, intermediate=intermediate, output=output)

    def forward(self, w: World, hidden_states: Any, mask: Any, bias: Any) -> Any:
        attended = self.run(w, "attention", hidden_states, mask, bias)
        intermediate = self.run(w, "intermediate", attended)
        return self.run(w, "output", intermediate, attended)


class Encoder(Module):
    """The bias by distance is made once, for every sequence of the batch."""

    native_name = "transformers.models.mpnet.modeling_mpnet.MPNetEncoder"

    def build(self, w: World, config: Config) -> None:
        layers: list[Module] = []
        for _ in range(config.integer("num_hidden_layers")):
            layer = MPNetLayer()
            layer.build(w, config)
            layers.append(layer)
        self.children["layer"] = module_list(layers)
        buckets = config.integer("relative_attention_num_buckets")
        self.children["relative_attention_bias"] = embedding(
            w, buckets, config.integer("num_attention_heads")
        )

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        bias = self._bias(w, hidden_states)
        for layer in members(self.child("layer")):
            hidden_states = call(w, layer, (hidden_states, mask, bias), {})
        return hidden_states

    def _bias(self, w: World, x: Tensor) -> Any:
        batch, length = x.shape[0], x.shape[1]
        buckets = w.new((length, length), int64, "add_", x.device)
        values = self.run(w, "relative_attention_bias", buckets)
        values = method(w, "unsqueeze", method(w, "permute", values, 2, 0, 1), 0)
        return method(w, "contiguous", method(w, "expand", values, batch, -1, length, length))


class MPNetModel(bert.BertModel):
    native_name = "transformers.MPNetModel"

    def build_body(self, w: World, config: Config, pooling: bool) -> None:
        config.assign("_attn_implementation", "eager")
        self.configure(config)
        embeddings, encoder = Embeddings(), Encoder()
        embeddings.build(w, config)
        encoder.build(w, config)
        self.children.update(embeddings=embeddings, encoder=encoder)
        self.children["pooler"] = None
        if pooling:
            pooler = bert.Pooler()
            hidden = config.integer("hidden_size")
            pooler.children["dense"] = linear(w, hidden, hidden)
            self.children["pooler"] = pooler

    def forward(
        self,
        w: World,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        embedded = self.run(w, "embeddings", input_ids, position_ids)
        mask = bidirectional_mask(w, self.config, embedded, attention_mask, input_ids.shape[1], causal=False)
        sequence = self.run(w, "encoder", embedded, mask)
        pooled = None if self.children["pooler"] is None else self.run(w, "pooler", sequence)
        return ModelOutput(last_hidden_state=sequence, pooler_output=pooled)


class MPNetForSequenceClassification(bert.RobertaForSequenceClassification):
    native_name = "transformers.MPNetForSequenceClassification"
    body = "mpnet"
    body_class = MPNetModel


class MPNetLMHead(Module):
    native_name = "transformers.models.mpnet.modeling_mpnet.MPNetLMHead"

    def build(self, w: World, config: Config, words: Module) -> None:
        hidden = config.integer("hidden_size")
        decoder = linear(w, hidden, config.integer("vocab_size"))
        self.parameters["bias"] = decoder.parameters["bias"]
        if config.flag("tie_word_embeddings"):
            decoder.parameters["weight"] = words.parameters["weight"]
        self.children["dense"] = linear(w, hidden, hidden)
        self.children["layer_norm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        self.children["decoder"] = decoder

    def forward(self, w: World, features: Any) -> Any:
        x = functional(w, "gelu", self.run(w, "dense", features))
        return self.run(w, "decoder", self.run(w, "layer_norm", x))


class MPNetForMaskedLM(PreTrainedModel):
    native_name = "transformers.MPNetForMaskedLM"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body, head = MPNetModel(), MPNetLMHead()
        body.build_body(w, config, pooling=False)
        head.build(w, config, body.child("embeddings").child("word_embeddings"))
        self.children.update(mpnet=body, lm_head=head)

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        names = ("attention_mask", "position_ids")
        outputs = self.run(w, "mpnet", input_ids, **{name: kwargs.get(name) for name in names})
        logits = self.run(w, "lm_head", outputs.lookup("last_hidden_state"))
        loss = None
        if labels is not None:
            flat = method(w, "view", logits, -1, self.config.integer("vocab_size"))
            loss = functional(w, "cross_entropy", flat, method(w, "view", labels, -1))
        return ModelOutput(loss=loss, logits=logits)


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": MPNetModel,
    "AutoModelForMaskedLM": MPNetForMaskedLM,
    "AutoModelForSequenceClassification": MPNetForSequenceClassification,
}

"""BERT, RoBERTa and DistilBERT: `modeling_bert.py`, `modeling_roberta.py`, `modeling_distilbert.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchwise_memory.families.base import (
    Block,
    Config,
    ModelOutput,
    PreTrainedModel,
    activation,
    add,
    attend,
    classification_loss,
    dropout_layer,
    embedding,
    layer_norm,
    linear,
    members,
    merge_heads,
    module_list,
    run_block,
    split_heads,
)
from torchwise_memory.families.base import attention_mask as bidirectional_mask
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import boolean, int32, int64
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `BertConfig`
BERT: Mapping[str, object] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
    "is_decoder": False,
    "num_labels": 2,
    "use_cache": True,
}
#: `RobertaConfig`
ROBERTA: Mapping[str, object] = {**BERT, "vocab_size": 50265, "pad_token_id": 1}
#: `DistilBertConfig`
DISTILBERT: Mapping[str, object] = {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "n_layers": 6,
    "n_heads": 12,
    "dim": 768,
    "hidden_dim": 3072,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
    "seq_classif_dropout": 0.2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "num_labels": 2,
    "use_cache": False,
}
DISTILBERT_SPELLINGS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}
#: `config.json` of the published checkpoints, where it differs from the defaults.
BERT_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "bert-base-uncased": {},
    "bert-base-cased": {"vocab_size": 28996},
    "bert-base-multilingual-cased": {"vocab_size": 119547},
    "bert-large-uncased": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "bert-large-cased": {
        "vocab_size": 28996,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
ROBERTA_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "roberta-base": {"max_position_embeddings": 514, "type_vocab_size": 1},
    "roberta-large": {
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
DISTILBERT_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "distilbert-base-uncased": {},
    "distilbert-base-cased": {"vocab_size": 28996},
}


class Projection(Module):
    """`BertSelfOutput` and `BertOutput`: dense, dropout, residual, norm."""

    native_name = "transformers.models.bert.modeling_bert.BertOutput"

    def build(self, w: World, config: Config, width: int) -> None:
        hidden = config.integer("hidden_size")
        self.children["dense"] = linear(w, width, hidden)
        self.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))

    def forward(self, w: World, hidden_states: Any, input_tensor: Any) -> Any:
        hidden_states = self.run(w, "dense", hidden_states)
        hidden_states = self.run(w, "dropout", hidden_states)
        return self.run(w, "LayerNorm", add(w, hidden_states, input_tensor))


class SelfAttention(Module):
    """`projections` are the names of query, key and value."""

    native_name = "transformers.models.bert.modeling_bert.BertSelfAttention"
    projections = ("query", "key", "value")
    dropout_option = "attention_probs_dropout_prob"

    def build(self, w: World, config: Config) -> None:
        hidden = config.integer("hidden_size")
        self.config = config
        self.size = hidden // config.integer("num_attention_heads")
        for name in self.projections:
            self.children[name] = linear(w, hidden, hidden)
        self.children["dropout"] = dropout_layer(w, config.number(self.dropout_option))

    def forward(self, w: World, hidden_states: Tensor, mask: Tensor | None) -> Any:
        query, key, value = (
            split_heads(w, self.run(w, name, hidden_states), self.size) for name in self.projections
        )
        dropout = self.child("dropout").number("p") if self.training else 0.0
        implementation = self.config.text("_attn_implementation")
        output, weights = attend(
            w, implementation, query, key, value, mask, dropout, self.size**-0.5, causal=False, style="bert"
        )
        return merge_heads(w, output), weights


class Attention(Module):
    native_name = "transformers.models.bert.modeling_bert.BertAttention"

    def build(self, w: World, config: Config) -> None:
        own, output = SelfAttention(), Projection()
        own.build(w, config)
        output.build(w, config, config.integer("hidden_size"))
        self.children.update({"self": own, "output": output})

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        attended, weights = self.run(w, "self", hidden_states, mask)
        attended = self.run(w, "output", attended, hidden_states)
        return attended, weights


class Intermediate(Module):
    native_name = "transformers.models.bert.modeling_bert.BertIntermediate"

    def build(self, w: World, config: Config) -> None:
        self.config = config
        self.children["dense"] = linear(w, config.integer("hidden_size"), config.integer("intermediate_size"))

    def forward(self, w: World, hidden_states: Any) -> Any:
        hidden_states = self.run(w, "dense", hidden_states)
        return activation(w, self.config.text("hidden_act"), hidden_states)


class BertLayer(Block):
    native_name = "transformers.models.bert.modeling_bert.BertLayer"

    def build(self, w: World, config: Config) -> None:
        attention, intermediate, output = Attention(), Intermediate(), Projection()
        attention.build(w, config)
        intermediate.build(w, config)
        output.build(w, config, config.integer("intermediate_size"))
        self.children.update(attention=attention, intermediate=intermediate, output=output)

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        attended, _ = self.run(w, "attention", hidden_states, mask)
        intermediate = self.run(w, "intermediate", attended)
        return self.run(w, "output", intermediate, attended)


class Embeddings(Module):
    """Words, token types and positions; the last two from buffers where they are not given."""

    native_name = "transformers.models.bert.modeling_bert.BertEmbeddings"
    computes_positions = False

    def build(self, w: World, config: Config) -> None:
        hidden = config.integer("hidden_size")
        padding: Any = config.lookup("pad_token_id")
        self.children["word_embeddings"] = embedding(w, config.integer("vocab_size"), hidden, padding)
        self.children["position_embeddings"] = embedding(w, config.integer("max_position_embeddings"), hidden)
        self.children["token_type_embeddings"] = embedding(w, config.integer("type_vocab_size"), hidden)
        self.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))
        for name in ("position_ids", "token_type_ids"):
            shape = (1, config.integer("max_position_embeddings"))
            buffer = torch_function(w, "torch.empty", shape, dtype=int64)
            self.register_buffer(w, name, buffer, persistent=False)

    def forward(
        self, w: World, input_ids: Tensor, token_type_ids: Tensor | None, position_ids: Tensor | None
    ) -> Any:
        batch, length = input_ids.shape
        if position_ids is None:
            position_ids = self._positions(w, input_ids)
        if token_type_ids is None:
            rows = 1 if position_ids is None else position_ids.shape[0]
            token_type_ids = w.new((rows, length), int64, "gather", input_ids.device)
            token_type_ids = method(w, "expand", token_type_ids, batch, length)
        inputs_embeds = self.run(w, "word_embeddings", input_ids)
        type_embeds = self.run(w, "token_type_embeddings", token_type_ids)
        embeddings = add(w, inputs_embeds, type_embeds)
        position_embeds = self.run(w, "position_embeddings", position_ids)
        embeddings = add(w, embeddings, position_embeds)
        embeddings = self.run(w, "LayerNorm", embeddings)
        return self.run(w, "dropout", embeddings)

    def _positions(self, w: World, input_ids: Tensor) -> Any:
        if not self.computes_positions:
            return method(w, "narrow", self.tensor("position_ids"), 1, 0, input_ids.shape[1])
        return counted_positions(w, input_ids)


def counted_positions(w: World, input_ids: Tensor) -> Tensor:
    """`create_position_ids_from_input_ids`: from the padding index on, for each sequence."""
    present = w.new(input_ids.shape, boolean, "ne", input_ids.device)
    counted = [w.new(input_ids.shape, dtype, "cumsum", input_ids.device) for dtype in (int32, int64)]
    positions = w.new(input_ids.shape, int64, "add", input_ids.device)
    del present, counted
    return positions


class RobertaEmbeddings(Embeddings):
    """Positions are counted from the padding index on, for each sequence."""

    native_name = "transformers.models.roberta.modeling_roberta.RobertaEmbeddings"
    computes_positions = True


class Encoder(Module):
    native_name = "transformers.models.bert.modeling_bert.BertEncoder"

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        for layer in members(self.child("layer")):
            hidden_states = run_block(w, layer, hidden_states, mask)
        return hidden_states


class Pooler(Module):
    native_name = "transformers.models.bert.modeling_bert.BertPooler"

    def forward(self, w: World, hidden_states: Tensor) -> Any:
        first = method(w, "__getitem__", hidden_states, (slice(None), 0))
        return torch_function(w, "torch.tanh", self.run(w, "dense", first))


class BertModel(PreTrainedModel):
    native_name = "transformers.BertModel"
    embeddings_class: type[Embeddings] = Embeddings
    layer_names = ("encoder", "layer")

    def build(self, w: World, config: Config) -> None:
        self.build_body(w, config, pooling=True)

    def build_body(self, w: World, config: Config, pooling: bool) -> None:
        if config.flag("is_decoder"):
            raise Unsupported(self.native_name, "a BERT decoder is not modelled")
        self.configure(config)
        embeddings, encoder = self.embeddings_class(), Encoder()
        embeddings.build(w, config)
        layers: list[Module] = []
        for _ in range(config.integer("num_hidden_layers")):
            layer = BertLayer()
            layer.build(w, config)
            layers.append(layer)
        encoder.children["layer"] = module_list(layers)
        self.children.update(embeddings=embeddings, encoder=encoder)
        self.children["pooler"] = None
        if pooling:
            pooler = Pooler()
            pooler.children["dense"] = linear(w, config.integer("hidden_size"), config.integer("hidden_size"))
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
        embedded = self.embedded(w, input_ids, token_type_ids, position_ids)
        mask = bidirectional_mask(w, self.config, embedded, attention_mask, input_ids.shape[1], causal=False)
        sequence = self.run(w, "encoder", embedded, mask)
        pooled = None if self.children["pooler"] is None else self.run(w, "pooler", sequence)
        return ModelOutput(last_hidden_state=sequence, pooler_output=pooled)

    def embedded(self, w: World, *args: Any) -> Any:
        """What the layers get."""
        return self.run(w, "embeddings", *args)


class RobertaModel(BertModel):
    native_name = "transformers.RobertaModel"
    embeddings_class = RobertaEmbeddings


class _Head(PreTrainedModel):
    """`body` names the submodule that holds the encoder."""

    body = "bert"
    body_class: type[BertModel] = BertModel
    pooling = True

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        encoder = self.body_class()
        encoder.build_body(w, config, self.pooling)
        self.children[self.body] = encoder
        self.build_head(w, config)

    def build_head(self, w: World, config: Config) -> None:
        raise NotImplementedError

    def encode(self, w: World, input_ids: Tensor, options: Mapping[str, Any]) -> Any:
        names = ("attention_mask", "token_type_ids", "position_ids")
        return self.run(w, self.body, input_ids, **{name: options.get(name) for name in names})


class BertForSequenceClassification(_Head):
    native_name = "transformers.BertForSequenceClassification"

    def build_head(self, w: World, config: Config) -> None:
        self.children["dropout"] = dropout_layer(w, _classifier_dropout(config))
        self.children["classifier"] = linear(w, config.integer("hidden_size"), config.integer("num_labels"))

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.encode(w, input_ids, kwargs)
        pooled = self.run(w, "dropout", outputs.lookup("pooler_output"))
        logits = self.run(w, "classifier", pooled)
        loss = None if labels is None else classification_loss(w, logits, labels, self.config)
        return ModelOutput(loss=loss, logits=logits)


class MaskedLMHead(Module):
    """`BertLMPredictionHead`: transform, then the tied decoder."""

    native_name = "transformers.models.bert.modeling_bert.BertLMPredictionHead"

    def build(self, w: World, config: Config, words: Module) -> None:
        hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
        self.config = config
        transform = Module()
        transform.children["dense"] = linear(w, hidden, hidden)
        transform.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        decoder = linear(w, hidden, vocabulary)
        self.parameters["bias"] = decoder.parameters["bias"]
        if config.flag("tie_word_embeddings"):
            decoder.parameters["weight"] = words.parameters["weight"]
        self.children.update(transform=transform, decoder=decoder)

    def forward(self, w: World, hidden_states: Any) -> Any:
        transform = self.child("transform")
        hidden_states = transform.run(w, "dense", hidden_states)
        hidden_states = activation(w, self.config.text("hidden_act"), hidden_states)
        hidden_states = transform.run(w, "LayerNorm", hidden_states)
        return self.run(w, "decoder", hidden_states)


class BertForMaskedLM(_Head):
    native_name = "transformers.BertForMaskedLM"
    pooling = False

    def build_head(self, w: World, config: Config) -> None:
        words = self.child(self.body).child("embeddings").child("word_embeddings")
        head, predictions = Module(), MaskedLMHead()
        predictions.build(w, config, words)
        head.children["predictions"] = predictions
        self.children["cls"] = head

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.encode(w, input_ids, kwargs)
        sequence = outputs.lookup("last_hidden_state")
        logits = self.child("cls").run(w, "predictions", sequence)
        loss = None if labels is None else _masked_lm_loss(w, logits, labels)
        return ModelOutput(loss=loss, logits=logits)


class RobertaClassificationHead(Module):
    native_name = "transformers.models.roberta.modeling_roberta.RobertaClassificationHead"

    def forward(self, w: World, features: Tensor) -> Any:
        x = method(w, "__getitem__", features, (slice(None), 0))
        x = self.run(w, "dropout", x)
        x = self.run(w, "dense", x)
        x = torch_function(w, "torch.tanh", x)
        x = self.run(w, "dropout", x)
        return self.run(w, "out_proj", x)


class RobertaForSequenceClassification(_Head):
    native_name = "transformers.RobertaForSequenceClassification"
    body = "roberta"
    body_class: type[BertModel] = RobertaModel
    head_class: type[Module] = RobertaClassificationHead
    pooling = False

    def build_head(self, w: World, config: Config) -> None:
        hidden = config.integer("hidden_size")
        head = self.head_class()
        head.children["dense"] = linear(w, hidden, hidden)
        head.children["dropout"] = dropout_layer(w, _classifier_dropout(config))
        head.children["out_proj"] = linear(w, hidden, config.integer("num_labels"))
        self.children["classifier"] = head

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.encode(w, input_ids, kwargs)
        sequence = outputs.lookup("last_hidden_state")
        logits = self.run(w, "classifier", sequence)
        loss = None if labels is None else classification_loss(w, logits, labels, self.config)
        return ModelOutput(loss=loss, logits=logits)


class DistilBertAttention(SelfAttention):
    native_name = "transformers.models.distilbert.modeling_distilbert.DistilBertSelfAttention"
    projections = ("q_lin", "k_lin", "v_lin")
    dropout_option = "attention_dropout"

    def build(self, w: World, config: Config) -> None:
        super().build(w, config)
        self.children["out_lin"] = linear(w, config.integer("dim"), config.integer("dim"))

    def forward(self, w: World, hidden_states: Tensor, mask: Tensor | None) -> Any:
        output, weights = super().forward(w, hidden_states, mask)
        return self.run(w, "out_lin", output), weights


class DistilBertFeedForward(Module):
    native_name = "transformers.models.distilbert.modeling_distilbert.FFN"

    def build(self, w: World, config: Config) -> None:
        self.config = config
        self.children["dropout"] = dropout_layer(w, config.number("dropout"))
        self.children["lin1"] = linear(w, config.integer("dim"), config.integer("hidden_dim"))
        self.children["lin2"] = linear(w, config.integer("hidden_dim"), config.integer("dim"))

    def forward(self, w: World, x: Any) -> Any:
        x = self.run(w, "lin1", x)
        x = activation(w, self.config.text("activation"), x)
        x = self.run(w, "lin2", x)
        return self.run(w, "dropout", x)


class DistilBertBlock(Block):
    native_name = "transformers.models.distilbert.modeling_distilbert.TransformerBlock"

    def build(self, w: World, config: Config) -> None:
        attention, feed_forward = DistilBertAttention(), DistilBertFeedForward()
        attention.build(w, config)
        feed_forward.build(w, config)
        self.children["attention"] = attention
        self.children["sa_layer_norm"] = layer_norm(w, config.integer("dim"), 1e-12)
        self.children["ffn"] = feed_forward
        self.children["output_layer_norm"] = layer_norm(w, config.integer("dim"), 1e-12)

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        attended, _ = self.run(w, "attention", hidden_states, mask)
        attended = self.run(w, "sa_layer_norm", add(w, attended, hidden_states))
        fed = self.run(w, "ffn", attended)
        return self.run(w, "output_layer_norm", add(w, fed, attended))


class DistilBertEmbeddings(Module):
    native_name = "transformers.models.distilbert.modeling_distilbert.Embeddings"

    def build(self, w: World, config: Config) -> None:
        positions, hidden = config.integer("max_position_embeddings"), config.integer("dim")
        self.children["word_embeddings"] = embedding(w, config.integer("vocab_size"), hidden, 0)
        self.children["position_embeddings"] = embedding(w, positions, hidden)
        self.children["LayerNorm"] = layer_norm(w, hidden, 1e-12)
        self.children["dropout"] = dropout_layer(w, config.number("dropout"))
        buffer = torch_function(w, "torch.empty", (1, positions), dtype=int64)
        self.register_buffer(w, "position_ids", buffer, persistent=False)

    def forward(self, w: World, input_ids: Tensor) -> Any:
        inputs_embeds = self.run(w, "word_embeddings", input_ids)
        position_ids = method(w, "narrow", self.tensor("position_ids"), 1, 0, input_ids.shape[1])
        position_embeds = self.run(w, "position_embeddings", position_ids)
        embeddings = add(w, inputs_embeds, position_embeds)
        embeddings = self.run(w, "LayerNorm", embeddings)
        return self.run(w, "dropout", embeddings)


class DistilBertModel(PreTrainedModel):
    native_name = "transformers.DistilBertModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        embeddings, transformer = DistilBertEmbeddings(), Encoder()
        embeddings.build(w, config)
        layers: list[Module] = []
        for _ in range(config.integer("n_layers")):
            layer = DistilBertBlock()
            layer.build(w, config)
            layers.append(layer)
        transformer.children["layer"] = module_list(layers)
        self.children.update(embeddings=embeddings, transformer=transformer)

    def forward(
        self, w: World, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        embedded = self.run(w, "embeddings", input_ids)
        mask = bidirectional_mask(w, self.config, embedded, attention_mask, input_ids.shape[1], causal=False)
        return ModelOutput(last_hidden_state=self.run(w, "transformer", embedded, mask))


class DistilBertForSequenceClassification(PreTrainedModel):
    native_name = "transformers.DistilBertForSequenceClassification"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = DistilBertModel()
        body.build(w, config)
        self.children["distilbert"] = body
        self.children["pre_classifier"] = linear(w, config.integer("dim"), config.integer("dim"))
        self.children["classifier"] = linear(w, config.integer("dim"), config.integer("num_labels"))
        self.children["dropout"] = dropout_layer(w, config.number("seq_classif_dropout"))

    def forward(
        self,
        w: World,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = self.run(w, "distilbert", input_ids, attention_mask=attention_mask)
        hidden_state = outputs.lookup("last_hidden_state")
        pooled = method(w, "__getitem__", hidden_state, (slice(None), 0))
        pooled = self.run(w, "pre_classifier", pooled)
        pooled = functional(w, "relu", pooled)
        pooled = self.run(w, "dropout", pooled)
        logits = self.run(w, "classifier", pooled)
        loss = None if labels is None else classification_loss(w, logits, labels, self.config)
        return ModelOutput(loss=loss, logits=logits)


def _masked_lm_loss(w: World, logits: Tensor, labels: Tensor) -> Any:
    flat = method(w, "view", logits, -1, logits.shape[-1])
    return functional(w, "cross_entropy", flat, method(w, "view", labels, -1))


def _classifier_dropout(config: Config) -> float:
    own = config.lookup("classifier_dropout")
    return config.number("hidden_dropout_prob") if own is None else config.number("classifier_dropout")


BERT_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": BertModel,
    "AutoModelForMaskedLM": BertForMaskedLM,
    "AutoModelForSequenceClassification": BertForSequenceClassification,
}
ROBERTA_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": RobertaModel,
    "AutoModelForSequenceClassification": RobertaForSequenceClassification,
}
DISTILBERT_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": DistilBertModel,
    "AutoModelForSequenceClassification": DistilBertForSequenceClassification,
}

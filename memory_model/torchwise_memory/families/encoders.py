"""ELECTRA, ALBERT, XLM-RoBERTa and CamemBERT: `modeling_<name>.py`, in parts of BERT and RoBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchwise_memory.families import bert
from torchwise_memory.families.base import (
    Config,
    ModelOutput,
    PreTrainedModel,
    activation,
    add,
    classification_loss,
    dropout_layer,
    layer_norm,
    linear,
    members,
    module_list,
)
from torchwise_memory.families.base import attention_mask as bidirectional_mask
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import method, torch_function
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `XLMRobertaConfig`
XLM_ROBERTA: Mapping[str, object] = {**bert.ROBERTA, "vocab_size": 30522}
XLM_ROBERTA_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "xlm-roberta-base": {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1},
    "xlm-roberta-large": {
        "vocab_size": 250002,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
CAMEMBERT_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "camembert-base": {"vocab_size": 32005, "max_position_embeddings": 514, "type_vocab_size": 1}
}
#: `ElectraConfig`
ELECTRA: Mapping[str, object] = {
    **bert.BERT,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
ELECTRA_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    f"electra-{size}-discriminator": fields
    for size, fields in {
        "small": {},
        "base": {
            "embedding_size": 768,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        "large": {
            "embedding_size": 1024,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    }.items()
}
#: `AlbertConfig`
ALBERT: Mapping[str, object] = {
    **bert.BERT,
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
}
ALBERT_CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "albert-base-v2": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "albert-large-v2": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}


def roberta_heads(kind: str) -> Mapping[str, type[PreTrainedModel]]:
    """RoBERTa's models under another name."""

    class Model(bert.RobertaModel):
        native_name = f"transformers.{kind}Model"

    class ForSequenceClassification(bert.RobertaForSequenceClassification):
        native_name = f"transformers.{kind}ForSequenceClassification"
        body_class = Model

    Model.__name__ = f"{kind}Model"
    ForSequenceClassification.__name__ = f"{kind}ForSequenceClassification"
    return {"AutoModel": Model, "AutoModelForSequenceClassification": ForSequenceClassification}


def narrow_embeddings(w: World, config: Config) -> bert.Embeddings:
    """BERT's embeddings of `embedding_size`."""
    made = bert.Embeddings()
    narrow = {**config.fields, "hidden_size": config.integer("embedding_size")}
    made.build(w, Config(config.model_type, narrow, {}))
    return made


class ElectraModel(bert.BertModel):
    native_name = "transformers.ElectraModel"

    def build(self, w: World, config: Config) -> None:
        self.build_body(w, config, pooling=False)

    def build_body(self, w: World, config: Config, pooling: bool) -> None:
        super().build_body(w, config, False)
        self.children["embeddings"] = narrow_embeddings(w, config)
        narrow, wide = config.integer("embedding_size"), config.integer("hidden_size")
        if narrow != wide:
            self.children["embeddings_project"] = linear(w, narrow, wide)

    def embedded(self, w: World, *args: Any) -> Any:
        embedded = super().embedded(w, *args)
        return (
            self.run(w, "embeddings_project", embedded) if "embeddings_project" in self.children else embedded
        )


class ElectraClassificationHead(Module):
    native_name = "transformers.models.electra.modeling_electra.ElectraClassificationHead"

    def forward(self, w: World, features: Tensor) -> Any:
        x = method(w, "__getitem__", features, (slice(None), 0))
        x = self.run(w, "dropout", x)
        x = self.run(w, "dense", x)
        x = activation(w, "gelu", x)
        x = self.run(w, "dropout", x)
        return self.run(w, "out_proj", x)


class ElectraForSequenceClassification(bert.RobertaForSequenceClassification):
    native_name = "transformers.ElectraForSequenceClassification"
    body = "electra"
    body_class = ElectraModel
    head_class = ElectraClassificationHead


ELECTRA_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": ElectraModel,
    "AutoModelForSequenceClassification": ElectraForSequenceClassification,
}


class AlbertAttention(bert.SelfAttention):
    native_name = "transformers.models.albert.modeling_albert.AlbertAttention"

    def build(self, w: World, config: Config) -> None:
        super().build(w, config)
        hidden = config.integer("hidden_size")
        self.children["dense"] = linear(w, hidden, hidden)
        self.children["output_dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))
        self.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))

    def forward(self, w: World, hidden_states: Tensor, mask: Tensor | None) -> Any:
        output, weights = super().forward(w, hidden_states, mask)
        output = self.run(w, "output_dropout", self.run(w, "dense", output))
        return self.run(w, "LayerNorm", add(w, hidden_states, output)), weights


class AlbertLayer(Module):
    native_name = "transformers.models.albert.modeling_albert.AlbertLayer"

    def build(self, w: World, config: Config) -> AlbertLayer:
        self.config = config
        hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        attention = AlbertAttention()
        self.children["full_layer_layer_norm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        attention.build(w, config)
        self.children["attention"] = attention
        self.children["ffn"] = linear(w, hidden, inner)
        self.children["ffn_output"] = linear(w, inner, hidden)
        return self

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        attended, _ = self.run(w, "attention", hidden_states, mask)
        inner = self.run(w, "ffn", attended)
        inner = activation(w, self.config.text("hidden_act"), inner)
        inner = self.run(w, "ffn_output", inner)
        return self.run(w, "full_layer_layer_norm", add(w, inner, attended))


class AlbertTransformer(Module):
    """A few groups of layers, each run many times."""

    native_name = "transformers.models.albert.modeling_albert.AlbertTransformer"

    def build(self, w: World, config: Config) -> AlbertTransformer:
        self.config = config
        narrow, wide = config.integer("embedding_size"), config.integer("hidden_size")
        self.children["embedding_hidden_mapping_in"] = linear(w, narrow, wide)
        groups: list[Module] = []
        for _ in range(config.integer("num_hidden_groups")):
            inner = [AlbertLayer().build(w, config) for _ in range(config.integer("inner_group_num"))]
            groups.append(module_list(inner))
        self.children["albert_layer_groups"] = module_list(groups)
        return self

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        hidden_states = self.run(w, "embedding_hidden_mapping_in", hidden_states)
        groups = members(self.child("albert_layer_groups"))
        depth = self.config.integer("num_hidden_layers")
        for index in range(depth):
            group = groups[int(index / (depth / len(groups)))]
            for name in group.children:
                hidden_states = group.run(w, name, hidden_states, mask)
        return hidden_states


class AlbertModel(PreTrainedModel):
    native_name = "transformers.AlbertModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        hidden = config.integer("hidden_size")
        self.children["embeddings"] = narrow_embeddings(w, config)
        self.children["encoder"] = AlbertTransformer().build(w, config)
        self.children["pooler"] = linear(w, hidden, hidden)

    def forward(
        self,
        w: World,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        embedded = self.run(w, "embeddings", input_ids, token_type_ids, position_ids)
        mask = bidirectional_mask(w, self.config, embedded, attention_mask, input_ids.shape[1], causal=False)
        sequence = self.run(w, "encoder", embedded, mask)
        first = method(w, "__getitem__", sequence, (slice(None), 0))
        pooled = torch_function(w, "torch.tanh", self.run(w, "pooler", first))
        return ModelOutput(last_hidden_state=sequence, pooler_output=pooled)


class AlbertForSequenceClassification(PreTrainedModel):
    native_name = "transformers.AlbertForSequenceClassification"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = AlbertModel()
        body.build(w, config)
        self.children["albert"] = body
        self.children["dropout"] = dropout_layer(w, config.number("classifier_dropout_prob"))
        self.children["classifier"] = linear(w, config.integer("hidden_size"), config.integer("num_labels"))

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.run(w, "albert", input_ids, **kwargs)
        pooled = self.run(w, "dropout", outputs.lookup("pooler_output"))
        logits = self.run(w, "classifier", pooled)
        loss = None if labels is None else classification_loss(w, logits, labels, self.config)
        return ModelOutput(loss=loss, logits=logits)


ALBERT_HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": AlbertModel,
    "AutoModelForSequenceClassification": AlbertForSequenceClassification,
}

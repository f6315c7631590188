"""DeBERTa v2 and v3: `modeling_deberta_v2.py`, attention with relative positions written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchwise_memory.families import bert
from torchwise_memory.families.base import (
    Block,
    Config,
    ModelOutput,
    PreTrainedModel,
    activation,
    add,
    classification_loss,
    dropout_layer,
    embedding,
    layer_norm,
    linear,
    members,
    module_list,
    run_block,
)
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import boolean, float32, int64
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `DebertaV2Config`
DEBERTA_V2: Mapping[str, object] = {
    **bert.BERT,
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "position_biased_input": True,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "pos_att_type": None,
    "pooler_dropout": 0.0,
    "pooler_hidden_act": "gelu",
    "conv_kernel_size": 0,
    "cls_dropout": None,
}
_V3: Mapping[str, object] = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "deberta-v3-xsmall": {
        **_V3,
        "hidden_size": 384,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
    },
    "deberta-v3-small": {
        **_V3,
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "deberta-v3-base": {
        **_V3,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "deberta-v3-large": {
        **_V3,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}


class DebertaEmbeddings(Module):
    native_name = "transformers.models.deberta_v2.modeling_deberta_v2.DebertaV2Embeddings"

    def build(self, w: World, config: Config) -> None:
        hidden, positions = config.integer("hidden_size"), config.integer("max_position_embeddings")
        padding: Any = config.lookup("pad_token_id")
        self.children["word_embeddings"] = embedding(w, config.integer("vocab_size"), hidden, padding)
        if config.flag("position_biased_input"):
            self.children["position_embeddings"] = embedding(w, positions, hidden)
        if config.integer("type_vocab_size"):
            self.children["token_type_embeddings"] = embedding(w, config.integer("type_vocab_size"), hidden)
        self.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))
        buffer = torch_function(w, "torch.empty", (1, positions), dtype=int64)
        self.register_buffer(w, "position_ids", buffer, persistent=False)

    def forward(self, w: World, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> Any:
        embeds = self.run(w, "word_embeddings", input_ids)
        if "position_embeddings" in self.children:
            places = method(w, "narrow", self.tensor("position_ids"), 1, 0, input_ids.shape[1])
            positions = self.run(w, "position_embeddings", places)
            embeddings = add(w, embeds, positions)
        else:
            # zeros that the library's function holds until it returns
            positions = torch_function(w, "torch.zeros_like", embeds)
            embeddings = embeds
        if "token_type_embeddings" in self.children:
            embeddings = add(w, embeddings, self.run(w, "token_type_embeddings", token_type_ids))
        embeddings = self.run(w, "LayerNorm", embeddings)
        mask = method(w, "to", method(w, "unsqueeze", mask, 2), embeddings.dtype)
        embeddings = torch_function(w, "torch.mul", embeddings, mask)
        result = self.run(w, "dropout", embeddings)
        del positions
        return result


class DisentangledAttention(Module):
    """Scores from content to content, content to position and position to content."""

    native_name = "transformers.models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention"

    def build(self, w: World, config: Config) -> None:
        hidden = config.integer("hidden_size")
        self.heads = config.integer("num_attention_heads")
        kinds: Any = config.lookup("pos_att_type")
        self.kinds = tuple(kinds.split("|") if isinstance(kinds, str) else kinds or ())
        self.shares = config.flag("share_att_key")
        self.relative = config.flag("relative_attention")
        self.span = relative_span(config)
        for name in ("query_proj", "key_proj", "value_proj"):
            self.children[name] = linear(w, hidden, hidden)
        if self.relative:
            self.children["pos_dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))
            if not self.shares:
                for kind, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
                    if kind in self.kinds:
                        self.children[name] = linear(w, hidden, hidden)
        self.children["dropout"] = dropout_layer(w, config.number("attention_probs_dropout_prob"))

    def forward(self, w: World, x: Tensor, mask: Tensor, relative: Any, table: Any) -> Any:
        query, key, value = (self._heads(w, self.run(w, f"{n}_proj", x)) for n in ("query", "key", "value"))
        turned = torch_function(w, "torch.div", method(w, "transpose", key, -1, -2), 1.0)
        scores = torch_function(w, "torch.bmm", query, turned)
        del turned
        bias: Any = None
        if self.relative:
            table = self.run(w, "pos_dropout", table)
            bias = self._bias(w, query, key, relative, table)
            scores = add(w, scores, bias)
        length = scores.shape[-1]
        scores = method(w, "view", scores, -1, self.heads, *scores.shape[-2:])
        mask = method(w, "to", mask, boolean)
        hidden = torch_function(w, "torch.logical_not", mask)
        scores = method(w, "masked_fill", scores, hidden, -1e9)
        del hidden
        probabilities = functional(w, "softmax", scores, -1)
        probabilities = self.run(w, "dropout", probabilities)
        flat = method(w, "view", probabilities, -1, length, length)
        context = torch_function(w, "torch.bmm", flat, value)
        del flat
        context = method(w, "view", context, -1, self.heads, *context.shape[-2:])
        context = method(w, "contiguous", method(w, "permute", context, 0, 2, 1, 3))
        result = method(w, "view", context, *context.shape[:-2], -1)
        del bias
        return result

    def _heads(self, w: World, x: Any) -> Any:
        x = method(w, "view", x, *x.shape[:-1], self.heads, -1)
        length, size = x.shape[1], x.shape[3]
        x = method(w, "contiguous", method(w, "permute", x, 0, 2, 1, 3))
        return method(w, "view", x, -1, length, size)

    def _bias(self, w: World, query: Any, key: Any, relative: Any, table: Any) -> Any:
        relative = method(w, "unsqueeze", relative, 1)
        table = method(w, "unsqueeze", method(w, "__getitem__", table, slice(0, 2 * self.span)), 0)
        positions: dict[str, Any] = {}
        names = (("p2c", "query"), ("c2p", "key"))
        for kind, name in names:
            if self.shares or kind in self.kinds:
                child = f"{name}_proj" if self.shares else f"pos_{name}_proj"
                each = self._heads(w, self.run(w, child, table))
                positions[kind] = method(w, "repeat", each, query.shape[0] // self.heads, 1, 1)
                del each
        score: Any = 0
        if "c2p" in self.kinds:
            attended = torch_function(w, "torch.bmm", query, method(w, "transpose", positions["c2p"], -1, -2))
            places = self._clamped(w, add(w, relative, self.span))
            attended = torch_function(w, "torch.gather", attended, -1, self._spread(w, places, query))
            score = torch_function(w, "torch.div", attended, 1.0)
        if "p2c" in self.kinds:
            from_key = torch_function(w, "torch.bmm", key, method(w, "transpose", positions["p2c"], -1, -2))
            backwards = self._clamped(w, add(w, torch_function(w, "torch.neg", relative), self.span))
            from_key = torch_function(w, "torch.gather", from_key, -1, self._spread(w, backwards, key))
            from_key = method(w, "transpose", from_key, -1, -2)
            scaled = torch_function(w, "torch.div", from_key, 1.0)
            score = scaled if isinstance(score, int) else method(w, "add_", score, scaled)
            del scaled
        return score

    def _clamped(self, w: World, places: Any) -> Any:
        return torch_function(w, "torch.clamp", places, 0, 2 * self.span - 1)

    def _spread(self, w: World, places: Any, over: Any) -> Any:
        return method(
            w, "expand", method(w, "squeeze", places, 0), over.shape[0], over.shape[1], over.shape[1]
        )


def relative_span(config: Config) -> int:
    """How far relative positions go, in buckets where there are some."""
    furthest = config.integer("max_relative_positions") if "max_relative_positions" in config.fields else -1
    furthest = furthest if furthest >= 1 else config.integer("max_position_embeddings")
    buckets = config.integer("position_buckets")
    return buckets if buckets > 0 else furthest


class DebertaAttention(Module):
    native_name = "transformers.models.deberta_v2.modeling_deberta_v2.DebertaV2Attention"

    def build(self, w: World, config: Config) -> None:
        own, output = DisentangledAttention(), bert.Projection()
        own.build(w, config)
        output.build(w, config, config.integer("hidden_size"))
        self.children.update({"self": own, "output": output})

    def forward(self, w: World, x: Any, mask: Tensor, relative: Any, table: Any) -> Any:
        attended = self.run(w, "self", x, mask, relative, table)
        return self.run(w, "output", attended, x)


class DebertaLayer(Block):
    native_name = "transformers.models.deberta_v2.modeling_deberta_v2.DebertaV2Layer"

    def build(self, w: World, config: Config) -> None:
        attention, intermediate, output = DebertaAttention(), bert.Intermediate(), bert.Projection()
        attention.build(w, config)
        intermediate.build(w, config)
        output.build(w, config, config.integer("intermediate_size"))
        self.children.update(attention=attention, intermediate=intermediate, output=output)

    def forward(self, w: World, x: Any, mask: Tensor, relative: Any, table: Any) -> Any:
        attended = self.run(w, "attention", x, mask, relative, table)
        intermediate = self.run(w, "intermediate", attended)
        return self.run(w, "output", intermediate, attended)


class DebertaEncoder(Module):
    """All hidden states are kept until the last layer has run."""

    native_name = "transformers.models.deberta_v2.modeling_deberta_v2.DebertaV2Encoder"

    def build(self, w: World, config: Config) -> None:
        if config.integer("conv_kernel_size"):
            raise Unsupported(self.native_name, "a convolution after the first layer is not modelled")
        self.config = config
        layers: list[Module] = []
        for _ in range(config.integer("num_hidden_layers")):
            layer = DebertaLayer()
            layer.build(w, config)
            layers.append(layer)
        self.children["layer"] = module_list(layers)
        hidden = config.integer("hidden_size")
        if config.flag("relative_attention"):
            self.children["rel_embeddings"] = embedding(w, 2 * relative_span(config), hidden)
        if "layer_norm" in config.text("norm_rel_ebd"):
            self.children["LayerNorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))

    def forward(self, w: World, x: Any, mask: Tensor) -> Any:
        wide = method(w, "unsqueeze", method(w, "unsqueeze", mask, 1), 2)
        pairs = torch_function(
            w, "torch.mul", wide, method(w, "unsqueeze", method(w, "squeeze", wide, -2), -1)
        )
        relative: Any = None
        table: Any = None
        if self.config.flag("relative_attention"):
            relative = w.new((1, x.shape[1], x.shape[1]), int64, "relative positions", x.device)
            table = self.child("rel_embeddings").tensor("weight")
            if "LayerNorm" in self.children:
                table = self.run(w, "LayerNorm", table)
        states = [x]
        for layer in members(self.child("layer")):
            states.append(run_block(w, layer, states[-1], pairs, relative, table))
        return states


class DebertaV2Model(PreTrainedModel):
    native_name = "transformers.DebertaV2Model"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        embeddings, encoder = DebertaEmbeddings(), DebertaEncoder()
        embeddings.build(w, config)
        encoder.build(w, config)
        self.children.update(embeddings=embeddings, encoder=encoder)

    def forward(
        self,
        w: World,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        shape = tuple(input_ids.shape)
        if attention_mask is None:
            attention_mask = w.new(shape, float32, "ones", input_ids.device)
        if token_type_ids is None:
            token_type_ids = w.new(shape, int64, "zeros", input_ids.device)
        embedded = self.run(w, "embeddings", input_ids, token_type_ids, attention_mask)
        states: Sequence[Any] = self.run(w, "encoder", embedded, attention_mask)
        return ModelOutput(last_hidden_state=states[-1])


class DebertaV2ForSequenceClassification(PreTrainedModel):
    native_name = "transformers.DebertaV2ForSequenceClassification"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body, pooler, hidden = DebertaV2Model(), Module(), config.integer("hidden_size")
        body.build(w, config)
        pooler.children["dense"] = linear(w, hidden, hidden)
        pooler.children["dropout"] = dropout_layer(w, config.number("pooler_dropout"))
        rate = "hidden_dropout_prob" if config.lookup("cls_dropout") is None else "cls_dropout"
        self.children.update(deberta=body, pooler=pooler)
        self.children["classifier"] = linear(w, hidden, config.integer("num_labels"))
        self.children["dropout"] = dropout_layer(w, config.number(rate))

    def forward(self, w: World, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        sequence = self.run(w, "deberta", input_ids, **kwargs).lookup("last_hidden_state")
        pooler = self.child("pooler")
        first = method(w, "__getitem__", sequence, (slice(None), 0))
        pooled = pooler.run(w, "dense", pooler.run(w, "dropout", first))
        pooled = activation(w, self.config.text("pooler_hidden_act"), pooled)
        logits = self.run(w, "classifier", self.run(w, "dropout", pooled))
        loss = None if labels is None else classification_loss(w, logits, labels, self.config)
        return ModelOutput(loss=loss, logits=logits)


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": DebertaV2Model,
    "AutoModelForSequenceClassification": DebertaV2ForSequenceClassification,
}

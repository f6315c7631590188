"""ViT: `transformers/models/vit/modeling_vit.py`."""

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
    layer_norm,
    linear,
    members,
    merge_heads,
    module_list,
    run_block,
    split_heads,
)
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.conv import Conv2d
from torchwise_memory.modules.ops import method, torch_function
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `ViTConfig`
DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "pooler_output_size": None,
    "num_labels": 2,
    "use_cache": False,
}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
#: `config.json` of the published checkpoints, where it differs from the defaults.
CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "vit-base-patch16-224": {"num_labels": 1000},
    "vit-base-patch16-224-in21k": {},
    "vit-base-patch32-224-in21k": {"patch_size": 32},
    "vit-base-patch16-384": {"image_size": 384, "num_labels": 1000},
    "vit-large-patch16-224": {**_LARGE, "num_labels": 1000},
    "vit-large-patch16-224-in21k": _LARGE,
}


class Embeddings(Module):
    native_name = "transformers.models.vit.modeling_vit.ViTEmbeddings"

    def build(self, w: World, config: Config) -> None:
        hidden, patch = config.integer("hidden_size"), config.integer("patch_size")
        patches = (config.integer("image_size") // patch) ** 2
        self.new_parameter(w, "cls_token", (1, 1, hidden), None, None)
        self.new_parameter(w, "position_embeddings", (1, patches + 1, hidden), None, None)
        projection, holder = Conv2d(), Module()
        projection.init(w, config.integer("num_channels"), hidden, patch, stride=patch)
        holder.children["projection"] = projection
        self.children["patch_embeddings"] = holder
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))

    def forward(self, w: World, pixel_values: Tensor) -> Any:
        patches = self.child("patch_embeddings").run(w, "projection", pixel_values)
        embeddings = method(w, "transpose", method(w, "flatten", patches, 2), 1, 2)
        del patches
        tokens = method(w, "expand", self.tensor("cls_token"), pixel_values.shape[0], -1, -1)
        embeddings = torch_function(w, "torch.cat", (tokens, embeddings), 1)
        embeddings = add(w, embeddings, self.tensor("position_embeddings"))
        return self.run(w, "dropout", embeddings)


class Attention(Module):
    native_name = "transformers.models.vit.modeling_vit.ViTAttention"

    def build(self, w: World, config: Config) -> None:
        hidden = config.integer("hidden_size")
        self.config = config
        self.size = hidden // config.integer("num_attention_heads")
        for name in ("q_proj", "k_proj", "v_proj"):
            self.children[name] = linear(w, hidden, hidden, config.flag("qkv_bias"))
        self.children["o_proj"] = linear(w, hidden, hidden)

    def forward(self, w: World, hidden_states: Tensor) -> Any:
        query, key, value = (
            split_heads(w, self.run(w, f"{name}_proj", hidden_states), self.size) for name in "qkv"
        )
        dropout = self.config.number("attention_probs_dropout_prob") if self.training else 0.0
        implementation = self.config.text("_attn_implementation")
        output, weights = attend(
            w, implementation, query, key, value, None, dropout, self.size**-0.5, causal=False, style="llama"
        )
        output = merge_heads(w, output)
        return self.run(w, "o_proj", output), weights


class MLP(Module):
    native_name = "transformers.models.vit.modeling_vit.ViTMLP"

    def build(self, w: World, config: Config) -> None:
        hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        self.config = config
        self.children.update(fc1=linear(w, hidden, inner), fc2=linear(w, inner, hidden))

    def forward(self, w: World, hidden_states: Any) -> Any:
        hidden_states = self.run(w, "fc1", hidden_states)
        hidden_states = activation(w, self.config.text("hidden_act"), hidden_states)
        return self.run(w, "fc2", hidden_states)


class Layer(Block):
    native_name = "transformers.models.vit.modeling_vit.ViTLayer"

    def build(self, w: World, config: Config) -> None:
        attention, mlp = Attention(), MLP()
        attention.build(w, config)
        mlp.build(w, config)
        hidden, eps = config.integer("hidden_size"), config.number("layer_norm_eps")
        self.children["attention"] = attention
        self.children["layernorm_before"] = layer_norm(w, hidden, eps)
        self.children["layernorm_after"] = layer_norm(w, hidden, eps)
        self.children["mlp"] = mlp
        self.children["dropout"] = dropout_layer(w, config.number("hidden_dropout_prob"))

    def forward(self, w: World, hidden_states: Any) -> Any:
        residual = hidden_states
        hidden_states = self.run(w, "layernorm_before", hidden_states)
        hidden_states, _ = self.run(w, "attention", hidden_states)
        hidden_states = self.run(w, "dropout", hidden_states)
        hidden_states = add(w, hidden_states, residual)
        residual = hidden_states
        hidden_states = self.run(w, "layernorm_after", hidden_states)
        hidden_states = self.run(w, "mlp", hidden_states)
        hidden_states = self.run(w, "dropout", hidden_states)
        return add(w, hidden_states, residual)


class ViTModel(PreTrainedModel):
    native_name = "transformers.ViTModel"

    def build(self, w: World, config: Config) -> None:
        self.build_body(w, config, pooling=True)

    def build_body(self, w: World, config: Config, pooling: bool) -> None:
        self.configure(config)
        hidden = config.integer("hidden_size")
        embeddings = Embeddings()
        embeddings.build(w, config)
        layers: list[Module] = []
        for _ in range(config.integer("num_hidden_layers")):
            layer = Layer()
            layer.build(w, config)
            layers.append(layer)
        self.children["embeddings"] = embeddings
        self.children["layers"] = module_list(layers)
        self.children["layernorm"] = layer_norm(w, hidden, config.number("layer_norm_eps"))
        self.children["pooler"] = None
        if pooling:
            pooler = Pooler()
            pooler.children["dense"] = linear(w, hidden, hidden)
            self.children["pooler"] = pooler

    def forward(self, w: World, pixel_values: Tensor, **kwargs: Any) -> Any:
        embeddings = self.child("embeddings")
        expected = embeddings.child("patch_embeddings").child("projection").tensor("weight").dtype
        if pixel_values.dtype is not expected:
            pixel_values = method(w, "to", pixel_values, expected)
        embedded = self.run(w, "embeddings", pixel_values)
        hidden_states = embedded
        for layer in members(self.child("layers")):
            hidden_states = run_block(w, layer, hidden_states)
        sequence = self.run(w, "layernorm", hidden_states)
        pooled = None if self.children["pooler"] is None else self.run(w, "pooler", sequence)
        return ModelOutput(last_hidden_state=sequence, pooler_output=pooled)


class Pooler(Module):
    native_name = "transformers.models.vit.modeling_vit.ViTPooler"

    def forward(self, w: World, hidden_states: Tensor) -> Any:
        first = method(w, "__getitem__", hidden_states, (slice(None), 0))
        return torch_function(w, "torch.tanh", self.run(w, "dense", first))


class ViTForImageClassification(PreTrainedModel):
    native_name = "transformers.ViTForImageClassification"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        body = ViTModel()
        body.build_body(w, config, pooling=False)
        self.children["vit"] = body
        self.children["classifier"] = linear(w, config.integer("hidden_size"), config.integer("num_labels"))

    def forward(self, w: World, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.run(w, "vit", pixel_values)
        sequence = outputs.lookup("last_hidden_state")
        pooled = method(w, "__getitem__", sequence, (slice(None), 0, slice(None)))
        logits = self.run(w, "classifier", pooled)
        loss = None if labels is None else classification_loss(w, logits, labels, self.config)
        return ModelOutput(loss=loss, logits=logits)


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": ViTModel,
    "AutoModelForImageClassification": ViTForImageClassification,
}

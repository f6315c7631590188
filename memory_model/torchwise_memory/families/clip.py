"""CLIP: `transformers/models/clip/modeling_clip.py`, both towers and the contrastive loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torchwise_memory.families.base import (
    Block,
    Config,
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
    split_heads,
)
from torchwise_memory.families.layers import conv
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import int32, int64
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `CLIPTextConfig`
TEXT: Mapping[str, object] = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "use_cache": False,
}
#: `CLIPVisionConfig`
VISION: Mapping[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "use_cache": False,
}
#: `CLIPConfig`
CLIP: Mapping[str, object] = {
    "projection_dim": 512,
    "text_config": {},
    "vision_config": {},
    "use_cache": False,
    "num_labels": 2,
}
_LARGE_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
_LARGE_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}
#: `config.json` of the published checkpoints, where it differs from the defaults.
CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "clip-vit-base-patch32": {},
    "clip-vit-base-patch16": {"vision_config": {"patch_size": 16}},
    "clip-vit-large-patch14": {
        "projection_dim": 768,
        "text_config": _LARGE_TEXT,
        "vision_config": _LARGE_VISION,
    },
    "clip-vit-large-patch14-336": {
        "projection_dim": 768,
        "text_config": _LARGE_TEXT,
        "vision_config": {**_LARGE_VISION, "image_size": 336},
    },
}


def part_of(config: Config, name: str, defaults: Mapping[str, object]) -> Config:
    """The configuration of one tower."""
    given = config.lookup(name)
    if given is not None and not isinstance(given, Mapping):
        raise Unsupported(f"{config.model_type}.{name}", "the configuration of a tower is not known")
    fields = dict(defaults)
    if given is not None:
        fields.update(cast("Mapping[str, object]", given))
    fields["_attn_implementation"] = config.lookup("_attn_implementation")
    part = Config(f"clip_{name}", fields, {})
    part.padded = config.padded
    return part


class Attention(Module):
    native_name = "transformers.models.clip.modeling_clip.CLIPAttention"

    def build(self, w: World, config: Config, causal: bool) -> Attention:
        hidden = config.integer("hidden_size")
        self.config, self.causal = config, causal
        self.size = hidden // config.integer("num_attention_heads")
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            self.children[name] = linear(w, hidden, hidden)
        return self

    def forward(self, w: World, hidden_states: Tensor, mask: Tensor | None) -> Any:
        queries, keys, values = (self.run(w, f"{name}_proj", hidden_states) for name in "qkv")
        query, key, value = (split_heads(w, each, self.size) for each in (queries, keys, values))
        del queries, keys, values
        dropout = self.config.number("attention_dropout") if self.training else 0.0
        output, weights = attend(
            w,
            self.config.text("_attn_implementation"),
            query,
            key,
            value,
            mask,
            dropout,
            self.size**-0.5,
            causal=self.causal,
            style="llama",
        )
        output = method(w, "reshape", output, *hidden_states.shape[:-1], -1)
        return self.run(w, "out_proj", method(w, "contiguous", output)), weights


class MLP(Module):
    native_name = "transformers.models.clip.modeling_clip.CLIPMLP"

    def build(self, w: World, config: Config) -> MLP:
        self.config = config
        hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        self.children.update(fc1=linear(w, hidden, inner), fc2=linear(w, inner, hidden))
        return self

    def forward(self, w: World, hidden_states: Any) -> Any:
        hidden_states = self.run(w, "fc1", hidden_states)
        hidden_states = activation(w, self.config.text("hidden_act"), hidden_states)
        return self.run(w, "fc2", hidden_states)


class EncoderLayer(Block):
    native_name = "transformers.models.clip.modeling_clip.CLIPEncoderLayer"

    def build(self, w: World, config: Config, causal: bool) -> EncoderLayer:
        hidden, eps = config.integer("hidden_size"), config.number("layer_norm_eps")
        self.children.update(
            self_attn=Attention().build(w, config, causal),
            layer_norm1=layer_norm(w, hidden, eps),
            mlp=MLP().build(w, config),
            layer_norm2=layer_norm(w, hidden, eps),
        )
        return self

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        residual = hidden_states
        hidden_states = self.run(w, "layer_norm1", hidden_states)
        hidden_states, _ = self.run(w, "self_attn", hidden_states, mask)
        hidden_states = add(w, residual, hidden_states)
        residual = hidden_states
        hidden_states = self.run(w, "layer_norm2", hidden_states)
        hidden_states = self.run(w, "mlp", hidden_states)
        return add(w, residual, hidden_states)


class Encoder(Module):
    native_name = "transformers.models.clip.modeling_clip.CLIPEncoder"

    def build(self, w: World, config: Config, causal: bool) -> Encoder:
        count = config.integer("num_hidden_layers")
        self.children["layers"] = module_list([EncoderLayer().build(w, config, causal) for _ in range(count)])
        return self

    def forward(self, w: World, hidden_states: Any, mask: Tensor | None) -> Any:
        for layer in members(self.child("layers")):
            hidden_states = run_block(w, layer, hidden_states, mask)
        return hidden_states


def _positions(w: World, owner: Module, count: int) -> None:
    buffer = torch_function(w, "torch.empty", (1, count), dtype=int64)
    owner.register_buffer(w, "position_ids", buffer, persistent=False)


class TextEmbeddings(Module):
    native_name = "transformers.models.clip.modeling_clip.CLIPTextEmbeddings"

    def build(self, w: World, config: Config) -> TextEmbeddings:
        hidden, places = config.integer("hidden_size"), config.integer("max_position_embeddings")
        self.children["token_embedding"] = embedding(w, config.integer("vocab_size"), hidden)
        self.children["position_embedding"] = embedding(w, places, hidden)
        _positions(w, self, places)
        return self

    def forward(self, w: World, input_ids: Tensor) -> Any:
        ids = method(w, "narrow", self.tensor("position_ids"), 1, 0, input_ids.shape[-1])
        tokens = self.run(w, "token_embedding", input_ids)
        return add(w, tokens, self.run(w, "position_embedding", ids))


class VisionEmbeddings(Module):
    native_name = "transformers.models.clip.modeling_clip.CLIPVisionEmbeddings"

    def build(self, w: World, config: Config) -> VisionEmbeddings:
        hidden, patch = config.integer("hidden_size"), config.integer("patch_size")
        self.new_parameter(w, "class_embedding", (hidden,), None, None)
        self.children["patch_embedding"] = conv(
            w, config.integer("num_channels"), hidden, patch, patch, padding=0
        )
        places = (config.integer("image_size") // patch) ** 2 + 1
        self.children["position_embedding"] = embedding(w, places, hidden)
        _positions(w, self, places)
        return self

    def forward(self, w: World, pixel_values: Tensor) -> Any:
        dtype = self.child("patch_embedding").tensor("weight").dtype
        patches = self.run(w, "patch_embedding", method(w, "to", pixel_values, dtype))
        patches = method(w, "transpose", method(w, "flatten", patches, 2), 1, 2)
        token = method(w, "expand", self.tensor("class_embedding"), pixel_values.shape[0], 1, -1)
        embeddings = torch_function(w, "torch.cat", [token, patches], 1)
        return add(w, embeddings, self.run(w, "position_embedding", self.tensor("position_ids")))


class CLIPTextModel(PreTrainedModel):
    native_name = "transformers.CLIPTextModel"

    def build(self, w: World, config: Config) -> None:
        if config.model_type == "clip":
            config = part_of(config, "text_config", TEXT)
        self.configure(config)
        self.children["embeddings"] = TextEmbeddings().build(w, config)
        self.children["encoder"] = Encoder().build(w, config, causal=True)
        eps = config.number("layer_norm_eps")
        self.children["final_layer_norm"] = layer_norm(w, config.integer("hidden_size"), eps)

    def forward(
        self, w: World, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        hidden_states = self.run(w, "embeddings", input_ids)
        mask = _causal(w, self.config, hidden_states, attention_mask)
        hidden_states = self.run(w, "encoder", hidden_states, mask)
        hidden_states = self.run(w, "final_layer_norm", hidden_states)
        rows = torch_function(w, "torch.arange", input_ids.shape[0], device=input_ids.device)
        ends = torch_function(w, "torch.argmax", w.new(input_ids.shape, int32, "to", input_ids.device), -1)
        pooled = method(w, "__getitem__", hidden_states, (rows, ends))
        return ModelOutput(last_hidden_state=hidden_states, pooler_output=pooled)


def _causal(w: World, config: Config, hidden: Tensor, padding: Tensor | None) -> Tensor | None:
    return attention_mask(w, config, hidden, padding, hidden.shape[1], causal=True)


class CLIPVisionModel(PreTrainedModel):
    native_name = "transformers.CLIPVisionModel"

    def build(self, w: World, config: Config) -> None:
        if config.model_type == "clip":
            config = part_of(config, "vision_config", VISION)
        self.configure(config)
        hidden, eps = config.integer("hidden_size"), config.number("layer_norm_eps")
        self.children["embeddings"] = VisionEmbeddings().build(w, config)
        self.children["pre_layrnorm"] = layer_norm(w, hidden, eps)
        self.children["encoder"] = Encoder().build(w, config, causal=False)
        self.children["post_layernorm"] = layer_norm(w, hidden, eps)

    def forward(self, w: World, pixel_values: Tensor, **kwargs: Any) -> Any:
        hidden_states = self.run(w, "pre_layrnorm", self.run(w, "embeddings", pixel_values))
        hidden_states = self.run(w, "encoder", hidden_states, None)
        pooled = method(w, "__getitem__", hidden_states, (slice(None), 0, slice(None)))
        pooled = self.run(w, "post_layernorm", pooled)
        return ModelOutput(last_hidden_state=hidden_states, pooler_output=pooled)


class CLIPModel(PreTrainedModel):
    native_name = "transformers.CLIPModel"

    def build(self, w: World, config: Config) -> None:
        self.configure(config)
        text, vision = CLIPTextModel(), CLIPVisionModel()
        text.build(w, config)
        vision.build(w, config)
        size = config.integer("projection_dim")
        self.children.update(
            text_model=text,
            vision_model=vision,
            visual_projection=linear(w, vision.config.integer("hidden_size"), size, bias=False),
            text_projection=linear(w, text.config.integer("hidden_size"), size, bias=False),
        )
        self.new_parameter(w, "logit_scale", (), None, None)

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if input_ids is None or pixel_values is None:
            raise Unsupported(self.native_name, "texts and images must both be known")
        vision = self.run(w, "vision_model", pixel_values)
        image_embeds = self.run(w, "visual_projection", vision.lookup("pooler_output"))
        text = self.run(w, "text_model", input_ids, attention_mask)
        text_embeds = self.run(w, "text_projection", text.lookup("pooler_output"))
        image_embeds, text_embeds = _normal(w, image_embeds), _normal(w, text_embeds)
        logits = torch_function(w, "torch.matmul", text_embeds, method(w, "t", image_embeds))
        logits = torch_function(
            w, "torch.mul", logits, torch_function(w, "torch.exp", self.tensor("logit_scale"))
        )
        loss = None
        if return_loss:
            losses = add(w, _contrastive(w, logits), _contrastive(w, method(w, "t", logits)))
            loss = torch_function(w, "torch.div", losses, 2.0)
        return ModelOutput(
            loss=loss,
            logits_per_image=method(w, "t", logits),
            logits_per_text=logits,
            text_embeds=text_embeds,
            image_embeds=image_embeds,
            text_model_output=text,
            vision_model_output=vision,
        )


def _normal(w: World, x: Any) -> Any:
    norm = method(w, "sum", method(w, "pow", x, 2), -1, True)
    return torch_function(w, "torch.div", x, method(w, "pow", norm, 0.5))


def _contrastive(w: World, logits: Any) -> Any:
    own = torch_function(w, "torch.arange", logits.shape[0], device=logits.device)
    return functional(w, "cross_entropy", logits, own)


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": CLIPModel,
    "CLIPTextModel": CLIPTextModel,
    "CLIPVisionModel": CLIPVisionModel,
}

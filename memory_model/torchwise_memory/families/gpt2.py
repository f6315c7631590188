"""GPT-2: `transformers/models/gpt2/modeling_gpt2.py` on the operators, module for module."""

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
    attend,
    causal_lm_loss,
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
from torchwise_memory.families.base import attention_mask as causal_mask
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import method, torch_function
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `GPT2Config`
DEFAULTS: Mapping[str, object] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "use_cache": True,
    "tie_word_embeddings": True,
    "num_labels": 2,
    "pad_token_id": None,
}
SPELLINGS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
#: `config.json` of the published checkpoints, where it differs from the defaults.
CHECKPOINTS: Mapping[str, Mapping[str, object]] = {
    "gpt2": {},
    "distilgpt2": {"n_layer": 6},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
}


class Conv1D(Module):
    """A linear layer with the weight transposed; one addmm."""

    native_name = "transformers.pytorch_utils.Conv1D"

    def init(self, w: World, nf: int, nx: int) -> None:
        self.fields.update(nf=nf, nx=nx)
        self.new_parameter(w, "weight", (nx, nf), None, None)
        self.new_parameter(w, "bias", (nf,), None, None)

    def forward(self, w: World, x: Tensor) -> Any:
        lead = x.shape[:-1]
        x = method(w, "view", x, -1, x.shape[-1])
        x = torch_function(w, "torch.addmm", self.tensor("bias"), x, self.tensor("weight"))
        return method(w, "view", x, *lead, self.integer("nf"))


class GPT2Attention(Module):
    native_name = "transformers.models.gpt2.modeling_gpt2.GPT2Attention"

    def build(self, w: World, config: Config, layer: int) -> None:
        hidden = config.integer("hidden_size")
        self.config = config
        self.layer = layer
        self.size = hidden // config.integer("num_attention_heads")
        self.scaling = self.size**-0.5 if config.flag("scale_attn_weights") else 1.0
        if config.flag("scale_attn_by_inverse_layer_idx"):
            self.scaling /= layer + 1
        self.children["c_attn"] = _conv1d(w, 3 * hidden, hidden)
        self.children["c_proj"] = _conv1d(w, hidden, hidden)
        self.children["attn_dropout"] = dropout_layer(w, config.number("attn_pdrop"))
        self.children["resid_dropout"] = dropout_layer(w, config.number("resid_pdrop"))

    def forward(
        self, w: World, hidden_states: Tensor, cache: DynamicCache | None, mask: Tensor | None
    ) -> Any:
        hidden = self.config.integer("hidden_size")
        query, key, value = method(w, "split", self.run(w, "c_attn", hidden_states), hidden, 2)
        key, value = split_heads(w, key, self.size), split_heads(w, value, self.size)
        query = split_heads(w, query, self.size)
        if cache is not None:
            key, value = cache.update(w, key, value, self.layer)
        dropout = self.child("attn_dropout").number("p") if self.training else 0.0
        implementation = self.config.text("_attn_implementation")
        output, weights = attend(
            w,
            implementation,
            query,
            key,
            value,
            mask,
            dropout,
            self.scaling,
            causal=True,
            style="gpt2",
        )
        output = self.run(w, "c_proj", merge_heads(w, output))
        output = self.run(w, "resid_dropout", output)
        return output, weights


class GPT2MLP(Module):
    native_name = "transformers.models.gpt2.modeling_gpt2.GPT2MLP"

    def build(self, w: World, config: Config, inner: int) -> None:
        hidden = config.integer("hidden_size")
        self.config = config
        self.children["c_fc"] = _conv1d(w, inner, hidden)
        self.children["c_proj"] = _conv1d(w, hidden, inner)
        self.children["dropout"] = dropout_layer(w, config.number("resid_pdrop"))

    def forward(self, w: World, hidden_states: Any) -> Any:
        hidden_states = self.run(w, "c_fc", hidden_states)
        hidden_states = activation(w, self.config.text("activation_function"), hidden_states)
        hidden_states = self.run(w, "c_proj", hidden_states)
        return self.run(w, "dropout", hidden_states)


class GPT2Block(Block):
    native_name = "transformers.models.gpt2.modeling_gpt2.GPT2Block"

    def build(self, w: World, config: Config, layer: int) -> None:
        hidden = config.integer("hidden_size")
        inner = config.integer("n_inner") if config.lookup("n_inner") is not None else 4 * hidden
        attention, mlp = GPT2Attention(), GPT2MLP()
        attention.build(w, config, layer)
        mlp.build(w, config, inner)
        self.children["ln_1"] = _layer_norm(w, config)
        self.children["attn"] = attention
        self.children["ln_2"] = _layer_norm(w, config)
        self.children["mlp"] = mlp

    def forward(self, w: World, hidden_states: Any, cache: DynamicCache | None, mask: Tensor | None) -> Any:
        residual = hidden_states
        hidden_states = self.run(w, "ln_1", hidden_states)
        attended, _ = self.run(w, "attn", hidden_states, cache, mask)
        hidden_states = torch_function(w, "torch.add", attended, residual)
        residual = hidden_states
        hidden_states = self.run(w, "ln_2", hidden_states)
        fed_forward = self.run(w, "mlp", hidden_states)
        return torch_function(w, "torch.add", residual, fed_forward)


class GPT2Model(PreTrainedModel):
    native_name = "transformers.GPT2Model"

    def build(self, w: World, config: Config) -> None:
        if config.flag("add_cross_attention") or config.flag("reorder_and_upcast_attn"):
            raise Unsupported(self.native_name, "cross attention and upcast attention are not modelled")
        self.configure(config)
        hidden = config.integer("hidden_size")
        wte = embedding(w, config.integer("vocab_size"), hidden)
        wpe = embedding(w, config.integer("max_position_embeddings"), hidden)
        made: list[Module] = []
        for layer in range(config.integer("num_hidden_layers")):
            block = GPT2Block()
            block.build(w, config, layer)
            made.append(block)
        self.children.update(
            wte=wte,
            wpe=wpe,
            drop=dropout_layer(w, config.number("embd_pdrop")),
            h=module_list(made),
            ln_f=_layer_norm(w, config),
        )

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        cache = cache or past_key_values or self.new_cache(use_cache)
        embeds: Tensor = self._embed(w, input_ids) if inputs_embeds is None else inputs_embeds
        length = embeds.shape[1]
        seen = cache.get_seq_length(w) if cache is not None else 0
        if position_ids is None:
            device = embeds.device
            position_ids = torch_function(w, "torch.arange", length, device=device)
            position_ids = method(w, "unsqueeze", torch_function(w, "torch.add", position_ids, seen), 0)
        position_embeds = self.run(w, "wpe", position_ids)
        hidden_states = torch_function(w, "torch.add", embeds, position_embeds)
        mask = causal_mask(w, self.config, embeds, attention_mask, seen + length, causal=True)
        if token_type_ids is not None:
            hidden_states = torch_function(w, "torch.add", hidden_states, self.run(w, "wte", token_type_ids))
        hidden_states = self.run(w, "drop", hidden_states)
        for block in members(self.child("h")):
            hidden_states = run_block(w, block, hidden_states, cache, mask)
        hidden_states = self.run(w, "ln_f", hidden_states)
        return ModelOutput(last_hidden_state=hidden_states, past_key_values=cache)

    def _embed(self, w: World, input_ids: Tensor | None) -> Any:
        if input_ids is None:
            raise Unsupported(self.native_name, "neither input_ids nor inputs_embeds is known")
        embeds = self.run(w, "wte", input_ids)
        if self.fields.get("input_require_grads"):
            embeds.requires_grad = True
        return embeds


class _WithHead(PreTrainedModel):
    def add_body(self, w: World, config: Config) -> None:
        self.configure(config)
        body = GPT2Model()
        body.build(w, config)
        self.children["transformer"] = body


class GPT2LMHeadModel(_WithHead):
    native_name = "transformers.GPT2LMHeadModel"

    def build(self, w: World, config: Config) -> None:
        self.add_body(w, config)
        head = linear(w, config.integer("hidden_size"), config.integer("vocab_size"), bias=False)
        if config.flag("tie_word_embeddings"):
            head.parameters["weight"] = self.child("transformer").child("wte").parameters["weight"]
        self.children["lm_head"] = head

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        past_key_values: DynamicCache | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = self.run(
            w,
            "transformer",
            input_ids,
            cache=cache or past_key_values,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
        )
        hidden_states = outputs.lookup("last_hidden_state")
        if logits_to_keep:
            hidden_states = method(
                w, "__getitem__", hidden_states, (slice(None), slice(-logits_to_keep, None))
            )
        logits = self.run(w, "lm_head", hidden_states)
        loss = None if labels is None else causal_lm_loss(w, logits, labels)
        return ModelOutput(loss=loss, logits=logits, past_key_values=outputs.lookup("past_key_values"))


class GPT2ForSequenceClassification(_WithHead):
    native_name = "transformers.GPT2ForSequenceClassification"

    def build(self, w: World, config: Config) -> None:
        self.add_body(w, config)
        self.children["score"] = linear(
            w, config.integer("hidden_size"), config.integer("num_labels"), bias=False
        )

    def forward(
        self,
        w: World,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = self.run(w, "transformer", input_ids, attention_mask=attention_mask, use_cache=use_cache)
        logits = self.run(w, "score", outputs.lookup("last_hidden_state"))
        pooled = method(w, "__getitem__", logits, (slice(None), -1))
        loss = None if labels is None else classification_loss(w, pooled, labels, self.config)
        return ModelOutput(loss=loss, logits=pooled, past_key_values=outputs.lookup("past_key_values"))


def _conv1d(w: World, nf: int, nx: int) -> Conv1D:
    layer = Conv1D()
    layer.init(w, nf, nx)
    return layer


def _layer_norm(w: World, config: Config) -> Module:
    return layer_norm(w, config.integer("hidden_size"), config.number("layer_norm_epsilon"))


HEADS: Mapping[str, type[PreTrainedModel]] = {
    "AutoModel": GPT2Model,
    "AutoModelForCausalLM": GPT2LMHeadModel,
    "AutoModelForSequenceClassification": GPT2ForSequenceClassification,
}

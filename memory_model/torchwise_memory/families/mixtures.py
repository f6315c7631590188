"""Mixtures of experts, Mixtral and Qwen3 MoE: grouped products as in `transformers/integrations/moe.py`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torchwise_memory.families import llama
from torchwise_memory.families.base import Config, activation
from torchwise_memory.families.routing import routed
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import float32
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: `MixtralConfig`
MIXTRAL: Mapping[str, object] = {
    **llama.LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
#: `Qwen3MoeConfig`
QWEN3_MOE: Mapping[str, object] = {
    **llama.LLAMA,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "qk_norm": True,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}


class Router(Module):
    """Scores of the chosen experts and which they are, for each token."""

    native_name = "transformers.models.mixtral.modeling_mixtral.MixtralTopKRouter"

    def build(self, w: World, config: Config, experts: int) -> Router:
        self.config = config
        self.new_parameter(w, "weight", (experts, config.integer("hidden_size")), None, None)
        return self

    def forward(self, w: World, x: Tensor) -> Any:
        logits = functional(w, "linear", x, self.tensor("weight"))
        probabilities = functional(w, "softmax", logits, -1, dtype=float32)
        chosen = self.config.integer("num_experts_per_tok")
        scores, experts = torch_function(w, "torch.topk", probabilities, chosen, -1)
        if self.config.flag("norm_topk_prob"):
            scores = method(w, "div_", scores, method(w, "sum", scores, -1, True))
        return logits, self.typed(w, scores, logits), experts

    def typed(self, w: World, scores: Any, logits: Any) -> Any:
        return scores


class Qwen3Router(Router):
    native_name = "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeTopKRouter"

    def typed(self, w: World, scores: Any, logits: Any) -> Any:
        return method(w, "to", scores, logits.dtype)


class Experts(Module):
    """All experts in two parameters; every pair of token and expert is computed once, sorted by expert."""

    native_name = "transformers.models.mixtral.modeling_mixtral.MixtralExperts"

    def build(self, w: World, config: Config, experts: int, inner: int) -> Experts:
        self.config = config
        self.experts = experts
        hidden = config.integer("hidden_size")
        self.new_parameter(w, "gate_up_proj", (experts, 2 * inner, hidden), None, None)
        self.new_parameter(w, "down_proj", (experts, hidden, inner), None, None)
        return self

    def forward(self, w: World, x: Tensor, chosen: Tensor, scores: Tensor) -> Any:
        products = {name: partial(self._product, name) for name in ("gate_up_proj", "down_proj")}
        return routed(
            w, x, chosen, scores, self.experts, products["gate_up_proj"], self._gated, products["down_proj"]
        )

    def _gated(self, w: World, both: Any) -> Any:
        gate, up = torch_function(w, "torch.chunk", both, 2, -1)
        return torch_function(w, "torch.mul", activation(w, self.config.text("hidden_act"), gate), up)

    def _product(self, name: str, w: World, x: Any, ends: Any) -> Any:
        weight = method(w, "transpose", self.tensor(name), -2, -1)
        return functional(w, "grouped_mm", method(w, "to", x, weight.dtype), weight, offs=ends)


class SparseBlock(llama.MLP):
    native_name = "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock"
    router_class: type[Router] = Router

    def build(self, w: World, config: Config) -> None:
        experts, inner = self.sizes(config)
        self.children["gate"] = self.router_class().build(w, config, experts)
        self.children["experts"] = Experts().build(w, config, experts, inner)

    def sizes(self, config: Config) -> tuple[int, int]:
        """How many experts, and the width of each."""
        return config.integer("num_local_experts"), config.integer("intermediate_size")

    def forward(self, w: World, x: Any) -> Any:
        shape = x.shape
        x = method(w, "view", x, -1, shape[-1])
        _logits, scores, chosen = self.run(w, "gate", x)
        return method(w, "reshape", self.run(w, "experts", x, chosen, scores), *shape)


class MixtralLayer(llama.DecoderLayer):
    native_name = "transformers.models.mixtral.modeling_mixtral.MixtralDecoderLayer"
    mlp_class = SparseBlock


class MixtralModel(llama.LlamaModel):
    native_name = "transformers.MixtralModel"
    layer_class = MixtralLayer


class Qwen3SparseBlock(SparseBlock):
    native_name = "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"
    router_class = Qwen3Router

    def sizes(self, config: Config) -> tuple[int, int]:
        return config.integer("num_experts"), config.integer("moe_intermediate_size")


class Qwen3MoeLayer(llama.DecoderLayer):
    """Some layers are dense: `mlp_only_layers`, and what `decoder_sparse_step` leaves out."""

    native_name = "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeDecoderLayer"

    def build(self, w: World, config: Config, layer: int) -> None:
        dense: Any = config.lookup("mlp_only_layers") or ()
        is_sparse = layer not in dense and (layer + 1) % config.integer("decoder_sparse_step") == 0
        self.mlp_class = Qwen3SparseBlock if is_sparse and config.integer("num_experts") else llama.MLP
        super().build(w, config, layer)


class Qwen3MoeModel(llama.LlamaModel):
    native_name = "transformers.Qwen3MoeModel"
    layer_class = Qwen3MoeLayer

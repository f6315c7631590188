"""LoRA of peft 0.21 on hand-written families: frozen base layers and two small trainable products beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchwise_memory.families.base import PreTrainedModel, add, dropout_layer, linear
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.linear import Identity, Linear
from torchwise_memory.modules.native import visible
from torchwise_memory.modules.ops import method, torch_function
from torchwise_memory.runtime.dtypes import HALF_TYPES, DType, float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: Target modules where the configuration names none (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`).
DEFAULT_TARGETS: Mapping[str, tuple[str, ...]] = {
    "gpt2": ("c_attn",),
    "bert": ("query", "value"),
    "roberta": ("query", "value"),
    "distilbert": ("q_lin", "v_lin"),
    "llama": ("q_proj", "v_proj"),
    "mistral": ("q_proj", "v_proj"),
    "qwen2": ("q_proj", "v_proj"),
    "qwen3": ("q_proj", "v_proj"),
    "vit": ("q_proj", "v_proj"),
}


class LoraConfig:
    native_name = "peft.LoraConfig"

    def __init__(self) -> None:
        self.fields: dict[str, object] = {}

    def init(self, w: World, **options: object) -> None:
        known = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": None, "bias": "none"}
        self.fields = {**known, "modules_to_save": None, **options}
        for name in ("use_dora", "use_rslora", "rank_pattern", "layers_to_transform", "loftq_config"):
            if options.get(name) and name != "use_rslora":
                raise Unsupported(f"peft.LoraConfig({name}=...)", "this variant of LoRA is not modelled")

    def lookup(self, name: str) -> object:
        return self.fields.get(name)


class LoraLayer(Module):
    """`peft.tuners.lora.layer.Linear`: the base layer's output plus B(A(dropout(x))) scaled."""

    native_name = "peft.tuners.lora.layer.Linear"

    def build(self, w: World, base: Module, rank: int, scaling: float, p: float, cast: bool) -> None:
        weight = base.tensor("weight")
        outer, inner = weight.shape if isinstance(base, Linear) else (weight.shape[1], weight.shape[0])
        dtype = float32 if cast and weight.dtype in HALF_TYPES else weight.dtype
        self.scaling = scaling
        self.children["base_layer"] = base
        dropout: Module = dropout_layer(w, p) if p > 0 else Identity()
        a, b = linear(w, inner, rank, bias=False), linear(w, rank, outer, bias=False)
        for name, layer in (("lora_dropout", dropout), ("lora_A", a), ("lora_B", b)):
            adapters = Module()
            adapters.children["default"] = layer.to(w, weight.device, dtype)
            self.children[name] = adapters

    def forward(self, w: World, x: Tensor) -> Any:
        result = self.run(w, "base_layer", x)
        dtype: DType = result.dtype
        a = self.child("lora_A").child("default")
        x = method(w, "to", x, a.tensor("weight").dtype)
        result = add(
            w,
            result,
            torch_function(
                w,
                "torch.mul",
                self._adapter(w, "lora_B", self._adapter(w, "lora_A", self._adapter(w, "lora_dropout", x))),
                self.scaling,
            ),
        )
        return method(w, "to", result, dtype)

    def _adapter(self, w: World, name: str, x: Any) -> Any:
        return self.child(name).run(w, "default", x)


class PeftModel(Module):
    """Wraps a model whose targets were replaced."""

    native_name = "peft.PeftModel"

    def wrap(self, model: Module) -> None:
        tuner = Module()
        tuner.children["model"] = model
        self.children["base_model"] = tuner
        self.fields["config"] = model.lookup("config")

    def forward(self, w: World, *args: Any, **kwargs: Any) -> Any:
        return self.child("base_model").run(w, "model", *args, **kwargs)

    @visible("print_trainable_parameters")
    def print_trainable_parameters(self, w: World) -> None:
        """Prints."""

    @visible("get_nb_trainable_parameters")
    def get_nb_trainable_parameters(self, w: World) -> tuple[int, int]:
        counts = [(p.numel, p.requires_grad) for _, p in self.walk_parameters()]
        return sum(n for n, trainable in counts if trainable), sum(n for n, _ in counts)

    @visible("merge_and_unload", "get_base_model")
    def get_base_model(self, w: World) -> Module:
        return self.child("base_model").child("model")

    @visible("gradient_checkpointing_enable")
    def gradient_checkpointing_enable(self, w: World, gradient_checkpointing_kwargs: Any = None) -> None:
        model = self.get_base_model(w)
        if isinstance(model, PreTrainedModel):
            model.gradient_checkpointing_enable(w, gradient_checkpointing_kwargs)

    @visible("enable_input_require_grads")
    def enable_input_require_grads(self, w: World) -> None:
        model = self.get_base_model(w)
        if isinstance(model, PreTrainedModel):
            model.enable_input_require_grads(w)


def get_peft_model(
    w: World,
    model: PreTrainedModel,
    peft_config: LoraConfig,
    adapter_name: str = "default",
    mixed: bool = False,
    autocast_adapter_dtype: bool = True,
    revision: str | None = None,
    low_cpu_mem_usage: bool = False,
) -> PeftModel:
    """`peft.get_peft_model`: freezes the base and replaces the targets in place."""
    options = peft_config.fields
    rank, alpha, p = options["r"], options["lora_alpha"], options["lora_dropout"]
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or not isinstance(p, int | float):
        raise Unsupported("peft.get_peft_model", "rank, alpha or dropout is not known")
    scaling = alpha / (rank**0.5 if options.get("use_rslora") else rank)
    kept = _trainable_copies(options.get("modules_to_save"))
    model.requires_grad_(w, False)
    targets = _targets(model, options["target_modules"])
    replaced = 0
    for path, parent in list(model.walk()):
        for name, child in list(parent.children.items()):
            full = f"{path}.{name}" if path else name
            if child is not None and _matches(full, child, targets, model):
                layer = LoraLayer()
                layer.build(w, child, rank, scaling, p, autocast_adapter_dtype)
                layer.training = child.training
                parent.children[name] = layer
                replaced += 1
            elif child is not None and name in kept:
                child.requires_grad_(w, True)
    if not replaced:
        raise Unsupported("peft.get_peft_model", f"no module is named like {options['target_modules']!r}")
    wrapped = PeftModel()
    wrapped.wrap(model)
    if model.fields.get("gradient_checkpointing"):
        model.enable_input_require_grads(w)
    return wrapped


def _targets(model: PreTrainedModel, wanted: object) -> tuple[str, ...]:
    if wanted is None:
        return DEFAULT_TARGETS.get(model.config.model_type, ())
    if isinstance(wanted, str):
        return (wanted,)
    if isinstance(wanted, Iterable):
        return tuple(str(name) for name in wanted)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise Unsupported("peft.LoraConfig(target_modules=...)", "the targets are not known")


def _matches(path: str, module: Module, targets: tuple[str, ...], model: PreTrainedModel) -> bool:
    if "weight" not in module.parameters or module.native_name.endswith(("Embedding", "Norm", "LayerNorm")):
        return False
    if targets == ("all-linear",):
        return path.rpartition(".")[2] not in ("lm_head", "score", "classifier")
    return any(path == target or path.endswith("." + target) for target in targets)


def _trainable_copies(names: object) -> tuple[str, ...]:
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

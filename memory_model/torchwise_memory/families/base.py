"""What the architectures of transformers share: configurations, outputs, attention, cache, masks, losses.

Follows transformers 5.24. Used where the library's own source cannot be read; everything runs on the
operators, so attribution and remedies need no second path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.containers import ModuleList
from torchwise_memory.modules.linear import Embedding, Linear
from torchwise_memory.modules.native import attribute, visible
from torchwise_memory.modules.norm import LayerNorm
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.modules.simple import DROPOUTS
from torchwise_memory.runtime.checkpoint import checkpoint
from torchwise_memory.runtime.contexts import GradMode
from torchwise_memory.runtime.dtypes import DType, boolean, float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class Config:
    """A configuration: `fields` hold what `config.json` would, other spellings map onto them."""

    native_name = "transformers.PretrainedConfig"

    def __init__(self, model_type: str, fields: Mapping[str, object], spellings: Mapping[str, str]) -> None:
        self.model_type = model_type
        self.spellings = dict(spellings)
        self.fields: dict[str, object] = {"model_type": model_type}
        # whether padding masks hide tokens, which only whoever made them knows
        self.padded = False
        for name, value in fields.items():
            self.assign(name, value)

    def lookup(self, name: str) -> object:
        """`config.name`; KeyError where there is none."""
        return self.fields[self.spellings.get(name, name)]

    def assign(self, name: str, value: object) -> None:
        self.fields[self.spellings.get(name, name)] = value

    def integer(self, name: str) -> int:
        value = self.lookup(name)
        if not isinstance(value, int):
            raise Unsupported(f"{self.model_type}.{name}", "a size that is not known")
        return value

    def number(self, name: str) -> float:
        value = self.lookup(name)
        if not isinstance(value, int | float):
            raise Unsupported(f"{self.model_type}.{name}", "a number that is not known")
        return value

    def text(self, name: str) -> str:
        return str(self.lookup(name))

    def flag(self, name: str) -> bool:
        return bool(self.lookup(name))


class ModelOutput:
    """What a model returns; entries that are None are left out, as transformers leaves them out."""

    native_name = "transformers.utils.ModelOutput"

    def __init__(self, **fields: object) -> None:
        self.fields = {name: value for name, value in fields.items() if value is not None}

    def lookup(self, name: str) -> object:
        return self.fields.get(name)

    @visible("__getitem__")
    def get_item(self, w: World, key: Any) -> object:
        if isinstance(key, str):
            return self.fields[key]
        values = tuple(self.fields.values())
        return values[key]

    @visible("__iter__", "keys")
    def keys(self, w: World) -> Iterator[str]:
        return iter(list(self.fields))

    @visible("values")
    def values(self, w: World) -> Iterator[object]:
        return iter(list(self.fields.values()))

    @visible("items")
    def items(self, w: World) -> Iterator[tuple[str, object]]:
        return iter(list(self.fields.items()))

    @visible("to_tuple")
    def to_tuple(self, w: World) -> tuple[object, ...]:
        return tuple(self.fields.values())

    @visible("get")
    def get(self, w: World, key: str, default: object = None) -> object:
        return self.fields.get(key, default)


def _longer(w: World, states: Tensor, length: int) -> Tensor:
    shape = (states.shape[0], states.shape[1], length, states.shape[3])
    return w.new(shape, states.dtype, "empty", states.device)


class DynamicCache:
    """Keys and values of every layer, as copies that grow by concatenation."""

    native_name = "transformers.DynamicCache"

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, w: World, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """The new keys and values; even the first call copies, which is why training pays for a cache."""
        seen = self.layers.get(layer)
        keys = torch_function(w, "torch.cat", [key] if seen is None else [seen[0], key], -2)
        values = torch_function(w, "torch.cat", [value] if seen is None else [seen[1], value], -2)
        self.layers[layer] = (keys, values)
        return keys, values

    def grow(self, w: World, length: int) -> None:
        """As if tokens up to that length had been generated."""
        for layer in list(self.layers):
            # one after the other, so that what is replaced dies at once
            self.layers[layer] = (_longer(w, self.layers[layer][0], length), self.layers[layer][1])
            self.layers[layer] = (self.layers[layer][0], _longer(w, self.layers[layer][1], length))

    @visible("get_seq_length")
    def get_seq_length(self, w: World, layer_idx: int = 0) -> int:
        seen = self.layers.get(layer_idx)
        return 0 if seen is None else seen[0].shape[-2]


class PreTrainedModel(Module):
    """A model with a configuration, checkpointing of its blocks and the usual helpers."""

    native_name = "transformers.PreTrainedModel"
    config: Config

    def build(self, w: World, config: Config) -> None:
        """Makes the submodules."""
        raise Unsupported(self.native_name, "an abstract model")

    def configure(self, config: Config) -> None:
        self.config = config
        self.fields["config"] = config

    @attribute("device")
    def get_device(self, w: World) -> object:
        return next(parameter.device for _, parameter in self.walk_parameters())

    @attribute("dtype")
    def get_dtype(self, w: World) -> object:
        return next(parameter.dtype for _, parameter in self.walk_parameters())

    @visible("gradient_checkpointing_enable")
    def gradient_checkpointing_enable(
        self, w: World, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        reentrant = bool((gradient_checkpointing_kwargs or {}).get("use_reentrant", False))
        for _, module in self.walk():
            if isinstance(module, PreTrainedModel | Block):
                module.fields["gradient_checkpointing"] = True
                module.fields["use_reentrant"] = reentrant

    @visible("gradient_checkpointing_disable")
    def gradient_checkpointing_disable(self, w: World) -> None:
        for _, module in self.walk():
            module.fields.pop("gradient_checkpointing", None)

    @visible("enable_input_require_grads")
    def enable_input_require_grads(self, w: World) -> None:
        for _, module in self.walk():
            if isinstance(module, PreTrainedModel):
                module.fields["input_require_grads"] = True

    @visible("num_parameters")
    def num_parameters(self, w: World, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        return sum(p.numel for _, p in self.walk_parameters() if p.requires_grad or not only_trainable)

    @visible("generate")
    def generate(
        self,
        w: World,
        inputs: Tensor | None = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        use_cache: bool = True,
        input_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Prefill, first and last token: the cache only grows, so that these show every peak."""
        ids = inputs if inputs is not None else input_ids
        if ids is None:
            raise Unsupported(f"{self.native_name}.generate", "the tokens to start from are not known")
        if kwargs.get("num_beams", 1) != 1 or self.config.fields.get("is_encoder_decoder"):
            raise Unsupported(f"{self.native_name}.generate", "beams and encoder-decoders are not modelled")
        if max_new_tokens is None:
            max_new_tokens = max_length - ids.shape[1] if max_length is not None else 20
        w.generations += 1
        w.generator = weakref.ref(self)
        grad = GradMode(False)
        grad.enter(w)
        try:
            return self._generated(w, ids, max_new_tokens)
        finally:
            grad.leave(w)

    def _generated(self, w: World, ids: Tensor, count: int) -> Any:
        cache: DynamicCache | None = None
        step: Tensor = ids
        for position in sorted({0, 1, count - 1}):
            if not 0 <= position < count:
                break
            if position > 1 and cache is not None:
                cache.grow(w, ids.shape[1] + position - 1)
            outputs: Any = call(
                w, self, (), {"input_ids": step, "cache": cache, "use_cache": True, "logits_to_keep": 1}
            )
            cache = outputs.lookup("past_key_values")
            last = (slice(None), -1, slice(None))
            logits = method(w, "to", method(w, "__getitem__", outputs.lookup("logits"), last), float32)
            del outputs
            step = method(
                w, "__getitem__", torch_function(w, "torch.argmax", logits, -1), (slice(None), None)
            )
            del logits
        return torch_function(w, "torch.cat", [ids, method(w, "expand", step, ids.shape[0], count)], -1)

    @visible("tie_weights", "init_weights", "post_init", "save_pretrained", "push_to_hub")
    def changes_nothing(self, w: World, *args: object, **kwargs: object) -> None:
        """No memory of the card changes."""

    @property
    def checkpoints(self) -> bool:
        return bool(self.fields.get("gradient_checkpointing")) and self.training

    def new_cache(self, use_cache: bool | None) -> DynamicCache | None:
        """A cache unless the call or the configuration turns it off."""
        wanted = self.config.flag("use_cache") if use_cache is None else use_cache
        return DynamicCache() if wanted and not self.checkpoints else None


class Block(Module):
    """A layer that gradient checkpointing wraps (`GradientCheckpointingLayer`)."""


def run_block(w: World, block: Module, *args: object, **kwargs: object) -> Any:
    """`block(*args, **kwargs)`, checkpointed where that is on; keyword arguments are bound, not recorded."""
    if block.fields.get("gradient_checkpointing") and block.training:
        body = partial(_call_block, w, block, kwargs)
        return checkpoint(w, body, args, {}, reentrant=bool(block.fields.get("use_reentrant")))
    return call(w, block, args, kwargs)


def _call_block(w: World, block: Module, kwargs: Mapping[str, object], *args: object) -> object:
    return call(w, block, args, kwargs)


def attend(
    w: World,
    implementation: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float,
    *,
    causal: bool,
    groups: int = 1,
    style: str = "bert",
) -> Any:
    """`attention_interface`: tensors (batch, heads, length, size) in, (batch, length, heads, size) out.

    Returns (output, probabilities or None): callers hold the probabilities as long as transformers' do.
    groups: query heads a key head. style, of eager attention: "bert" leaves the probabilities as softmax
    gives them, "gpt2" casts them to the type of the values and does not copy the result, "llama" takes
    softmax in fp32 and casts back.
    """
    if implementation == "eager":
        if groups > 1:
            key, value = repeat_kv(w, key, groups), repeat_kv(w, value, groups)
        weights = torch_function(
            w,
            "torch.mul",
            torch_function(w, "torch.matmul", query, method(w, "transpose", key, -1, -2)),
            scaling,
        )
        if mask is not None:
            weights = torch_function(w, "torch.add", weights, mask)
        if style == "llama":
            weights = method(w, "to", functional(w, "softmax", weights, -1, dtype=float32), query.dtype)
        else:
            weights = functional(w, "softmax", weights, -1)
        if style == "gpt2":
            weights = method(w, "to", weights, value.dtype)
        weights = functional(w, "dropout", weights, dropout, dropout > 0)
        output = torch_function(w, "torch.matmul", weights, value)
        output = method(w, "transpose", output, 1, 2)
        return (output if style == "gpt2" else method(w, "contiguous", output)), weights
    if implementation not in ("sdpa", "flash_attention_2", "flash_attention_3"):
        raise Unsupported(f"attn_implementation={implementation!r}", "this attention is not modelled")
    use_gqa = groups > 1 and mask is None
    if groups > 1 and not use_gqa:
        key, value = repeat_kv(w, key, groups), repeat_kv(w, value, groups)
    is_causal = causal and mask is None and query.shape[2] > 1
    options: dict[str, Any] = {"enable_gqa": True} if use_gqa else {}
    output = functional(
        w,
        "scaled_dot_product_attention",
        query,
        key,
        value,
        mask,
        dropout,
        is_causal,
        scale=scaling,
        **options,
    )
    return method(w, "contiguous", method(w, "transpose", output, 1, 2)), None


def repeat_kv(w: World, states: Tensor, groups: int) -> Any:
    batch, heads, length, size = states.shape
    expanded = method(w, "expand", method(w, "unsqueeze", states, 2), batch, heads, groups, length, size)
    return method(w, "reshape", expanded, batch, heads * groups, length, size)


def attention_mask(
    w: World,
    config: Config,
    hidden: Tensor,
    padding: Tensor | None,
    key_length: int,
    *,
    causal: bool,
    window: int | None = None,
) -> Tensor | None:
    """The 4-D mask of `create_causal_mask` and `create_bidirectional_mask`.

    A padding mask without a padded token is recognised and dropped by transformers; `config.padded` says
    whether there is one.
    """
    batch, length = hidden.shape[0], hidden.shape[1]
    implementation = config.text("_attn_implementation")
    padded = padding is not None and config.padded
    if padding is not None and not padded:
        w.assume("no sequence of the batch is padded")
    if padded and implementation != "eager":
        return w.new((batch, 1, length, key_length), boolean, "attention mask", hidden.device)
    if implementation != "eager" and (window is None or key_length <= window):
        return None
    if not causal and padding is None:
        return None
    allowed = w.new((1, 1, length, key_length), boolean, "causal mask", hidden.device)
    if implementation != "eager":
        return method(w, "expand", allowed, batch, -1, length, key_length)  # type: ignore[no-any-return]
    mask = w.new((batch, 1, length, key_length), hidden.dtype, "attention mask", hidden.device)
    del allowed
    return mask


def causal_lm_loss(w: World, logits: Tensor, labels: Tensor) -> Any:
    """`ForCausalLMLoss`: in fp32, labels shifted by padding."""
    logits = method(w, "float", logits)
    labels = functional(w, "pad", labels, (0, 1), value=-100)
    shifted = method(w, "contiguous", method(w, "__getitem__", labels, (Ellipsis, slice(1, None))))
    logits = method(w, "view", logits, -1, logits.shape[-1])
    shifted = method(w, "view", shifted, -1)
    return functional(w, "cross_entropy", logits, shifted, ignore_index=-100)


def classification_loss(w: World, logits: Tensor, labels: Tensor, config: Config) -> Any:
    """Regression for one label, else cross entropy over `num_labels`."""
    count = config.integer("num_labels")
    if count == 1:
        return functional(w, "mse_loss", method(w, "squeeze", logits), method(w, "squeeze", labels))
    return functional(w, "cross_entropy", method(w, "view", logits, -1, count), method(w, "view", labels, -1))


def activation(w: World, name: str, x: Tensor) -> Any:
    """`ACT2FN[name](x)`; the unfused ones step by step, they keep several intermediate results."""
    if name == "gelu_new":
        return _gelu_new(w, x)
    if name == "relu2":
        return torch_function(w, "torch.square", functional(w, "relu", x))
    if name == "quick_gelu":
        sigmoid = torch_function(w, "torch.sigmoid", torch_function(w, "torch.mul", x, 1.702))
        return torch_function(w, "torch.mul", x, sigmoid)
    fused: Mapping[str, Callable[[], Any]] = {
        "gelu": lambda: functional(w, "gelu", x),
        "gelu_pytorch_tanh": lambda: functional(w, "gelu", x, approximate="tanh"),
        "relu": lambda: functional(w, "relu", x),
        "silu": lambda: functional(w, "silu", x),
        "swish": lambda: functional(w, "silu", x),
        "tanh": lambda: torch_function(w, "torch.tanh", x),
    }
    if name not in fused:
        raise Unsupported(f"activation {name!r}", "this activation is not modelled")
    return fused[name]()


def _gelu_new(w: World, x: Tensor) -> Any:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))): nested, so that results die in time."""
    f = partial(torch_function, w)
    return f(
        "torch.mul",
        f("torch.mul", x, 0.5),
        f(
            "torch.add",
            f(
                "torch.tanh",
                f(
                    "torch.mul",
                    f("torch.add", x, f("torch.mul", f("torch.pow", x, 3.0), 0.044715)),
                    0.7978845608028654,
                ),
            ),
            1.0,
        ),
    )


def linear(w: World, i: int, o: int, bias: bool = True) -> Linear:
    layer = Linear()
    layer.init(w, i, o, bias)
    return layer


def embedding(w: World, count: int, size: int, padding_idx: int | None = None) -> Embedding:
    layer = Embedding()
    layer.init(w, count, size, padding_idx)
    return layer


def dropout_layer(w: World, p: float) -> Module:
    layer = DROPOUTS[0]()
    layer.init(w, p)
    return layer


def layer_norm(w: World, size: int, eps: float) -> LayerNorm:
    layer = LayerNorm()
    layer.init(w, size, eps)
    return layer


def module_list(modules: Iterable[Module]) -> ModuleList:
    layer = ModuleList()
    layer.renumber(modules)
    return layer


def members(module: Module) -> list[Module]:
    """The modules of a ModuleList."""
    return [child for child in module.children.values() if child is not None]


def add(w: World, a: Any, b: Any) -> Any:
    return torch_function(w, "torch.add", a, b)


def split_heads(w: World, x: Tensor, size: int) -> Any:
    """(batch, length, heads * size) -> (batch, heads, length, size), a view."""
    return method(w, "transpose", method(w, "view", x, *x.shape[:-1], -1, size), 1, 2)


def merge_heads(w: World, x: Tensor) -> Any:
    """(batch, length, heads, size) -> (batch, length, heads * size), contiguous."""
    return method(w, "contiguous", method(w, "reshape", x, *x.shape[:-2], x.shape[-2] * x.shape[-1]))


def weight_type(layer: Module) -> DType:
    """Of a layer's weight; of an adapter's, that of the layer it wraps."""
    while "weight" not in layer.parameters and layer.children.get("base_layer") is not None:
        layer = layer.child("base_layer")
    return layer.tensor("weight").dtype


def in_dtype(w: World, dtype: DType | None, build: Callable[[], None]) -> None:
    """Builds with `torch.set_default_dtype(dtype)`, as `from_config(dtype=...)` does."""
    outer = w.default_dtype
    w.default_dtype = dtype or outer
    try:
        build()
    finally:
        w.default_dtype = outer

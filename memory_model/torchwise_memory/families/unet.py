"""diffusers' `UNet2DConditionModel` (0.42): the denoiser of Stable Diffusion 1, 2 and XL.

Follows `diffusers/models/`: `unets/unet_2d_condition.py`, `unets/unet_2d_blocks.py`, `resnet.py`,
`attention.py`, `attention_processor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from torchwise_memory.families.base import ModelOutput, dropout_layer, layer_norm, linear, module_list
from torchwise_memory.families.layers import conv, group_norm
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.native import visible
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.checkpoint import checkpoint
from torchwise_memory.runtime.dtypes import float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: Defaults of the constructor.
DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "sample_size": None,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        "block_out_channels": (320, 640, 1280, 1280),
        "layers_per_block": 2,
        "cross_attention_dim": 1280,
        "attention_head_dim": 8,
        "transformer_layers_per_block": 1,
        "use_linear_projection": False,
        "norm_num_groups": 32,
        "dropout": 0.0,
        "addition_embed_type": None,
        "addition_time_embed_dim": None,
        "projection_class_embeddings_input_dim": None,
    }
)
#: Options that other values of would change the network.
_FIXED: Mapping[str, object] = {
    "center_input_sample": False, "flip_sin_to_cos": True, "mid_block_type": "UNetMidBlock2DCrossAttn",
    "only_cross_attention": False, "downsample_padding": 1, "mid_block_scale_factor": 1, "act_fn": "silu",
    "dual_cross_attention": False, "class_embed_type": None, "num_class_embeds": None,
    "upcast_attention": False,
    "resnet_time_scale_shift": "default", "time_embedding_type": "positional", "encoder_hid_dim": None,
    "num_attention_heads": None, "attention_type": "default",
}  # fmt: skip
#: Options of no consequence for memory.
_FREE = frozenset({"freq_shift", "norm_eps", "_class_name", "_diffusers_version", "_name_or_path"})
_SD1: Mapping[str, object] = MappingProxyType({"sample_size": 64, "cross_attention_dim": 768})
_SD2: Mapping[str, object] = MappingProxyType(
    {"cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20), "use_linear_projection": True}
)
_SDXL: Mapping[str, object] = MappingProxyType(
    {
        "sample_size": 128,
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 2048,
        "attention_head_dim": (5, 10, 20),
        "transformer_layers_per_block": (1, 2, 10),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    }
)
#: `unet/config.json` of published checkpoints.
CHECKPOINTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "stable-diffusion-v1-1": _SD1,
        "stable-diffusion-v1-4": _SD1,
        "stable-diffusion-v1-5": _SD1,
        "stable-diffusion-2": _SD2,
        "stable-diffusion-2-1": _SD2,
        "stable-diffusion-2-base": _SD2,
        "stable-diffusion-2-1-base": _SD2,
        "stable-diffusion-xl-base-1.0": _SDXL,
        "sdxl-turbo": _SDXL,
    }
)


class ResnetBlock(Module):
    native_name = "diffusers.models.resnet.ResnetBlock2D"

    def build(self, w: World, i: int, o: int, time: int, groups: int, p: float) -> ResnetBlock:
        self.children.update(
            norm1=group_norm(w, groups, i),
            conv1=conv(w, i, o, 3, bias=True),
            time_emb_proj=linear(w, time, o),
            norm2=group_norm(w, groups, o),
            dropout=dropout_layer(w, p),
            conv2=conv(w, o, o, 3, bias=True),
            conv_shortcut=conv(w, i, o, 1, bias=True) if i != o else None,
        )
        return self

    def forward(self, w: World, input_tensor: Any, temb: Any) -> Any:
        hidden_states = self.run(w, "norm1", input_tensor)
        hidden_states = functional(w, "silu", hidden_states)
        hidden_states = self.run(w, "conv1", hidden_states)
        temb = self.run(w, "time_emb_proj", functional(w, "silu", temb))
        temb = method(w, "__getitem__", temb, (slice(None), slice(None), None, None))
        hidden_states = torch_function(w, "torch.add", hidden_states, temb)
        hidden_states = functional(w, "silu", self.run(w, "norm2", hidden_states))
        hidden_states = self.run(w, "dropout", hidden_states)
        hidden_states = self.run(w, "conv2", hidden_states)
        if self.children["conv_shortcut"] is not None:
            if self.training:
                input_tensor = method(w, "contiguous", input_tensor)
            input_tensor = self.run(w, "conv_shortcut", input_tensor)
        total = torch_function(w, "torch.add", input_tensor, hidden_states)
        return torch_function(w, "torch.div", total, 1.0)


class Attention(Module):
    native_name = "diffusers.models.attention_processor.Attention"

    def build(self, w: World, hidden: int, context: int, heads: int) -> Attention:
        self.heads = heads
        self.children["to_q"] = linear(w, hidden, hidden, bias=False)
        self.children["to_k"] = linear(w, context, hidden, bias=False)
        self.children["to_v"] = linear(w, context, hidden, bias=False)
        self.children["to_out"] = module_list([linear(w, hidden, hidden), dropout_layer(w, 0.0)])
        return self

    def forward(self, w: World, hidden_states: Any, context: Any = None) -> Any:
        residual = hidden_states
        batch = hidden_states.shape[0]
        query = self.run(w, "to_q", hidden_states)
        source = hidden_states if context is None else context
        key, value = self.run(w, "to_k", source), self.run(w, "to_v", source)
        query, key, value = (self._heads(w, x, batch) for x in (query, key, value))
        hidden_states = functional(w, "scaled_dot_product_attention", query, key, value, None, 0.0, False)
        hidden_states = method(w, "transpose", hidden_states, 1, 2)
        hidden_states = method(w, "reshape", hidden_states, batch, -1, residual.shape[-1])
        hidden_states = method(w, "to", hidden_states, query.dtype)
        out = self.child("to_out")
        hidden_states = out.run(w, "1", out.run(w, "0", hidden_states))
        return torch_function(w, "torch.div", hidden_states, 1.0)

    def _heads(self, w: World, x: Any, batch: int) -> Any:
        x = method(w, "view", x, batch, -1, self.heads, x.shape[-1] // self.heads)
        return method(w, "transpose", x, 1, 2)


class Gated(Module):
    native_name = "diffusers.models.activations.GEGLU"

    def build(self, w: World, hidden: int, inner: int) -> Gated:
        self.children["proj"] = linear(w, hidden, 2 * inner)
        return self

    def forward(self, w: World, hidden_states: Any) -> Any:
        hidden_states, gate = torch_function(w, "torch.chunk", self.run(w, "proj", hidden_states), 2, -1)
        return torch_function(w, "torch.mul", hidden_states, functional(w, "gelu", gate))


class FeedForward(Module):
    native_name = "diffusers.models.attention.FeedForward"

    def build(self, w: World, hidden: int) -> FeedForward:
        net: list[Module] = [
            Gated().build(w, hidden, 4 * hidden),
            dropout_layer(w, 0.0),
            linear(w, 4 * hidden, hidden),
        ]
        self.children["net"] = module_list(net)
        return self

    def forward(self, w: World, hidden_states: Any) -> Any:
        for name in self.child("net").children:
            hidden_states = self.child("net").run(w, name, hidden_states)
        return hidden_states


class TransformerBlock(Module):
    native_name = "diffusers.models.attention.BasicTransformerBlock"

    def build(self, w: World, hidden: int, heads: int, context: int) -> TransformerBlock:
        self.children.update(
            norm1=layer_norm(w, hidden, 1e-5),
            attn1=Attention().build(w, hidden, hidden, heads),
            norm2=layer_norm(w, hidden, 1e-5),
            attn2=Attention().build(w, hidden, context, heads),
            norm3=layer_norm(w, hidden, 1e-5),
            ff=FeedForward().build(w, hidden),
        )
        return self

    def forward(self, w: World, hidden_states: Any, context: Any) -> Any:
        normed = self.run(w, "norm1", hidden_states)
        output = self.run(w, "attn1", normed)
        hidden_states = torch_function(w, "torch.add", output, hidden_states)
        normed = self.run(w, "norm2", hidden_states)
        output = self.run(w, "attn2", normed, context)
        hidden_states = torch_function(w, "torch.add", output, hidden_states)
        normed = self.run(w, "norm3", hidden_states)
        return torch_function(w, "torch.add", self.run(w, "ff", normed), hidden_states)


class Transformer(Module):
    """`Transformer2DModel` over pixels; `checkpoints` recomputes each block."""

    native_name = "diffusers.models.transformers.transformer_2d.Transformer2DModel"

    def build(
        self, w: World, width: int, heads: int, context: int, layers: int, flat: bool, groups: int
    ) -> Transformer:
        self.flat = flat
        self.children["norm"] = group_norm(w, groups, width, 1e-6)
        for name in ("proj_in", "proj_out"):
            self.children[name] = linear(w, width, width) if flat else conv(w, width, width, 1, bias=True)
        blocks: list[Module] = [TransformerBlock().build(w, width, heads, context) for _ in range(layers)]
        self.children["transformer_blocks"] = module_list(blocks)
        return self

    def forward(self, w: World, hidden_states: Any, context: Any) -> Any:
        batch, _, height, width = hidden_states.shape
        residual = hidden_states
        hidden_states = self.run(w, "norm", hidden_states)
        if not self.flat:
            hidden_states = self.run(w, "proj_in", hidden_states)
        hidden_states = method(w, "permute", hidden_states, 0, 2, 3, 1)
        hidden_states = method(w, "reshape", hidden_states, batch, height * width, -1)
        if self.flat:
            hidden_states = self.run(w, "proj_in", hidden_states)
        for block in self.child("transformer_blocks").children.values():
            assert block is not None
            hidden_states = run(w, self, block, hidden_states, context)
        if self.flat:
            hidden_states = self.run(w, "proj_out", hidden_states)
        hidden_states = method(w, "reshape", hidden_states, batch, height, width, -1)
        hidden_states = method(w, "contiguous", method(w, "permute", hidden_states, 0, 3, 1, 2))
        if not self.flat:
            hidden_states = self.run(w, "proj_out", hidden_states)
        return torch_function(w, "torch.add", hidden_states, residual)


def run(w: World, owner: Module, module: Module, *args: object) -> Any:
    """`module(*args)`, recomputed in backward where the owner says so."""
    if not (owner.fields.get("gradient_checkpointing") and w.grad_enabled):
        return call(w, module, args, {})
    return checkpoint(w, partial(_called, w, module), args, {}, reentrant=False)


def _called(w: World, module: Module, *args: object) -> object:
    return call(w, module, args, {})


class Resample(Module):
    """`Downsample2D` and `Upsample2D`."""

    native_name = "diffusers.models.downsampling.Downsample2D"

    def build(self, w: World, width: int, up: bool) -> Resample:
        self.up = up
        self.children["conv"] = conv(w, width, width, 3, 1 if up else 2, bias=True)
        return self

    def forward(self, w: World, x: Any, size: Any = None) -> Any:
        if self.up:
            if x.shape[0] >= 64:
                x = method(w, "contiguous", x)
            if size is None:
                x = functional(w, "interpolate", x, scale_factor=2.0, mode="nearest")
            else:
                x = functional(w, "interpolate", x, size=size, mode="nearest")
        return self.run(w, "conv", x)


class DownBlock(Module):
    native_name = "diffusers.models.unets.unet_2d_blocks.CrossAttnDownBlock2D"

    def build(
        self, parts: list[ResnetBlock], attentions: list[Transformer], sampler: Resample | None
    ) -> DownBlock:
        if attentions:
            self.children["attentions"] = module_list(attentions)
        self.children["resnets"] = module_list(parts)
        self.children["downsamplers"] = None if sampler is None else module_list([sampler])
        return self

    def forward(self, w: World, hidden_states: Any, temb: Any, context: Any) -> Any:
        outputs: tuple[Any, ...] = ()
        resnets = self.child("resnets")
        for name in resnets.children:
            hidden_states = run(w, self, resnets.child(name), hidden_states, temb)
            if "attentions" in self.children:
                attention = self.child("attentions").child(name)
                hidden_states = call(w, attention, (hidden_states, context), {})
            outputs = (*outputs, hidden_states)
        if self.children["downsamplers"] is not None:
            hidden_states = self.child("downsamplers").run(w, "0", hidden_states)
            outputs = (*outputs, hidden_states)
        return hidden_states, outputs


class MidBlock(Module):
    native_name = "diffusers.models.unets.unet_2d_blocks.UNetMidBlock2DCrossAttn"

    def build(self, resnets: list[ResnetBlock], attention: Transformer) -> MidBlock:
        self.children["attentions"] = module_list([attention])
        self.children["resnets"] = module_list(resnets)
        return self

    def forward(self, w: World, hidden_states: Any, temb: Any, context: Any) -> Any:
        resnets = self.child("resnets")
        hidden_states = call(w, resnets.child("0"), (hidden_states, temb), {})
        hidden_states = self.child("attentions").run(w, "0", hidden_states, context)
        return run(w, self, resnets.child("1"), hidden_states, temb)


class UpBlock(Module):
    native_name = "diffusers.models.unets.unet_2d_blocks.CrossAttnUpBlock2D"

    def build(
        self, resnets: list[ResnetBlock], attentions: list[Transformer], sampler: Resample | None
    ) -> UpBlock:
        if attentions:
            self.children["attentions"] = module_list(attentions)
        self.children["resnets"] = module_list(resnets)
        self.children["upsamplers"] = None if sampler is None else module_list([sampler])
        return self

    def forward(
        self, w: World, hidden_states: Any, kept: tuple[Any, ...], temb: Any, context: Any, size: Any
    ) -> Any:
        resnets = self.child("resnets")
        for name in resnets.children:
            skipped, kept = kept[-1], kept[:-1]
            hidden_states = torch_function(w, "torch.cat", [hidden_states, skipped], 1)
            hidden_states = run(w, self, resnets.child(name), hidden_states, temb)
            if "attentions" in self.children:
                attention = self.child("attentions").child(name)
                hidden_states = call(w, attention, (hidden_states, context), {})
        if self.children["upsamplers"] is not None:
            hidden_states = self.child("upsamplers").run(w, "0", hidden_states, size)
        return hidden_states


class TimestepEmbedding(Module):
    native_name = "diffusers.models.embeddings.TimestepEmbedding"

    def build(self, w: World, i: int, o: int) -> TimestepEmbedding:
        self.children.update(linear_1=linear(w, i, o), linear_2=linear(w, o, o))
        return self

    def forward(self, w: World, sample: Any) -> Any:
        return self.run(w, "linear_2", functional(w, "silu", self.run(w, "linear_1", sample)))


class UNet2DConditionModel(Module):
    native_name = "diffusers.UNet2DConditionModel"

    def build(self, w: World, options: Mapping[str, object]) -> UNet2DConditionModel:
        """Raises Unsupported for options that change the network in a way not written here."""
        for name, value in options.items():
            if name in _FIXED and value != _FIXED[name]:
                raise Unsupported(f"UNet2DConditionModel({name}={value!r})", "this option is not modelled")
            if name not in _FIXED and name not in DEFAULTS and name not in _FREE and value is not None:
                raise Unsupported(f"UNet2DConditionModel({name}=...)", "this option is not modelled")
        c = {**DEFAULTS, **{name: value for name, value in options.items() if name in DEFAULTS}}
        widths = _numbers(c["block_out_channels"])
        count = len(widths)
        self.first, time, groups = widths[0], 4 * widths[0], _number(c["norm_num_groups"])
        p = c["dropout"]
        dropout = float(p) if isinstance(p, int | float) else 0.0
        heads = _spread(c["attention_head_dim"], count)
        contexts = _spread(c["cross_attention_dim"], count)
        depths = _spread(c["transformer_layers_per_block"], count)
        layers = _spread(c["layers_per_block"], count)
        flat = bool(c["use_linear_projection"])

        def resnet(i: int, o: int) -> ResnetBlock:
            return ResnetBlock().build(w, i, o, time, groups, dropout)

        def attention(at: int) -> Transformer:
            return Transformer().build(w, widths[at], heads[at], contexts[at], depths[at], flat, groups)

        self.children["conv_in"] = conv(w, _number(c["in_channels"]), widths[0], 3, bias=True)
        self.children["time_embedding"] = TimestepEmbedding().build(w, widths[0], time)
        self.added = 0
        if c["addition_embed_type"] == "text_time":
            self.added = _number(c["addition_time_embed_dim"])
            inputs = _number(c["projection_class_embeddings_input_dim"])
            self.children["add_embedding"] = TimestepEmbedding().build(w, inputs, time)
        elif c["addition_embed_type"] is not None:
            raise Unsupported("UNet2DConditionModel(addition_embed_type=...)", "this option is not modelled")
        downs: list[Module] = []
        i = widths[0]
        for at, kind in enumerate(_names(c["down_block_types"], "Down")):
            parts = [resnet(i if n == 0 else widths[at], widths[at]) for n in range(layers[at])]
            crossed = [attention(at) for _ in range(layers[at])] if kind else []
            sampler = Resample().build(w, widths[at], up=False) if at < count - 1 else None
            downs.append(DownBlock().build(parts, crossed, sampler))
            i = widths[at]
        self.children["down_blocks"] = module_list(downs)
        ups: list[Module] = []
        previous = widths[-1]
        for step, kind in enumerate(_names(c["up_block_types"], "Up")):
            at = count - 1 - step
            below = widths[max(0, at - 1)]
            number = layers[at] + 1
            parts = [
                resnet(
                    (previous if n == 0 else widths[at]) + (below if n == number - 1 else widths[at]),
                    widths[at],
                )
                for n in range(number)
            ]
            crossed = [attention(at) for _ in range(number)] if kind else []
            sampler = Resample().build(w, widths[at], up=True) if at > 0 else None
            ups.append(UpBlock().build(parts, crossed, sampler))
            previous = widths[at]
        self.children["up_blocks"] = module_list(ups)
        last = widths[-1]
        self.children["mid_block"] = MidBlock().build(
            [resnet(last, last), resnet(last, last)], attention(count - 1)
        )
        self.children["conv_norm_out"] = group_norm(w, groups, widths[0])
        self.children["conv_out"] = conv(w, widths[0], _number(c["out_channels"]), 3, bias=True)
        self.samplers = count - 1
        self.fields["config"] = _Config(c)
        return self

    @visible("enable_gradient_checkpointing")
    def enable_gradient_checkpointing(self, w: World, gradient_checkpointing_func: Any = None) -> None:
        for _, module in self.walk():
            if isinstance(module, DownBlock | MidBlock | UpBlock | Transformer):
                module.fields["gradient_checkpointing"] = True

    @visible("disable_gradient_checkpointing")
    def disable_gradient_checkpointing(self, w: World) -> None:
        for _, module in self.walk():
            module.fields.pop("gradient_checkpointing", None)

    @visible("enable_xformers_memory_efficient_attention", "save_pretrained", "register_to_config")
    def changes_nothing(self, w: World, *args: object, **kwargs: object) -> None:
        """Memory-efficient attention keeps what the fused kernel of PyTorch keeps."""

    def forward(
        self,
        w: World,
        sample: Tensor,
        timestep: Any,
        encoder_hidden_states: Tensor,
        class_labels: Any = None,
        timestep_cond: Any = None,
        attention_mask: Any = None,
        cross_attention_kwargs: Any = None,
        added_cond_kwargs: Mapping[str, Any] | None = None,
        return_dict: bool = True,
        **kwargs: Any,
    ) -> Any:
        if any(x is not None for x in (class_labels, timestep_cond, attention_mask, *kwargs.values())):
            raise Unsupported(f"{self.native_name}.forward", "this argument is not modelled")
        side = sample.shape[-1]
        forwards_size = any(length % 2**self.samplers for length in sample.shape[-2:])
        del side
        temb = self.run(w, "time_embedding", _sinusoids(w, sample.shape[0], self.first, sample))
        if self.added:
            temb = torch_function(w, "torch.add", temb, self._added(w, added_cond_kwargs, temb))
        x = self.run(w, "conv_in", sample)
        kept: tuple[Any, ...] = (x,)
        for block in self.child("down_blocks").children.values():
            assert block is not None
            x, outputs = call_pair(w, block, x, temb, encoder_hidden_states)
            kept = (*kept, *outputs)
        x = self.run(w, "mid_block", x, temb, encoder_hidden_states)
        for block in self.child("up_blocks").children.values():
            assert isinstance(block, UpBlock)
            count = len(block.child("resnets").children)
            mine, kept = kept[-count:], kept[:-count]
            size = kept[-1].shape[2:] if forwards_size and kept else None
            x = call(w, block, (x, mine, temb, encoder_hidden_states, size), {})
            del mine
        x = functional(w, "silu", self.run(w, "conv_norm_out", x))
        x = self.run(w, "conv_out", x)
        return ModelOutput(sample=x) if return_dict else (x,)

    def _added(self, w: World, given: Mapping[str, Any] | None, temb: Any) -> Any:
        """Pooled text and the sizes of the picture, as SDXL adds them to the time."""
        if given is None or "text_embeds" not in given or "time_ids" not in given:
            raise Unsupported(f"{self.native_name}.forward", "added_cond_kwargs are not known")
        text, ids = given["text_embeds"], given["time_ids"]
        times = w.new((ids.numel, self.added), float32, "sinusoids", temb.device)
        times = method(w, "reshape", times, text.shape[0], -1)
        joined = method(w, "to", torch_function(w, "torch.cat", [text, times], -1), temb.dtype)
        return self.run(w, "add_embedding", joined)


class _Config:
    """`unet.config`, what it was built with."""

    native_name = "diffusers.configuration_utils.FrozenDict"

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = dict(fields)

    def lookup(self, name: str) -> object:
        return self.fields[name]


def call_pair(w: World, module: Module, *args: object) -> tuple[Any, tuple[Any, ...]]:
    result = call(w, module, args, {})
    return cast("tuple[Any, tuple[Any, ...]]", result)


def _sinusoids(w: World, batch: int, size: int, sample: Tensor) -> Any:
    """`Timesteps`, in fp32, then in the type of the sample."""
    return method(w, "to", w.new((batch, size), float32, "sinusoids", sample.device), sample.dtype)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise Unsupported("UNet2DConditionModel", "a size that is not known")
    return value


def _numbers(value: object) -> list[int]:
    if not isinstance(value, list | tuple):
        raise Unsupported("UNet2DConditionModel", "sizes that are not known")
    return [_number(item) for item in cast("Sequence[object]", value)]


def _spread(value: object, count: int) -> list[int]:
    """One number for all blocks, or one each."""
    return [value] * count if isinstance(value, int) else _numbers(value)


def _names(value: object, part: str) -> list[bool]:
    """Whether each block attends to the context."""
    kinds = [str(item) for item in cast("Sequence[object]", value)] if isinstance(value, list | tuple) else []
    known = {f"{part}Block2D": False, f"CrossAttn{part}Block2D": True}
    if not kinds or any(kind not in known for kind in kinds):
        raise Unsupported("UNet2DConditionModel", "a kind of block that is not modelled")
    return [known[kind] for kind in kinds]

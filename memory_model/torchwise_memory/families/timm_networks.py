"""timm's PoolFormer, BiT ResNet and Swin v2 (`timm/models/{metaformer,resnetv2,swin_transformer_v2}.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from torchwise_memory.families.layers import (
    ChannelsFirstNorm,
    Network,
    conv,
    do,
    flatten,
    group_norm,
    linear,
    mean_of_pixels,
    sequence,
    simple,
)
from torchwise_memory.families.vision_transformers import ShiftedWindowAttentionV2, swin
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.conv import Conv2d
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.world import World

Maker: TypeAlias = "Callable[[World, int], Module]"


# --------------------------------------------------------------------------- PoolFormer


class PoolBlock(Module):
    """`MetaFormerBlock` that mixes by pooling: two residual branches, each scaled by channel."""

    native_name = "timm.models.metaformer.MetaFormerBlock"

    def build(self, w: World, width: int) -> PoolBlock:
        self.children.update(
            norm1=group_norm(w, 1, width),
            pool=simple(w, "AvgPool2d", 3, 1, 1),
            norm2=group_norm(w, 1, width),
            fc1=conv(w, width, 4 * width, 1, bias=True),
            fc2=conv(w, 4 * width, width, 1, bias=True),
        )
        for name in ("layer_scale1", "layer_scale2"):
            self.new_parameter(w, name, (width,), None, None)
        return self

    def forward(self, w: World, x: Any) -> Any:
        h = self.run(w, "norm1", x)
        mixed = torch_function(w, "torch.sub", self.run(w, "pool", h), h)
        x = torch_function(w, "torch.add", x, self._scaled(w, "layer_scale1", mixed))
        del h, mixed
        h = self.run(w, "fc1", self.run(w, "norm2", x))
        h = self.run(w, "fc2", functional(w, "gelu", h))
        return torch_function(w, "torch.add", x, self._scaled(w, "layer_scale2", h))

    def _scaled(self, w: World, name: str, x: Any) -> Any:
        return torch_function(w, "torch.mul", x, method(w, "view", self.tensor(name), -1, 1, 1))


def _poolformer(depths: tuple[int, ...], widths: tuple[int, ...]) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        stages: list[Module] = []
        for stage, (count, width) in enumerate(zip(depths, widths, strict=True)):
            blocks: list[Module] = []
            if stage:
                blocks.append(conv(w, widths[stage - 1], width, 3, 2, bias=True))
            blocks += [PoolBlock().build(w, width) for _ in range(count)]
            stages.append(sequence(*blocks))
        parts: dict[str, Module | None] = {
            "stem": conv(w, 3, widths[0], 7, 4, padding=2, bias=True),
            "stages": sequence(*stages),
            "pool": simple(w, "AdaptiveAvgPool2d", 1),
            "norm": ChannelsFirstNorm().build(w, widths[-1]),
            "fc": linear(w, widths[-1], num_classes),
        }
        return Network().assemble(parts, ("stem", "stages", "pool", "norm", flatten, "fc"))

    return make


# --------------------------------------------------------------------------- BiT


class StandardisedConv(Conv2d):
    """A convolution whose weight is normalised by output channel at each use."""

    native_name = "timm.layers.StdConv2d"

    def forward(self, w: World, input: Any) -> Any:
        weight = self.tensor("weight")
        flat = method(w, "reshape", weight, 1, weight.shape[0], -1)
        normal = functional(w, "batch_norm", flat, None, None, training=True, momentum=0.0, eps=1e-8)
        normal = method(w, "reshape", normal, *weight.shape)
        fields = self.fields
        options = [fields[name] for name in ("stride", "padding", "dilation", "groups")]
        return functional(w, "conv2d", input, normal, None, *options)


def _standardised(w: World, i: int, o: int, kernel: int, stride: int = 1) -> Module:
    layer = StandardisedConv()
    layer.init(w, i, o, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    return layer


def _norm_act(w: World, channels: int) -> Module:
    return sequence(group_norm(w, 32, channels), simple(w, "ReLU", True))


class PreActBottleneck(Module):
    native_name = "timm.models.resnetv2.PreActBottleneck"

    def build(self, w: World, i: int, o: int, stride: int, projects: bool) -> PreActBottleneck:
        middle = o // 4
        self.children.update(
            downsample=_standardised(w, i, o, 1, stride) if projects else None,
            norm1=_norm_act(w, i),
            conv1=_standardised(w, i, middle, 1),
            norm2=_norm_act(w, middle),
            conv2=_standardised(w, middle, middle, 3, stride),
            norm3=_norm_act(w, middle),
            conv3=_standardised(w, middle, o, 1),
        )
        return self

    def forward(self, w: World, x: Any) -> Any:
        before = self.run(w, "norm1", x)
        shortcut = x
        if self.children["downsample"] is not None:
            shortcut = self.run(w, "downsample", before)
        x = self.run(w, "conv1", before)
        x = self.run(w, "conv2", self.run(w, "norm2", x))
        x = self.run(w, "conv3", self.run(w, "norm3", x))
        return torch_function(w, "torch.add", x, shortcut)


def _bit(layers: tuple[int, ...], factor: int) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        i = 64 * factor
        stages: list[Module] = []
        for stage, count in enumerate(layers):
            o = 256 * factor << stage
            blocks: list[Module] = []
            for index in range(count):
                first = index == 0
                blocks.append(PreActBottleneck().build(w, i, o, 2 if first and stage else 1, first))
                i = o
            stages.append(sequence(*blocks))
        parts: dict[str, Module | None] = {
            "stem": sequence(
                _standardised(w, 3, 64 * factor, 7, 2), do(_padded), simple(w, "MaxPool2d", 3, 2, 0)
            ),
            "stages": sequence(*stages),
            "norm": _norm_act(w, i),
            "head": linear(w, i, num_classes),
        }
        return Network().assemble(parts, ("stem", "stages", "norm", mean_of_pixels, "head"))

    return make


def _padded(w: World, x: Any) -> Any:
    return functional(w, "pad", x, (1, 1, 1, 1), value=0.0)


class WindowAttention(ShiftedWindowAttentionV2):
    """timm's has biases of queries and values, and zeros for keys between them."""

    native_name = "timm.models.swin_transformer_v2.WindowAttention"

    def build(self, w: World, width: int, heads: int, window: int, shift: int) -> WindowAttention:
        super().build(w, width, heads, window, shift)
        self.children["qkv"] = linear(w, width, 3 * width, bias=False)
        for name in ("q_bias", "v_bias"):
            self.new_parameter(w, name, (width,), None, None)
        self.register_buffer(w, "k_bias", torch_function(w, "torch.zeros", (width,)), persistent=False)
        return self

    def project(self, w: World, x: Any) -> Any:
        biases = (self.tensor("q_bias"), self.tensor("k_bias"), self.tensor("v_bias"))
        bias = torch_function(w, "torch.cat", biases)
        return functional(w, "linear", x, self.child("qkv").tensor("weight"), bias)


_S, _B = ((2, 2, 18, 2), 96, (3, 6, 12, 24)), ((2, 2, 18, 2), 128, (4, 8, 16, 32))

MODELS: Mapping[str, Maker] = MappingProxyType(
    {
        "poolformer_s12": _poolformer((2, 2, 6, 2), (64, 128, 320, 512)),
        "poolformer_s24": _poolformer((4, 4, 12, 4), (64, 128, 320, 512)),
        "poolformer_s36": _poolformer((6, 6, 18, 6), (64, 128, 320, 512)),
        "poolformer_m36": _poolformer((6, 6, 18, 6), (96, 192, 384, 768)),
        "poolformer_m48": _poolformer((8, 8, 24, 8), (96, 192, 384, 768)),
        "resnetv2_50x1_bit": _bit((3, 4, 6, 3), 1),
        "resnetv2_50x3_bit": _bit((3, 4, 6, 3), 3),
        "resnetv2_101x1_bit": _bit((3, 4, 23, 3), 1),
        "resnetv2_101x3_bit": _bit((3, 4, 23, 3), 3),
        "swinv2_tiny_window8_256": swin((2, 2, 6, 2), 96, (3, 6, 12, 24), 0.0, 8, WindowAttention),
        "swinv2_small_window8_256": swin(*_S, 0.0, 8, WindowAttention),
        "swinv2_base_window8_256": swin(*_B, 0.0, 8, WindowAttention),
    }
)

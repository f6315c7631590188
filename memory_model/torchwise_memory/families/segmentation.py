"""Semantic segmentation over a dilated residual network: FCN, PSPNet, DeepLabV3 and V3+, UPerNet.

Follows mmsegmentation 1 (`models/{backbones,decode_heads}`): a stem of three convolutions, batch norms that
are trained, a second head on the third stage, logits brought to the size of the crop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torchwise_memory.families.backbones import ConvNorm, Plan, ResNet
from torchwise_memory.families.base import add
from torchwise_memory.families.detection import pixel_loss
from torchwise_memory.families.layers import conv
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, torch_function
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: Share of the head's features that is dropped.
DROPOUT = 0.1


@dataclass(frozen=True, slots=True)
class Segmenter:
    """head: "fcn", "psp", "aspp", "aspp+" (with details of the first stage) or "uper"."""

    backbone: Plan
    head: str


def segmenter(name: str) -> Segmenter | None:
    """ "PSPNet R50-D8", "UPerNet R101", "DeepLabV3+ R50"; None for others."""
    text = re.sub(r"[\s_-]+", " ", name.lower())
    heads = (
        (r"psp ?net", "psp"), (r"deep ?lab ?v?3 ?(\+|plus)", "aspp+"), (r"deep ?lab ?v?3", "aspp"),
        (r"uper ?net", "uper"), (r"\bfcn\b", "fcn"),
    )  # fmt: skip
    head = next((kind for pattern, kind in heads if re.search(pattern, text)), None)
    depth = re.search(r"\br(?:es ?net)? ?(50|101)(?:v1c)?\b", text)
    if head is None or depth is None:
        return None
    strides, dilations = ((1, 2, 1, 1), (1, 1, 2, 4)) if head != "uper" else ((1, 2, 2, 2), (1, 1, 1, 1))
    if re.search(r"\bd16\b", text):
        strides, dilations = (1, 2, 2, 1), (1, 1, 1, 2)
    plan = Plan(int(depth[1]), norm="train", frozen=0, deep_stem=True, strides=strides, dilations=dilations)
    return Segmenter(plan, head)


class SegmentationModel(Module):
    """Pixels to the sum of both heads' losses."""

    native_name = "torchwise.Segmenter"

    def build(self, w: World, plan: Segmenter, classes: int) -> SegmentationModel:
        resnet = ResNet().build(w, plan.backbone)
        self.children["backbone"] = resnet
        heads: dict[str, type[_Head]] = {
            "fcn": _Fcn, "psp": _Pyramid, "aspp": _Dilated, "aspp+": _Detailed, "uper": _Unified,
        }  # fmt: skip
        width = 512
        self.children["head"] = heads[plan.head]().build(w, resnet.channels, width, classes)
        self.children["auxiliary"] = _Auxiliary().build(w, resnet.channels, 256, classes)
        return self

    def forward(self, w: World, pixels: Tensor) -> Any:
        features = self.run(w, "backbone", pixels)
        loss = self.run(w, "head", features, pixels)
        return add(w, loss, self.run(w, "auxiliary", features, pixels))


class _Head(Module):
    """From features to the loss: dropout, a product for each class, and pixels."""

    native_name = "torchwise.SegmentationHead"

    def build(self, w: World, channels: list[int], width: int, classes: int) -> _Head:
        self.assemble(w, channels, width)
        self.children["classes"] = conv(w, width, classes, 1, bias=True)
        return self

    def assemble(self, w: World, channels: list[int], width: int) -> None:
        raise NotImplementedError

    def features(self, w: World, levels: list[Any]) -> Any:
        raise NotImplementedError

    def forward(self, w: World, levels: list[Any], pixels: Tensor) -> Any:
        x = functional(w, "dropout2d", self.features(w, levels), DROPOUT, self.training)
        return pixel_loss(w, self.run(w, "classes", x), pixels)

    def part(self, w: World, name: str, i: int, o: int, kernel: int = 3, dilation: int = 1) -> None:
        self.children[name] = ConvNorm().build(w, i, o, kernel, dilation=dilation, norm="train")


class _Auxiliary(_Head):
    def assemble(self, w: World, channels: list[int], width: int) -> None:
        self.part(w, "conv", channels[2], width)

    def features(self, w: World, levels: list[Any]) -> Any:
        return self.run(w, "conv", levels[2])


class _Fcn(_Head):
    def assemble(self, w: World, channels: list[int], width: int) -> None:
        self.part(w, "conv0", channels[3], width)
        self.part(w, "conv1", width, width)
        self.part(w, "both", channels[3] + width, width)

    def features(self, w: World, levels: list[Any]) -> Any:
        x = self.run(w, "conv1", self.run(w, "conv0", levels[3]))
        return self.run(w, "both", torch_function(w, "torch.cat", [levels[3], x], 1))


def _resized(w: World, x: Any, like: Any) -> Any:
    size = (like.shape[-2], like.shape[-1])
    return functional(w, "interpolate", x, size=size, mode="bilinear", align_corners=False)


class _Pyramid(_Head):
    """Pooled to four sizes, brought back and put beside the features."""

    def assemble(self, w: World, channels: list[int], width: int) -> None:
        for side in (1, 2, 3, 6):
            self.part(w, f"pool{side}", channels[3], width, 1)
        self.part(w, "both", channels[3] + 4 * width, width)

    def features(self, w: World, levels: list[Any]) -> Any:
        x, parts = levels[3], [levels[3]]
        for side in (1, 2, 3, 6):
            pooled = self.run(w, f"pool{side}", functional(w, "adaptive_avg_pool2d", x, side))
            parts.append(_resized(w, pooled, x))
        return self.run(w, "both", torch_function(w, "torch.cat", parts, 1))


class _Dilated(_Head):
    """Convolutions of four dilations and the mean of the image."""

    dilations = (1, 12, 24, 36)

    def assemble(self, w: World, channels: list[int], width: int) -> None:
        self.part(w, "image", channels[3], width, 1)
        for dilation in self.dilations:
            self.part(w, f"at{dilation}", channels[3], width, 1 if dilation == 1 else 3, dilation)
        self.part(w, "both", 5 * width, width)

    def features(self, w: World, levels: list[Any]) -> Any:
        x = levels[3]
        pooled = self.run(w, "image", functional(w, "adaptive_avg_pool2d", x, 1))
        parts = [_resized(w, pooled, x)]
        parts += [self.run(w, f"at{dilation}", x) for dilation in self.dilations]
        return self.run(w, "both", torch_function(w, "torch.cat", parts, 1))


class _Detailed(_Dilated):
    """The same, brought to the first stage's size and put beside its details."""

    def assemble(self, w: World, channels: list[int], width: int) -> None:
        super().assemble(w, channels, width)
        self.part(w, "details", channels[0], 48, 1)
        self.part(w, "fuse0", width + 48, width)
        self.part(w, "fuse1", width, width)

    def features(self, w: World, levels: list[Any]) -> Any:
        x = super().features(w, levels)
        details = self.run(w, "details", levels[0])
        x = torch_function(w, "torch.cat", [_resized(w, x, details), details], 1)
        return self.run(w, "fuse1", self.run(w, "fuse0", x))


class _Unified(_Pyramid):
    """A pyramid of features over that of pooling (UPerNet)."""

    def assemble(self, w: World, channels: list[int], width: int) -> None:
        super().assemble(w, channels, width)
        for number in range(3):
            self.part(w, f"lateral{number}", channels[number], width, 1)
            self.part(w, f"output{number}", width, width)
        self.part(w, "fused", 4 * width, width)

    def features(self, w: World, levels: list[Any]) -> Any:
        tops = [super().features(w, levels)]
        for number in reversed(range(3)):
            lateral = self.run(w, f"lateral{number}", levels[number])
            tops.insert(0, torch_function(w, "torch.add", lateral, _resized(w, tops[0], lateral)))
        outputs = [self.run(w, f"output{number}", tops[number]) for number in range(3)] + [tops[3]]
        outputs = [outputs[0]] + [_resized(w, each, outputs[0]) for each in outputs[1:]]
        return self.run(w, "fused", torch_function(w, "torch.cat", outputs, 1))

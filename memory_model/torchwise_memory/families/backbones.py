"""Residual networks as detectors and segmenters use them: frozen norms, frozen first stages, dilations.

Follows detectron2 0.6 (`modeling/backbone/{resnet,fpn}.py`, `layers/batch_norm.py`) and mmdetection 3
(`models/backbones/resnet.py`, `models/necks/fpn.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchwise_memory.families.fused import fused
from torchwise_memory.families.layers import batch_norm, conv, group_norm
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class Plan:
    """A residual network. norm: "frozen" (its statistics and factors are constants), "eval" (constant
    statistics, factors that are trained), "train", "group". frozen: stages that are not trained, the stem
    counting as the first. strides, dilations: of the four stages. deep_stem: three convolutions of three.
    deformable: of so many last stages the middle convolutions have learned offsets. early: the stride is that
    of the first convolution of a block.
    """

    depth: int = 50
    groups: int = 1
    width: int = 64
    norm: str = "frozen"
    frozen: int = 2
    strides: tuple[int, int, int, int] = (1, 2, 2, 2)
    dilations: tuple[int, int, int, int] = (1, 1, 1, 1)
    deep_stem: bool = False
    deformable: int = 0
    early: bool = False
    stages: int = 4

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        return BLOCKS[self.depth]


#: Blocks of the stages by depth.
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Norm(Module):
    """A batch norm whose statistics are constants, its factors too where `trains` is False."""

    native_name = "torchwise.FrozenBatchNorm2d"

    def build(self, w: World, channels: int, trains: bool) -> Norm:
        self.trains = trains
        for name in ("weight", "bias"):
            if trains:
                self.new_parameter(w, name, (channels,), None, None)
            else:
                self.register_buffer(w, name, torch_function(w, "torch.empty", (channels,)))
        for name in ("running_mean", "running_var"):
            self.register_buffer(w, name, torch_function(w, "torch.empty", (channels,)))
        return self

    def forward(self, w: World, x: Any) -> Any:
        weight, bias = self.tensor("weight"), self.tensor("bias")
        mean, variance = self.tensor("running_mean"), self.tensor("running_var")
        if self.trains or not x.requires_grad:
            return functional(w, "batch_norm", x, mean, variance, weight, bias, False)
        scale = torch_function(w, "torch.mul", weight, torch_function(w, "torch.rsqrt", variance))
        shift = torch_function(w, "torch.sub", bias, torch_function(w, "torch.mul", mean, scale))
        scale = method(w, "view", scale, 1, -1, 1, 1)
        scaled = torch_function(w, "torch.mul", x, scale)
        del x
        return torch_function(w, "torch.add", scaled, method(w, "view", shift, 1, -1, 1, 1))


def make_norm(w: World, kind: str, channels: int) -> Module:
    if kind == "group":
        return group_norm(w, 32, channels)
    if kind == "train":
        return batch_norm(w, channels)
    return Norm().build(w, channels, trains=kind == "eval")


class ConvNorm(Module):
    """A convolution, its norm where it has one, and ReLU in place."""

    native_name = "torchwise.ConvNorm"

    def build(
        self,
        w: World,
        i: int,
        o: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        groups: int = 1,
        dilation: int = 1,
        norm: str = "",
        act: bool = True,
        deformable: bool = False,
        padding: int | None = None,
    ) -> ConvNorm:
        self.act, self.deformable = act, deformable
        made = conv(w, i, o, kernel, stride, groups, padding, bias=not norm, dilation=dilation)
        self.children["conv"] = made
        if deformable:
            self.children["offset"] = conv(
                w, i, 2 * kernel * kernel, kernel, stride, dilation=dilation, bias=True
            )
        if norm:
            self.children["norm"] = make_norm(w, norm, o)
        return self

    def forward(self, w: World, x: Any) -> Any:
        if self.deformable:
            x = self._deformed(w, x)
        else:
            x = self.run(w, "conv", x)
        if "norm" in self.children:
            x = self.run(w, "norm", x)
        return functional(w, "relu", x, True) if self.act else x

    def _deformed(self, w: World, x: Any) -> Any:
        """Keeps its input, its offsets and its weight; columns are made anew in backward."""
        offset = self.run(w, "offset", x)
        weight = self.child("conv").tensor("weight")
        shape = (x.shape[0], weight.shape[0], *offset.shape[2:])
        return fused(w, "deform_conv2d", (x, offset, weight), shape, x.dtype, saved=(x, offset, weight))


class Bottleneck(Module):
    native_name = "torchwise.Bottleneck"

    def build(
        self, w: World, plan: Plan, i: int, planes: int, stride: int, dilation: int, deform: bool
    ) -> int:
        """Returns the number of channels it gives."""
        inner, out = planes * plan.width // 64 * plan.groups, planes * 4
        if plan.depth < 50:
            return self._basic(w, plan, i, planes, stride, dilation)
        first, second = (stride, 1) if plan.early else (1, stride)
        norm = plan.norm
        self.children["conv1"] = ConvNorm().build(w, i, inner, 1, first, norm=norm)
        self.children["conv2"] = ConvNorm().build(
            w, inner, inner, 3, second, groups=plan.groups, dilation=dilation, norm=norm, deformable=deform
        )
        self.children["conv3"] = ConvNorm().build(w, inner, out, 1, norm=norm, act=False)
        self._shortcut(w, plan, i, out, stride)
        return out

    def _basic(self, w: World, plan: Plan, i: int, planes: int, stride: int, dilation: int) -> int:
        self.children["conv1"] = ConvNorm().build(w, i, planes, 3, stride, dilation=dilation, norm=plan.norm)
        self.children["conv2"] = ConvNorm().build(w, planes, planes, 3, norm=plan.norm, act=False)
        self._shortcut(w, plan, i, planes, stride)
        return planes

    def _shortcut(self, w: World, plan: Plan, i: int, out: int, stride: int) -> None:
        if i != out or stride != 1:
            self.children["shortcut"] = ConvNorm().build(w, i, out, 1, stride, norm=plan.norm, act=False)

    def forward(self, w: World, x: Any) -> Any:
        out = self.run(w, "conv1", x)
        out = self.run(w, "conv2", out)
        if "conv3" in self.children:
            out = self.run(w, "conv3", out)
        short = self.run(w, "shortcut", x) if "shortcut" in self.children else x
        del x
        out = method(w, "add_", out, short)
        del short
        return functional(w, "relu", out, True)


class Stage(Module):
    """Blocks one after the other."""

    native_name = "torchwise.Stage"

    def build(self, w: World, plan: Plan, number: int, i: int) -> int:
        planes = 64 << number
        deform = plan.deformable >= 4 - number
        for index in range(plan.blocks[number]):
            block = Bottleneck()
            stride = plan.strides[number] if index == 0 else 1
            i = block.build(w, plan, i, planes, stride, plan.dilations[number], deform)
            self.children[str(index)] = block
        return i

    def forward(self, w: World, x: Any) -> Any:
        for name in list(self.children):
            x = self.run(w, name, x)
        return x


class ResNet(Module):
    """Returns the outputs of its stages."""

    native_name = "torchwise.ResNet"

    def build(self, w: World, plan: Plan) -> ResNet:
        self.plan = plan
        norm = plan.norm
        if plan.deep_stem:
            for index, (i, o, stride) in enumerate(((3, 32, 2), (32, 32, 1), (32, 64, 1))):
                self.children[f"stem{index}"] = ConvNorm().build(w, i, o, 3, stride, norm=norm)
        else:
            self.children["stem0"] = ConvNorm().build(w, 3, 64, 7, 2, norm=norm)
        channels = 64
        self.channels: list[int] = []
        for number in range(plan.stages):
            stage = Stage()
            channels = stage.build(w, plan, number, channels)
            self.channels.append(channels)
            self.children[f"stage{number}"] = stage
        frozen = (["stem0", "stem1", "stem2"] if plan.frozen else []) + [
            f"stage{n}" for n in range(plan.frozen - 1)
        ]
        for name in frozen:
            part = self.children.get(name)
            for _, parameter in part.walk_parameters() if part is not None else ():
                parameter.requires_grad = False
        return self

    def forward(self, w: World, x: Tensor) -> Any:
        for name in [n for n in self.children if n.startswith("stem")]:
            x = self.run(w, name, x)
        x = functional(w, "max_pool2d", x, 3, 2, 1)
        outputs: list[Any] = []
        for number in range(self.plan.stages):
            x = self.run(w, f"stage{number}", x)
            outputs.append(x)
        return outputs


class Pyramid(Module):
    """FPN over the stages of a backbone. extra: "pool" (one more level by pooling), "convolutions" (two)."""

    native_name = "torchwise.FPN"

    def build(
        self,
        w: World,
        channels: list[int],
        width: int = 256,
        first: int = 0,
        extra: str = "pool",
        norm: str = "",
    ) -> Pyramid:
        self.first, self.extra, self.count = first, extra, len(channels)
        for number in range(first, len(channels)):
            self.children[f"lateral{number}"] = ConvNorm().build(
                w, channels[number], width, 1, norm=norm, act=False
            )
            self.children[f"output{number}"] = ConvNorm().build(w, width, width, 3, norm=norm, act=False)
        if extra == "convolutions":
            self.children["p6"] = ConvNorm().build(w, width, width, 3, 2, act=False)
            self.children["p7"] = ConvNorm().build(w, width, width, 3, 2, act=False)
        return self

    def forward(self, w: World, features: list[Any]) -> Any:
        outputs: list[Any] = []
        previous: Any = None
        for number in reversed(range(self.first, self.count)):
            lateral = self.run(w, f"lateral{number}", features[number])
            if previous is not None:
                size = (lateral.shape[-2], lateral.shape[-1])
                above = functional(w, "interpolate", previous, size=size, mode="nearest")
                lateral = torch_function(w, "torch.add", lateral, above)
                del above
            previous = lateral
            outputs.insert(0, self.run(w, f"output{number}", lateral))
            del lateral
        if self.extra == "pool":
            outputs.append(functional(w, "max_pool2d", outputs[-1], 1, 2))
        elif self.extra == "convolutions":
            sixth = self.run(w, "p6", outputs[-1])
            outputs += [sixth, self.run(w, "p7", functional(w, "relu", sixth))]
        return outputs

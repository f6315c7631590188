"""torchvision 0.28: all networks by name; here ResNet and its relatives, VGG, AlexNet
(`torchvision/models/{resnet,vgg,alexnet}.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torchwise_memory.families import convnets, vision_transformers
from torchwise_memory.families.base import dropout_layer, linear
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.containers import Sequential
from torchwise_memory.modules.conv import Conv2d
from torchwise_memory.modules.norm import BatchNorm2d
from torchwise_memory.modules.ops import method
from torchwise_memory.modules.simple import ACTIVATIONS, POOLING
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: Classes of ImageNet, what a network is built for by default.
CLASSES = 1000
#: Options that change nothing about memory: which values fill the parameters.
WITHOUT_EFFECT = frozenset({"weights", "progress", "pretrained", "zero_init_residual", "init_weights"})
_SIMPLE = {cls.__name__: cls for cls in (*ACTIVATIONS, *POOLING)}


def build(w: World, name: str, num_classes: int = CLASSES, **options: object) -> Module:
    """`torchvision.models.<name>(num_classes=...)`. Raises Unsupported for models not written here."""
    maker = MODELS.get(name)
    if maker is None:
        raise Unsupported(
            f"torchvision.models.{name}", "no hand-written model; torchvision's source is not readable"
        )
    unknown = options.keys() - WITHOUT_EFFECT
    if unknown:
        raise Unsupported(f"torchvision.models.{name}", f"options not modelled: {', '.join(sorted(unknown))}")
    return maker(w, num_classes)


@dataclass(frozen=True, slots=True)
class _ResNetPlan:
    layers: tuple[int, int, int, int]
    bottleneck: bool = True
    groups: int = 1
    width_per_group: int = 64


class Block(Module):
    """`BasicBlock` and `Bottleneck`: convolutions with norms, the shortcut, one ReLU used throughout."""

    native_name = "torchvision.models.resnet.Bottleneck"

    def build(self, w: World, inplanes: int, planes: int, stride: int, plan: _ResNetPlan) -> int:
        """Returns the number of channels it gives."""
        width = planes * plan.width_per_group // 64 * plan.groups if plan.bottleneck else planes
        out = planes * 4 if plan.bottleneck else planes
        if plan.bottleneck:
            sizes = [
                (inplanes, width, 1, 1, 1),
                (width, width, 3, stride, plan.groups),
                (width, out, 1, 1, 1),
            ]
        else:
            sizes = [(inplanes, planes, 3, stride, 1), (planes, planes, 3, 1, 1)]
        for index, (i, o, kernel, step, groups) in enumerate(sizes, 1):
            self.children[f"conv{index}"] = _conv(w, i, o, kernel, step, groups=groups)
            self.children[f"bn{index}"] = _norm(w, o)
        self.children["relu"] = _simple(w, "ReLU", True)
        self.count = len(sizes)
        self.children["downsample"] = None
        if stride != 1 or inplanes != out:
            self.children["downsample"] = _sequence(_conv(w, inplanes, out, 1, stride), _norm(w, out))
        return out

    def forward(self, w: World, x: Tensor) -> Any:
        identity: Any = x
        out: Any = x
        for index in range(1, self.count + 1):
            out = self.run(w, f"conv{index}", out)
            out = self.run(w, f"bn{index}", out)
            if index < self.count:
                out = self.run(w, "relu", out)
        if self.children["downsample"] is not None:
            identity = self.run(w, "downsample", x)
        out = method(w, "add_", out, identity)
        return self.run(w, "relu", out)


class ResNet(Module):
    native_name = "torchvision.models.resnet.ResNet"

    def build(self, w: World, plan: _ResNetPlan, num_classes: int) -> None:
        self.children["conv1"] = _conv(w, 3, 64, 7, 2)
        self.children["bn1"] = _norm(w, 64)
        self.children["relu"] = _simple(w, "ReLU", True)
        self.children["maxpool"] = _simple(w, "MaxPool2d", 3, 2, 1)
        channels = 64
        for index, count in enumerate(plan.layers):
            blocks: list[Module] = []
            for position in range(count):
                block = Block()
                stride = 2 if index > 0 and position == 0 else 1
                channels = block.build(w, channels, 64 << index, stride, plan)
                blocks.append(block)
            self.children[f"layer{index + 1}"] = _sequence(*blocks)
        self.children["avgpool"] = _simple(w, "AdaptiveAvgPool2d", (1, 1))
        self.children["fc"] = linear(w, channels, num_classes)

    def forward(self, w: World, x: Any) -> Any:
        for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool"):
            x = self.run(w, name, x)
        x = method(w, "flatten", x, 1)
        return self.run(w, "fc", x)


class FeaturesAndClassifier(Module):
    """VGG and AlexNet: features, average pooling to a fixed size, a classifier of linear layers."""

    native_name = "torchvision.models.vgg.VGG"

    def assemble(self, features: Module, avgpool: Module, classifier: Module) -> None:
        self.children.update(features=features, avgpool=avgpool, classifier=classifier)

    def forward(self, w: World, x: Any) -> Any:
        x = self.run(w, "features", x)
        x = self.run(w, "avgpool", x)
        x = method(w, "flatten", x, 1)
        return self.run(w, "classifier", x)


class AlexNet(FeaturesAndClassifier):
    native_name = "torchvision.models.alexnet.AlexNet"


_VGG = {
    "11": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "13": (64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "16": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    "19": (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0),
}


def _vgg(depth: str, norm: bool) -> Callable[[World, int], Module]:
    def make(w: World, num_classes: int) -> Module:
        features: list[Module] = []
        channels = 3
        for width in _VGG[depth]:
            if width == 0:
                features.append(_simple(w, "MaxPool2d", 2, 2))
                continue
            features.append(_conv(w, channels, width, 3, 1, bias=True))
            if norm:
                features.append(_norm(w, width))
            features.append(_simple(w, "ReLU", True))
            channels = width
        classifier = [
            linear(w, 512 * 7 * 7, 4096), _simple(w, "ReLU", True), dropout_layer(w, 0.5),
            linear(w, 4096, 4096), _simple(w, "ReLU", True), dropout_layer(w, 0.5),
            linear(w, 4096, num_classes),
        ]  # fmt: skip
        model = FeaturesAndClassifier()
        model.assemble(_sequence(*features), _simple(w, "AdaptiveAvgPool2d", (7, 7)), _sequence(*classifier))
        return model

    return make


def _alexnet(w: World, num_classes: int) -> Module:
    features: list[Module] = []
    for i, o, kernel, stride, padding, pools in (
        (3, 64, 11, 4, 2, True),
        (64, 192, 5, 1, 2, True),
        (192, 384, 3, 1, 1, False),
        (384, 256, 3, 1, 1, False),
        (256, 256, 3, 1, 1, True),
    ):
        features += [_conv(w, i, o, kernel, stride, padding=padding, bias=True), _simple(w, "ReLU", True)]
        if pools:
            features.append(_simple(w, "MaxPool2d", 3, 2))
    classifier = [
        dropout_layer(w, 0.5), linear(w, 256 * 6 * 6, 4096), _simple(w, "ReLU", True),
        dropout_layer(w, 0.5), linear(w, 4096, 4096), _simple(w, "ReLU", True), linear(w, 4096, num_classes),
    ]  # fmt: skip
    model = AlexNet()
    model.assemble(_sequence(*features), _simple(w, "AdaptiveAvgPool2d", (6, 6)), _sequence(*classifier))
    return model


def _resnet(*layers: int, **options: Any) -> Callable[[World, int], Module]:
    first, second, third, fourth = layers
    plan = _ResNetPlan((first, second, third, fourth), **options)

    def make(w: World, num_classes: int) -> Module:
        model = ResNet()
        model.build(w, plan, num_classes)
        return model

    return make


def _conv(
    w: World,
    i: int,
    o: int,
    kernel: int,
    stride: int,
    groups: int = 1,
    padding: int | None = None,
    bias: bool = False,
) -> Conv2d:
    layer = Conv2d()
    pad = kernel // 2 if padding is None else padding
    layer.init(w, i, o, kernel, stride=stride, padding=pad, groups=groups, bias=bias)
    return layer


def _norm(w: World, channels: int) -> BatchNorm2d:
    layer = BatchNorm2d()
    layer.init(w, channels)
    return layer


def _simple(w: World, name: str, *args: object) -> Module:
    layer = _SIMPLE[name]()
    layer.init(w, *args)
    return layer


def _sequence(*modules: Module) -> Sequential:
    layer = Sequential()
    layer.renumber(modules)
    return layer


MODELS: Mapping[str, Callable[[World, int], Module]] = MappingProxyType(
    {
        "resnet18": _resnet(2, 2, 2, 2, bottleneck=False),
        "resnet34": _resnet(3, 4, 6, 3, bottleneck=False),
        "resnet50": _resnet(3, 4, 6, 3),
        "resnet101": _resnet(3, 4, 23, 3),
        "resnet152": _resnet(3, 8, 36, 3),
        "resnext50_32x4d": _resnet(3, 4, 6, 3, groups=32, width_per_group=4),
        "resnext101_32x8d": _resnet(3, 4, 23, 3, groups=32, width_per_group=8),
        "wide_resnet50_2": _resnet(3, 4, 6, 3, width_per_group=128),
        "wide_resnet101_2": _resnet(3, 4, 23, 3, width_per_group=128),
        "alexnet": _alexnet,
        **{f"vgg{depth}": _vgg(depth, False) for depth in _VGG},
        **{f"vgg{depth}_bn": _vgg(depth, True) for depth in _VGG},
        **convnets.MODELS,
        **vision_transformers.MODELS,
    }
)

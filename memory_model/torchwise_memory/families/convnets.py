"""torchvision 0.28 beyond ResNet: MobileNet, EfficientNet, RegNet, MNASNet, ShuffleNet, SqueezeNet, DenseNet,
ConvNeXt, Inception (`torchvision/models/<file>.py`, whose tables the sizes are).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log
from types import MappingProxyType
from typing import Any, TypeAlias

from torchwise_memory.families.base import ModelOutput
from torchwise_memory.families.layers import (
    Branches,
    ChannelsFirstNorm,
    Network,
    Residual,
    SqueezeExcite,
    activation_layer,
    batch_norm,
    conv,
    conv_norm,
    divisible,
    do,
    drop_path,
    dropout_layer,
    flatten,
    layer_norm,
    linear,
    mean_of_pixels,
    permute,
    sequence,
    simple,
)
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.world import World

#: (world, classes) -> network
Maker: TypeAlias = "Callable[[World, int], Module]"

_POOLED = ("features", "avgpool", flatten, "classifier")


# --------------------------------------------------------------------------- MobileNet


def _mobilenet_v2(w: World, num_classes: int) -> Module:
    features: list[Module] = [conv_norm(w, 3, 32, 3, 2, act="ReLU6")]
    channels = 32
    for expand, out, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            features.append(_inverted_v2(w, channels, out, stride if index == 0 else 1, expand))
            channels = out
    features.append(conv_norm(w, channels, 1280, 1, act="ReLU6"))
    classifier = sequence(dropout_layer(w, 0.2), linear(w, 1280, num_classes))
    pool = _pool_function(1)
    return Network().assemble(
        {"features": sequence(*features), "classifier": classifier}, ("features", pool, flatten, "classifier")
    )


def _pool_function(side: int) -> Callable[[World, Any], Any]:
    return lambda w, x: functional(w, "adaptive_avg_pool2d", x, (side, side))


def _inverted_v2(w: World, i: int, o: int, stride: int, expand: int) -> Module:
    hidden = i * expand
    parts: list[Module] = [conv_norm(w, i, hidden, 1, act="ReLU6")] if expand != 1 else []
    parts += [
        conv_norm(w, hidden, hidden, 3, stride, hidden, act="ReLU6"),
        conv(w, hidden, o, 1),
        batch_norm(w, o),
    ]
    body = sequence(*parts)
    return Residual().build(body) if stride == 1 and i == o else body


#: input, kernel, expanded, output, squeeze, activation, stride
_V3_LARGE = (
    (16, 3, 16, 16, False, "ReLU", 1), (16, 3, 64, 24, False, "ReLU", 2), (24, 3, 72, 24, False, "ReLU", 1),
    (24, 5, 72, 40, True, "ReLU", 2), (40, 5, 120, 40, True, "ReLU", 1), (40, 5, 120, 40, True, "ReLU", 1),
    (40, 3, 240, 80, False, "Hardswish", 2), (80, 3, 200, 80, False, "Hardswish", 1),
    (80, 3, 184, 80, False, "Hardswish", 1), (80, 3, 184, 80, False, "Hardswish", 1),
    (80, 3, 480, 112, True, "Hardswish", 1), (112, 3, 672, 112, True, "Hardswish", 1),
    (112, 5, 672, 160, True, "Hardswish", 2), (160, 5, 960, 160, True, "Hardswish", 1),
    (160, 5, 960, 160, True, "Hardswish", 1),
)  # fmt: skip
_V3_SMALL = (
    (16, 3, 16, 16, True, "ReLU", 2), (16, 3, 72, 24, False, "ReLU", 2), (24, 3, 88, 24, False, "ReLU", 1),
    (24, 5, 96, 40, True, "Hardswish", 2), (40, 5, 240, 40, True, "Hardswish", 1),
    (40, 5, 240, 40, True, "Hardswish", 1), (40, 5, 120, 48, True, "Hardswish", 1),
    (48, 5, 144, 48, True, "Hardswish", 1), (48, 5, 288, 96, True, "Hardswish", 2),
    (96, 5, 576, 96, True, "Hardswish", 1), (96, 5, 576, 96, True, "Hardswish", 1),
)  # fmt: skip


def _mobilenet_v3(blocks: Sequence[tuple[int, int, int, int, bool, str, int]], last: int) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        features: list[Module] = [conv_norm(w, 3, 16, 3, 2, act="Hardswish")]
        out = 16
        for i, kernel, expanded, out, squeeze, act, stride in blocks:
            parts: list[Module] = [conv_norm(w, i, expanded, 1, act=act)] if expanded != i else []
            parts.append(conv_norm(w, expanded, expanded, kernel, stride, expanded, act=act))
            if squeeze:
                parts.append(SqueezeExcite().build(w, expanded, divisible(expanded // 4), gate="Hardsigmoid"))
            parts.append(conv_norm(w, expanded, out, 1, act=None))
            body = sequence(*parts)
            features.append(Residual().build(body, inplace=True) if stride == 1 and i == out else body)
        features.append(conv_norm(w, out, 6 * out, 1, act="Hardswish"))
        classifier = sequence(
            linear(w, 6 * out, last),
            activation_layer(w, "Hardswish"),
            _dropout_inplace(w, 0.2),
            linear(w, last, num_classes),
        )
        return _pooled(w, sequence(*features), classifier)

    return make


def _dropout_inplace(w: World, p: float) -> Module:
    layer = dropout_layer(w, p)
    layer.fields["inplace"] = True
    return layer


def _pooled(w: World, features: Module, classifier: Module) -> Module:
    parts: dict[str, Module | None] = {
        "features": features,
        "avgpool": simple(w, "AdaptiveAvgPool2d", 1),
        "classifier": classifier,
    }
    return Network().assemble(parts, _POOLED)


# --------------------------------------------------------------------------- EfficientNet

#: expand, kernel, stride, input, output, layers
_B0 = (
    (1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1),
)  # fmt: skip
#: The same with "fused" first: whether expansion and depthwise convolution are one.
_V2_S = (
    (True, 1, 1, 24, 24, 2), (True, 4, 2, 24, 48, 4), (True, 4, 2, 48, 64, 4), (False, 4, 2, 64, 128, 6),
    (False, 6, 1, 128, 160, 9), (False, 6, 2, 160, 256, 15),
)  # fmt: skip
_V2_M = (
    (True, 1, 1, 24, 24, 3), (True, 4, 2, 24, 48, 5), (True, 4, 2, 48, 80, 5), (False, 4, 2, 80, 160, 7),
    (False, 6, 1, 160, 176, 14), (False, 6, 2, 176, 304, 18), (False, 6, 1, 304, 512, 5),
)  # fmt: skip
_V2_L = (
    (True, 1, 1, 32, 32, 4), (True, 4, 2, 32, 64, 7), (True, 4, 2, 64, 96, 7), (False, 4, 2, 96, 192, 10),
    (False, 6, 1, 192, 224, 19), (False, 6, 2, 224, 384, 25), (False, 6, 1, 384, 640, 7),
)  # fmt: skip

#: fused, expand, kernel, stride, input, output
_MBRow: TypeAlias = "tuple[bool, int, int, int, int, int]"


def efficientnet_rows(width: float, depth: float) -> list[list[_MBRow]]:
    """The stages of EfficientNet-B by its two multipliers."""
    stages: list[list[_MBRow]] = []
    for expand, kernel, stride, i, o, count in _B0:
        wide_i, wide_o = divisible(i * width), divisible(o * width)
        stages.append(_stage(False, expand, kernel, stride, wide_i, wide_o, ceil(count * depth)))
    return stages


def _stage(fused: bool, expand: int, kernel: int, stride: int, i: int, o: int, count: int) -> list[_MBRow]:
    rest: list[_MBRow] = [(fused, expand, kernel, 1, o, o)] * (count - 1)
    return [(fused, expand, kernel, stride, i, o), *rest]


def efficientnet_v2_rows(size: str) -> list[list[_MBRow]]:
    table = {"s": _V2_S, "m": _V2_M, "l": _V2_L}[size]
    return [_stage(fused, expand, 3, stride, i, o, n) for fused, expand, stride, i, o, n in table]


def efficientnet(stages: list[list[_MBRow]], dropout: float, last: int = 0, drop: float = 0.2) -> Maker:
    """drop: stochastic depth of the last block; it grows linearly from nothing."""

    def make(w: World, num_classes: int) -> Module:
        first = stages[0][0][4]
        features: list[Module] = [conv_norm(w, 3, first, 3, 2, act="SiLU")]
        total, done = sum(map(len, stages)), 0
        for stage in stages:
            blocks: list[Module] = []
            for row in stage:
                blocks.append(_mb_conv(w, row, drop * done / total))
                done += 1
            features.append(sequence(*blocks))
        wide = stages[-1][-1][5]
        final = last or 4 * wide
        features.append(conv_norm(w, wide, final, 1, act="SiLU"))
        classifier = sequence(_dropout_inplace(w, dropout), linear(w, final, num_classes))
        return _pooled(w, sequence(*features), classifier)

    return make


def _mb_conv(w: World, row: _MBRow, drop: float) -> Module:
    fused, expand, kernel, stride, i, o = row
    hidden = divisible(i * expand)
    parts: list[Module] = []
    if fused and hidden != i:
        parts += [
            conv_norm(w, i, hidden, kernel, stride, act="SiLU"),
            conv_norm(w, hidden, o, 1, act=None),
        ]
    elif fused:
        parts.append(conv_norm(w, i, o, kernel, stride, act="SiLU"))
    else:
        parts += [conv_norm(w, i, hidden, 1, act="SiLU")] if hidden != i else []
        parts += [
            conv_norm(w, hidden, hidden, kernel, stride, hidden, act="SiLU"),
            SqueezeExcite().build(w, hidden, max(1, i // 4), "SiLU"),
            conv_norm(w, hidden, o, 1, act=None),
        ]
    body = sequence(*parts)
    return Residual().build(body, inplace=True, drop=drop) if stride == 1 and i == o else body


#: width, depth, dropout
_EFFICIENT = {
    "b0": (1.0, 1.0, 0.2), "b1": (1.0, 1.1, 0.2), "b2": (1.1, 1.2, 0.3), "b3": (1.2, 1.4, 0.3),
    "b4": (1.4, 1.8, 0.4), "b5": (1.6, 2.2, 0.4), "b6": (1.8, 2.6, 0.5), "b7": (2.0, 3.1, 0.5),
}  # fmt: skip


# --------------------------------------------------------------------------- RegNet


def regnet_stages(
    depth: int, w0: int, wa: float, wm: float, group: int, bottleneck: float = 1.0
) -> list[tuple[int, int, int]]:
    """`BlockParams.from_init_params`: (depth, width, group width) of each stage."""
    widths = [round(w0 * wm ** round(log((i * wa + w0) / w0) / log(wm)) / 8) * 8 for i in range(depth)]
    stages: list[tuple[int, int, int]] = []
    for width in dict.fromkeys(widths):
        inner = int(width * bottleneck)
        narrow = min(group, inner)
        stages.append((widths.count(width), int(divisible(inner, narrow) / bottleneck), narrow))
    return stages


def regnet(stages: list[tuple[int, int, int]], squeeze: float) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        channels, trunk = 32, list[Module]()
        for depth, width, group in stages:
            blocks: list[Module] = []
            for index in range(depth):
                blocks.append(_regnet_block(w, channels, width, 2 if index == 0 else 1, group, squeeze))
                channels = width
            trunk.append(sequence(*blocks))
        parts: dict[str, Module | None] = {
            "stem": conv_norm(w, 3, 32, 3, 2),
            "trunk_output": sequence(*trunk),
            "avgpool": simple(w, "AdaptiveAvgPool2d", (1, 1)),
            "fc": linear(w, channels, num_classes),
        }
        return Network().assemble(parts, ("stem", "trunk_output", "avgpool", flatten, "fc"))

    return make


def _regnet_block(w: World, i: int, o: int, stride: int, group: int, squeeze: float) -> Module:
    parts: list[Module] = [conv_norm(w, i, o, 1), conv_norm(w, o, o, 3, stride, o // group)]
    if squeeze:
        parts.append(SqueezeExcite().build(w, o, round(squeeze * i)))
    parts.append(conv_norm(w, o, o, 1, act=None))
    shortcut = conv_norm(w, i, o, 1, stride, act=None) if i != o or stride != 1 else None
    return Residual().build(sequence(*parts), shortcut, activation_layer(w, "ReLU"))


#: depth, w_0, w_a, w_m, group width
_REGNET_Y = {
    "400mf": (16, 48, 27.89, 2.09, 8), "800mf": (14, 56, 38.84, 2.4, 16),
    "1_6gf": (27, 48, 20.71, 2.65, 24),
    "3_2gf": (21, 80, 42.63, 2.66, 24), "8gf": (17, 192, 76.82, 2.19, 56),
    "16gf": (18, 200, 106.23, 2.48, 112),
    "32gf": (20, 232, 115.89, 2.53, 232), "128gf": (27, 456, 160.83, 2.52, 264),
}  # fmt: skip
_REGNET_X = {
    "400mf": (22, 24, 24.48, 2.54, 16), "800mf": (16, 56, 35.73, 2.28, 16),
    "1_6gf": (18, 80, 34.01, 2.25, 24), "3_2gf": (25, 88, 26.31, 2.25, 48),
    "8gf": (23, 80, 49.56, 2.88, 120), "16gf": (22, 216, 55.59, 2.1, 128),
    "32gf": (23, 320, 69.86, 2.0, 168),
}  # fmt: skip


# --------------------------------------------------------------------------- MNASNet, ShuffleNet, SqueezeNet


def _mnasnet(alpha: float) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        d = [divisible(depth * alpha) for depth in (32, 16, 24, 40, 80, 96, 192, 320)]
        layers: list[Module] = [
            conv(w, 3, d[0], 3, 2), batch_norm(w, d[0]), activation_layer(w, "ReLU"),
            conv(w, d[0], d[0], 3, 1, d[0]), batch_norm(w, d[0]), activation_layer(w, "ReLU"),
            conv(w, d[0], d[1], 1), batch_norm(w, d[1]),
        ]  # fmt: skip
        for index, (kernel, stride, expand, count) in enumerate(
            ((3, 2, 3, 3), (5, 2, 3, 3), (5, 2, 6, 3), (3, 1, 6, 2), (5, 2, 6, 4), (3, 1, 6, 1)), 1
        ):
            i, o = d[index], d[index + 1]
            blocks = [_mnas_block(w, i, o, kernel, stride, expand)]
            blocks += [_mnas_block(w, o, o, kernel, 1, expand) for _ in range(count - 1)]
            layers.append(sequence(*blocks))
        layers += [conv(w, d[7], 1280, 1), batch_norm(w, 1280), activation_layer(w, "ReLU")]
        classifier = sequence(_dropout_inplace(w, 0.2), linear(w, 1280, num_classes))
        return Network().assemble(
            {"layers": sequence(*layers), "classifier": classifier}, ("layers", mean_of_pixels, "classifier")
        )

    return make


def _mnas_block(w: World, i: int, o: int, kernel: int, stride: int, expand: int) -> Module:
    hidden = i * expand
    body = sequence(
        conv(w, i, hidden, 1), batch_norm(w, hidden), activation_layer(w, "ReLU"),
        conv(w, hidden, hidden, kernel, stride, hidden), batch_norm(w, hidden), activation_layer(w, "ReLU"),
        conv(w, hidden, o, 1), batch_norm(w, o),
    )  # fmt: skip
    return Residual().build(body) if stride == 1 and i == o else body


class _Shuffled(Module):
    """`InvertedResidual` of ShuffleNet: two halves, joined and shuffled by channels."""

    native_name = "torchvision.models.shufflenetv2.InvertedResidual"

    def build(self, w: World, i: int, o: int, stride: int) -> _Shuffled:
        half = o // 2
        self.children["branch1"] = None
        if stride > 1:
            self.children["branch1"] = sequence(
                conv(w, i, i, 3, stride, i), batch_norm(w, i),
                conv(w, i, half, 1), batch_norm(w, half), activation_layer(w, "ReLU"),
            )  # fmt: skip
        self.children["branch2"] = sequence(
            conv(w, i if stride > 1 else half, half, 1), batch_norm(w, half), activation_layer(w, "ReLU"),
            conv(w, half, half, 3, stride, half), batch_norm(w, half),
            conv(w, half, half, 1), batch_norm(w, half), activation_layer(w, "ReLU"),
        )  # fmt: skip
        return self

    def forward(self, w: World, x: Any) -> Any:
        if self.children["branch1"] is None:
            kept, x = torch_function(w, "torch.chunk", x, 2, 1)
            out = torch_function(w, "torch.cat", (kept, self.run(w, "branch2", x)), 1)
        else:
            out = torch_function(w, "torch.cat", (self.run(w, "branch1", x), self.run(w, "branch2", x)), 1)
        batch, channels, height, width = out.shape
        out = method(w, "view", out, batch, 2, channels // 2, height, width)
        out = method(w, "contiguous", method(w, "transpose", out, 1, 2))
        return method(w, "view", out, batch, channels, height, width)


def _shufflenet(*channels: int) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        i = channels[0]
        parts: dict[str, Module | None] = {
            "conv1": conv_norm(w, 3, i, 3, 2),
            "maxpool": simple(w, "MaxPool2d", 3, 2, 1),
        }
        for stage, (repeats, o) in enumerate(zip((4, 8, 4), channels[1:4], strict=True), 2):
            blocks: list[Module] = [_Shuffled().build(w, i, o, 2)]
            blocks += [_Shuffled().build(w, o, o, 1) for _ in range(repeats - 1)]
            parts[f"stage{stage}"] = sequence(*blocks)
            i = o
        parts["conv5"] = conv_norm(w, i, channels[4], 1)
        parts["fc"] = linear(w, channels[4], num_classes)
        return Network().assemble(
            parts, ("conv1", "maxpool", "stage2", "stage3", "stage4", "conv5", mean_of_pixels, "fc")
        )

    return make


class _Fire(Module):
    native_name = "torchvision.models.squeezenet.Fire"

    def build(self, w: World, i: int, squeezed: int, expanded: int) -> _Fire:
        for name, layer in (
            ("squeeze", conv(w, i, squeezed, 1, bias=True)),
            ("expand1x1", conv(w, squeezed, expanded, 1, bias=True)),
            ("expand3x3", conv(w, squeezed, expanded, 3, bias=True)),
        ):
            self.children[name] = layer
            self.children[f"{name}_activation"] = activation_layer(w, "ReLU")
        return self

    def forward(self, w: World, x: Any) -> Any:
        x = self.run(w, "squeeze_activation", self.run(w, "squeeze", x))
        return torch_function(
            w,
            "torch.cat",
            [self.run(w, f"{n}_activation", self.run(w, n, x)) for n in ("expand1x1", "expand3x3")],
            1,
        )


def _squeezenet(version: str) -> Maker:
    first, kernel = (96, 7) if version == "1_0" else (64, 3)
    pools = (3, 7) if version == "1_0" else (2, 4)
    fires = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))

    def make(w: World, num_classes: int) -> Module:
        features: list[Module] = [
            conv(w, 3, first, kernel, 2, padding=0, bias=True),
            activation_layer(w, "ReLU"),
            _ceil_pool(w),
        ]
        i = first
        for index, (squeezed, expanded) in enumerate(fires):
            if index in pools:
                features.append(_ceil_pool(w))
            features.append(_Fire().build(w, i, squeezed, expanded))
            i = 2 * expanded
        classifier = sequence(
            dropout_layer(w, 0.5),
            conv(w, 512, num_classes, 1, bias=True),
            activation_layer(w, "ReLU"),
            simple(w, "AdaptiveAvgPool2d", (1, 1)),
        )
        return Network().assemble(
            {"features": sequence(*features), "classifier": classifier}, ("features", "classifier", flatten)
        )

    return make


def _ceil_pool(w: World) -> Module:
    return simple(w, "MaxPool2d", 3, 2, ceil_mode=True)


# --------------------------------------------------------------------------- DenseNet


class _DenseLayer(Module):
    native_name = "torchvision.models.densenet._DenseLayer"

    def build(self, w: World, i: int, growth: int) -> _DenseLayer:
        self.children.update(
            norm1=batch_norm(w, i),
            relu1=activation_layer(w, "ReLU"),
            conv1=conv(w, i, 4 * growth, 1),
            norm2=batch_norm(w, 4 * growth),
            relu2=activation_layer(w, "ReLU"),
            conv2=conv(w, 4 * growth, growth, 3),
        )
        return self

    def forward(self, w: World, features: Any) -> Any:
        x = torch_function(w, "torch.cat", features, 1)
        for name in ("norm1", "relu1", "conv1", "norm2", "relu2", "conv2"):
            x = self.run(w, name, x)
        return x


class _DenseBlock(Module):
    native_name = "torchvision.models.densenet._DenseBlock"

    def build(self, w: World, layers: int, i: int, growth: int) -> _DenseBlock:
        for index in range(layers):
            self.children[f"denselayer{index + 1}"] = _DenseLayer().build(w, i + index * growth, growth)
        return self

    def forward(self, w: World, x: Any) -> Any:
        features = [x]
        for name in self.children:
            features.append(self.run(w, name, features))
        return torch_function(w, "torch.cat", features, 1)


def _densenet(growth: int, blocks: tuple[int, int, int, int], first: int) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        features: list[Module] = [
            conv(w, 3, first, 7, 2), batch_norm(w, first), activation_layer(w, "ReLU"),
            simple(w, "MaxPool2d", 3, 2, 1),
        ]  # fmt: skip
        channels = first
        for index, layers in enumerate(blocks):
            features.append(_DenseBlock().build(w, layers, channels, growth))
            channels += layers * growth
            if index < 3:
                features.append(
                    sequence(
                        batch_norm(w, channels),
                        activation_layer(w, "ReLU"),
                        conv(w, channels, channels // 2, 1),
                        simple(w, "AvgPool2d", 2, 2),
                    )
                )
                channels //= 2
        features.append(batch_norm(w, channels))

        def end(w: World, x: Any) -> Any:
            out = functional(w, "relu", x, True)
            return flatten(w, functional(w, "adaptive_avg_pool2d", out, (1, 1)))

        parts: dict[str, Module | None] = {
            "features": sequence(*features),
            "classifier": linear(w, channels, num_classes),
        }
        return Network().assemble(parts, ("features", end, "classifier"))

    return make


# --------------------------------------------------------------------------- ConvNeXt


class _ConvNextBlock(Module):
    native_name = "torchvision.models.convnext.CNBlock"

    def build(self, w: World, width: int, drop: float) -> _ConvNextBlock:
        self.drop = drop
        self.children["block"] = sequence(
            conv(w, width, width, 7, 1, width, bias=True),
            permute(0, 2, 3, 1),
            layer_norm(w, width, 1e-6),
            linear(w, width, 4 * width),
            simple(w, "GELU"),
            linear(w, 4 * width, width),
            permute(0, 3, 1, 2),
        )
        self.new_parameter(w, "layer_scale", (width, 1, 1), None, None)
        return self

    def forward(self, w: World, x: Any) -> Any:
        result = torch_function(w, "torch.mul", self.tensor("layer_scale"), self.run(w, "block", x))
        result = drop_path(w, result, self.drop, self.training)
        return method(w, "add_", result, x)


def _convnext(depths: tuple[int, int, int, int], width: int, drop: float) -> Maker:
    def make(w: World, num_classes: int) -> Module:
        features: list[Module] = [
            sequence(conv(w, 3, width, 4, 4, padding=0, bias=True), ChannelsFirstNorm().build(w, width))
        ]
        done, here = 0, width
        for stage, count in enumerate(depths):
            here = width << stage
            blocks: list[Module] = []
            for _ in range(count):
                blocks.append(_ConvNextBlock().build(w, here, drop * done / (sum(depths) - 1)))
                done += 1
            features.append(sequence(*blocks))
            if stage < 3:
                features.append(
                    sequence(
                        ChannelsFirstNorm().build(w, here),
                        conv(w, here, 2 * here, 2, 2, padding=0, bias=True),
                    )
                )
        classifier = sequence(ChannelsFirstNorm().build(w, here), do(flatten), linear(w, here, num_classes))
        parts: dict[str, Module | None] = {
            "features": sequence(*features),
            "avgpool": simple(w, "AdaptiveAvgPool2d", 1),
            "classifier": classifier,
        }
        return Network().assemble(parts, ("features", "avgpool", "classifier"))

    return make


# --------------------------------------------------------------------------- Inception


def inception_v3(w: World, num_classes: int, aux: bool = True) -> Module:
    """aux: the second classifier, whose result torchvision returns beside the first while training."""
    model = Inception()
    model.build(w, num_classes, aux)
    return model


class Inception(Module):
    native_name = "torchvision.models.inception.Inception3"

    def build(self, w: World, num_classes: int, aux: bool) -> None:
        c = self.children
        c["Conv2d_1a_3x3"] = conv_norm(w, 3, 32, 3, 2, padding=0)
        c["Conv2d_2a_3x3"] = conv_norm(w, 32, 32, 3, padding=0)
        c["Conv2d_2b_3x3"] = conv_norm(w, 32, 64, 3)
        c["maxpool1"] = simple(w, "MaxPool2d", 3, 2)
        c["Conv2d_3b_1x1"] = conv_norm(w, 64, 80, 1)
        c["Conv2d_4a_3x3"] = conv_norm(w, 80, 192, 3, padding=0)
        c["maxpool2"] = simple(w, "MaxPool2d", 3, 2)
        for name, i, pooled in (("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)):
            c[f"Mixed_{name}"] = _mixed_a(w, i, pooled)
        c["Mixed_6a"] = Branches().build(
            conv_norm(w, 288, 384, 3, 2, padding=0),
            sequence(conv_norm(w, 288, 64, 1), conv_norm(w, 64, 96), conv_norm(w, 96, 96, 3, 2, padding=0)),
            simple(w, "MaxPool2d", 3, 2),
        )
        for name, inner in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
            c[f"Mixed_{name}"] = _mixed_c(w, inner)
        c["AuxLogits"] = _auxiliary(w, num_classes) if aux else None
        c["Mixed_7a"] = Branches().build(
            sequence(conv_norm(w, 768, 192, 1), conv_norm(w, 192, 320, 3, 2, padding=0)),
            sequence(
                conv_norm(w, 768, 192, 1),
                conv_norm(w, 192, 192, (1, 7)),
                conv_norm(w, 192, 192, (7, 1)),
                conv_norm(w, 192, 192, 3, 2, padding=0),
            ),
            simple(w, "MaxPool2d", 3, 2),
        )
        c["Mixed_7b"], c["Mixed_7c"] = _mixed_e(w, 1280), _mixed_e(w, 2048)
        c["avgpool"] = simple(w, "AdaptiveAvgPool2d", (1, 1))
        c["dropout"] = dropout_layer(w, 0.5)
        c["fc"] = linear(w, 2048, num_classes)

    def forward(self, w: World, x: Any) -> Any:
        aux = None
        for name in self.children:
            if name == "AuxLogits":
                aux = self.run(w, name, x) if self.training and self.children[name] is not None else None
            elif name == "fc":
                x = self.run(w, name, flatten(w, x))
            else:
                x = self.run(w, name, x)
        return x if aux is None else ModelOutput(logits=x, aux_logits=aux)


def _average(w: World) -> Module:
    return simple(w, "AvgPool2d", 3, 1, 1)


def _mixed_a(w: World, i: int, pooled: int) -> Module:
    return Branches().build(
        conv_norm(w, i, 64, 1),
        sequence(conv_norm(w, i, 48, 1), conv_norm(w, 48, 64, 5)),
        sequence(conv_norm(w, i, 64, 1), conv_norm(w, 64, 96), conv_norm(w, 96, 96)),
        sequence(_average(w), conv_norm(w, i, pooled, 1)),
    )


def _mixed_c(w: World, c: int) -> Module:
    return Branches().build(
        conv_norm(w, 768, 192, 1),
        sequence(conv_norm(w, 768, c, 1), conv_norm(w, c, c, (1, 7)), conv_norm(w, c, 192, (7, 1))),
        sequence(
            conv_norm(w, 768, c, 1),
            conv_norm(w, c, c, (7, 1)),
            conv_norm(w, c, c, (1, 7)),
            conv_norm(w, c, c, (7, 1)),
            conv_norm(w, c, 192, (1, 7)),
        ),
        sequence(_average(w), conv_norm(w, 768, 192, 1)),
    )


def _mixed_e(w: World, i: int) -> Module:
    def halves() -> Module:
        return Branches().build(conv_norm(w, 384, 384, (1, 3)), conv_norm(w, 384, 384, (3, 1)))

    return Branches().build(
        conv_norm(w, i, 320, 1),
        sequence(conv_norm(w, i, 384, 1), halves()),
        sequence(conv_norm(w, i, 448, 1), conv_norm(w, 448, 384), halves()),
        sequence(_average(w), conv_norm(w, i, 192, 1)),
    )


def _auxiliary(w: World, num_classes: int) -> Module:
    return sequence(
        simple(w, "AvgPool2d", 5, 3),
        conv_norm(w, 768, 128, 1),
        conv_norm(w, 128, 768, 5, padding=0),
        simple(w, "AdaptiveAvgPool2d", (1, 1)),
        do(flatten),
        linear(w, 768, num_classes),
    )


MODELS: Mapping[str, Maker] = MappingProxyType(
    {
        "mobilenet_v2": _mobilenet_v2,
        "mobilenet_v3_large": _mobilenet_v3(_V3_LARGE, 1280),
        "mobilenet_v3_small": _mobilenet_v3(_V3_SMALL, 1024),
        **{
            f"efficientnet_{size}": efficientnet(efficientnet_rows(width, depth), dropout)
            for size, (width, depth, dropout) in _EFFICIENT.items()
        },
        "efficientnet_v2_s": efficientnet(efficientnet_v2_rows("s"), 0.2, 1280),
        "efficientnet_v2_m": efficientnet(efficientnet_v2_rows("m"), 0.3, 1280),
        "efficientnet_v2_l": efficientnet(efficientnet_v2_rows("l"), 0.4, 1280),
        **{f"regnet_y_{size}": regnet(regnet_stages(*row), 0.25) for size, row in _REGNET_Y.items()},
        **{f"regnet_x_{size}": regnet(regnet_stages(*row), 0.0) for size, row in _REGNET_X.items()},
        **{f"mnasnet{n[0]}_{n[2:]}": _mnasnet(float(n)) for n in ("0.5", "0.75", "1.0", "1.3")},
        "shufflenet_v2_x0_5": _shufflenet(24, 48, 96, 192, 1024),
        "shufflenet_v2_x1_0": _shufflenet(24, 116, 232, 464, 1024),
        "shufflenet_v2_x1_5": _shufflenet(24, 176, 352, 704, 1024),
        "shufflenet_v2_x2_0": _shufflenet(24, 244, 488, 976, 2048),
        "squeezenet1_0": _squeezenet("1_0"),
        "squeezenet1_1": _squeezenet("1_1"),
        "densenet121": _densenet(32, (6, 12, 24, 16), 64),
        "densenet161": _densenet(48, (6, 12, 36, 24), 96),
        "densenet169": _densenet(32, (6, 12, 32, 32), 64),
        "densenet201": _densenet(32, (6, 12, 48, 32), 64),
        "convnext_tiny": _convnext((3, 3, 9, 3), 96, 0.1),
        "convnext_small": _convnext((3, 3, 27, 3), 96, 0.4),
        "convnext_base": _convnext((3, 3, 27, 3), 128, 0.5),
        "convnext_large": _convnext((3, 3, 27, 3), 192, 0.5),
        "inception_v3": inception_v3,
    }
)

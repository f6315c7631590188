"""timm's names for networks, and which family runs each (`timm/models/<file>.py` of timm 1.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from torchwise_memory.families import convnets, timm_networks, torchvision
from torchwise_memory.families.convnets import (
    Maker,
    efficientnet,
    efficientnet_rows,
    efficientnet_v2_rows,
    regnet,
    regnet_stages,
)

_SAME = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
    "wide_resnet50_2", "wide_resnet101_2", "densenet121", "densenet161", "densenet169", "densenet201",
    "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn",
)  # fmt: skip
#: depth, w_0, w_a, w_m, group width (`timm/models/regnet.py`)
_REGNETY = {
    "002": (13, 24, 36.44, 2.49, 8), "004": (16, 48, 27.89, 2.09, 8), "006": (15, 48, 32.54, 2.32, 16),
    "008": (14, 56, 38.84, 2.4, 16), "016": (27, 48, 20.71, 2.65, 24), "032": (21, 80, 42.63, 2.66, 24),
    "040": (22, 96, 31.41, 2.24, 64), "064": (25, 112, 33.22, 2.27, 72), "080": (17, 192, 76.82, 2.19, 56),
    "120": (19, 168, 73.36, 2.37, 112), "160": (18, 200, 106.23, 2.48, 112),
    "320": (20, 232, 115.89, 2.53, 232),
}  # fmt: skip
_REGNETX = {
    "002": (13, 24, 36.44, 2.49, 8), "004": (22, 24, 24.48, 2.54, 16), "006": (16, 48, 36.97, 2.24, 24),
    "008": (16, 56, 35.73, 2.28, 16), "016": (18, 80, 34.01, 2.25, 24), "032": (25, 88, 26.31, 2.25, 48),
    "040": (23, 96, 38.65, 2.43, 40), "064": (17, 184, 60.83, 2.07, 56), "080": (23, 80, 49.56, 2.88, 120),
    "120": (19, 168, 73.36, 2.37, 112), "160": (22, 216, 55.59, 2.1, 128), "320": (23, 320, 69.86, 2.0, 168),
}  # fmt: skip
#: width, depth (`timm/models/efficientnet.py`; dropout is off unless asked for)
_EFFICIENT = {
    "b0": (1.0, 1.0), "b1": (1.0, 1.1), "b2": (1.1, 1.2), "b3": (1.2, 1.4), "b4": (1.4, 1.8),
    "b5": (1.6, 2.2), "b6": (1.8, 2.6), "b7": (2.0, 3.1), "b8": (2.2, 3.6),
}  # fmt: skip


def _makers() -> dict[str, Maker]:
    made = {name: torchvision.MODELS[name] for name in _SAME} | dict(timm_networks.MODELS)
    for size, (width, depth) in _EFFICIENT.items():
        made[f"efficientnet_{size}"] = efficientnet(efficientnet_rows(width, depth), 0.0, drop=0.0)
    for size in "sml":
        made[f"efficientnetv2_{size}"] = efficientnet(efficientnet_v2_rows(size), 0.0, 1280, drop=0.0)
    for size, row in _REGNETY.items():
        made[f"regnety_{size}"] = regnet(regnet_stages(*row), 0.25)
    for size, row in _REGNETX.items():
        made[f"regnetx_{size}"] = regnet(regnet_stages(*row), 0.0)
    made["mobilenetv2_100"] = torchvision.MODELS["mobilenet_v2"]
    made["mobilenetv3_large_100"] = torchvision.MODELS["mobilenet_v3_large"]
    made["mobilenetv3_small_100"] = torchvision.MODELS["mobilenet_v3_small"]
    made["inception_v3"] = lambda w, classes: convnets.inception_v3(w, classes, aux=False)
    return made


MODELS: Mapping[str, Maker] = MappingProxyType(_makers())
#: The side of the images that a network is configured for, where it is not 224.
IMAGES: Mapping[str, int] = MappingProxyType(
    {
        "efficientnet_b1": 240,
        "efficientnet_b2": 260,
        "efficientnet_b3": 300,
        "efficientnet_b4": 380,
        "efficientnet_b5": 456,
        "efficientnet_b6": 528,
        "efficientnet_b7": 600,
        "efficientnet_b8": 672,
        "efficientnetv2_s": 300,
        "efficientnetv2_m": 384,
        "efficientnetv2_l": 384,
        "inception_v3": 299,
        "swinv2_tiny_window8_256": 256,
        "swinv2_small_window8_256": 256,
        "swinv2_base_window8_256": 256,
        "resnetv2_50x1_bit": 448,
        "resnetv2_50x3_bit": 448,
        "resnetv2_101x1_bit": 448,
        "resnetv2_101x3_bit": 448,
    }
)


def plain(name: str) -> str:
    """Without the mark of how weights came about ("tf_efficientnet_b0_ns", "resnetv2_50x1_bitm")."""
    name = re.sub(r"_bitm(_in21k)?$", "_bit", name)
    return re.sub(r"_(ns|ap|aa|in21k|in21ft1k)$", "", name.removeprefix("tf_"))

"""Image classifiers by timm's and torchvision's names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchwise_memory.families import torchvision
from torchwise_memory.modules.base import Module
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class Options:
    checkpointing: bool = False
    fused: bool = False
    attention: str = "sdpa"


def _name(text: str) -> str:
    return re.sub(r"^(timm|torchvision)[ /.]", "", text.strip().lower()).replace("-", "_")


def knows(text: str) -> bool:
    return _name(text) in torchvision.MODELS


def resolve(text: str) -> str:
    return _name(text)


def image_size(name: str) -> tuple[int, int]:
    return 224, 224


def depth(name: str) -> int:
    return 1


def build(w: World, name: str, classes: int, image: tuple[int, int], options: Options, layers: int) -> Module:
    return torchvision.MODELS[name](w, classes)


def blocks(name: str, model: Module) -> list[Module]:
    return []

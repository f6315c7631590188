"""torchvision's networks by their hand-written family, where the package's source cannot be read."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.library.images import as_tensor
from torchwise_analysis.interp.concrete.library.vision import transform
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Keywords,
    Namespace,
    Opaque,
    Unknown,
    Value,
)
from torchwise_memory.families import torchvision as family

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Files below `torchvision/models` of which the family writes networks.
FILES = (
    "resnet", "vgg", "alexnet", "mobilenetv2", "mobilenetv3", "mobilenet", "efficientnet", "regnet",
    "mnasnet", "shufflenetv2", "squeezenet", "densenet", "convnext", "inception", "vision_transformer",
    "swin_transformer",
)  # fmt: skip
_CHECKPOINTS = ("DEFAULT", "IMAGENET1K_V1", "IMAGENET1K_V2")
# The side of the images that these checkpoints' own transforms give.
_SIDE = 224


def package(it: Interpreter) -> Value:
    """`torchvision`; None where its own source is there to be read."""
    if it.project.find("torchvision", "") is not None:
        return None

    def resolve(name: str) -> Value:
        found = it.library.known_module(f"torchvision.{name}")
        return _unmodelled(it, f"torchvision.{name}") if found is None else found

    return Namespace("torchvision", resolve=resolve)


def models_module(it: Interpreter) -> Value:
    """`torchvision.models` and its files; None where their own source is there to be read."""
    if it.project.find("torchvision.models", "") is not None:
        return None
    members: dict[str, Value] = {name: _network(name) for name in family.MODELS}
    members["get_model"] = Builtin("torchvision.models.get_model", _get_model)
    members["list_models"] = Builtin("torchvision.models.list_models", lambda it, a, k: [*family.MODELS])
    checkpoints = {_squeezed(name): name for name in family.MODELS}

    def resolve(name: str) -> Value:
        if name in FILES:
            return it.library.known_module(f"torchvision.models.{name}")
        if name.endswith("_Weights") and _squeezed(name.removesuffix("_Weights")) in checkpoints:
            return Opaque(name, {each: _checkpoint(f"{name}.{each}") for each in _CHECKPOINTS})
        return _unmodelled(it, f"torchvision.models.{name}")

    return Namespace("torchvision.models", members, resolve)


def _squeezed(name: str) -> str:
    """`ResNeXt50_32X4D` and `resnext50_32x4d` alike."""
    return name.replace("_", "").lower()


def _unmodelled(it: Interpreter, name: str) -> Value:
    # what a star import of the package does not hide
    if name.startswith("_", name.rfind(".") + 1) or hasattr(builtins, name.rpartition(".")[2]):
        return MISSING
    return Unknown(name, it.origin())


def _network(name: str) -> Builtin:
    return Builtin(f"torchvision.models.{name}", lambda it, a, k: _built(it, name, a, k))


def _get_model(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = text.text_of(it, args.pop(0) if args else keywords.pop("name"))
    if name not in family.MODELS:
        return Unknown(f"torchvision.models.{name}", it.origin())
    return _built(it, name, args, keywords)


def _built(it: Interpreter, name: str, args: list[Value], keywords: Keywords) -> Value:
    """A network. Which checkpoint fills it does not matter, and older releases take it by position."""
    options = {
        key: it.library.argument(value, f"torchvision.models.{name}")
        for key, value in keywords.items()
        if key not in family.WITHOUT_EFFECT
    }
    classes = options.pop("num_classes", family.CLASSES)
    model = family.build(it.world, name, classes if isinstance(classes, int) else family.CLASSES, **options)
    it.library.built(model, name)
    it.assume(f"torchvision's source was not found: a model of ours stands in for {name}")
    return model


def _checkpoint(name: str) -> Opaque:
    categories: list[Value] = [Unknown("the name of a class") for _ in range(family.CLASSES)]
    return Opaque(
        name,
        {
            "transforms": Builtin("transforms", lambda it, a, k: Opaque("transforms", call=_prepared)),
            "meta": {"categories": categories},
            "url": Unknown("where a checkpoint lies"),
            "name": name.rpartition(".")[2],
        },
    )


def _prepared(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`ImageClassification`: resize, crop to a square, to a tensor, normalize."""
    crop = transform("crop", lambda shape: (*shape[:-2], _SIDE, _SIDE))
    image = it.call(crop, [args[0]], {})
    if isinstance(image, Opaque) and image.kind == "image":
        return as_tensor(it, image, "float32")
    return image


__all__ = ["FILES", "models_module", "package"]

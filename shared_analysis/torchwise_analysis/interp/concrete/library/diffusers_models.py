"""diffusers' denoiser by its hand-written family, where the package's source cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete.values import Builtin, Keywords, Namespace, Opaque, Unknown, Value
from torchwise_memory.families import unet as family

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_NAME = "UNet2DConditionModel"


def package(it: Interpreter) -> Value:
    """`diffusers`; None where its own source is there to be read."""
    if it.project.find("diffusers", "") is not None:
        return None
    made = Opaque(_NAME, {}, call=_built)
    for name in ("from_pretrained", "from_config"):
        made.attributes[name] = Builtin(name, _from_pretrained if name == "from_pretrained" else _from_config)

    def resolve(name: str) -> Value:
        found = it.library.known_module(f"diffusers.{name}")
        return Unknown(f"diffusers.{name}", it.origin()) if found is None else found

    return Namespace("diffusers", {_NAME: made}, resolve)


def _from_pretrained(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = args[0] if args else keywords.get("pretrained_model_name_or_path")
    short = name.rpartition("/")[2].lower() if isinstance(name, str) else ""
    if short not in family.CHECKPOINTS:
        return Unknown(f"the configuration of {name!r}", it.origin())
    return _model(it, dict(family.CHECKPOINTS[short]))


def _from_config(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = args[0] if args else keywords.get("config")
    if not isinstance(given, dict):
        return Unknown("the configuration of a denoiser", it.origin())
    return _built(it, [], it.as_keywords(cast("Value", given)))


def _built(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if args:
        return Unknown(f"what diffusers.{_NAME} gives", it.origin())
    return _model(it, {key: it.library.argument(value, _NAME) for key, value in keywords.items()})


def _model(it: Interpreter, options: dict[str, object]) -> Value:
    model = family.UNet2DConditionModel().build(it.world, options)
    it.library.built(model, "unet")
    it.assume("diffusers' source was not found: a model of ours stands in for UNet2DConditionModel")
    return model


__all__ = ["package"]

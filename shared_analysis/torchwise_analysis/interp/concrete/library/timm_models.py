"""timm's `create_model` by its hand-written families, where the package's source cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.values import Builtin, Keywords, Namespace, Unknown, Value
from torchwise_memory.families import vision as family

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Options of `create_model` that change nothing about memory.
_WITHOUT_EFFECT = frozenset(
    {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "scriptable"}
)
_CLASSES = 1000


def package(it: Interpreter) -> Value:
    """`timm`; None where its own source is there to be read."""
    if it.project.find("timm", "") is not None:
        return None
    members: dict[str, Value] = {"create_model": Builtin("timm.create_model", _create_model)}

    def resolve(name: str) -> Value:
        found = it.library.known_module(f"timm.{name}")
        return Unknown(f"timm.{name}", it.origin()) if found is None else found

    return Namespace("timm", members, resolve)


def _create_model(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = args[0] if args else keywords.pop("model_name", None)
    name = family.resolve(text.text_of(it, given))
    options = {
        key: it.library.argument(value, "timm.create_model")
        for key, value in keywords.items()
        if key not in _WITHOUT_EFFECT and value is not None
    }
    classes, image = options.pop("num_classes", _CLASSES), options.pop("img_size", None)
    # a rate of nothing is what networks are made with
    changing = [key for key, value in options.items() if value not in (0, 0.0, False)]
    if changing or not family.knows(name) or not isinstance(classes, int) or classes < 1:
        return Unknown("what timm.create_model gives", it.origin())
    side = (image, image) if isinstance(image, int) else family.image_size(name)
    model = family.build(it.world, name, classes, side, family.Options(), family.depth(name))
    it.library.built(model, name)
    it.assume(f"timm's source was not found: a model of ours stands in for {name}")
    return model


__all__ = ["package"]

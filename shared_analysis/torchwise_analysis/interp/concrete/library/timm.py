"""timm: what its replacement texts ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete.values import Builtin, Function, Keywords, ModuleValue, Value

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter


def helpers() -> dict[str, Value]:
    """Names that only replacement texts see."""
    return {"__timm_entries__": Builtin("__timm_entries__", _entries)}


def _entries(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The configurations of one model, by name and tag: a file states hundreds, of which one is wanted."""
    variant = args[0]
    models = it.library.imports.find("timm.models", "")
    if not isinstance(variant, str) or not isinstance(models, ModuleValue):
        return {}
    entry = it.find_attribute(models, variant)
    if not isinstance(entry, Function):
        return {}

    def is_wanted(key: Value) -> bool:
        return isinstance(key, str) and key.partition(".")[0] == variant

    return it.library.imports.scope_of(entry.module).entries("default_cfgs", is_wanted)

"""Does what a module computes depend on train() and eval()?"""

from __future__ import annotations

from typing import cast

from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Origin, Unknown, Value, alternatives
from torchwise_analysis.rules._datasets import words_of
from torchwise_analysis.rules._reading import MODE_LAYERS


def mode_layers(trace: Trace, module: Obj) -> bool | None:
    """Does its output depend on the mode? None when not all of its parts are known."""
    whole = (module, *trace.parts(module.id))
    if any(depends_on_mode(trace, part) for part in whole):
        return True
    return False if all(_is_known(trace, part) for part in whole) else None


def depends_on_mode(trace: Trace, part: Obj) -> bool:
    """Is it a layer with a mode, or does its own source ask for the mode?"""
    last = part.type_name.rpartition(".")[2]
    if any(name in last for name in MODE_LAYERS):
        rate = part.arguments.get("p", 0)
        return not (isinstance(rate, Const) and rate.value == 0)
    if last.startswith("Transformer") and part.type_name.startswith("torch."):
        return True  # its default is a dropout of 0.1
    if part.cls is not None and _asks_for_mode(trace, part):
        return True
    rate = part.arguments.get("dropout")
    return rate is not None and not (isinstance(rate, Const) and rate.value == 0)


def _asks_for_mode(trace: Trace, part: Obj) -> bool:
    assert part.cls is not None
    known = trace.once("asks for the mode", dict[int, bool])
    for cls in part.cls.mro:
        if cls.id not in known:
            known[cls.id] = "training" in words_of(cls.node)
        if known[cls.id]:
            return True
    return False


def _is_known(trace: Trace, part: Obj) -> bool:
    if part.kind is Kind.PARAMETER:
        return True
    if part.origin is not Origin.BUILT:
        return False
    if part.cls is None:
        return part.type_name.startswith("torch.")
    names = cast("tuple[str, ...]", trace.facts.get(("names", part.id), ()))
    return not part.cls.open_bases and not any(_may_be_a_layer(trace.attribute(part.id, n)) for n in names)


def _may_be_a_layer(value: Value | None) -> bool:
    """Was it given by a call that is not seen?"""
    for one in alternatives(value) if value is not None else ():
        if isinstance(one, Unknown) and one.symbol is None:
            return True
        if isinstance(one, Obj) and one.kind is Kind.OPAQUE:
            return True
    return False

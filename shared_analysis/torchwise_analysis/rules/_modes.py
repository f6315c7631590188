"""Does what a module computes depend on train() and eval()?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torchwise_analysis.interp.abstract.events import ModuleBuilt
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Origin, Unknown, Value, alternatives
from torchwise_analysis.rules._reading import MODE_LAYERS
from torchwise_analysis.source import nodes


def mode_layers(trace: Trace, module: Obj) -> bool | None:
    """May its output depend on the mode? None when not all of its parts are known."""
    whole = (module, *trace.parts(module.id))
    if any(depends_on_mode(trace, part) for part in whole):
        return True
    return False if all(_is_known(trace, part) for part in whole) else None


def has_sure_mode_layer(trace: Trace, module: Obj) -> bool:
    """Has it a layer that depends on the mode whatever the settings are: neither a dropout of a rate that is
    not known, nor one that is only built under a test?"""
    always = _guards(trace, module)
    return any(
        _depends(trace, part) is True and always.issuperset(_guards(trace, part))
        for part in (module, *trace.parts(module.id))
    )


def depends_on_mode(trace: Trace, part: Obj) -> bool:
    """Is it, or may it be, a layer with a mode, or does its own source ask for the mode?"""
    return _depends(trace, part) is not False


# Image classifiers with batch-norm, dropout or stochastic depth by default. [torchvision.models:
# `norm_layer`, `dropout` and `stochastic_depth_prob` of each builder; `vit_*` has rates of 0]
_CLASSIFIERS = (
    *("resnet", "resnext", "wide_resnet", "mobilenet", "densenet", "efficientnet", "regnet", "shufflenet"),
    *("mnasnet", "googlenet", "inception", "vgg", "alexnet", "squeezenet", "convnext", "swin", "maxvit"),
)


def _depends(trace: Trace, part: Obj) -> bool | None:
    """None: it depends on an argument that is not known."""
    package, _, last = part.type_name.rpartition(".")
    if package == "torchvision.models" and part.cls is None:
        return True if last.startswith(_CLASSIFIERS) else None
    if "InstanceNorm" in last:  # statistics of each sample, unless asked to keep running ones
        return _is_on(part.arguments.get("track_running_stats", 4), False)
    if "BatchNorm" in last:
        return _is_on(part.arguments.get("track_running_stats", 4), True)
    if any(name in last for name in MODE_LAYERS):
        return _is_on(part.arguments.get("p", 0), True)
    if last.startswith("Transformer") and part.type_name.startswith("torch."):
        return _is_on(part.arguments.get("dropout", 3), True)  # its default is a dropout of 0.1
    own = False if part.cls is None else _asks_for_mode(trace, part)
    return own or _is_on(part.arguments.get("dropout"), False) or own


def _is_on(value: Value | None, default: bool) -> bool | None:
    """Is a rate or a switch other than zero?"""
    if value is None:
        return default
    return bool(value.value) if isinstance(value, Const) else None


def _asks_for_mode(trace: Trace, part: Obj) -> bool | None:
    """Does its own source? None: only for a dropout of a rate that is not known."""
    assert part.cls is not None
    known = trace.once("asks for the mode", dict[int, tuple[str | None, ...]])
    for cls in part.cls.mro:
        if cls.id not in known:
            known[cls.id] = tuple(_questions(cls.node))
        if None in known[cls.id]:
            return True
    rates = [trace.attribute(part.id, rate) for cls in part.cls.mro for rate in known[cls.id] if rate]
    answers = {_is_on(rate, True) for rate in rates}
    if any(_UNSURE in known[cls.id] for cls in part.cls.mro):
        answers.add(None)
    return True if True in answers else None if None in answers else False


_UNSURE = ""


def _questions(node: nodes.ClassDef) -> Iterator[str | None]:
    """Where the source asks for `training`: the attribute with the rate of a dropout, `_UNSURE` where it asks
    for something else at the same time, None for all else.

    What is only asserted changes nothing, and neither does computing again instead of keeping. The `training`
    of `config.training.rate` is a group of settings.
    """
    rates: dict[int, str] = {}
    inert: set[int] = set()
    unsure: set[int] = set()
    for inner in walk(node):
        if isinstance(inner, nodes.Assert):
            inert.update(id(below) for below in walk(inner))
        elif isinstance(inner, nodes.If) and _checkpoints(inner):
            inert.update(id(below) for below in walk(inner.test))
        elif isinstance(inner, nodes.Call) and _last_name(inner.func).endswith("dropout"):
            rate = next(
                (k.value for k in inner.keywords if k.name == "p"),
                inner.args[1] if len(inner.args) > 1 else None,
            )
            if isinstance(rate, nodes.Attribute) and isinstance(rate.value, nodes.Name):
                rates.update({id(below): rate.attr for keyword in inner.keywords for below in walk(keyword)})
                rates.update({id(below): rate.attr for given in inner.args for below in walk(given)})
        elif isinstance(inner, nodes.BoolOp) and inner.op == "and":
            unsure.update(id(operand) for operand in inner.values)
        elif isinstance(inner, (nodes.Attribute, nodes.Subscript)) and _is_training(inner.value):
            inert.add(id(inner.value))
        elif _is_training(inner) and id(inner) not in inert:
            yield rates.get(id(inner), _UNSURE if id(inner) in unsure else None)
        elif isinstance(inner, nodes.Name) and inner.id == "training":
            yield None


def _is_training(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Attribute) and node.attr == "training"


def _checkpoints(test: nodes.If) -> bool:
    """`if self.training and ...: x = checkpoint(block, x)`"""
    return any(
        isinstance(inner, nodes.Call) and "checkpoint" in _last_name(inner.func).lower()
        for statement in test.body
        for inner in walk(statement)
    )


def _last_name(node: nodes.Expr) -> str:
    if isinstance(node, nodes.Attribute):
        return node.attr
    return node.id if isinstance(node, nodes.Name) else ""


def _guards(trace: Trace, module: Obj) -> frozenset[object]:
    """The undecided tests that a module was built under; which turn of a loop it was does not count."""
    built = trace.once("guards of modules", lambda: _guards_by_module(trace))
    return built.get(module.id, frozenset())


def _guards_by_module(trace: Trace) -> dict[int, frozenset[object]]:
    return {
        event.module.id: frozenset(
            (guard.place, guard.taken) for guard in event.scene.guards if guard.kind != "periodic"
        )
        for event in trace.of(ModuleBuilt)
    }


def _is_known(trace: Trace, part: Obj) -> bool:
    if part.kind is Kind.PARAMETER:
        return True
    if part.origin is not Origin.BUILT:
        return part.id not in trace.once("modules that ran", lambda: _that_ran(trace))
    if part.cls is None:
        return part.type_name.startswith("torch.")
    names = cast("tuple[str, ...]", trace.facts.get(("names", part.id), ()))
    return not part.cls.open_bases and not any(_may_be_a_layer(trace.attribute(part.id, n)) for n in names)


def _that_ran(trace: Trace) -> frozenset[int]:
    """Modules that compute: what is read off a module and never called is no layer (buffers, shapes)."""
    inside = {module for one in trace.passes.values() for module in one.modules}
    return frozenset(inside | {forward.module.id for forward in trace.forwards})


def _may_be_a_layer(value: Value | None) -> bool:
    """Was it given by a call that is not seen?"""
    for one in alternatives(value) if value is not None else ():
        if isinstance(one, Unknown) and one.symbol is None:
            return True
        if isinstance(one, Obj) and one.kind is Kind.OPAQUE:
            return True
    return False

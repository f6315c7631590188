"""Arguments that nobody in view passes: typed by annotation, default, use and, last, by name."""

from __future__ import annotations

from typing import cast

from torchwise_analysis.interp.abstract import beliefs
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.interp.abstract.static import BodyFacts
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

_OPTIONS = frozenset(
    [
        "args",
        "cfg",
        "config",
        "configs",
        "opt",
        "opts",
        "options",
        "hparams",
        "hps",
        "flags",
        "conf",
        "params",
        "params_dict",
        "settings",
    ]
)
OPTIMIZER_ATTRIBUTES = frozenset(
    [
        "step",
        "zero_grad",
        "param_groups",
        "state_dict",
        "load_state_dict",
        "state",
        "add_param_group",
        "defaults",
        "train",
        "eval",
    ]
)
RANKS = frozenset(["rank", "local_rank", "global_rank", "world_size", "world", "gpu_id", "gpu_rank"])
_SURE_RANKS = RANKS - {"rank", "world", "gpu_id"}  # a `rank=8` is one of matrices
_OF_MODULES = frozenset(
    ["train", "eval", "parameters", "named_parameters", "state_dict", "load_state_dict", "to", "cuda"]
)
_OF_ESTIMATORS = frozenset(
    ["fit", "predict", "predict_proba", "score", "transform", "fit_transform", "evaluate"]
)
_PLAIN = frozenset(["int", "float", "str", "bool", "bytes"])


def entry_argument(
    m: Machine, function: va.Function, param: nd.Param, facts: BodyFacts, default: va.Value | None
) -> va.Value:
    """An argument of an entry: the same thing in every abstract call; a default is only one of its values."""
    key = (function.key, param.name)
    old = m.arguments.get(key)
    if old is not None:
        _again(m, old)
        return old
    if param.name in _SURE_RANKS:
        value: va.Value = rank(param.name, param.name)
    elif isinstance(default, va.Const) and default.value is not None and not isinstance(default.value, bool):
        # numbers and texts may keep their default only as an identity
        value = va.unknown(param.name)
    elif isinstance(default, (va.Function, va.Library, va.Class)):
        value = default
    elif isinstance(default, va.Const) and isinstance(default.value, bool):
        value = va.unknown(param.name)
    else:
        value = _by_position(m, function, param) or argument(m, param, facts)
    m.arguments[key] = value
    return value


def _by_position(m: Machine, function: va.Function, param: nd.Param) -> va.Value | None:
    """What the framework that calls this method gives there."""
    if function.owner is None or not function.owner.library_bases:
        return None
    if beliefs.is_model_of_callback(function.owner, function.name, param.name):
        return believed(m, va.Kind.MODULE, va.Origin.ANNOTATED, param.name, param, TRAINED_MODEL)
    kind = beliefs.by_position(function.owner, function.name, function.node.params.index(param))
    if kind is None:
        return None
    type_name = LIGHTNING_TRAINER if kind is va.Kind.TRAINER else LIGHTNING_MODULE
    return believed(m, kind, va.Origin.ANNOTATED, param.name, param, type_name)


LIGHTNING_TRAINER = "lightning.Trainer"
LIGHTNING_MODULE = "lightning.LightningModule"
TRAINED_MODEL = "transformers.Trainer.model"


def _again(m: Machine, value: va.Value) -> None:
    if isinstance(value, va.Obj) and value.kind in (va.Kind.INSTANCE, va.Kind.OPAQUE):
        # another batch or sample, for all that is known: it holds nothing of the call before
        for name in cast("tuple[str, ...]", m.state.get(("names", value.id), ())):
            if any(t.passes for t in m.tensors(m.attribute(value, name))):
                m.state.drop(("a", value.id, name))
    if isinstance(value, va.Obj) and value.kind is va.Kind.OPTIMIZER:
        # whoever passes it may have cleared it between two calls
        m.state.set(("grad", value.id), va.CLEAN)
        if all(o.id != value.id for o in m.optimizers):
            m.optimizers.append(value)


def argument(m: Machine, param: nd.Param, facts: BodyFacts) -> va.Value:
    """A fresh unknown for a parameter."""
    name = param.name
    uses = facts.uses.get(name, frozenset())
    if name in RANKS:
        return rank(name, name)
    annotated = _annotated(m, param)
    if annotated is not None:
        return annotated
    kind, origin = beliefs.guess(name, uses)
    if kind is va.Kind.OPTIMIZER and origin is va.Origin.NAMED and uses and not uses <= OPTIMIZER_ATTRIBUTES:
        kind, origin = va.Kind.OPAQUE, va.Origin.UNSEEN
    return believed(m, kind, origin, name, param)


def given(m: Machine, function: va.Function, param: nd.Param, facts: BodyFacts, value: va.Value) -> va.Value:
    """What a call gives for a parameter; what an unseen call made is typed by its name and use here."""
    value = named_rank(param, value)
    if not isinstance(value, va.Unknown) or not _is_unseen_result(m, value):
        return value
    kind = kind_by_role(param.name, facts)
    if kind is None:
        return value
    key = ("given", value.symbol) if value.symbol is not None else (function.key, param.name, "given")
    found = m.arguments.get(key)
    if not isinstance(found, va.Obj) or found.kind is not kind:
        found = m.arguments[key] = believed(m, kind, va.Origin.NAMED, param.name, param)
    return m.objects.get(found.id, found)


def _is_unseen_result(m: Machine, value: va.Unknown) -> bool:
    """Is it what a call gave of which nothing is known?"""
    if value.varies or value.negated or value.offset:
        return False
    is_result = value.symbol is None or "@" in value.symbol
    return is_result and m.forward is None and value.taint <= {va.OF_PARAMETERS}


def kind_by_role(name: str, facts: BodyFacts) -> va.Kind | None:
    """What a conventional name, and a use that fits it, make of an unseen thing; None when they disagree."""
    kind, uses = beliefs.by_name(name), facts.uses.get(name, frozenset[str]())
    if kind is va.Kind.MODULE:
        is_run = name in facts.called or bool(uses & _OF_MODULES)
        return kind if is_run and not uses & _OF_ESTIMATORS else None
    if kind is va.Kind.CRITERION:
        return kind if name in facts.called else None
    if kind is va.Kind.LOADER:
        return kind if name in facts.iterated else None
    return None


def named_rank(param: nd.Param, value: va.Value) -> va.Value:
    """An argument of which nothing is known but that its parameter is called `local_rank` or alike."""
    if param.name not in _SURE_RANKS:
        return value
    if isinstance(value, va.Union):
        return replace(value, values=tuple(named_rank(param, one) for one in value.values))
    if not isinstance(value, va.Unknown) or "rank" in value.taint:
        return value
    return replace(value, taint=value.taint | rank(param.name, param.name).taint)


def rank(symbol: str, name: str) -> va.Unknown:
    """A number of the process group, by its name: how many ranks there are, or which one this is."""
    own = frozenset[str]() if name.startswith("world") else frozenset(["this rank"])
    return va.unknown(symbol, taint=frozenset(["rank"]) | own)


def believed(
    m: Machine,
    kind: va.Kind,
    origin: va.Origin,
    name: str,
    node: nd.Node | None,
    type_name: str = "",
    oid: int | None = None,
) -> va.Obj:
    """An object of which only the kind is believed; `oid`: the id it has in every run."""
    traits = (
        frozenset(["options"])
        if kind is va.Kind.OPAQUE and name.strip("_").lower() in _OPTIONS
        else frozenset[str]()
    )
    link = None
    if node is not None and origin is not va.Origin.UNSEEN:
        link = m.link(
            node,
            f"`{name}` is taken for a {kind.value} {origin.value}",
            None,
            origin is not va.Origin.ANNOTATED,
        )
    obj = va.Obj(
        link,
        oid or m.fresh_id(),
        kind,
        type_name,
        None,
        name,
        None,
        (),
        va.NO_ARGUMENTS,
        origin,
        name,
        (),
        traits,
    )
    m.register(obj)
    if kind is va.Kind.MODULE:
        m.put_mode(obj.id, frozenset([va.Mode("unknown")]))
    if kind is va.Kind.OPTIMIZER:
        m.owns[obj.id] = None
    return obj


def _annotated(m: Machine, param: nd.Param) -> va.Value | None:
    node = param.annotation
    while isinstance(node, nd.Subscript) and isinstance(node.value, nd.Name) and node.value.id == "Optional":
        node = node.index
    if isinstance(node, nd.Binary) and node.op == "|":
        node = node.left
    if not isinstance(node, (nd.Name, nd.Attribute)):
        return None
    if isinstance(node, nd.Name) and node.id in _PLAIN:
        return va.unknown(param.name)
    value = first_known(m.eval(node))
    if isinstance(value, va.Class):
        from torchwise_analysis.interp.abstract import calls

        obj = calls.annotated_instance(m, value)
        return replace(obj, symbol=param.name, name=param.name, origin=va.Origin.ANNOTATED)
    if isinstance(value, va.Library):
        if value.path.startswith("builtins.") and value.last in _PLAIN:
            return va.unknown(param.name)
        if value.last in ("Tensor", "FloatTensor", "LongTensor"):
            return None
        kind = beliefs.by_annotation(value.path)
        if kind is not None:
            type_name = LIGHTNING_TRAINER if kind is va.Kind.TRAINER else value.path
            return believed(m, kind, va.Origin.ANNOTATED, param.name, param, type_name)
    return None


def believed_name(m: Machine, name: str, node: nd.Node) -> va.Value:
    """A free name that nothing binds (a notebook cell, a star import): believed by its name."""
    if name in RANKS:
        return rank(name, name)
    kind, origin = beliefs.guess(name, frozenset())
    frame = m.frames[-1].scope[-1]
    value = believed(m, kind, origin, name, node, oid=m.shared_id(frame, name))
    m.state.set(("v", frame, name), value)
    return value

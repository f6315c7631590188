"""Modules: building, running, modes, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, cast

from torchwise_analysis.interp.abstract import beliefs, calls, iteration, unknowns
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.limits import DeadPathError
from torchwise_analysis.interp.abstract.machine import NOT_RECORDING, RECORDING, Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics import tensors
from torchwise_analysis.semantics.registry import Call, function, method, text_of, truth_of
from torchwise_analysis.source import nodes as nd

_ACTIVATION_LAYERS = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Softmin": "softmax",
    "Softmax2d": "softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "log_sigmoid",
    "Hardsigmoid": "sigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
}
_LINEAR_LAYERS = frozenset(
    [
        "Linear",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "Bilinear",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "ConvTranspose3d",
        "LazyLinear",
    ]
)
_DROPOUT_LAYERS = frozenset(
    ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"]
)
_KEEPING_LAYERS = _DROPOUT_LAYERS | {"Identity", "Flatten", "Unflatten"}
_RECURRENT = frozenset(["GRU", "LSTM", "RNN"])
_PARAMETER_FREE = frozenset(
    [
        "ReLU",
        "ReLU6",
        "LeakyReLU",
        "GELU",
        "SiLU",
        "ELU",
        "SELU",
        "CELU",
        "Tanh",
        "Sigmoid",
        "Softmax",
        "LogSoftmax",
        "Softmax2d",
        "LogSigmoid",
        "Hardsigmoid",
        "Hardswish",
        "Mish",
        "Softplus",
        "Softsign",
        "Identity",
        "Flatten",
        "Unflatten",
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "AlphaDropout",
        "MaxPool1d",
        "MaxPool2d",
        "MaxPool3d",
        "AvgPool1d",
        "AvgPool2d",
        "AvgPool3d",
        "AdaptiveAvgPool1d",
        "AdaptiveAvgPool2d",
        "AdaptiveAvgPool3d",
        "AdaptiveMaxPool1d",
        "AdaptiveMaxPool2d",
        "Upsample",
        "UpsamplingBilinear2d",
        "UpsamplingNearest2d",
        "PixelShuffle",
        "ZeroPad2d",
        "ReflectionPad2d",
        "ReplicationPad2d",
        "ConstantPad2d",
        "CosineSimilarity",
        "PairwiseDistance",
        "Unfold",
        "Fold",
        "GLU",
        "Hardtanh",
        "Threshold",
        "FeatureAlphaDropout",
        "Softmin",
        "Softshrink",
        "Hardshrink",
        "ChannelShuffle",
    ]
)
_CONTAINERS = frozenset(["Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"])

# Methods that an unseen model most likely runs as a forward.
FORWARD_METHODS = frozenset(
    [
        "forward",
        "encode",
        "decode",
        "generate",
        "compute_loss",
        "loss",
        "get_loss",
        "log_prob",
        "predict",
        "sample",
        "embed",
        "inference",
        "training_loss",
        "greedy_decode",
        "extract_features",
        "elbo",
        "nll",
        "encoder",
        "decoder",
        "forward_features",
        "get_logits",
        "encode_image",
        "encode_text",
        "get_image_features",
        "get_text_features",
        "p_losses",
        "forward_train",
        "reconstruct",
        "evaluate_actions",
    ]
)
# These switch autograd off by themselves in the libraries that have them. [transformers' `generate`,
# torch_geometric's `inference`: decorated with no_grad]
GUARDED_METHODS = frozenset(["generate", "inference", "infer"])

# Methods that an unseen object most likely uses to train by itself.
UPDATING = ("train", "backward", "step", "optim", "update", "fit", "learn")


# --------------------------------------------------------------------------- building


def layer(m: Machine, call: Call) -> va.Obj:
    """A module of torch.nn."""
    last = call.last
    kind = va.Kind.PARAMETER if last in ("Parameter", "UninitializedParameter", "Buffer") else va.Kind.MODULE
    obj = m.make(kind, call.node, call.name, arguments=call.arguments)
    if kind is va.Kind.PARAMETER:
        flag = truth_of(call.get("requires_grad", 1), True)
        if flag is False:
            m.state.set(("frozen", obj.id), RECORDING)
        return obj
    m.emit(ev.ModuleBuilt, call.node, module=obj, cached=any(g.kind == "none" for g in m.guards))
    if m.forward is not None:
        m.state.set(("infwd", obj.id), m.forward[1])
    if last in _CONTAINERS:
        _fill(m, obj, call)
    return obj


def _fill(m: Machine, obj: va.Obj, call: Call) -> None:
    parts: list[va.Value] = []
    entries: dict[object, va.Value] = {}
    open_ = call.arguments.open
    for argument in call.arguments.positional:
        value = first_known(argument)
        if isinstance(value, va.Obj) and value.kind is va.Kind.ITERATOR:
            plan = iteration.plan(m, value, call.node)
            parts.extend(plan.elements)
            open_ = open_ or plan.open
        elif isinstance(value, va.Obj) and value.kind in (va.Kind.LIST, va.Kind.TUPLE, va.Kind.DICT):
            parts.extend(m.items(value))
            entries.update(m.entries(value))
            open_ = open_ or bool(m.state.get(("open", value.id)))
        else:
            parts.append(argument)
    for part in (*parts, *entries.values()):
        known = first_known(part)
        if isinstance(known, va.Obj):
            m.adopt(known, obj)
            m.state.drop(("mode", known.id))
    m.state.set(("c", obj.id), tuple(parts[-12:]))
    if entries:
        m.state.set(("d", obj.id), entries)
    if open_:
        m.state.set(("open", obj.id), True)


@function("torch.nn.Parameter")
def parameter(m: Machine, call: Call) -> va.Value:
    return layer(m, call)


def pretrained(m: Machine, call: Call) -> va.Value:
    """A model from a hub or a model zoo. [transformers: from_pretrained returns the model in eval mode.]"""
    obj = m.make(
        va.Kind.MODULE, call.node, call.name, arguments=call.arguments, traits=frozenset(["pretrained"])
    )
    mode = "pretrained" if call.last == "from_pretrained" else "new"
    m.put_mode(obj.id, frozenset([va.Mode(mode, m.place(call.node))]))
    return obj


def averaged(m: Machine, call: Call) -> va.Value:
    """A copy of a model, in the mode in which that is. [torch.optim.swa_utils.AveragedModel: deepcopy]"""
    obj = m.make(
        va.Kind.MODULE, call.node, call.name, arguments=call.arguments, traits=frozenset(["pretrained"])
    )
    m.put_mode(obj.id, frozenset([va.Mode("new", m.place(call.node))]))
    given = first_known(call.first() or va.UNKNOWN)
    if isinstance(given, va.Obj) and given.kind is va.Kind.MODULE:
        m.put_mode(obj.id, m.mode(given))
    return obj


# --------------------------------------------------------------------------- running

_FORWARD_RUNS = 2  # of one module in one mode, then other worlds share a result
_FORMS = (va.Kind.TUPLE, va.Kind.LIST, va.Kind.DICT)
_UNSURE = frozenset([True, False])


@dataclass(frozen=True, slots=True, eq=False)
class ContainerForm:
    """A container that a forward gave, and the forms of what is in it."""

    kind: va.Kind
    items: tuple[Form, ...]
    entries: tuple[tuple[object, Form], ...]
    is_open: bool
    traits: frozenset[str]
    arguments: va.Arguments  # where a named tuple has which name


Form: TypeAlias = "va.Tensor | va.Const | va.Unknown | ContainerForm"


def forward(
    m: Machine, obj: va.Obj, call: Call, through: str = "call", in_sequence: bool = False
) -> va.Value:
    """Run a module."""
    inner, wrapped = unwrap(m, obj)
    values = tuple(call.arguments)
    top = m.forward is None
    grad = None
    guards_itself = through == "method" and call.name in GUARDED_METHODS and inner.cls is None
    no_graph = top and not m.passes_of(values) and (m.is_frozen(inner) or parameter_free(m, inner))
    if guards_itself or no_graph:
        grad = NOT_RECORDING
    elif top and m.recording() == RECORDING and m.was_frozen(inner) and not m.passes_of(values):
        grad = _UNSURE
    bypassed = "" if wrapped else m.wrapped.get(inner.id, "")
    belief = inner.origin in (va.Origin.NAMED, va.Origin.USED, va.Origin.UNSEEN)
    pass_ = m.start_pass(inner, call.node, call.arguments, through, belief, grad, wrapped, bypassed)
    m.passes[pass_].modules.update((obj.id, inner.id))
    m.passes[pass_].inputs |= m.passes_of(values)
    if m.scopes.autocast is not None:
        m.passes[pass_].autocasts.add(m.scopes.autocast)
    before, scopes = m.forward, m.scopes
    if top:
        m.forward = (inner, pass_)
    if wrapped == "compile":
        m.scopes = scopes._replace(compiled=obj.place)
    try:
        result = _run(m, inner, pass_, call, top, in_sequence)
    except DeadPathError:
        if not top:
            raise
        # Nobody calls what only raises: some condition was understood wrongly.
        m.count("dead_paths")
        m.alive = True
        result = m.attach(pass_, values, call.node)
    finally:
        m.forward, m.scopes = before, scopes
    if top:
        _run_hooks(m, inner, pass_, call)
    return result


def unwrap(m: Machine, obj: va.Obj) -> tuple[va.Obj, str]:
    """The module inside wrappers, and the outermost wrapper that matters."""
    wrapped = ""
    depth = 0
    while obj.over and "wrapper" in obj.traits and depth < 6:
        inner = first_known(obj.over[0])
        if not isinstance(inner, va.Obj):
            break
        how = next(
            (t for t in obj.traits if t in ("ddp", "fsdp", "compile", "dataparallel", "prepared", "engine")),
            "",
        )
        if wrapped in ("", "compile"):
            wrapped = how or wrapped
        obj, depth = m.objects.get(inner.id, inner), depth + 1
    return obj, wrapped or m.in_place.get(obj.id, "")


def parameter_free(m: Machine, obj: va.Obj) -> bool:
    """Is it certain that the module has no parameters?"""
    last = obj.type_name.rpartition(".")[2]
    if obj.type_name.startswith("torch.nn.") and obj.cls is None:
        return last in _PARAMETER_FREE
    if obj.cls is None or obj.cls.open_bases or obj.place is None or m.state.get(("partial", obj.id)):
        return False
    if any(b.rpartition(".")[2] not in ("Module", "object") for b in obj.cls.library_bases):
        return False
    for part in m.parts.get(obj.id, ()):
        known = m.objects.get(part)
        if known is not None and (known.kind is not va.Kind.MODULE or not parameter_free(m, known)):
            return False
    return not any(
        _may_hold_parameters(v)
        for n in cast("tuple[str, ...]", m.state.get(("names", obj.id), ()))
        for v in va.alternatives(m.attribute(obj, n) or va.NONE)
    )


def _may_hold_parameters(value: va.Value) -> bool:
    if isinstance(value, va.Unknown):  # what an argument gave has a name; the result of a call may be a layer
        return value.symbol is None
    kinds = (va.Kind.OPAQUE, va.Kind.LIST, va.Kind.DICT, va.Kind.PARAMETER)
    return isinstance(value, va.Obj) and value.kind in kinds


def _run(m: Machine, obj: va.Obj, pass_: int, call: Call, top: bool, in_sequence: bool) -> va.Value:
    values = tuple(call.arguments)
    last = obj.type_name.rpartition(".")[2]
    if obj.cls is not None:
        return _run_own(m, obj, pass_, call, top)
    if last == "Sequential":
        return _run_sequential(m, obj, pass_, call)
    found = m.tensors(call.first())
    if last in _ACTIVATION_LAYERS:
        value = (
            m.attach(pass_, values, call.node)
            if not top or not parameter_free(m, obj)
            else tensors.combine(m, found, None)
        )
        value = replace(value, shape=found[0].shape if found else None)
        dim, given = tensors.dim_argument(Call("", obj.arguments, call.node), 0)
        dim, given = (-3, True) if last == "Softmax2d" else (dim, given)
        place = obj.place if in_sequence else None
        return tensors.activate(m, value, _ACTIVATION_LAYERS[last], call.node, dim, given, place)
    if last in _LINEAR_LAYERS:
        place = obj.place or m.place(call.node)
        width = obj.arguments.get("out_features", 1)
        size = width.value if isinstance(width, va.Const) and isinstance(width.value, int) else None
        rows = found[0].shape if found and found[0].shape and found[0].shape[0] == "batch" else (None, None)
        shape: tuple[int | str | None, ...] | None = (*rows[:-1], size) if last == "Linear" and size else None
        return m.attach(pass_, values, call.node, activation=va.Activation("linear", place), shape=shape)
    if last in _KEEPING_LAYERS:
        if (
            last in _DROPOUT_LAYERS
            and not top
            and m.state.get(("infwd", obj.id)) == pass_
            and obj.place is not None
        ):
            m.emit(ev.DropoutCall, call.node, how="built", built=obj.place)
        kept = found[0] if found else m.attach(pass_, values, call.node)
        is_flat = last == "Flatten" and not tuple(obj.arguments)
        return replace(kept, shape=("batch", None)) if is_flat else kept
    if last in _RECURRENT:
        parts = (m.attach(pass_, values, call.node), m.attach(pass_, values, call.node))
        return m.sequence(parts, None, va.Kind.TUPLE)
    # a table that does not learn gives data: what a checkpoint around the next layer gets needs no gradient
    is_table = last in _TABLES and not top and not any(t.passes for t in found) and _is_table_frozen(m, obj)
    result = m.attach(None if is_table else pass_, values, call.node)
    # parts that the program put into a model of a library run with it
    put_in = (m.objects.get(part) for part in m.parts.get(obj.id, ()))
    m.passes[pass_].modules.update(part.id for part in put_in if part is not None and part.place is not None)
    head = _replaced_head(m, obj)
    if head is None and _ends_in_its_own_head(m, obj):
        return replace(result, activation=va.Activation("linear", obj.place or m.place(call.node)))
    return result if head is None else forward(m, head, Call("", va.Arguments((result,)), call.node))


_TABLES = ("Embedding", "EmbeddingBag")


def _is_table_frozen(m: Machine, obj: va.Obj) -> bool:
    """`embed.requires_grad_(False)`, or its only parameter: `embed.weight.requires_grad_(False)`"""
    if m.is_frozen(obj):
        return True
    weight = first_known(m.attribute(obj, "weight"))
    return isinstance(weight, va.Obj) and m.state.get(("frozen", weight.id)) == RECORDING


# The last layer of the models of these libraries. [torchvision.models, timm.models: attribute names]
_HEADS = ("fc", "classifier", "head", "heads")
_WITH_HEADS = ("torchvision.models.", "timm.")


_WITH_AUXILIARY_HEADS = ("inception_v3", "googlenet")


def _ends_in_its_own_head(m: Machine, obj: va.Obj) -> bool:
    """Is it a classifier of torchvision as it was made? Its last layer is linear. [torchvision.models]"""
    package, _, name = obj.type_name.rpartition(".")
    is_classifier = package == "torchvision.models" and name not in _WITH_AUXILIARY_HEADS
    return is_classifier and all(m.attribute(obj, head) is None for head in _HEADS)


def _replaced_head(m: Machine, obj: va.Obj) -> va.Obj | None:
    """The last layer of a library's model, when the program put one of its own there."""
    if not obj.type_name.startswith(_WITH_HEADS):
        return None
    for name in _HEADS:
        head = first_known(m.attribute(obj, name))
        if isinstance(head, va.Obj) and head.kind is va.Kind.MODULE and head.place is not None:
            return head
    return None


def _run_sequential(m: Machine, obj: va.Obj, pass_: int, call: Call) -> va.Value:
    result: va.Value = call.first() or va.Tensor(None)
    for part in m.items(obj):
        known = first_known(part)
        if isinstance(known, va.Obj) and known.kind is va.Kind.MODULE:
            result = forward(m, known, Call("", va.Arguments((result,)), call.node), in_sequence=True)
        elif isinstance(known, va.Function):
            result = calls.call_function(m, known, va.Arguments((result,)), call.node)
        else:
            result = m.attach(pass_, (result,), call.node)
    if not m.items(obj):
        return m.attach(pass_, (result,), call.node)
    return result


def _run_own(m: Machine, obj: va.Obj, pass_: int, call: Call, top: bool) -> va.Value:
    """A module class of the project: its `forward` is run, twice at most for equal circumstances."""
    assert obj.cls is not None
    values = tuple(call.arguments)
    own = calls.find_member(m, obj.cls, "forward")
    if not isinstance(own, va.Function):
        if obj.cls.derives("Sequential"):
            return _run_sequential(m, obj, pass_, call)
        return m.attach(pass_, values, call.node)
    m.note_read(own.code)
    key = (obj.id, m.recording(), m.mode(obj), len(call.arguments.positional), m.scopes.compiled)
    forms = m.forward_cache.get(key, {})
    runs, last, others, quiet = forms.get(m.world, (0, None, frozenset[int](), frozenset[int]()))
    body = own.node.body if isinstance(own.node, nd.FunctionDef) else ()
    enough = 2 if top or m.body_facts(body).keeps else 1
    if last is None and sum(form[0] for form in forms.values()) > _FORWARD_RUNS:
        last, runs = next((form[1] for form in forms.values() if form[1] is not None), None), enough
        others = frozenset[int]().union(*(form[2] for form in forms.values()))
        quiet = frozenset[int]()
    running = m.passes[pass_]
    if runs >= enough and last is not None:
        running.modules |= others
        running.unrecorded |= quiet
        running.recorded |= others - quiet
        _renew_attributes(m, obj, pass_)
        return renewed(m, last, pass_, values, call.node)
    before = frozenset(running.modules)
    result = calls.call_function(m, replace(own, self=obj), call.arguments, call.node)
    others |= running.modules - before
    ran = (runs + 1, form_of(m, result), others, frozenset(running.unrecorded - running.recorded))
    m.forward_cache[key] = {**m.forward_cache.get(key, {}), m.world: ran}
    recording = True in m.recording() and True in m.passes[pass_].forward.grad
    if not m.tensors(result) and top:
        if isinstance(result, va.Const) and result.value is None:
            return result
        if isinstance(result, va.Obj) and result.kind is va.Kind.INSTANCE:
            return result
        return m.attach(pass_, values, call.node)
    given = m.tensors(result)
    lost = not any(t.passes or t.cut for t in given)
    aside = (
        any(t.passes for t in given) and not any(pass_ in t.passes for t in given) and _has_weights(m, obj)
    )
    if recording and top and (aside or (lost and not parameter_free(m, obj))):
        result = m.imbue(result, pass_, is_whole=not aside)
    return result


def _renew_attributes(m: Machine, obj: va.Obj, pass_: int) -> None:
    """What the forward keeps on the module is of this pass, as it would be if it were followed again."""
    passes = frozenset([pass_])

    def renew(tensor: va.Tensor) -> va.Tensor:
        return replace(tensor, passes=passes) if tensor.passes else tensor

    for name in cast("tuple[str, ...]", m.state.get(("names", obj.id), ())):
        held = m.attribute(obj, name)
        if not isinstance(held, (va.Tensor, va.Obj, va.Union)):
            continue
        made = {p for tensor in m.tensors(held) for p in tensor.passes}
        if made and all(m.passes[p].forward.module.id == obj.id for p in made):
            m.state.set(("a", obj.id, name), m.map_tensors(held, renew))


def _has_weights(m: Machine, obj: va.Obj) -> bool:
    """Does it have parameters of its own, beside those of its layers?"""
    parts = (m.objects.get(part) for part in m.parts.get(obj.id, ()))
    return any(part is not None and part.kind is va.Kind.PARAMETER for part in parts)


def form_of(m: Machine, value: va.Value, depth: int = 0) -> Form | None:
    """What a forward gave, without the objects of that run; None for more than tensors in containers."""
    if isinstance(value, (va.Tensor, va.Const, va.Unknown)):
        return value
    if not isinstance(value, va.Obj) or value.kind not in _FORMS or depth > 2:
        return None
    items = [form_of(m, item, depth + 1) for item in m.items(value)]
    entries = {key: form_of(m, item, depth + 1) for key, item in m.entries(value).items()}
    if None in items or None in entries.values():
        return None
    known = tuple(item for item in items if item is not None)
    named = tuple((key, item) for key, item in entries.items() if item is not None)
    return ContainerForm(
        value.kind, known, named, bool(m.state.get(("open", value.id))), value.traits, value.arguments
    )


def renewed(m: Machine, form: Form, pass_: int, values: tuple[va.Value, ...], node: nd.Node) -> va.Value:
    """The same kind of result from another pass."""
    if isinstance(form, ContainerForm):
        out = m.sequence(
            [renewed(m, item, pass_, values, node) for item in form.items],
            None,
            form.kind,
            traits=form.traits,
            arguments=form.arguments,
        )
        if form.entries:
            entries = {key: renewed(m, item, pass_, values, node) for key, item in form.entries}
            m.state.set(("d", out.id), entries)
        if form.is_open:
            m.state.set(("open", out.id), True)
        return out
    if isinstance(form, va.Tensor):
        tensor = m.attach(
            pass_, values, node, activation=form.activation, reduction=form.reduction, shape=form.shape
        )
        if form.cut is None or form.passes or form.cut.how == va.UNRECORDED:
            return tensor
        # the run that was followed lost the graph, and so does this one
        return replace(tensor, passes=frozenset[int](), cut=form.cut._replace(passes=tensor.passes))
    return form


def _run_hooks(m: Machine, obj: va.Obj, pass_: int, call: Call) -> None:
    for owner, hook in m.hooks:
        if owner.id == obj.id or obj.id in m.lineage(owner.id) or owner.id in m.passes[pass_].modules:
            output = m.attach(pass_, (), call.node)
            calls.call_value(m, hook, va.Arguments((owner, va.UNKNOWN, output)), call.node)


# --------------------------------------------------------------------------- modes


@method(va.Kind.MODULE, "eval")
@method(va.Kind.OPAQUE, "eval")
def eval_(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if call.arguments.positional:
        return None
    _register(m, obj)
    own = calls.find_member(m, obj.cls, "train") if obj.cls is not None else None
    if isinstance(own, va.Function):  # [torch.nn.Module.eval is `self.train(False)`]
        calls.call_function(m, replace(own, self=obj), va.Arguments((_EVAL,)), call.node)
        return obj
    _set_mode(m, obj, "eval", call.node)
    _tell_parts(m, obj, _EVAL, call.node)
    return obj


@method(va.Kind.MODULE, "train")
@method(va.Kind.OPAQUE, "train")
def train(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if len(call.arguments.positional) + len(call.arguments.keywords) > 1:
        return None
    given = call.get("mode", 0)
    _register(m, obj)
    if given is None:
        _set_mode(m, obj, "train", call.node)
        _tell_parts(m, obj, _TRAIN, call.node)
        return obj
    known = first_known(given)
    if isinstance(known, va.ModeValue):
        m.emit(ev.ModeChange, call.node, module=obj, to="unknown", before=m.mode(obj), restored=True)
        m.set_mode(obj, known.modes)
        _tell_parts(m, obj, known, call.node)
        return obj
    truth = truth_of(known, True)
    if truth is None and isinstance(known, (va.Obj,)) and obj.kind is va.Kind.OPAQUE:
        return None
    _set_mode(
        m,
        obj,
        {True: "train", False: "eval"}.get(truth, "unknown") if truth is not None else "unknown",
        call.node,
    )
    _tell_parts(m, obj, given, call.node)
    return obj


def _register(m: Machine, obj: va.Obj) -> None:
    """What has a mode is a module, and a part of the module that holds it, though its class is not seen."""
    if obj.kind is not va.Kind.OPAQUE or obj.id in m.parents:
        return
    for key, held in m.state.facts.items():
        whole = m.objects.get(cast("int", key[1])) if key[0] == "a" and held is obj else None
        if whole is not None and whole.kind is va.Kind.MODULE:
            m.adopt(obj, whole)
            return


_TRAIN = va.Const(None, True)
_EVAL = va.Const(None, False)


def _tell_parts(m: Machine, whole: va.Obj, mode: va.Value, node: nd.Node) -> None:
    """A part whose class has a `train` of its own is told by a call of it. [torch.nn.Module.train]"""
    for own in _told_by_call(m, whole):
        calls.call_function(m, own, va.Arguments((mode,)), node)


def _told_by_call(m: Machine, whole: va.Obj) -> list[va.Function]:
    """The `train` of each part that has one of its own, but for parts of such parts."""
    told: dict[int, va.Function] = {}
    for oid in sorted(m.parts_of(whole.id), key=lambda oid: len(m.lineage(oid))):
        part = m.objects.get(oid)
        if part is None or part.cls is None or told.keys() & set(m.lineage(oid)):
            continue
        own = calls.find_member(m, part.cls, "train")
        if isinstance(own, va.Function):
            told[oid] = replace(own, self=part)
    return list(told.values())


def _set_mode(m: Machine, obj: va.Obj, to: str, node: nd.Node) -> None:
    before = m.mode(obj)
    here = frozenset(mode.place for mode in before)
    # what the `train` of these leaves as it is stays so
    own = (each.self for each in _told_by_call(m, obj))
    kept = [(part.id, m.mode(part)) for part in own if isinstance(part, va.Obj)]
    undone = m.parts_in_eval(obj, here) if to == "train" else frozenset[int]()
    m.emit(ev.ModeChange, node, module=obj, to=to, before=before, undone=undone)
    mode = frozenset([va.Mode(to, m.place(node), m.frames[-1].id)])
    m.set_mode(obj, mode)
    for oid, modes in kept:
        m.put_mode(oid, modes)
    for part in obj.over:
        known = first_known(part)
        if isinstance(known, va.Obj) and "wrapper" in obj.traits:
            m.set_mode(known, mode)


# --------------------------------------------------------------------------- other methods


@method(
    va.Kind.MODULE,
    "to",
    "cuda",
    "cpu",
    "half",
    "float",
    "bfloat16",
    "double",
    "share_memory",
    "apply",
    "compile",
    "to_empty",
    "type",
    "xpu",
    "npu",
    "gradient_checkpointing_enable",
    "enable_input_require_grads",
    "tie_weights",
)
def moved(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if call.name in ("half", "bfloat16", "to", "double", "float", "type"):
        m.emit(
            ev.ApiCall, call.node, name=f"torch.nn.Module.{call.name}", arguments=call.arguments, receiver=obj
        )
    return obj


@method(va.Kind.MODULE, "requires_grad_")
@method(va.Kind.PARAMETER, "requires_grad_")
def requires_grad(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    flag = call.get("requires_grad", 0)
    if not is_restored(m, flag):
        roots = frozenset([obj.id, unwrap(m, obj)[0].id])
        set_requires_grad(m, roots, truth_of(flag, True), call.node)
    return obj


def is_restored(m: Machine, flag: va.Value | None) -> bool:
    """`requires_grad_(p.requires_grad)`: it stays what it is."""
    return flag is not None and "requires_grad" in m.taint(flag)


def set_requires_grad(
    m: Machine, roots: frozenset[int], flag: bool | None, node: nd.Node, partial: bool = False
) -> None:
    m.emit(ev.RequiresGrad, node, roots=roots, value=flag)
    fact = _UNSURE if partial or flag is None else NOT_RECORDING if flag else RECORDING
    for root in sorted(roots):
        m.state.set(("frozen", root), fact)
        if flag:
            m.state.drop(("was frozen", root))
        for part in m.descendants(root):
            if ("frozen", part) in m.state.facts:  # what was said of it alone holds no longer
                m.state.set(("frozen", part), fact)


@method(va.Kind.MODULE, "zero_grad")
def zero_grad(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.clear_module(call.node, {obj.id})
    return va.NONE


@method(va.Kind.OPAQUE, "zero_grad")
def zero_grad_unknown(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.clear_module(call.node, {obj.id}, quiet=False)
    for optimizer in list(m.optimizers):
        if m.owns.get(optimizer.id) is None:
            m.clear(call.node, [optimizer])
    return va.NONE


@method(va.Kind.MODULE, "parameters", "named_parameters", "trainable_parameters", "buffers", "named_buffers")
@method(va.Kind.OPAQUE, "parameters", "named_parameters")
def parameters(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    own = va.Parameters(obj.evidence, frozenset([obj.id]))
    if call.name.startswith("named"):
        one = replace(own, single=True)
        pair = m.sequence((va.unknown(None), one), None, va.Kind.TUPLE)
        out = m.sequence((pair,), call.node, traits=frozenset(["parameters"]))
        m.state.set(("open", out.id), True)
        return out
    return own


@method(va.Kind.MODULE, "modules", "children", "named_modules", "named_children")
def modules(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    part = m.child(obj, "[modules]", va.Kind.MODULE)
    item: va.Value = part
    if call.name.startswith("named"):
        item = m.sequence((va.unknown(None), part), None, va.Kind.TUPLE)
    return m.sequence((item,), call.node, traits=frozenset(["modules"]))


@method(va.Kind.MODULE, "state_dict")
@method(va.Kind.OPAQUE, "state_dict")
@method(va.Kind.OPTIMIZER, "state_dict")
@method(va.Kind.INSTANCE, "state_dict")
@method(va.Kind.SCHEDULER, "state_dict")
@method(va.Kind.SCALER, "state_dict")
def state_dict(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    inner, wrapped = unwrap(m, obj)
    if (
        wrapped == "fsdp"
    ):  # gathers what the other ranks hold, also for rank 0 alone [torch `_state_dict_utils`]
        m.emit(ev.Collective, call.node, name="torch.distributed.fsdp.state_dict", group=None)
    version = m.version_of(inner.id)
    link = m.link(call.node, "state_dict() returns references to the weights")
    return va.StateDict(link, inner, version, m.place(call.node))


@method(va.Kind.MODULE, "load_state_dict")
@method(va.Kind.OPTIMIZER, "load_state_dict")
@method(va.Kind.OPAQUE, "load_state_dict")
@method(va.Kind.SCHEDULER, "load_state_dict")
def load_state_dict(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    value = call.first()
    for state in find_states(m, value):
        current = cast("int", m.state.get(("version", state.owner.id), 0))
        m.emit(ev.StateDictUsed, call.node, state=state, how="load", current=current)
    m.emit(
        ev.WeightsLoaded,
        call.node,
        target=obj,
        value=value,
        strict=truth_of(call.get("strict", 1), True),
        result_used=call.node is not m.discarded,
    )
    return va.UNKNOWN


def find_states(m: Machine, value: va.Value | None, depth: int = 0) -> list[va.StateDict]:
    """State dicts in a value, containers looked into."""
    out: list[va.StateDict] = []
    for member in va.alternatives(value) if value is not None else ():
        if isinstance(member, va.StateDict):
            out.append(member)
        elif (
            isinstance(member, va.Obj)
            and member.kind in (va.Kind.DICT, va.Kind.LIST, va.Kind.TUPLE)
            and depth < 3
        ):
            for inner in (*m.entries(member).values(), *m.items(member)):
                out += find_states(m, inner, depth + 1)
    return out


@function("torch.save", "accelerate.save", "safetensors.torch.save_file", "torch.distributed.checkpoint.save")
def save(m: Machine, call: Call) -> va.Value:
    value = call.first()
    for state in find_states(m, value):
        current = cast("int", m.state.get(("version", state.owner.id), 0))
        m.emit(ev.StateDictUsed, call.node, state=state, how="save", current=current)
    known = first_known(value) if value is not None else va.UNKNOWN
    entries = m.entries(known) if isinstance(known, va.Obj) else {}
    contents = tuple((str(k), v) for k, v in entries.items())
    m.emit(
        ev.Saved,
        call.node,
        how=call.name,
        value=value,
        contents=contents,
        path_value=call.get("f", 1),
        arguments=call.arguments,
    )
    return va.NONE


@function(
    "torch.load",
    "pickle.load",
    "joblib.load",
    "safetensors.torch.load_file",
    "torch.hub.load_state_dict_from_url",
)
def load(m: Machine, call: Call) -> va.Value:
    event = m.emit(ev.Loaded, call.node, how=call.name, arguments=call.arguments)
    return va.unknown(None, taint=frozenset(["loaded", f"loaded#{event.order}"]))


@method(va.Kind.MODULE, "register_forward_hook", "register_full_backward_hook", "register_forward_pre_hook")
@method(va.Kind.OPAQUE, "register_forward_hook")
def register_hook(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    hook = call.first()
    if hook is None or call.name != "register_forward_hook":
        return va.UNKNOWN
    known = first_known(hook)
    m.hooks.append((obj, known))
    return replace(m.make(va.Kind.OPAQUE, call.node, _HANDLE), over=(obj, known))


_HANDLE = "torch.utils.hooks.RemovableHandle"


@method(va.Kind.OPAQUE, "remove")
def remove_hook(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if obj.type_name != _HANDLE or len(obj.over) != 2:
        return None
    owner, hook = obj.over
    m.hooks[:] = [(o, h) for o, h in m.hooks if o is not owner or h is not hook]
    return va.NONE


@method(va.Kind.MODULE, "register_buffer", "register_parameter", "add_module", "register_module")
def register(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    name = text_of(call.get("name", 0)) or "?"
    value = call.get("tensor", 1) or call.get("module") or call.get("param") or va.NONE
    set_part(m, obj, name, value, call.node, "add_module")
    if call.last in ("add_module", "register_module") and _is_sequential(obj):
        if m.attribute(obj, name) is None:
            m.state.set(("c", obj.id), (*m.items(obj), value)[-12:])
        if m.loops or m.attribute(obj, name) is not None:
            m.state.set(("open", obj.id), True)
    m.state.set(("a", obj.id, name), value)
    return va.NONE


def _is_sequential(obj: va.Obj) -> bool:
    return obj.type_name.endswith(".Sequential") or (obj.cls is not None and obj.cls.derives("Sequential"))


@method(va.Kind.MODULE, "append", "extend", "insert", "update")
def add_part(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if obj.type_name.rpartition(".")[2] not in _CONTAINERS and obj.cls is None:
        return None
    value = call.arguments.positional[-1] if call.arguments.positional else va.NONE
    known = first_known(value)
    added = (
        m.items(known)
        if isinstance(known, va.Obj) and known.kind in (va.Kind.LIST, va.Kind.TUPLE)
        else (value,)
    )
    for part in added:
        set_part(m, obj, "[]", part, call.node, "append")
    m.state.set(("c", obj.id), (*m.items(obj), *added)[-12:])
    if m.loops:
        m.state.set(("open", obj.id), True)
    return obj


def set_part(m: Machine, whole: va.Obj, name: str, value: va.Value, node: nd.Node, how: str) -> None:
    """A module gets a part."""
    for member in va.alternatives(value):
        if isinstance(member, va.Obj) and member.kind in (va.Kind.MODULE, va.Kind.PARAMETER):
            _take_part(m, whole, member)
        elif isinstance(member, va.Unknown) and m.is_frozen(whole) and _is_module(m, whole, name):
            m.state.set(("frozen", whole.id), _UNSURE)
    known = first_known(value)
    if isinstance(known, va.Obj) and known.kind in (
        va.Kind.MODULE,
        va.Kind.PARAMETER,
        va.Kind.LIST,
        va.Kind.TUPLE,
        va.Kind.DICT,
    ):
        m.emit(
            ev.PartSet, node, module=whole, name=name, value=known, how=how, replaced=m.attribute(whole, name)
        )


def _take_part(m: Machine, whole: va.Obj, part: va.Obj) -> None:
    """Freezing reaches the parts of its time: one that is registered later learns."""
    learns = not (m.is_frozen(part) or part.type_name.endswith("Buffer"))
    m.adopt(part, whole)
    if learns and m.is_frozen(part) and not parameter_free(m, part):
        m.state.set(("frozen", part.id), NOT_RECORDING)


def _is_module(m: Machine, whole: va.Obj, name: str) -> bool:
    """Is it a part by what it was before, or by its name?"""
    before = first_known(m.attribute(whole, name))
    is_known = isinstance(before, va.Obj) and before.kind is va.Kind.MODULE
    return is_known or beliefs.by_name(name) is va.Kind.MODULE


@method(va.Kind.MODULE, "items", "values", "keys")
def module_dict(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if obj.type_name.rpartition(".")[2] != "ModuleDict":
        return None
    values = [*m.entries(obj).values(), *m.items(obj)] or [m.child(obj, "[]", va.Kind.MODULE)]
    if call.name == "items":
        values = [m.sequence((va.unknown(None), v), None, va.Kind.TUPLE) for v in values]
    elif call.name == "keys":
        values = [va.unknown(None)]
    return m.sequence(values, call.node, traits=frozenset(["modules"]))


@method(va.Kind.MODULE, "no_sync")
def no_sync(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.emit(ev.NoSync, call.node, how="no_sync", owner=None, module=obj)
    return va.Context(None, "no_sync", owner=obj)


@method(va.Kind.MODULE, "clip_grad_norm_")
def fsdp_clip(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    before = {o.id: m.gradients(o) for o in m.reached_optimizers({obj.id})}
    m.emit(ev.Clip, call.node, how="FSDP.clip_grad_norm_", before=before, roots=frozenset([obj.id]))
    return va.UNKNOWN


@method(va.Kind.MODULE, "save_pretrained", "push_to_hub")
def save_pretrained(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.emit(
        ev.Saved,
        call.node,
        how=call.name,
        value=obj,
        contents=(),
        path_value=call.first(),
        arguments=call.arguments,
    )
    return va.NONE


@method(va.Kind.MODULE, "super().__init__")
def init(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if obj.cls is not None and obj.cls.derives("Sequential", "ModuleList", "ModuleDict"):
        _fill(m, obj, call)
    return va.NONE


@method(va.Kind.MODULE, "forward", "__call__")
def forward_directly(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if m.forward is None:
        m.emit(ev.ApiCall, call.node, name="torch.nn.Module.forward", arguments=call.arguments, receiver=obj)
    return forward(m, obj, call, "forward" if call.name == "forward" else "call")


@method(va.Kind.MODULE, "update_parameters")
def update_average(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """[torch.optim.swa_utils.AveragedModel: copies or averages into its own tensors]"""
    if not obj.type_name.endswith(".AveragedModel"):
        return None
    m.raise_version(obj)
    return va.NONE


def other_method(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """Any other method of a module that we do not see: a forward when it gets data."""
    name = call.name
    if name in FORWARD_METHODS or (
        obj.origin is not va.Origin.BUILT and m.all_tensors(call.arguments) and not name.startswith(UPDATING)
    ):
        return forward(m, obj, call, "method")
    is_shown = obj.cls is not None or obj.type_name == unknowns.LIGHTNING_MODULE
    if is_shown and beliefs.by_name(name) in (va.Kind.MODULE, va.Kind.CRITERION):
        # a part that an unseen base or caller sets
        return calls.call_value(m, m.child(obj, name), call.arguments, call.node)
    return None

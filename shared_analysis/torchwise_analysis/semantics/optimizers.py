"""Optimizers, schedulers and gradient scalers."""

from __future__ import annotations

from typing import cast

from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, Turn
from torchwise_analysis.interp.abstract.machine import RECORDING, Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics import gradients
from torchwise_analysis.semantics.by_name import SOME_OPTIMIZER
from torchwise_analysis.semantics.registry import Call, fallback, function, method, truth_of
from torchwise_analysis.source import nodes as nd

KNOWN_OPTIMIZERS = frozenset(
    [
        "Adam",
        "AdamW",
        "SGD",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "NAdam",
        "RAdam",
        "LBFGS",
        "Rprop",
        "ASGD",
        "SparseAdam",
        "Adafactor",
        "Muon",
        "FusedAdam",
        "FusedLAMB",
        "LAMB",
        "Lamb",
        "Lion",
        "AdamW8bit",
        "Adam8bit",
        "PagedAdamW",
        "PagedAdamW8bit",
        "PagedAdamW32bit",
        "Prodigy",
        "Ranger",
        "Sophia",
        "SophiaG",
        "CPUAdam",
        "DeepSpeedCPUAdam",
        "ZeroRedundancyOptimizer",
        "Adan",
        "AdaBelief",
    ]
)


def build(m: Machine, call: Call) -> va.Value:
    """An optimizer is constructed."""
    given = call.get("params", 0)
    if given is None:
        given = call.get("optimizer_class") and call.get("params")
    roots, filtered = parameter_roots(m, given)
    place = m.place(call.node)
    replaced = m.was_built(place)
    obj = m.make(va.Kind.OPTIMIZER, call.node, call.name, arguments=call.arguments)
    m.owns[obj.id] = roots
    parts = None
    if roots is not None:
        parts = frozenset(o for r in roots for o in m.descendants(r))
    m.emit(
        ev.OptimizerBuilt,
        call.node,
        optimizer=obj,
        owns=roots,
        parts=parts,
        replaced=replaced,
        filtered=filtered,
    )
    return obj


@function("timm.optim.create_optimizer", "timm.optim.create_optimizer_v2")
def create_optimizer(m: Machine, call: Call) -> va.Value:
    """`create_optimizer(args, model)`, `create_optimizer_v2(model, ...)`: its class is chosen by name."""
    given = call.get("model", 1) if call.last == "create_optimizer" else call.get("model_or_params", 0)
    return build(m, Call(SOME_OPTIMIZER, va.Arguments((given or va.UNKNOWN,)), call.node))


def parameter_roots(m: Machine, value: va.Value | None) -> tuple[frozenset[int] | None, bool]:
    """Whose parameters a value holds: ids of roots, None when unknown; and whether only some of them."""
    out: set[int] = set()
    todo: list[va.Value | None] = [value]
    filtered = unknown = False
    steps = 0
    while todo and steps < 60:
        steps += 1
        item = todo.pop()
        if item is None:
            unknown = True
            continue
        for member in va.alternatives(item):
            if isinstance(member, va.Parameters):
                out |= member.roots
                filtered = filtered or member.filtered
            elif isinstance(member, va.Obj):
                if member.kind in (va.Kind.PARAMETER, va.Kind.MODULE):
                    out.add(member.id)
                elif member.kind is va.Kind.ITERATOR and member.over:
                    todo.extend(member.over if member.type_name != "generator" else [None])
                elif member.kind in (va.Kind.LIST, va.Kind.TUPLE, va.Kind.SET):
                    todo.extend(m.items(member))
                elif member.kind is va.Kind.DICT:
                    entries = m.entries(member)
                    todo.extend(
                        [entries["params"]] if "params" in entries else [*entries.values(), *m.items(member)]
                    )
                else:
                    unknown = True
            elif isinstance(member, va.Unknown) or (isinstance(member, va.Tensor) and not member.passes):
                unknown = True
    if unknown or not out:
        return None, filtered
    return frozenset(out), filtered


# --------------------------------------------------------------------------- methods


def _what(m: Machine, what: str, call: Call, obj: va.Obj) -> None:
    if m.automatic is not None:
        m.emit(ev.ManualUnderAutomatic, call.node, what=what)
    engine = m.engines.get(obj.id)
    if engine is not None:
        m.emit(ev.EngineBypassed, call.node, what=what, engine=engine)


@method(va.Kind.OPTIMIZER, "zero_grad")
def zero_grad(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    _what(m, "zero_grad", call, obj)
    m.clear(call.node, [obj, *_inside(m, obj)])
    return va.NONE


def _inside(m: Machine, obj: va.Obj) -> list[va.Obj]:
    """Optimizers of the same parameters that one of the project holds, such as the base of SAM."""
    owned = m.owns.get(obj.id)
    if obj.cls is None or not owned:
        return []
    names = cast("tuple[str, ...]", m.state.get(("names", obj.id), ()))
    held = {one.id for name in names if isinstance(one := m.attribute(obj, name), va.Obj)}
    return [one for one in m.optimizers if one.id in held and m.owns.get(one.id) == owned]


@method(va.Kind.OPTIMIZER, "super().__init__")
def own_optimizer(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """An optimizer of the project gets its parameters."""
    roots, _ = parameter_roots(m, call.get("params", 0))
    if roots:
        m.owns[obj.id] = roots
    return va.NONE


@method(va.Kind.OPTIMIZER, "step")
def step(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    _what(m, "step", call, obj)
    closure = first_known(call.get("closure", 0) or va.NONE)
    if isinstance(closure, va.Function):
        return _closure_step(m, obj, closure, call)
    _hooked(m, obj, "register_step_pre_hook", call)
    m.step(obj, call.node, arguments=call.arguments)
    _hooked(m, obj, "register_step_post_hook", call)
    return va.NONE


@method(va.Kind.OPTIMIZER, "register_step_pre_hook", "register_step_post_hook")
def register_step_hook(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    hook = call.get("hook", 0)
    if hook is not None:
        before = m.state.get(("a", obj.id, f"[{call.name}]"))
        earlier = m.items(before) if isinstance(before, va.Obj) else ()
        m.state.set(("a", obj.id, f"[{call.name}]"), m.sequence([*earlier, hook], call.node))
    return va.UNKNOWN


def _hooked(m: Machine, obj: va.Obj, when: str, call: Call) -> None:
    """`step` calls the functions that were registered for it, with the optimizer and its own arguments."""
    held = m.state.get(("a", obj.id, f"[{when}]"))
    for hooks in va.alternatives(held) if isinstance(held, va.Value) else ():
        for hook in m.items(hooks) if isinstance(hooks, va.Obj) else ():
            calls.call_value(m, hook, va.Arguments((obj, va.UNKNOWN, va.UNKNOWN)), call.node)


def _closure_step(m: Machine, obj: va.Obj, closure: va.Function, call: Call) -> va.Value:
    """The optimizer calls the closure, perhaps several times, and steps after each."""
    outer = m.loops
    loop = Loop(m.place(call.node), LoopKind.CLOSURE, "closure")
    loop = m.named_loop((m.file, m.line, -id(call.node)), loop)
    result: va.Value = va.UNKNOWN
    try:
        for turn in range(2):
            m.loops = (*outer, Turn(loop, turn))
            result = calls.call_function(m, closure, va.NO_ARGUMENTS, call.node)
            m.loops = outer
            for optimizer in _called(m, obj, call):
                m.step(optimizer, call.node, "closure")
    finally:
        m.loops = outer
    return result


def _called(m: Machine, obj: va.Obj, call: Call) -> list[va.Obj]:
    """The optimizer whose step is called, with the others that it may be instead."""
    func = call.node.func if isinstance(call.node, nd.Call) else None
    if not isinstance(func, nd.Attribute) or not isinstance(func.value, (nd.Name, nd.Attribute)):
        return [obj]
    members = va.alternatives(m.eval(func.value))
    found = [v for v in members if isinstance(v, va.Obj) and v.kind is va.Kind.OPTIMIZER]
    return found if any(v.id == obj.id for v in found) else [obj]


@method(va.Kind.OPTIMIZER, "first_step", "second_step")
def sam_step(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """Sharpness-aware minimisation: both halves clear when told to."""
    if call.name == "second_step":
        m.step(obj, call.node, arguments=call.arguments)
    if truth_of(call.get("zero_grad", 0), False) is not False:
        m.clear(call.node, [obj])
    return va.NONE


@method(va.Kind.OPTIMIZER, "add_param_group")
def add_param_group(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    roots, _ = parameter_roots(m, call.first())
    owned = m.owns.get(obj.id)
    m.owns[obj.id] = owned | roots if owned is not None and roots is not None else None
    return va.NONE


@method(va.Kind.OPTIMIZER, "backward")
def optimizer_backward(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.backward(call.first(), call.node, how="engine", owner=obj)
    return va.NONE


@fallback(va.Kind.OPTIMIZER)
def optimizer_other(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return va.UNKNOWN


# --------------------------------------------------------------------------- schedulers


def build_scheduler(m: Machine, call: Call) -> va.Value:
    obj = m.make(va.Kind.SCHEDULER, call.node, call.name, arguments=call.arguments)
    optimizer = next(
        (
            v
            for a in call.arguments
            for v in va.alternatives(a)
            if isinstance(v, va.Obj) and v.kind is va.Kind.OPTIMIZER
        ),
        None,
    )
    m.emit(ev.SchedulerBuilt, call.node, scheduler=obj, optimizer=optimizer)
    return obj


@method(va.Kind.SCHEDULER, "step", "step_update")
def scheduler_step(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    stepped = cast("frozenset[bool] | None", m.state.get(("stepped",)))
    m.emit(
        ev.SchedulerStep,
        call.node,
        scheduler=obj,
        arguments=call.arguments,
        optimizer_stepped=stepped or frozenset([False]),
        metric=_written(call.node),
    )
    return va.NONE


@method(va.Kind.INSTANCE, "super().__init__")
def own_scheduler(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """A schedule of the project on a base that a library has: that one changes rates, and steps nothing."""
    bases = obj.cls.library_bases if obj.cls is not None else ()
    return va.NONE if any(base.endswith(("Scheduler", "LRScheduler")) for base in bases) else None


def _written(node: nd.Node) -> str:
    """The last name of the first argument: "val_loss" of `step(self.val_loss)`, `step(logs["val_loss"])`."""
    if not isinstance(node, nd.Call):
        return ""
    given = [*node.args[:1], *(k.value for k in node.keywords if k.name == "metrics")]
    first = given[0] if given else None
    if isinstance(first, nd.Attribute):
        return first.attr
    if isinstance(first, nd.Subscript) and isinstance(first.index, nd.Constant):
        return first.index.value if isinstance(first.index.value, str) else ""
    return first.id if isinstance(first, nd.Name) else ""


@fallback(va.Kind.SCHEDULER)
def scheduler_other(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return va.UNKNOWN


# --------------------------------------------------------------------------- gradient scaler


@function(
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.distributed.fsdp.ShardedGradScaler",
    "torch.GradScaler",
)
def scaler(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    return m.make(va.Kind.SCALER, call.node, call.name, arguments=call.arguments)


def _disabled(obj: va.Obj) -> bool:
    flag = obj.arguments.get("enabled")
    return isinstance(flag, va.Const) and flag.value is False


@method(va.Kind.SCALER, "scale")
def scale(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    value = call.first()
    if value is None:
        return va.UNKNOWN
    if not m.tensors(value):
        return va.Tensor(m.link(call.node, "scaled by the GradScaler"), scaled=not _disabled(obj))
    return m.map_tensors(value, lambda t: replace(t, scaled=not _disabled(obj)))


@method(va.Kind.SCALER, "step")
def scaled_step(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    for optimizer in va.alternatives(call.first() or va.UNKNOWN):
        if isinstance(optimizer, va.Obj) and ("grad", optimizer.id) in m.state.facts:
            closure = first_known(call.get("closure", 1) or va.NONE)
            if isinstance(closure, va.Function):
                calls.call_function(m, closure, va.NO_ARGUMENTS, call.node)
            _hooked(m, optimizer, "register_step_pre_hook", call)
            m.step(optimizer, call.node, "scaler", obj)
            _hooked(m, optimizer, "register_step_post_hook", call)
    return va.UNKNOWN


@method(va.Kind.SCALER, "unscale_")
def unscale(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    is_known = False
    for optimizer in va.alternatives(call.first() or va.UNKNOWN):
        if isinstance(optimizer, va.Obj) and ("grad", optimizer.id) in m.state.facts:
            is_known = True
            before = m.gradients(optimizer)
            key = ("unscaled", optimizer.id)
            again = m.state.get(key) == RECORDING
            m.emit(ev.Unscale, call.node, scaler=obj, optimizer=optimizer, before=before, again=again)
            m.state.set(key, RECORDING)
            m.state.set(("grad", optimizer.id), frozenset(replace(a, scaled=False) for a in before))
    if not is_known:  # any of them
        for optimizer in m.optimizers:
            if ("grad", optimizer.id) in m.state.facts:
                after = frozenset(replace(a, scaled=False) for a in m.gradients(optimizer))
                m.state.set(("grad", optimizer.id), after)
    return va.NONE


@method(va.Kind.SCALER, "update")
def update(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    waiting = frozenset(o.id for o in m.optimizers if _is_scaled(m.gradients(o)))
    m.emit(ev.ScalerUpdate, call.node, scaler=obj, waiting=waiting)
    # those of a list, of which the optimizer that was built last has taken the place, too
    for key in [key for key in m.state.facts if key[0] == "unscaled"]:
        m.state.drop(key)
    return va.NONE


def _is_scaled(gradients: va.Gradients) -> bool:
    return bool(gradients) and all(atom.sites and atom.scaled for atom in gradients)


@method(va.Kind.SCALER, "get_scale")
def loss_scale(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return va.unknown(None, taint=frozenset([va.LOSS_SCALE]), varies=True)


@fallback(va.Kind.SCALER)
def scaler_other(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    # timm's NativeScaler: scaler(loss, optimizer, ...) does backward, unscale, clip, step and update
    return va.UNKNOWN


@function("torch._foreach_mul_", "torch._foreach_div_")
def scale_all(m: Machine, call: Call) -> va.Value:
    """Lists of gradients are scaled; whose they are is seldom seen."""
    known = first_known(call.first() or va.UNKNOWN)
    roots = known.roots if isinstance(known, va.Parameters) else None
    for optimizer in m.reached_optimizers(roots):
        changed = frozenset(replace(a, divided=True) for a in m.gradients(optimizer))
        m.state.set(("grad", optimizer.id), changed)
    return va.NONE


# --------------------------------------------------------------------------- apex


@function("apex.amp.initialize")
def apex_initialize(m: Machine, call: Call) -> va.Value:
    """Gives back what it got. [apex.amp: models and optimizers are patched in place.]"""
    given = [call.get("models", 0), call.get("optimizers", 1)]
    values = [value for value in given if value is not None]
    if not values:
        return va.UNKNOWN
    return values[0] if len(values) == 1 else m.sequence(values, call.node, va.Kind.TUPLE)


@function("apex.amp.scale_loss")
def apex_scale(m: Machine, call: Call) -> va.Value:
    """The loss to run backward on; leaving the block unscales the gradients."""
    return call.get("loss", 0) or va.UNKNOWN


@function("apex.amp.master_params")
def apex_parameters(m: Machine, call: Call) -> va.Value:
    optimizer = first_known(call.first() or va.UNKNOWN)
    owned = m.owns.get(optimizer.id) if isinstance(optimizer, va.Obj) else None
    return va.Parameters(None, owned) if owned else va.UNKNOWN


# --------------------------------------------------------------------------- gradients by hand


@function(
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.clip_grad_norm",
    "torch.nn.utils.get_total_norm",
    "torch.nn.utils.clip_grads_with_norm_",
)
def clip(m: Machine, call: Call) -> va.Value:
    roots, _ = parameter_roots(m, call.get("parameters", 0))
    reached = m.reached_optimizers(roots) if roots is not None else list(m.optimizers)
    if roots is not None:  # one of whose parameters nothing is known is not meant where another has these
        reached = [o for o in reached if m.owns.get(o.id) is not None] or reached
    before = {o.id: m.gradients(o) for o in reached}
    if call.last == "get_total_norm":
        return gradients.measured(m, gradients.found_in(m, call.arguments), call.node, call.last)
    m.emit(
        ev.Clip,
        call.node,
        how=call.name,
        before=before,
        roots=roots,
        before_managed_backward=m.automatic is not None and "training_step" in m.entry.name,
    )
    return va.Tensor(None)

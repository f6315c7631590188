"""Context managers and decorators of libraries."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import NOT_RECORDING, RECORDING, Machine, first_known
from torchwise_analysis.interp.abstract.statements import STACK
from torchwise_analysis.semantics.registry import Call, function, method, truth_of


@function(
    "torch.no_grad",
    "torch.autograd.no_grad",
    "torch.inference_mode",
    "torch.autograd.inference_mode",
    "torch.autograd.grad_mode.no_grad",
    "torch.autograd.grad_mode.inference_mode",
)
def no_grad(m: Machine, call: Call) -> va.Value:
    target = first_known(call.first()) if call.first() is not None else None
    if isinstance(target, va.Function):
        context = va.Context(None, "grad", NOT_RECORDING, name=call.last)
        return m.library.decorate(m, call.name, target) if not context.flags else _wrapped(target, context)
    on = call.last == "inference_mode" and truth_of(target, True) is False
    return va.Context(
        m.link(call.node, f"{call.last} switches autograd off"),
        "grad",
        RECORDING if on else NOT_RECORDING,
        name=call.last,
    )


def _wrapped(target: va.Function, context: va.Context) -> va.Function:
    from dataclasses import replace

    return replace(target, wraps=(*target.wraps, context))


@function("torch.enable_grad", "torch.autograd.enable_grad", "torch.autograd.grad_mode.enable_grad")
def enable_grad(m: Machine, call: Call) -> va.Value:
    return va.Context(None, "grad", RECORDING, name="enable_grad")


@function(
    "torch.set_grad_enabled", "torch.autograd.set_grad_enabled", "torch.autograd.grad_mode.set_grad_enabled"
)
def set_grad_enabled(m: Machine, call: Call) -> va.Value:
    from torchwise_analysis.interp.abstract import conditions

    value = call.get("mode", 0)
    known = conditions.truth(m, value) if value is not None else None
    if known is None and isinstance(value, va.Unknown) and value.symbol:
        known = conditions.fixed(m, value.symbol)
        if known is not None and value.negated:
            known = not known
    flags = frozenset([known]) if known is not None else frozenset([True, False])
    if call.node is m.discarded:
        # as a statement it is state: it holds until the next one
        m.state.set(("autograd",), flags)
    return va.Context(None, "grad", flags, name="set_grad_enabled")


@function(
    "torch.autocast",
    "torch.amp.autocast",
    "torch.cuda.amp.autocast",
    "torch.cpu.amp.autocast",
    "torch.amp.autocast_mode.autocast",
    "torch.autocast_mode.autocast",
    "torch.cuda.amp.autocast_mode.autocast",
)
def autocast(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    device = call.get("device_type", 0)
    on_cpu = call.name == "torch.cpu.amp.autocast" or (isinstance(device, va.Const) and device.value == "cpu")
    arguments = call.arguments
    if call.name.startswith(("torch.cuda", "torch.cpu")):
        # there the first argument is `enabled`
        enabled = arguments.get("enabled", 0)
        keywords = [(k, v) for k, v in arguments.keywords if k != "enabled"]
        if enabled is not None:
            keywords.append(("enabled", enabled))
        arguments = va.Arguments((), tuple(keywords), arguments.open)
    default = "bfloat16" if on_cpu else "default"
    return va.Context(m.link(call.node, "autocast"), "autocast", arguments=arguments, name=default)


@function(
    "torch.autograd.detect_anomaly",
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.anomaly_mode.detect_anomaly",
    "torch.autograd.anomaly_mode.set_detect_anomaly",
)
def anomaly(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    return va.Context(None, "anomaly")


@function(
    "contextlib.nullcontext",
    "contextlib.suppress",
    "torch.autograd.profiler.record_function",
    "torch.profiler.record_function",
    "torch.profiler.profile",
    "torch.autograd.profiler.profile",
    "torch.cuda.stream",
    "torch.cuda.device",
    "torch.random.fork_rng",
    "torch.nn.attention.sdpa_kernel",
    "torch.backends.cuda.sdp_kernel",
    "torch.autograd.graph.save_on_cpu",
    "torch.device",
    "warnings.catch_warnings",
    "torch.cuda.nvtx.range",
    "torch.nn.utils.parametrize.cached",
    "torch.utils.checkpoint.set_checkpoint_early_stop",
    "torch.autograd.graph.saved_tensors_hooks",
)
def neutral(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    if call.name == "torch.device":
        device = first_known(call.first() or va.UNKNOWN)
        return va.Const(None, device.value) if isinstance(device, va.Const) else va.unknown("device")
    return va.Context(None, "exit", name=call.last)


def by_hand(m: Machine, context: va.Context, name: str) -> None:
    """`guard.__enter__()`, `guard.__exit__(...)`: a grad mode that holds from one call to the other."""
    if context.what != "grad":
        return
    if name == "__enter__":
        m.state.set(("autograd before",), m.state.get(("autograd",), RECORDING))
        m.state.set(("autograd",), context.flags)
    elif name == "__exit__":
        m.state.set(("autograd",), m.state.get(("autograd before",), RECORDING))


_ENTERED = "[entered]"


@function(STACK, "contextlib.AsyncExitStack")
def stack(m: Machine, call: Call) -> va.Value:
    return m.make(va.Kind.OPAQUE, call.node, STACK)


@method(va.Kind.OPAQUE, "enter_context")
def enter_context(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """What is entered is left when the stack is closed, or the `with` block of the stack ends."""
    if obj.type_name != STACK:
        return None
    context = first_known(call.first() or va.UNKNOWN)
    held = m.state.get(("a", obj.id, _ENTERED))
    entered = m.items(held) if isinstance(held, va.Obj) else ()
    m.state.set(("a", obj.id, _ENTERED), m.sequence((*entered, context), call.node))
    if isinstance(context, va.Context):
        return m.library.method(m, context, "__enter__", va.NO_ARGUMENTS, call.node)
    if isinstance(context, va.Obj) and context.cls is not None:
        return calls.call_method(m, context, "__enter__", va.NO_ARGUMENTS, call.node)
    m.escape(context, call.node, "enter_context")
    return va.UNKNOWN


@method(va.Kind.OPAQUE, "close", "__exit__")
def close(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if obj.type_name != STACK:
        return None
    held = m.state.get(("a", obj.id, _ENTERED))
    nones = va.Arguments((va.NONE, va.NONE, va.NONE))
    for context in reversed(m.items(held)) if isinstance(held, va.Obj) else ():
        if isinstance(context, va.Context):
            m.library.method(m, context, "__exit__", nones, call.node)
        elif isinstance(context, va.Obj) and context.cls is not None:
            calls.call_method(m, context, "__exit__", nones, call.node)
    m.state.drop(("a", obj.id, _ENTERED))
    return va.NONE


# What a decorator of a library leaves as a mark on the function.
MARKS = {
    "property": "property",
    "staticmethod": "staticmethod",
    "classmethod": "classmethod",
    "contextmanager": "contextmanager",
    "asynccontextmanager": "contextmanager",
    "abstractmethod": "abstract",
    "cached_property": "property",
    "abstractproperty": "property",
}

GRAD_DECORATORS = {
    "no_grad": NOT_RECORDING,
    "inference_mode": NOT_RECORDING,
    "enable_grad": RECORDING,
}

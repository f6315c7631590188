"""Ignite's engines: an update function of the user's, run over a loader, with handlers of events around it.

An engine runs when its `run` is called, or as soon as it is made where nobody in view runs it.
[ignite.engine.Engine, 0.5]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchwise_analysis.interp.abstract import calls, iteration
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.limits import DeadPathError
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, Turn
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics.registry import Call, function, method
from torchwise_analysis.source import nodes as nd

#: A trait of what `engine.on(event)` gives: a function that it is called with handles the event.
HANDLER = "handler"

_TURNS = 2
_UPDATE, _HANDLERS = "[update]", "[handlers]"
_BEFORE, _AFTER = ("STARTED", "EPOCH_STARTED"), ("EPOCH_COMPLETED", "COMPLETED")
_EACH_BEFORE = ("GET_BATCH_STARTED", "GET_BATCH_COMPLETED", "ITERATION_STARTED")
_EACH_AFTER = ("ITERATION_COMPLETED",)
_EVENTS = (*_BEFORE, *_AFTER, *_EACH_BEFORE, *_EACH_AFTER)


def is_engine(obj: va.Obj) -> bool:
    return obj.kind is va.Kind.TRAINER and obj.type_name.startswith("ignite.")


def begin(m: Machine, engine: va.Obj, call: Call) -> None:
    """`Engine(update)`"""
    update = first_known(call.first() or va.UNKNOWN)
    if not isinstance(update, va.Function):
        return
    m.state.set(("a", engine.id, _UPDATE), update)
    if "run" not in m.frames[-1].facts.names:
        batch = m.make(va.Kind.OPAQUE, None, name="batch")
        _epoch(m, engine, batch, None, call.node)


def run(m: Machine, engine: va.Obj, call: Call) -> None:
    """`engine.run(loader, max_epochs)`: handlers of events between the updates."""
    if not is_engine(engine):
        return
    over = call.get("data", 0) or va.UNKNOWN
    batch = iteration.element(m, over, call.node)
    known = first_known(over)
    source = known.id if isinstance(known, va.Obj) else None
    loop = m.named_loop((m.file, m.line, -id(call.node)), Loop(m.place(call.node), LoopKind.RANGE, "epochs"))
    outer = m.loops
    try:
        for turn in range(_TURNS):
            m.loops = (*outer, Turn(loop, turn))
            _epoch(m, engine, batch, source, call.node)
    finally:
        m.loops = outer


def _epoch(m: Machine, engine: va.Obj, batch: va.Value, source: int | None, node: nd.Node) -> None:
    update = m.attribute(engine, _UPDATE)
    place = engine.place or m.place(node)
    span = place.span
    key = (place.path, span.line, -span.column - 1)
    loop = m.named_loop(key, Loop(place, LoopKind.BATCHES, "ignite.Engine", source=source))
    outer = m.loops
    _handle(m, engine, _BEFORE, node)
    try:
        for turn in range(_TURNS):
            m.loops = (*outer, Turn(loop, turn))
            iteration.forget(m, batch)
            _tell(m, engine, "iteration", va.Const(None, turn + 1, va.Counter()))
            _handle(m, engine, _EACH_BEFORE, node)
            if isinstance(update, va.Function):
                _call(m, lambda: _tell(m, engine, "output", _updated(m, update, engine, batch, node)))
            _handle(m, engine, _EACH_AFTER, node)
    finally:
        m.loops = outer
    _handle(m, engine, _AFTER, node)


def _updated(m: Machine, update: va.Function, engine: va.Obj, batch: va.Value, node: nd.Node) -> va.Value:
    return calls.call_function(m, update, va.Arguments((engine, batch)), node)


def _tell(m: Machine, engine: va.Obj, name: str, value: va.Value) -> None:
    """`engine.state.output` and its like"""
    state = m.child(engine, "state")
    if isinstance(state, va.Obj):
        m.state.set(("a", state.id, name), value)


def _call(m: Machine, what: Callable[[], object]) -> None:
    """One that always raises ends the run of the engine only."""
    try:
        what()
    except DeadPathError:
        m.alive = True


# --------------------------------------------------------------------------- handlers


@method(va.Kind.TRAINER, "on")
def on(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    if not is_engine(engine):
        return None
    traits = frozenset([HANDLER])
    return m.make(va.Kind.OPAQUE, call.node, over=(engine,), arguments=call.arguments, traits=traits)


@method(va.Kind.TRAINER, "add_event_handler")
def add_event_handler(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    if not is_engine(engine):
        return None
    event, handler = call.get("event_name", 0), call.get("handler", 1)
    if event is not None and handler is not None:
        _attach(m, engine, event, handler, call.arguments.positional[2:], call.node)
    return va.UNKNOWN


def attached(m: Machine, decorator: va.Obj, arguments: va.Arguments, node: nd.Node) -> va.Value:
    """`engine.on(event, ...)(handler)`"""
    engine, given = decorator.over[0], decorator.arguments.positional
    handler = arguments.positional[0] if arguments.positional else va.UNKNOWN
    if isinstance(engine, va.Obj) and given:
        _attach(m, engine, given[0], handler, given[1:], node)
    return handler


def _attach(
    m: Machine, engine: va.Obj, event: va.Value, handler: va.Value, given: Iterable[va.Value], node: nd.Node
) -> None:
    known = first_known(handler)
    if not isinstance(known, va.Function):
        for value in (handler, *given):
            m.escape(value, node, "an event handler")
        return
    held = m.attribute(engine, _HANDLERS)
    if not isinstance(held, va.Obj):
        held = m.sequence((), None)
        m.state.set(("a", engine.id, _HANDLERS), held)
    entry = m.sequence((event, known, *given), None, va.Kind.TUPLE)
    m.state.set(("c", held.id), (*m.items(held), entry))


@function(*(f"ignite.engine.Events.{name}" for name in _EVENTS))
def some_events(m: Machine, call: Call) -> va.Value:
    """`Events.ITERATION_COMPLETED(every=100)`"""
    return va.Context(m.link(call.node, "only some of these events"), "event", name=call.last)


@function(
    "ignite.handlers.Checkpoint",
    "ignite.handlers.ModelCheckpoint",
    "ignite.handlers.checkpoint.Checkpoint",
    "ignite.handlers.checkpoint.ModelCheckpoint",
)
def saver(m: Machine, call: Call) -> va.Value:
    """Reads the states of what it is to save, and changes nothing."""
    return m.make(va.Kind.OPAQUE, call.node, call.name, arguments=call.arguments)


def _handle(m: Machine, engine: va.Obj, events: tuple[str, ...], node: nd.Node) -> None:
    held = m.attribute(engine, _HANDLERS)
    entries = m.items(held) if isinstance(held, va.Obj) else ()
    for event, handler, *given in [m.items(entry) for entry in entries if isinstance(entry, va.Obj)]:
        for member in va.alternatives(event):
            name = member.last if isinstance(member, va.Library) else ""
            if isinstance(member, va.Context):
                name = member.name
            if name in events and isinstance(handler, va.Function):
                _handled(m, engine, member, handler, given, node)


def _handled(
    m: Machine, engine: va.Obj, event: va.Value, handler: va.Function, given: list[va.Value], node: nd.Node
) -> None:
    guards = m.guards
    if isinstance(event, va.Context) and event.evidence is not None:
        m.guards = (*guards, ev.Guard(event.evidence.place, "periodic", True, loops=len(m.loops)))
    try:
        _call(m, lambda: calls.call_function(m, handler, va.Arguments((engine, *given)), node))
    finally:
        m.guards = guards

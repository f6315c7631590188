"""The trace: what happened when the file was run in the head, with its indices built once.

A rule is a function `Trace -> Iterator[...]` of 5 to 25 lines. Typical questions and their answers:

* all events of a kind in order: `trace.of(Store)`;
* did a backward reach this pass: `pass_id in trace.trained` (the first Backward), `trace.used`
  (backward, autograd.grad or feeding a pass that is used);
* was a stored value consumed by a later backward: `token in trace.consumed`;
* the state before an event: fields of the event itself;
* how sure: `trace.certainty(...)` counts beliefs in evidence and escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast, overload

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, LoopPath
from torchwise_analysis.interp.abstract.places import Ground, Spot
from torchwise_analysis.interp.abstract.values import Kind, Obj, Token, Value, alternatives
from torchwise_analysis.names.releases import Releases
from torchwise_analysis.source.nodes import Span

if TYPE_CHECKING:
    from torchwise_analysis.names.launches import Launches

E = TypeVar("E", bound=ev.Event)
F = TypeVar("F", bound=ev.Event)
R = TypeVar("R")


def _unknown_releases(library: str) -> Releases | None:
    return None


def _unknown_launches(path: str) -> Launches | None:
    return None


ENGINE_STEP = "deepspeed.engine.step"
_HOLDING = (Kind.ITERATOR, Kind.LIST, Kind.TUPLE, Kind.DICT, Kind.SET)


@dataclass(slots=True)
class Pass:
    """A forward pass. `modules`: ids of every module and parameter it ran (filled while it runs).

    `inputs`: earlier passes whose graph flowed in, also later through layers. `loss_only`: started by
    a loss on data without graph, so no model of ours is known to be behind it. `autocasts`: the types that
    parts of it ran under, also where the forward itself switches autocast on. `recorded`, `unrecorded`:
    modules that ran in it with autograd on and off, the whole where its forward ends so.
    """

    id: int
    forward: ev.Forward
    modules: set[int] = field(default_factory=set[int])
    inputs: set[int] = field(default_factory=set[int])
    loss_only: bool = False
    autocasts: set[str] = field(default_factory=set[str])
    recorded: set[int] = field(default_factory=set[int])
    unrecorded: set[int] = field(default_factory=set[int])

    @property
    def loops(self) -> LoopPath:
        return self.forward.loops

    @property
    def is_quiet(self) -> bool:
        """Did all that is known to run in it do so with autograd off?"""
        return bool(self.unrecorded) and not self.recorded


@dataclass(frozen=True, slots=True)
class Silence:
    """What was not analysed, counted per file; grading and `--statistics` read it.

    dead_paths: paths that ended because a callee never returns. skipped: callees not entered because
    they cannot matter. cut: callees not entered for depth or recursion. unknown_backwards: backwards on
    a value that no known forward made. lost: joins that gave up a value. fuel: visits ran out.
    failed: errors of ours, by message. unreached: entries never run. by_function: path, function, what (a
    name from above) and how often.
    """

    dead_paths: int = 0
    skipped: int = 0
    cut: int = 0
    unknown_backwards: int = 0
    unknown_calls: int = 0
    lost: int = 0
    visits: int = 0
    fuel_spent: bool = False
    failed: tuple[str, ...] = ()
    not_analysed: tuple[tuple[Place, str], ...] = ()
    by_function: tuple[tuple[str, str, str, int], ...] = ()


@dataclass(slots=True)
class Trace:
    """Everything that happened in the runs of one file. Built by `abstract.run`, then read only."""

    path: str
    events: Sequence[ev.Event]
    passes: Mapping[int, Pass]
    objects: Mapping[int, Obj]
    parents: Mapping[int, int]
    consumed: frozenset[Token]
    backed: frozenset[int]
    escaped_passes: frozenset[int]
    escaped_tokens: frozenset[Token]
    escaped: frozenset[int]
    owns: Mapping[int, frozenset[int] | None]
    facts: Mapping[tuple[object, ...], object]
    silence: Silence
    analysed_files: tuple[str, ...] = ()
    reached: frozenset[tuple[str, int, int, str]] = frozenset()
    passed: Mapping[str, int] = field(default_factory=dict[str, int])
    ground: Ground | None = None
    releases: Callable[[str], Releases | None] = _unknown_releases
    launches: Callable[[str], Launches | None] = _unknown_launches
    _cache: dict[str, object] = field(default_factory=dict[str, object])

    # ------------------------------------------------------------------ events

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """Events of one type in the order in which they happened."""
        return cast("tuple[E, ...]", self.once("kinds", self._by_kind).get(kind, ()))

    @overload
    def of_any(self, first: type[E], second: type[F], /) -> tuple[E | F, ...]: ...
    @overload
    def of_any(self, *kinds: type[E]) -> tuple[E, ...]: ...
    def of_any(self, *kinds: type[ev.Event]) -> tuple[ev.Event, ...]:
        """Events of several types in the order in which they happened."""
        return tuple(sorted((e for kind in kinds for e in self.of(kind)), key=_order))

    @property
    def forwards(self) -> tuple[ev.Forward, ...]:
        return self.of(ev.Forward)

    @property
    def backwards(self) -> tuple[ev.Backward, ...]:
        return self.of(ev.Backward)

    @property
    def steps(self) -> tuple[ev.Step, ...]:
        return self.of(ev.Step)

    @property
    def updates(self) -> tuple[ev.Event, ...]:
        """What changes weights: steps of optimizers, and of engines that drive one themselves."""
        return self.once("updates", lambda: _in_order([*self.steps, *self.api(ENGINE_STEP)]))

    @property
    def clears(self) -> tuple[ev.Clear, ...]:
        return self.of(ev.Clear)

    @property
    def stores(self) -> tuple[ev.Store, ...]:
        return self.of(ev.Store)

    @property
    def losses(self) -> tuple[ev.LossCall, ...]:
        return self.of(ev.LossCall)

    def api(self, *names: str) -> tuple[ev.ApiCall, ...]:
        """Calls of these qualified names; a name ending in `.` is a prefix."""
        by_name = self.once("api", self._by_name)
        found = [
            e
            for name, events in by_name.items()
            if name in names or any(n.endswith(".") and name.startswith(n) for n in names)
            for e in events
        ]
        return tuple(sorted(found, key=_order))

    def place(self, path: str, span: Span) -> Place:
        """The place of a span on a function's or class's source, shifted by its `line`.

        Places of events compare by the block they were run in: compare their spans with this one's.
        """
        if path != self.path or self.ground is None:
            return Place(path, span)
        return Spot(path, span, self.ground)

    # ------------------------------------------------------------------ passes

    @property
    def trained(self) -> Mapping[int, ev.Backward]:
        """Passes that a backward reached, with the first that did."""
        return self.once("trained", self._trained)

    @property
    def taught(self) -> frozenset[int]:
        """Passes whose backward gave gradients to weights for a step to use: neither such as were asked for
        inputs alone (`autograd.grad`) nor such as were cleared before any step (measured, an attack)."""
        return self.once("taught", self._taught)

    @property
    def used(self) -> frozenset[int]:
        """Passes whose graph some backward or autograd.grad used, or that feed such a pass."""
        return self.once("used", self._used)

    @property
    def stored_passes(self) -> frozenset[int]:
        return self.once("stored", lambda: frozenset(p for e in self.stores for p in e.passes))

    @property
    def returned_passes(self) -> frozenset[int]:
        """Passes with whose graph an entry returns something."""
        return self.once("returned", lambda: frozenset(p for e in self.of(ev.Returned) for p in e.passes))

    @property
    def used_loops(self) -> frozenset[Place]:
        """Places of the loops around passes whose graph is used."""
        return self.once("used_loops", self._used_loops)

    @property
    def emptied(self) -> frozenset[int]:
        """Ids of containers that are emptied somewhere."""
        return self.once("emptied", lambda: frozenset(e.holder.id for e in self.of(ev.Emptied)))

    @property
    def cleared(self) -> frozenset[int]:
        """Ids of optimizers that something clears somewhere."""
        return self.once("cleared", lambda: frozenset(e.optimizer.id for e in self.clears))

    @property
    def stepped(self) -> frozenset[int]:
        return self.once("stepped", lambda: frozenset(e.optimizer.id for e in self.steps))

    @property
    def trained_modules(self) -> frozenset[int]:
        """Ids of modules (and their parents) that a training forward ran."""
        return self.once("trained_modules", self._trained_modules)

    def at(self, kind: type[E], places: Iterable[Place], before: int) -> tuple[E, ...]:
        """Events of a type at these places, earlier than the event of the order `before`."""
        by_place = self.once(f"{kind.__name__} at", lambda: _by_place(self.of(kind)))
        found = [e for place in places for e in by_place.get(place, ()) if e.order < before]
        return tuple(sorted(found, key=_order))

    def backwards_over(self, place: Place) -> tuple[tuple[ev.Forward, ev.Backward], ...]:
        """Forwards at a place, each with the backwards that ran over its graph."""
        return tuple(self.once("backwards_over", self._backwards_by_forward).get(place, ()))

    def steps_after(self, order: int, optimizer: int) -> bool:
        """Does an optimizer step behind the event `order`?"""
        return self.once("last_steps", self._last_steps).get(optimizer, -1) > order

    def is_trained_after(self, order: int, oids: Iterable[int]) -> bool:
        """Did a forward behind the event `order` run one of these modules, and a backward reach it?"""
        last = self.once("last_trained", self._last_trained)
        return any(last.get(oid, -1) > order for oid in oids)

    def forward_of(self, pass_: int) -> ev.Forward:
        return self.passes[pass_].forward

    # ------------------------------------------------------------------ objects

    def lineage(self, oid: int) -> tuple[int, ...]:
        """The object and what it is a part of, innermost first."""
        out, parents = [oid], self.parents
        while (whole := parents.get(out[-1])) is not None and len(out) < 24 and whole not in out:
            out.append(whole)
        return tuple(out)

    def parts(self, oid: int) -> tuple[Obj, ...]:
        """Every object that is a part of this one, in order of making."""
        return tuple(self.once("parts", self._by_whole).get(oid, ()))

    def has_layer(self, oid: int, *type_parts: str) -> bool:
        """Is the object, or a part of it, a library module whose type name contains one of these?"""
        whole = (self.objects[oid], *self.parts(oid)) if oid in self.objects else self.parts(oid)
        return any(t in o.type_name for o in whole for t in type_parts)

    def fact(self, *key: object) -> object:
        """A fact as the last run left it."""
        return self.facts.get(key)

    def attribute(self, oid: int, name: str) -> Value | None:
        """The attribute as the last run left it."""
        value = self.fact("a", oid, name)
        return value if isinstance(value, Value) else None

    def items(self, oid: int) -> tuple[Value, ...]:
        """Positional and keyed contents of a container as the last run left them."""
        found = self.fact("c", oid)
        keyed = self.fact("d", oid)
        listed = cast("tuple[object, ...]", found) if isinstance(found, tuple) else ()
        named = cast("dict[object, object]", keyed) if isinstance(keyed, dict) else {}
        return tuple(v for v in (*listed, *named.values()) if isinstance(v, Value))

    def entries(self, oid: int) -> Mapping[object, Value]:
        """Keyed contents of a dictionary as the last run left them."""
        keyed = self.fact("d", oid)
        named = cast("dict[object, object]", keyed) if isinstance(keyed, dict) else {}
        return {key: value for key, value in named.items() if isinstance(value, Value)}

    def holds(self, value: Value | None, oid: int, depth: int = 0) -> bool:
        """Is the value this object, an iterator over it, or a container with it?"""
        if value is None or depth > 3:
            return False
        for one in alternatives(value):
            if not isinstance(one, Obj):
                continue
            inner = (*one.over, *self.items(one.id)) if one.kind in _HOLDING else ()
            if one.id == oid or any(self.holds(v, oid, depth + 1) for v in inner):
                return True
        return False

    @property
    def kept_values(self) -> tuple[Value, ...]:
        """What attributes and variables of the module hold at the end."""
        return self.once("kept_values", self._kept_values)

    # ------------------------------------------------------------------ loops

    def innermost(self, event: ev.Event, *kinds: LoopKind) -> Loop | None:
        """The innermost loop around the event of these kinds (any kind when none is given)."""
        for turn in reversed(event.loops):
            if not kinds or turn.loop.kind in kinds:
                return turn.loop
        return None

    def walks_loader(self, loop: Loop) -> bool:
        """Is it a loop, or a comprehension, over the batches of a loader?"""
        source = self.objects.get(loop.source) if loop.source is not None else None
        is_loader = source is not None and source.kind is Kind.LOADER
        return loop.kind is LoopKind.BATCHES or (loop.kind is LoopKind.COMPREHENSION and is_loader)

    def is_bounded(self, loops: Iterable[Loop]) -> bool:
        """Do all of these loops run a small literal number of times?"""
        return all(loop.count is not None and loop.count <= 16 for loop in loops)

    def repeats(self, event: ev.Event) -> bool:
        """Does the event stand in a loop that is not an implicit call loop?"""
        return any(not t.loop.is_call and t.loop.kind is not LoopKind.CLOSURE for t in event.loops)

    def is_cut_short(self, event: ev.Event) -> bool:
        """Did the fuel run out behind the event, in the entry or in a callee that it happened in?"""
        cuts = self.once("cuts", lambda: _by_entry(self.of(ev.CutShort)))
        return any(cut.order > event.order and _holds(cut, event) for cut in cuts.get(event.scene.entry, ()))

    def is_followed_in_part(self, place: Place) -> bool:
        """Did the fuel run out behind everything that happened at a place, in each run that came there?"""
        if not self.of(ev.CutShort):
            return False
        events = self.once("places", lambda: _by_place(self.events)).get(place, ())
        return bool(events) and all(self.is_cut_short(event) for event in events)

    def training_loops(self) -> frozenset[Place]:
        """Places of loops in which weights are changed."""
        return self.once(
            "training_loops", lambda: frozenset(t.loop.place for e in self.updates for t in e.loops)
        )

    # ------------------------------------------------------------------ modes and roles

    def is_training_source(self, source: int) -> bool:
        """Do batches of this loader reach a backward?"""
        return source in self.once("training_sources", self._training_sources)

    def owned_by(self, oid: int, kind: Kind) -> bool:
        return any(self.objects[p].kind is kind for p in self.lineage(oid) if p in self.objects)

    # ------------------------------------------------------------------ derived, once

    def recalled(self, name: str, make: Callable[[], R]) -> R:  # noqa: ARG002 - for traces of texts under edit
        """What `make` reads off the trace; of a text under edit what it read before, if that is the same."""
        return make()

    def once(self, name: str, make: Callable[[], R]) -> R:
        """What follows from the trace alone, made when it is first asked for."""
        if name not in self._cache:
            self._cache[name] = make()
        return cast("R", self._cache[name])

    def _by_kind(self) -> Mapping[type, tuple[ev.Event, ...]]:
        found: dict[type, list[ev.Event]] = {}
        for event in self.events:
            found.setdefault(type(event), []).append(event)
        return {kind: tuple(events) for kind, events in found.items()}

    def _by_name(self) -> Mapping[str, list[ev.ApiCall]]:
        found: dict[str, list[ev.ApiCall]] = {}
        for event in self.of(ev.ApiCall):
            found.setdefault(event.name, []).append(event)
        return found

    def _by_whole(self) -> Mapping[int, list[Obj]]:
        found: dict[int, list[Obj]] = {}
        for obj in self.objects.values():
            for whole in self.lineage(obj.id)[1:]:
                found.setdefault(whole, []).append(obj)
        return found

    def _trained(self) -> Mapping[int, ev.Backward]:
        out: dict[int, ev.Backward] = {}
        for e in self.backwards:
            for p in sorted(e.passes):
                out.setdefault(p, e)
        return out

    def _taught(self) -> frozenset[int]:
        stepped = {site for step in self.steps for atom in step.before for site, _ in atom.sites}
        wiped = {site for clear in self.clears for atom in clear.before for site, _ in atom.sites}
        return frozenset(
            pass_
            for one in self.backwards
            if one.how not in _FOR_INPUTS and (one.place in stepped or one.place not in wiped)
            for pass_ in one.passes
        )

    def _kept_values(self) -> tuple[Value, ...]:
        frames = [k[1] for k in self.facts if k[0] == "v" and isinstance(k[1], int)]
        module = min(frames, default=0)  # its frame was made first
        kept = ((k, v) for k, v in self.facts.items() if isinstance(v, Value))
        return tuple(v for k, v in kept if k[0] == "a" or (k[0] == "v" and k[1] == module))

    def _used(self) -> frozenset[int]:
        used = set(self.backed)
        todo = sorted(used)
        while todo:
            for p in sorted(self.passes[todo.pop()].inputs):
                if p not in used and p in self.passes:
                    used.add(p)
                    todo.append(p)
        return frozenset(used)

    def _backwards_by_forward(self) -> Mapping[Place, list[tuple[ev.Forward, ev.Backward]]]:
        found: dict[Place, list[tuple[ev.Forward, ev.Backward]]] = {}
        for event in self.backwards:
            for p in sorted(event.passes):
                if p in self.passes:
                    forward = self.passes[p].forward
                    found.setdefault(forward.place, []).append((forward, event))
        return found

    def _last_steps(self) -> Mapping[int, int]:
        return {event.optimizer.id: event.order for event in self.steps}

    def _last_trained(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for p in self.trained:
            order = self.passes[p].forward.order
            for oid in self.passes[p].modules:
                found[oid] = max(order, found.get(oid, -1))
        return found

    def _used_loops(self) -> frozenset[Place]:
        passes = (self.passes[p] for p in self.used if p in self.passes)
        return frozenset(turn.loop.place for one in passes for turn in one.loops)

    def _trained_modules(self) -> frozenset[int]:
        out: set[int] = set()
        for p in self.trained:
            for m in self.passes[p].modules:
                out.update(self.lineage(m))
        return frozenset(out)

    def _training_sources(self) -> frozenset[int]:
        return frozenset(s for p in self.trained for s in self.passes[p].forward.sources)


#: Backwards that give gradients of inputs (an attack, a saliency map) and store none in the weights.
_FOR_INPUTS = ("autograd.grad", "functional")


def _order(event: ev.Event) -> int:
    return event.order


def _in_order(events: Iterable[ev.Event]) -> tuple[ev.Event, ...]:
    return tuple(sorted(events, key=_order))


def _by_entry(cuts: Iterable[ev.CutShort]) -> dict[ev.Entry, list[ev.CutShort]]:
    found: dict[ev.Entry, list[ev.CutShort]] = {}
    for cut in cuts:
        found.setdefault(cut.scene.entry, []).append(cut)
    return found


def _holds(cut: ev.CutShort, event: ev.Event) -> bool:
    """Is the event one of the entry or of the call that was given up?"""
    depth = len(cut.calls)
    if cut.is_entry:
        return True
    is_deeper = len(event.calls) > depth and event.calls[:depth] == cut.calls
    return is_deeper and event.calls[depth].place == cut.place


def _by_place(events: Iterable[E]) -> dict[Place, list[E]]:
    found: dict[Place, list[E]] = {}
    for event in events:
        found.setdefault(event.place, []).append(event)
    return found

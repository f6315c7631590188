"""What rules found in the trace of the text before, kept for those that read nothing which is different now.

A trace under edit notes which of its parts each rule asks for: events of a kind, a table, one fact. When the
runs of an edit are compared with those before, the parts that differ are named; a rule that read none of
them finds again what it found. Orders of events count up when something is done earlier in the run, so they
are left out of the comparison as long as events of the same kinds follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract.alike import alike_but_orders
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import SOURCE_READS

if TYPE_CHECKING:
    from torchwise_analysis.interp.abstract.runs import Content

E = TypeVar("E", bound=ev.Event)
R = TypeVar("R")

# Runs that an edit changed, and events in them, beyond which comparing costs more than asking all rules.
_MOST_RUNS = 8
_MOST_EVENTS = 2_000

_TABLES = {
    "passes": "passes",
    "objects": "objects",
    "parents": "parents",
    "owns": "owns",
    "modules": "analysed_files",
    "consumed": "consumed",
    "backed": "backed",
    "escaped_passes": "escaped_passes",
    "escaped_tokens": "escaped_tokens",
    "escaped": "escaped",
}

Parts: TypeAlias = "set[object]"


@dataclass(slots=True)
class Recall:
    """By rule: what it found, and what it read for that."""

    found: dict[str, tuple[object, frozenset[object]]] = field(
        default_factory=dict[str, tuple[object, frozenset[object]]]
    )

    def rests_on(self, changed: Parts) -> bool:
        """Did a rule read one of these parts?"""
        return bool(changed) and any(not read.isdisjoint(changed) for _, read in self.found.values())

    def drop(self, changed: Parts | None) -> None:
        """Forget what rests on one of these parts; None: everything."""
        if changed is None:
            self.found.clear()
            return
        self.found = {name: known for name, known in self.found.items() if known[1].isdisjoint(changed)}


@dataclass(slots=True)
class Noted(Trace):
    """A trace that notes what is read of it."""

    recall: Recall = field(default_factory=Recall)
    read_now: Parts = field(default_factory=set[object])
    read_for: dict[str, frozenset[object]] = field(default_factory=dict[str, frozenset[object]])

    def recalled(self, name: str, make: Callable[[], R]) -> R:
        known = self.recall.found.get(name)
        if known is None:
            known = self.recall.found[name] = self._noting(make)
        return cast("R", known[0])

    def once(self, name: str, make: Callable[[], R]) -> R:
        if name not in self._cache:
            value, self.read_for[name] = self._noting(make)
            self._cache[name] = value
        self.read_now |= self.read_for[name]
        return cast("R", self._cache[name])

    def of(self, kind: type[E]) -> tuple[E, ...]:
        if "kinds" not in self._cache:
            self._cache["kinds"], _ = self._noting(self._by_kind)
        self.read_now.add(kind)
        kinds = cast("Mapping[type, tuple[ev.Event, ...]]", self._cache["kinds"])
        return cast("tuple[E, ...]", kinds.get(kind, ()))

    def fact(self, *key: object) -> object:
        self.read_now.add(("fact", key))
        return _FACTS(self).get(key)

    def _noting(self, make: Callable[[], R]) -> tuple[R, frozenset[object]]:
        outer, self.read_now = self.read_now, set()
        around, SOURCE_READS.codes = SOURCE_READS.codes, set()
        try:
            value = make()
            return value, frozenset(self.read_now | SOURCE_READS.codes)
        finally:
            self.read_now, SOURCE_READS.codes = outer, around


def noted(trace: Trace, recall: Recall) -> Noted:
    """The trace, noting from now on what is read of it."""
    return Noted(**{one.name: getattr(trace, one.name) for one in fields(Trace)}, recall=recall)


def _slot(name: str) -> Callable[[Trace], Any]:
    member = vars(Trace)[name]
    return cast("Callable[[Trace], Any]", member.__get__)


_FACTS: Callable[[Trace], Mapping[tuple[object, ...], object]] = _slot("facts")


def _noted(name: str) -> property:
    """The field, noting that it was read."""
    member = vars(Trace)[name]

    def read(self: Noted) -> object:
        self.read_now.add(name)
        return member.__get__(self)

    return property(read, member.__set__)


for _name in (*_TABLES.values(), "events", "facts", "silence", "reached"):
    setattr(Noted, _name, _noted(_name))


# --------------------------------------------------------------------------- what differs


def changed_parts(before: Sequence[Content], after: Sequence[Content]) -> Parts | None:
    """The parts of a trace that differ between two texts' runs; None when it is not worth finding out."""
    if len(before) != len(after):
        return None
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
    if len(pairs) > _MOST_RUNS:
        return None
    changed: Parts = set()
    for old, new in pairs:
        found = _different(old, new)
        if found is None:
            return None
        changed |= found
    return changed


def _different(old: Content, new: Content) -> Parts | None:
    changed = _different_events(old.events, new.events)
    if changed is None:
        return None
    changed |= {
        part for name, part in _TABLES.items() if not alike_but_orders(old.tables[name], new.tables[name])
    }
    if (old.reached, old.unfinished) != (new.reached, new.unfinished):
        changed.add("reached")
    return changed | _different_facts(old.facts, new.facts)


def _different_events(old: Sequence[ev.Event], new: Sequence[ev.Event]) -> Parts | None:
    if max(len(old), len(new)) > _MOST_EVENTS:
        return None
    first, second = _by_kind(old), _by_kind(new)
    changed: Parts = {
        kind
        for kind in {**first, **second}
        if not alike_but_orders(first.get(kind, ()), second.get(kind, ()))
    }
    same = [type(event) for event in old if type(event) not in changed]
    if same != [type(event) for event in new if type(event) not in changed]:
        return None
    if changed:
        changed.add("events")
    return changed


def _by_kind(events: Iterable[ev.Event]) -> dict[type, list[ev.Event]]:
    found: dict[type, list[ev.Event]] = {}
    for event in events:
        found.setdefault(type(event), []).append(event)
    return found


def _different_facts(
    old: Mapping[tuple[object, ...], object], new: Mapping[tuple[object, ...], object]
) -> Parts:
    keys = {**old, **new}
    changed: Parts = {
        ("fact", key)
        for key in keys
        if key not in old or key not in new or not alike_but_orders(old[key], new[key])
    }
    if changed or list(old) != list(new):
        changed.add("facts")
    return changed

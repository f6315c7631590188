"""Small readings that several rules share: names, places, grades, and the chain of facts in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from torchwise_analysis.findings import Confidence, Evidence, Place
from torchwise_analysis.interp.abstract.events import Event, Forward, Guard
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Link, Obj, Origin, beliefs
from torchwise_analysis.policy import one_weaker

# Layers whose output depends on train()/eval(), by the end of their type's name. Recurrent layers and
# attention count when they were given a dropout, which their arguments tell.
MODE_LAYERS = ("Dropout", "BatchNorm", "InstanceNorm")


def grade(beliefs_found: int) -> Confidence:
    """certain without a belief, likely with one, possible with more (docs/policy.md)."""
    confidence = Confidence.CERTAIN
    for _ in range(min(beliefs_found, 2)):
        confidence = one_weaker(confidence)
    return confidence


def belief_in(*objects: Obj | None) -> int:
    """How many of these are known by use or by name only; a thing never seen counts too."""
    return sum(o is None or o.origin in (Origin.USED, Origin.NAMED, Origin.UNSEEN) for o in objects)


def link_beliefs(link: Link | None) -> int:
    return beliefs(link)


def doubt(*reasons: tuple[bool, str]) -> str:
    """The links that only rest on a convention or on unseen code, as a sentence behind the message."""
    named = [text for holds, text in reasons if holds]
    return f" Not certain: {' and '.join(named)}." if named else ""


def known_by(obj: Obj) -> str:
    """How an object that was not made in view is known, for `doubt`."""
    how = {Origin.USED: "by its use", Origin.NAMED: "by its name"}.get(obj.origin, "by convention")
    return f"{called(obj, 'one object')} is known {how} only"


def called(obj: Obj | None, fallback: str) -> str:
    """The object's name for a message, in code quotes, or a plain description."""
    return f"`{obj.name}`" if obj is not None and obj.name else fallback


def step(place: Place | None, message: str) -> tuple[Evidence, ...]:
    """One link of evidence, or none where the place is unknown."""
    return () if place is None else (Evidence(place, message),)


def distinct(links: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """The links in their order, each place and message once."""
    return tuple(dict.fromkeys(links))


def loop_words(loop: Loop | None) -> str:
    """What a loop is, after "this" or "the": "loop over the batches of `loader`"."""
    if loop is None:
        return "loop"
    is_name = all(part.isidentifier() for part in loop.over.split("."))
    over = f" of `{loop.over}`" if is_name else ""
    return {
        LoopKind.BATCHES: f"loop over the batches{over}",
        LoopKind.CALL: "method, called again and again,",
        LoopKind.CLOSURE: "closure, evaluated several times for each step,",
        LoopKind.UNBOUNDED: "`while` loop",
        LoopKind.COMPREHENSION: "comprehension",
    }.get(loop.kind, "loop")


def turn_tests(event: Event, depth: int) -> tuple[Guard, ...]:
    """The tests that choose in which turns of the loop `event.loops[depth]` the event happens.

    Tests around the loop choose whether it runs at all, and those that leave it cut its last turns off.
    """
    return tuple(guard for guard in event.scene.guards if guard.loops > depth and not guard.ends)


def happens_each_turn(trace: Trace, event: Event) -> bool:
    """Does the event happen in every turn of the innermost loop around it, whatever flags are set?

    A flag that a function tests twice is fixed for a run of it: then the event is to happen in all such runs
    in which the loop steps.
    """
    loop = event.loops[-1].loop.place
    if turn_tests(event, len(event.loops) - 1):
        return False
    if not event.scene.world:
        return True
    beside = trace.once("worlds of steps", lambda: _worlds(trace.steps)).get(loop, ())
    own = trace.once(f"worlds of {type(event).__name__}", lambda: _worlds_at(trace.of(type(event))))
    mine = own.get((event.place, loop), ())
    return all(any(_agree(world, one) for one in mine) for world in beside)


World: TypeAlias = "tuple[tuple[str, bool], ...]"


def _worlds(steps: Iterable[Event]) -> dict[Place, set[World]]:
    found: dict[Place, set[World]] = {}
    for one in steps:
        if one.loops:
            found.setdefault(one.loops[-1].loop.place, set()).add(one.scene.world)
    return found


def _worlds_at(events: Iterable[Event]) -> dict[tuple[Place, Place], set[World]]:
    found: dict[tuple[Place, Place], set[World]] = {}
    for one in events:
        if one.loops:
            found.setdefault((one.place, one.loops[-1].loop.place), set()).add(one.scene.world)
    return found


def _agree(one: World, other: World) -> bool:
    settled = dict(one)
    return all(settled.get(flag, value) == value for flag, value in other)


def forwards_of(trace: Trace, passes: Iterable[int]) -> tuple[Forward, ...]:
    """The forwards of some passes in the order in which they ran."""
    known = (trace.passes[p].forward for p in sorted(passes) if p in trace.passes)
    return tuple(sorted(known, key=lambda forward: forward.order))

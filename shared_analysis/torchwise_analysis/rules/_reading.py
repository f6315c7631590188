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


def happens_each_turn(trace: Trace, event: Event, depth: int = -1) -> bool:
    """Does the event happen in every turn of the loop `event.loops[depth]` in which an optimizer steps?

    A counter that is known decides tests by itself, and a flag that a function tests twice is fixed for a run
    of it: so the event is to be seen in each of the first turns and in each run in which a step is.
    """
    depth %= len(event.loops)
    if turn_tests(event, depth):
        return False
    loop = event.loops[depth].loop.place
    turns, worlds = trace.once("turns of updates", lambda: _turns(trace.updates)).get(loop, (set(), set()))
    own = trace.once(f"turns of {type(event).__name__}", lambda: _turns_by_place(trace.of(type(event))))
    mine, my_worlds = own[event.place, loop]
    return turns <= mine and all(any(_agree(world, one) for one in my_worlds) for world in worlds)


World: TypeAlias = "tuple[tuple[str, bool], ...]"
Turns: TypeAlias = "tuple[set[int], set[World]]"


def _turns(events: Iterable[Event]) -> dict[Place, Turns]:
    """In which turns of each loop, counted from 0, and with which flags the events happen."""
    found: dict[Place, Turns] = {}
    for one in events:
        for turn in one.loops:
            turns, worlds = found.setdefault(turn.loop.place, (set(), set()))
            turns.add(turn.iteration)
            worlds.add(one.scene.world)
    return found


def _turns_by_place(events: Iterable[Event]) -> dict[tuple[Place, Place], Turns]:
    by_place: dict[Place, list[Event]] = {}
    for one in events:
        by_place.setdefault(one.place, []).append(one)
    return {
        (place, loop): turns for place, there in by_place.items() for loop, turns in _turns(there).items()
    }


def _agree(one: World, other: World) -> bool:
    settled = dict(one)
    return all(settled.get(flag, value) == value for flag, value in other)


def forwards_of(trace: Trace, passes: Iterable[int]) -> tuple[Forward, ...]:
    """The forwards of some passes in the order in which they ran."""
    known = (trace.passes[p].forward for p in sorted(passes) if p in trace.passes)
    return tuple(sorted(known, key=lambda forward: forward.order))

"""Small readings that several rules share: names, places, grades, and the chain of facts in words."""

from __future__ import annotations

from collections.abc import Iterable

from torchwise_analysis.findings import Confidence, Evidence, Place
from torchwise_analysis.interp.abstract.events import Forward
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


def forwards_of(trace: Trace, passes: Iterable[int]) -> tuple[Forward, ...]:
    """The forwards of some passes in the order in which they ran."""
    known = (trace.passes[p].forward for p in sorted(passes) if p in trace.passes)
    return tuple(sorted(known, key=lambda forward: forward.order))

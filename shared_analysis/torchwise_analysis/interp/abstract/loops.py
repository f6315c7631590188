"""Loops and call paths, as events and objects remember them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from torchwise_analysis.findings import Place
from torchwise_analysis.quick import record


class LoopKind(Enum):
    """What a loop walks over."""

    BATCHES = "batches of a loader"
    RANGE = "a range"
    LITERAL = "a short literal"
    LIST = "a list"
    CHUNKS = "chunks of a tensor"
    TENSOR = "elements of a tensor"
    PARAMETERS = "parameters"
    MODULES = "modules"
    UNBOUNDED = "while"
    COMPREHENSION = "a comprehension"
    UNKNOWN = "something unknown"
    CALL = "calls from outside"  # implicit: a method or hook that an unseen caller calls again and again
    CLOSURE = "evaluations of a closure"  # implicit: LBFGS and SAM call it several times


@record(frozen=True, slots=True)
class Loop:
    """A loop statement, comprehension or implicit loop. Equal places are the same loop.

    over: what it walks over, in words. count: number of iterations if it is a known small literal.
    source: id of the loader or object it walks over. has_inner: another loop runs inside it.
    window: its body tests a counter, so iterations are counted exactly with a witness.
    repeats: its turns are alike but for what they draw. draws: `next` is called in it. strides: it walks over
    a range in steps of a size, as over slices.
    carried: names of what one turn hands on to the next. resets: names that its body sets to a constant.
    uses_gradients: its body takes gradients for what they are, not for their size alone.
    """

    place: Place
    kind: LoopKind
    over: str = ""
    count: int | None = None
    source: int | None = None
    has_inner: bool = False
    window: bool = False
    repeats: bool = False
    draws: bool = False
    carried: frozenset[str] = frozenset()
    resets: frozenset[str] = frozenset()
    strides: bool = False
    uses_gradients: bool = False

    @property
    def takes_batches(self) -> bool:
        """Does each turn take data of its own: from a loader, with `next`, or the next slice?"""
        by_itself = self.kind in (LoopKind.RANGE, LoopKind.UNBOUNDED, LoopKind.UNKNOWN)
        return self.kind is LoopKind.BATCHES or (by_itself and (self.draws or self.strides))

    @property
    def is_call(self) -> bool:
        """An implicit loop: calls that we do not see."""
        return self.kind is LoopKind.CALL


class Turn(NamedTuple):
    """One abstract iteration of a loop."""

    loop: Loop
    iteration: int


LoopPath: TypeAlias = "tuple[Turn, ...]"


def inside(path: LoopPath, birth: LoopPath) -> tuple[Turn, ...]:
    """The turns of `path` that something born under `birth` outlives."""
    return tuple(t for i, t in enumerate(path) if not (i < len(birth) and birth[i] == t))


class Caller(NamedTuple):
    """One frame of a call path: where the call stands, and the function that contains it."""

    place: Place
    function: str
    frame: int

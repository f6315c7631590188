"""Frames of running functions and the lexically scoped facts that stand beside the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.loops import LoopPath
from torchwise_analysis.interp.abstract.state import Facts
from torchwise_analysis.interp.abstract.static import BodyFacts
from torchwise_analysis.interp.abstract.values import (
    NO_ARGUMENTS,
    Arguments,
    Class,
    Function,
    Obj,
    Value,
)

World: TypeAlias = "tuple[tuple[str, bool], ...]"


class Scopes(NamedTuple):
    """What `with` blocks and decorators switch. It is no state: leaving a block by any way undoes it.

    grad: grad mode, None when no scope sets it. sync: may gradients synchronise (and prepared optimizers
    step) here; None outside `accumulate`. Others as in `events.Scene`.
    """

    grad: frozenset[bool] | None = None
    autocast: str | None = None
    sync: frozenset[bool] | None = None
    no_sync: Obj | None = None
    anomaly: bool = False
    compiled: Place | None = None


OUTSIDE = Scopes()


# Calling `list[...]` takes five times as long as a literal, and frames are made by the thousand.
def _no_exits() -> list[tuple[Value, Facts]]:
    return []


def _no_paths() -> list[Facts]:
    return []


@dataclass(slots=True, eq=False)
class Frame:
    """A running function, class body or module.

    scope: ids of the frames whose names it sees, own first. exits: values returned, each with the facts
    changed since `mark`. unfinished: state at a `raise`, used when nothing else returns (an abstract
    method: what runs is an override that we do not see). world: flags fixed in this run of the body.
    """

    id: int
    scope: tuple[int, ...]
    path: str
    facts: BodyFacts
    name: str = "<module>"
    function: Function | None = None
    owner: Class | None = None
    mark: int = 0
    exits: list[tuple[Value, Facts]] = field(default_factory=_no_exits)
    breaks: list[Facts] = field(default_factory=_no_paths)
    continues: list[Facts] = field(default_factory=_no_paths)
    loop_mark: int = 0
    unfinished: Facts | None = None
    on_yield: Callable[[Value], Value] | None = None
    decided: list[str] = field(default_factory=list[str])
    budget: int = 0
    worlds: int = 1
    loops: LoopPath = ()
    key: tuple[str, int, int, str] | None = None  # of the function
    declares: bool = False  # names of outer scopes as its own to bind
    given: Arguments = NO_ARGUMENTS

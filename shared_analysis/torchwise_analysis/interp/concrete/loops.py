"""Which loop is the training loop: found by what happened in its rounds, not by how it is written.

The step loop is the innermost loop one of whose rounds contained an optimizer step. It runs until its
second step, so that optimizer states exist and the allocator is warm; the rounds after the first step are
the ones measured. A loop whose rounds call a model from outside and never go backward is an inference
loop; its second round is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise_memory.report import Kind, Origin, Phase
from torchwise_memory.runtime.ledger import Record

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter
    from torchwise_analysis.interp.concrete.values import Frame
    from torchwise_analysis.source import nodes

# A loop that never steps is left after so many rounds: what follows may hold the loop that does.
MAX_IDLE_ROUNDS = 4096
MAX_ROUNDS_WITH_BACKWARD = 64


@dataclass(frozen=True, slots=True)
class Measured:
    """What a loop's measured rounds showed; sizes in bytes."""

    origin: Origin
    kind: Kind
    peak_allocated: int
    peak_reserved: int
    phase: Phase
    sequence: int
    alive: tuple[Record, ...]
    by_kind: dict[str, int]
    # micro-steps between two optimizer steps
    window: int


class Loops:
    """Counts events and collects what was measured."""

    def __init__(self) -> None:
        self.steps = 0
        self.calls = 0
        self.backwards = 0
        self.generations = 0
        self.measured: list[Measured] = []

    def enter(self, it: Interpreter, node: nodes.For | nodes.While, frame: Frame) -> Watch:
        return Watch(it, it.origin_of(node, frame), frame.module.is_library)

    @property
    def has_training(self) -> bool:
        return any(m.kind is Kind.TRAINING for m in self.measured)


class Watch:
    """One run of one loop."""

    __slots__ = (
        "backwards", "calls", "generations", "is_promising", "measuring", "origin", "passive", "rounds", "since", "steps", "taken",
    )  # fmt: skip

    def __init__(self, it: Interpreter, origin: Origin, is_library: bool) -> None:
        loops = it.loops
        self.origin = origin
        self.rounds = 0
        self.steps = loops.steps
        self.calls = loops.calls
        self.backwards = loops.backwards
        self.generations = loops.generations
        self.taken = len(loops.measured)
        self.measuring = False
        self.since = 0
        # more rounds are worth taking although the loop's condition is not known
        self.is_promising = False
        # loops inside a model's forward or a library are never step loops
        self.passive = is_library or it.module_depth > 0

    def begin(self, it: Interpreter) -> None:
        self.rounds += 1

    def end_round(self, it: Interpreter) -> bool:
        """After a round: whether the loop has been seen enough."""
        if self.passive:
            return False
        loops = it.loops
        if len(loops.measured) > self.taken:
            # an inner loop was the one: this one goes on after a single round
            return True
        if loops.steps > self.steps:
            return self._after_step(it)
        if loops.backwards > self.backwards:
            self.is_promising = True
            return self.rounds >= MAX_ROUNDS_WITH_BACKWARD
        if loops.calls > self.calls:
            self.is_promising = True
            return self._after_call(it)
        return self.rounds >= MAX_IDLE_ROUNDS

    def exhausted(self, it: Interpreter) -> None:
        """The loop ran out of items; a measurement under way is taken as it is."""
        if self.passive or len(it.loops.measured) > self.taken:
            return
        if self.measuring and self.since == self.rounds and it.loops.steps > self.steps:
            # a single round only: the figures lack what the first step leaves behind
            it.assume("the loop has one round: its first step is measured")

    def _after_step(self, it: Interpreter) -> bool:
        if not self.measuring:
            self.measuring = True
            self.is_promising = True
            self.since = self.rounds
            self.steps = it.loops.steps
            self.calls = it.loops.calls
            self.backwards = it.loops.backwards
            start(it)
            return False
        it.loops.measured.append(take(it, self.origin, Kind.TRAINING, self.rounds - self.since))
        return True

    def _after_call(self, it: Interpreter) -> bool:
        if it.loops.has_training or (self.measuring is True and self.backwards != it.loops.backwards):
            return self.rounds >= 2
        if self.rounds == 1:
            start(it)
            return False
        kind = Kind.GENERATION if it.loops.generations > self.generations else Kind.INFERENCE
        it.loops.measured.append(take(it, self.origin, kind, 1))
        return True


def start(it: Interpreter) -> None:
    """Begin to look for a peak; what is alive now belongs to it."""
    ledger = it.world.ledger
    allocator = ledger.allocator
    allocator.peak_allocated = allocator.allocated
    allocator.peak_reserved = allocator.reserved
    it.world.phase = Phase.FORWARD
    ledger.watch()


def take(it: Interpreter, origin: Origin, kind: Kind, window: int) -> Measured:
    """What was seen since `start`."""
    ledger = it.world.ledger
    return Measured(
        origin,
        kind,
        ledger.allocator.peak_allocated,
        ledger.allocator.peak_reserved,
        ledger.peak_phase,
        ledger.peak_sequence,
        tuple(ledger.alive_at(ledger.peak_sequence)),
        {k.value: v for k, v in ledger.bytes_by_kind(ledger.peak_sequence).items()},
        window,
    )

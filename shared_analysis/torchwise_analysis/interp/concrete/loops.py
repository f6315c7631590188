"""Which loop is the training loop: found by what happened in its rounds, not by how it is written.

The step loop is the innermost loop one of whose rounds contained an optimizer step. It runs until its
second step, so that optimizer states exist and the allocator is warm; the rounds after the first step are
the ones measured. A loop whose rounds call a model from outside and never go backward is an inference
loop; its second round is measured.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete.attribution import module_memory
from torchwise_analysis.source import nodes
from torchwise_memory.modules.base import Module
from torchwise_memory.report import Kind, ModuleMemory, Origin, Phase
from torchwise_memory.runtime.ledger import Record, bytes_by_kind

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter
    from torchwise_analysis.interp.concrete.values import Frame, Value

# A loop that never steps is left after so many rounds: what follows may hold the loop that does.
MAX_IDLE_ROUNDS = 4096
# Where only the plan is read, what such a loop fills matters less than what comes behind it.
MAX_IDLE_ROUNDS_OF_A_PLAN = 16
MAX_ROUNDS_WITH_BACKWARD = 256
MAX_ROUNDS_AROUND_INFERENCE = 8
# Rounds in which a loop whose text goes backward may do without it: an agent that fills its memory first.
ROUNDS_BEFORE_TRAINING = 64
# Rounds of a loop that calls layer after layer.
MAX_LAYERS = 512
# Rounds of a counted loop that records a graph.
MAX_STEPS_OF_A_SEQUENCE = 128
# Micro-steps of a window that are run before the rest counts as the same.
ROUNDS_OF_ACCUMULATION = 2


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
    # every storage of the measured rounds, and the event before the first of them
    lives: tuple[Record, ...] = ()
    since: int = 0
    modules: tuple[ModuleMemory, ...] = ()


class Loops:
    """Counts events and collects what was measured."""

    def __init__(self) -> None:
        self.steps = 0
        self.calls = 0
        # those of them that recorded a graph
        self.recorded = 0
        self.backwards = 0
        # the backward pass whose gradients a script without an optimizer has used last
        self.updated = 0
        self.generations = 0
        self.measured: list[Measured] = []
        # loops between their first and their second step: what runs inside them is part of the measurement
        self.open = 0
        # where the program called the framework whose loop is running
        self.stands_at: Origin | None = None

    def enter(self, it: Interpreter, node: nodes.For | nodes.While, frame: Frame) -> Watch:
        origin, is_library = it.origin_of(node, frame), frame.module.is_library
        if self.stands_at is not None and frame.module.path.startswith("<"):
            # a framework's loop stands where the program starts it
            origin, is_library = self.stands_at, False
        watch = Watch(it, origin, is_library)
        if not watch.passive:
            names = set(_names_in(node.body))
            watch.steps_inside = isinstance(node, nodes.While) or not _only_accumulates(names)
            watch.goes_backward = not names.isdisjoint(_TRAINS)
            watch.is_method = isinstance(frame.names.get(frame.first), Module)
            watch.gate = _gate_of(node) if watch.goes_backward and isinstance(node, nodes.For) else None
        return watch

    @property
    def has_training(self) -> bool:
        return any(m.kind is Kind.TRAINING for m in self.measured)


def _calls(it: Interpreter) -> int:
    """Models called from outside, or generating by themselves."""
    return it.loops.calls + it.world.generations


class Watch:
    """One run of one loop."""

    __slots__ = (
        "awaits_step", "backwards", "calls", "gate", "generations", "goes_backward", "is_counted",
        "is_method", "is_over_layers", "is_promising", "measuring", "origin", "passive", "recorded",
        "rounds", "steps", "steps_inside", "taken",
    )  # fmt: skip

    def __init__(self, it: Interpreter, origin: Origin, is_library: bool) -> None:
        loops = it.loops
        self.origin = origin
        self.rounds = 0
        self.steps = loops.steps
        self.calls = _calls(it)
        self.backwards = loops.backwards
        self.recorded = loops.recorded
        self.generations = loops.generations + it.world.generations
        self.taken = len(loops.measured)
        self.measuring = False
        self.steps_inside = True
        # micro-steps were taken since the last step; under which condition the text takes the next one
        self.awaits_step = False
        self.gate: nodes.Expr | None = None
        # in a method of a module that is called directly
        self.is_method = False
        # over modules: its rounds are the layers of one pass
        self.is_over_layers = False
        # over numbers, a list or a tensor: it is known how often
        self.is_counted = False
        # the loop's text goes backward somewhere, whether or not its rounds have come to it
        self.goes_backward = False
        # more rounds are worth taking although the loop's condition is not known
        self.is_promising = False
        # loops inside a model's forward or a library are never step loops
        self.passive = is_library or it.module_depth > 0

    def begin(self, it: Interpreter, item: Value = None) -> None:
        self.rounds += 1
        if self.rounds == 1:
            members = cast("tuple[Value, ...]", item) if isinstance(item, tuple) else (item,)
            self.is_over_layers = any(isinstance(member, Module) for member in members)

    def end_round(self, it: Interpreter) -> bool:
        """After a round: whether the loop has been seen enough."""
        if self.passive:
            return False
        loops = it.loops
        inner = loops.measured[self.taken :]
        if any(measured.kind is Kind.TRAINING for measured in inner):
            # an inner loop was the one: this one goes on after a single round
            return True
        if inner and loops.steps == self.steps and loops.backwards == self.backwards:
            # around an evaluation: short loops (over splits, say) run to their end
            return self.rounds >= MAX_ROUNDS_AROUND_INFERENCE
        if loops.steps > self.steps:
            self.awaits_step = False
            return self._after_step(it)
        if loops.backwards > self.backwards:
            self.is_promising = True
            self.awaits_step = loops.backwards >= self.backwards + ROUNDS_OF_ACCUMULATION
            return self.rounds >= MAX_ROUNDS_WITH_BACKWARD
        if _calls(it) > self.calls:
            self.is_promising = True
            return self._after_call(it)
        return self.rounds >= (MAX_IDLE_ROUNDS_OF_A_PLAN if it.recovers else MAX_IDLE_ROUNDS)

    def exhausted(self, it: Interpreter) -> None:
        """The loop ran out of items."""
        if not self.measuring or len(it.loops.measured) > self.taken:
            return
        # a single step: the figures lack what it leaves behind, but they are all there is
        it.loops.open -= 1
        self.measuring = False

    def _after_step(self, it: Interpreter) -> bool:
        loops = it.loops
        if not self.measuring:
            self.measuring = True
            self.is_promising = True
            loops.open += 1
            self.steps = loops.steps
            self.calls = _calls(it)
            self.backwards = loops.backwards
            if loops.open == 1:
                # else a loop around this one is being measured, of which each round takes a single step here
                start(it)
            return False
        loops.open -= 1
        # several optimizers (a GAN's) step once for each of their backward passes
        window = max(1, (loops.backwards - self.backwards) // (loops.steps - self.steps))
        loops.measured.append(take(it, self.origin, Kind.TRAINING, window))
        return True

    def _after_call(self, it: Interpreter) -> bool:
        loops = it.loops
        if self.is_over_layers or (self.is_method and self.is_counted):
            return self.rounds >= MAX_LAYERS
        if self.is_counted and loops.recorded > self.recorded and "optimizer" in it.library.met:
            # one graph over all rounds, the steps of a sequence say, that is gone back through later
            return self.rounds >= MAX_STEPS_OF_A_SEQUENCE
        if self.goes_backward and self.rounds < 2 * ROUNDS_BEFORE_TRAINING:
            return False
        known = any(measured.origin == self.origin for measured in loops.measured)
        if loops.has_training or loops.open or known:
            return self.rounds >= 2
        if self.rounds == 1:
            start(it)
            return False
        generations = loops.generations + it.world.generations
        kind = Kind.GENERATION if generations > self.generations else Kind.INFERENCE
        loops.measured.append(take(it, self.origin, kind, 1))
        return True

    def may_leap(self, it: Interpreter) -> bool:
        """Whether the rounds to come look like those before: of a loop that trains later on."""
        return (
            not self.passive
            and self.goes_backward
            and self.rounds == ROUNDS_BEFORE_TRAINING
            and it.loops.backwards == self.backwards
        )

    def may_skip(self, it: Interpreter) -> bool:
        """Whether further rounds only accumulate gradients as the last ones did.

        True in a loop whose text takes no step; its last round is still to run.
        """
        return (
            not self.passive
            and not self.steps_inside
            and self.rounds >= ROUNDS_OF_ACCUMULATION
            and it.loops.backwards >= self.backwards + ROUNDS_OF_ACCUMULATION
            and it.loops.steps == self.steps
        )


# Calls by which a loop's text shows that it trains.
_TRAINS = frozenset({"backward", "manual_backward", "learn", "optimize_model", "update_model", "train_step"})


def _only_accumulates(names: set[str]) -> bool:
    """Whether a loop's text goes backward itself and nowhere takes a step."""
    return "backward" in names and not any("step" in name and "micro" not in name for name in names)


def _gate_of(node: nodes.For) -> nodes.Expr | None:
    """The condition on the number of its rounds under which a loop's text takes a step; None without one."""
    targets = frozenset(_plain_names(node.target))
    for statement in _flat(node.body):
        if isinstance(statement, nodes.If) and "step" in set(_names_in(statement.body)):
            names = list(_plain_names(statement.test))
            return statement.test if names and not targets.isdisjoint(names) else None
    return None


def _flat(block: nodes.Block) -> Iterator[nodes.Stmt]:
    for statement in block:
        if isinstance(statement, (nodes.Placed, nodes.With)):
            yield from _flat(statement.body)
        else:
            yield statement


def _plain_names(node: nodes.Expr) -> Iterator[str]:
    """Names in an expression whose evaluation changes nothing; none of any other expression."""
    found: list[str] = []
    pending: list[nodes.Expr] = [node]
    while pending:
        expression = pending.pop()
        if isinstance(expression, nodes.Name):
            found.append(expression.id)
        elif isinstance(expression, nodes.Binary):
            pending += (expression.left, expression.right)
        elif isinstance(expression, nodes.Compare):
            pending += (expression.left, *expression.comparators)
        elif isinstance(expression, nodes.BoolOp):
            pending += expression.values
        elif isinstance(expression, nodes.Unary):
            pending.append(expression.operand)
        elif isinstance(expression, nodes.Attribute):
            pending.append(expression.value)
        elif isinstance(expression, nodes.TupleExpr):
            pending += expression.elements
        elif isinstance(expression, nodes.Call):
            is_length = isinstance(expression.func, nodes.Name) and expression.func.id == "len"
            if not is_length or len(expression.args) != 1:
                return
            pending += expression.args
        elif not isinstance(expression, nodes.Constant):
            return
    yield from found


def _names_in(node: object) -> Iterator[str]:
    """Attributes and names of functions that are called."""
    if isinstance(node, tuple):
        for member in node:
            yield from _names_in(member)
        return
    if not isinstance(node, nodes.Node):
        return
    if isinstance(node, nodes.Call):
        if isinstance(node.func, nodes.Attribute):
            yield node.func.attr
        elif isinstance(node.func, nodes.Name):
            yield node.func.id
    for name in type(node).__dataclass_fields__:
        if name != "span":
            yield from _names_in(getattr(node, name))


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
    it.library.note_models()
    alive = tuple(ledger.alive_at(ledger.peak_sequence))
    return Measured(
        origin,
        kind,
        ledger.allocator.peak_allocated,
        ledger.allocator.peak_reserved,
        ledger.peak_phase,
        ledger.peak_sequence,
        alive,
        {k.value: v for k, v in bytes_by_kind(alive, ledger.peak_sequence).items()},
        window,
        tuple(ledger.lives()),
        ledger.watched_from,
        module_memory(it, alive),
    )

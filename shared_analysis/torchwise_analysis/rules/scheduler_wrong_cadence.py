"""scheduler-wrong-cadence: a schedule planned in batches moves once per epoch, or the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, append_to, expression_at
from torchwise_analysis.interp.abstract.events import (
    Configured,
    LoopBounded,
    LoopEntered,
    Prepared,
    SchedulerBuilt,
    SchedulerStep,
    Step,
)
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Class, Const, Kind, Obj, Unknown, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, step, turn_tests
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs):
    schedule = OneCycleLR(optimizer, max_lr=0.4, epochs=epochs, steps_per_epoch=len(loader))
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
        ^^^^^^^^^^^^^^^ scheduler-wrong-cadence error certain
"""

RIGHT = """
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs):
    schedule = OneCycleLR(optimizer, max_lr=0.4, epochs=epochs, steps_per_epoch=len(loader))
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
"""

RULE = Rule(
    code="TW701",
    name="scheduler-wrong-cadence",
    category=Category.DATA,
    severity=Severity.ERROR,
    claim="A learning-rate schedule is planned in one unit (batches, updates, epochs), stepped in another.",
    cost=(
        "Planned for 1,000 batches and stepped for 10 epochs, a one-cycle schedule ends at 0.017 of a "
        "maximum of 0.4: the whole run stays in the warm-up. The other way round a decay meant for an epoch "
        "happens at every batch, and the rate is gone before the first epoch ends. The loss curve looks like "
        "a badly chosen learning rate."
    ),
    wrong=Example("Planned per batch, stepped per epoch", WRONG),
    right=Example("Stepped with the optimizer", RIGHT),
    silent=(
        "the unit of the plan cannot be read from the constructor",
        "a horizon of all batches with a step per batch, or of epochs with a step per epoch",
        "the step stands under a test of its own (every n-th batch), unless it is that of the accumulation "
        "and the length is that of the loader",
        "Accelerate prepared the scheduler: it steps with the processes, and only its length is judged",
        "Lightning's dictionary says `interval`, or manual optimisation steps it",
        "warm restarts and plateau schedules, whose unit is a choice",
    ),
    grading=(
        "An error, but for a length in numbers that a counted run never comes near (twenty times its moves): "
        "that is a warning, and likely. Certain when the constructor names the unit (`steps_per_epoch`, the "
        "length of the loader, the Trainer's number of batches); likely where gradients are accumulated, and "
        "when the unit follows from numbers: a horizon that equals the number of epochs, a decay that leaves "
        "nothing after 1,000 batches, or a script that may run as one process only."
    ),
    fix=(
        "Advice: move the step to the loop of the unit, or plan in the other unit. For Lightning return "
        'a dictionary with `"interval": "step"`. For a schedule that Accelerate prepared: its lengths times '
        "the number of processes; unsafe, since the learning rate changes."
    ),
    references=(
        Reference(
            "torch.optim: how to adjust learning rate",
            "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
        ),
        Reference(
            "OneCycleLR",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html",
        ),
        Reference(
            "espnet/espnet#3319: fix a bug in OneCycleLR and CyclicLR",
            "https://github.com/espnet/espnet/pull/3319",
        ),
        Reference(
            "ScrollPrize/villa#1495: schedulers given an epoch count as their horizon",
            "https://github.com/ScrollPrize/villa/pull/1495",
        ),
    ),
    examples=(
        Example(
            "Accelerate moves a prepared schedule once for each process",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_scheduler


def main(args, data):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=8, shuffle=True)
    steps = args.max_steps
    decay = get_scheduler("cosine", optimizer, num_training_steps=steps)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-wrong-cadence error likely
    model, optimizer, loader, decay = accelerator.prepare(model, optimizer, loader, decay)
    done = 0
    while done < args.max_steps:
        for x, y in loader:
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            decay.step()
            optimizer.zero_grad()
            done += 1
""",
            fixed="""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_scheduler


def main(args, data):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=8, shuffle=True)
    steps = args.max_steps
    decay = get_scheduler("cosine", optimizer, num_training_steps=steps * accelerator.num_processes)
    model, optimizer, loader, decay = accelerator.prepare(model, optimizer, loader, decay)
    done = 0
    while done < args.max_steps:
        for x, y in loader:
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            decay.step()
            optimizer.zero_grad()
            done += 1
""",
        ),
        Example(
            "Lengths that count the steps of all processes",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup


def main(args, data):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=8, shuffle=True)
    steps = args.max_steps * accelerator.num_processes
    schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    done = 0
    while True:
        for x, y in loader:
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if done >= args.max_steps:
                break
""",
        ),
        Example(
            "A decay for epochs at every batch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.85)


def train(loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            ^^^^^^^^^^^^^^^ scheduler-wrong-cadence error likely
""",
        ),
        Example(
            "A cosine over epochs, stepped per batch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)
    for epoch in range(90):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            ^^^^^^^^^^^^^^^ scheduler-wrong-cadence error likely
""",
        ),
        Example(
            "Lightning steps once per epoch unless told otherwise",
            """
import lightning as L
import torch
from torch import nn
from torch.optim import lr_scheduler


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        total = self.trainer.estimated_stepping_batches
        schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=total)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-wrong-cadence
        return [optimizer], [schedule]
""",
        ),
        Example(
            "Lightning with its interval",
            """
import lightning as L
import torch
from torch import nn


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
""",
        ),
        Example(
            "Counted in updates, in a helper, and moved with each micro-batch",
            """
import math

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup


def build(model, loader, epochs, window):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    updates = math.ceil(len(loader) / window) * epochs
    return optimizer, get_cosine_schedule_with_warmup(optimizer, 100, num_training_steps=updates)


def main(data, epochs=3, window=16):
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(12, 4)
    optimizer, schedule = build(model, loader, epochs, window)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if (i + 1) % window == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            ^^^^^^^^^^^^^^^ scheduler-wrong-cadence error likely
""",
        ),
        Example(
            "Counted in batches and moved with each update",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader


def main(data, epochs=3, window=16):
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=len(loader) * epochs)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if (i + 1) % window == 0 or i + 1 == len(loader):
                optimizer.step()
                schedule.step()
                ^^^^^^^^^^^^^^^ scheduler-wrong-cadence error likely
                optimizer.zero_grad()
""",
        ),
        Example(
            "Counted and moved with each update, and counted and moved with each micro-batch",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup


def main(data, epochs=3, window=16):
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    updates = -(-len(loader) // window) * epochs
    slow = get_linear_schedule_with_warmup(optimizer, 100, updates)
    fast = get_linear_schedule_with_warmup(optimizer, 100, len(loader) * epochs)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if (i + 1) % window == 0 or i + 1 == len(loader):
                optimizer.step()
                slow.step()
                optimizer.zero_grad()
            fast.step()
""",
        ),
        Example(
            "Units that fit",
            """
import torch
from torch import nn
from torch.optim import lr_scheduler

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs):
    by_batch = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    by_epoch = lr_scheduler.MultiStepLR(optimizer, milestones=[3, 6], gamma=0.1)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            by_batch.step()
        by_epoch.step()
""",
        ),
        Example(
            "A decay behind a test of its own, and a slow one per batch",
            """
import torch
from torch import nn
from torch.optim import lr_scheduler

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
coarse = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
slow = lr_scheduler.ExponentialLR(optimizer, gamma=0.9999)


def train(loader, epochs):
    seen = 0
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            slow.step()
            seen += 1
            if seen % 5000 == 0:
                coarse.step()
""",
        ),
    ),
)

# A schedule that leaves less than this after a thousand steps was not planned for batches.
_NOTHING_LEFT = 1e-6
_MANY_BATCHES = 1000
_HORIZONS = ("total_steps", "T_max", "total_iters", "num_training_steps", "num_warmup_steps", "max_iters")
_BATCH_WORDS = ("len(", "stepping_batches", "num_training_batches")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Why a schedule counts in a unit, in words, and whether only numbers say so."""

    reason: str
    belief: bool = False


def detect(trace: Trace) -> Iterator[Hit]:
    managed = {thing.id for event in trace.of(Prepared) for thing in event.objects}
    for built in trace.of(SchedulerBuilt):
        scheduler = built.scheduler
        if scheduler.id in managed or scheduler.id in trace.escaped:
            continue
        moves = [move for move in trace.of(SchedulerStep) if move.scheduler.id == scheduler.id]
        steps = [
            one for one in trace.steps if built.optimizer is None or one.optimizer.id == built.optimizer.id
        ]
        by_batch = _batch_plan(scheduler)
        if by_batch is not None and moves and _all_too_rare(trace, moves, steps):
            yield _rare(built, by_batch, moves[0], steps)
        elif by_batch is not None:
            yield from _beside_windows(trace, built, moves, steps)
        elif by_batch is None:
            yield from _too_often(trace, built, moves, steps)
        yield from _hardly_begun(trace, built, moves)
    for configured in trace.of(Configured):
        if configured.hook == "configure_optimizers":
            yield from _of_lightning(trace, configured)
    for prepared in trace.of(Prepared):
        if prepared.owner.kind is Kind.ACCELERATOR:
            yield from _per_process(trace, prepared)
            yield from _per_epoch(trace, prepared)
    yield from _of_shards(trace)


# --------------------------------------------------------------------------- planned in batches


def _batch_plan(scheduler: Obj) -> _Plan | None:
    last = scheduler.type_name.rpartition(".")[2]
    arguments = scheduler.arguments
    if last == "OneCycleLR" and arguments.get("steps_per_epoch", 4) is not None:
        return _Plan("its length is epochs times `steps_per_epoch`, in batches")
    if last == "CyclicLR":
        return _Plan("its cycle is counted in batches", belief=True)
    for name, value in arguments.keywords:
        if name in _HORIZONS and _counts_batches(value):
            return _Plan(f"`{name}` counts batches")
    if last in ("OneCycleLR", "CosineAnnealingLR") and len(arguments.positional) > 1:
        position = 2 if last == "OneCycleLR" else 1
        given = arguments.get("", position)
        if given is not None and _counts_batches(given):
            return _Plan("its length counts batches")
    total = arguments.get("", _total_at(scheduler)) if last.startswith("get_") else None
    if total is not None and _counts_batches(total):
        return _Plan("its length counts batches")
    return None


def _counts_batches(value: Value) -> bool:
    symbols = [v.symbol or "" for v in alternatives(value) if isinstance(v, (Unknown, Obj))]
    return any(word in symbol for symbol in symbols for word in _BATCH_WORDS)


def _all_too_rare(trace: Trace, moves: list[SchedulerStep], steps: list[Step]) -> bool:
    """Every move stands outside of the loop over batches in which the optimizer steps."""
    deep = max(steps, key=lambda one: len(one.loops), default=None)
    if deep is None or not deep.loops or not trace.walks_loader(deep.loops[-1].loop):
        return False
    places = [turn.loop.place for turn in deep.loops]
    for move in moves:
        around = [turn.loop.place for turn in move.loops]
        if not around or len(around) >= len(places) or around != places[: len(around)]:
            return False
    return not moves[0].loops[-1].loop.is_call


def _rare(built: SchedulerBuilt, plan: _Plan, move: SchedulerStep, steps: list[Step]) -> Hit:
    deep = max(steps, key=lambda one: len(one.loops))
    links = [*step(built.place, plan.reason)]
    links += [Evidence(move.place, "it moves once per epoch here")]
    links += step(deep.place, "while the optimizer steps for each batch")
    return _hit(
        move.place,
        plan,
        f"{called(built.scheduler, 'the schedule')} is planned in batches and stepped once per epoch: it "
        "hardly moves and ends in its first part. Step it with the optimizer.",
        links,
        built.scheduler,
    )


# --------------------------------------------------------------------------- planned in updates


# `len(loader)` times something, and the same in windows: `ceil((len(loader)/accum))`.
_LENGTH = re.compile(r"len\((?P<of>[^()]*)\)")
_IN_WINDOWS = re.compile(r"\(len\((?P<of>[^()]*)\)//?[^()]+\)")


def _beside_windows(
    trace: Trace, built: SchedulerBuilt, moves: list[SchedulerStep], steps: list[Step]
) -> Iterator[Hit]:
    """Gradients are accumulated: a schedule of updates that moves with each micro-batch, or the reverse."""
    horizon = _length_of(built.scheduler)
    if horizon is None or not steps or not moves or not all(_windows(one) for one in steps):
        return
    loops = [turn.loop.place for turn in steps[0].loops]
    if steps[0].loops[-1].loop.kind is not LoopKind.BATCHES:
        return
    found = (_IN_WINDOWS if "/" in horizon else _LENGTH).search(horizon)
    if found is None or horizon.count("/") > 1 or not _is_loader(trace, found.group("of")):
        return
    same = [move for move in moves if [turn.loop.place for turn in move.loops] == loops]
    free = [move for move in same if not move.scene.guards]
    windows = frozenset(place for one in steps for place in _windows(one))
    if "/" in horizon and free:
        yield _window_hit(
            built,
            free[0],
            steps[0],
            "updates",
            "each micro-batch: it is at its end after the first part of the training. Step it with the "
            "optimizer.",
        )
    elif "/" not in horizon and len(same) == len(moves) and all(_windows(m) & windows for m in moves):
        yield _window_hit(
            built,
            moves[0],
            steps[0],
            "batches",
            "each window of accumulation only: the training ends in its first part. Divide its length by the "
            "batches of a window.",
        )


def _length_of(scheduler: Obj) -> str | None:
    """How the length of the schedule was computed."""
    arguments = scheduler.arguments
    last = scheduler.type_name.rpartition(".")[2]
    given = [value for name, value in arguments.keywords if name in _LENGTHS]
    if last.startswith("get_") and not given:
        given = [value for value in (arguments.get("", _total_at(scheduler)),) if value is not None]
    given += [value for value in (arguments.get("steps_per_epoch", 4),) if value and last == "OneCycleLR"]
    symbols = [one.symbol for value in given for one in alternatives(value) if isinstance(one, Unknown)]
    return symbols[0] if len(symbols) == 1 else None


_LENGTHS = ("total_steps", "T_max", "num_training_steps")


def _windows(event: Step | SchedulerStep) -> frozenset[Place]:
    """The tests of counters that choose the turns of the innermost loop in which it happens."""
    tests = turn_tests(event, len(event.loops) - 1) if event.loops else ()
    return frozenset(guard.place for guard in tests if guard.kind == "periodic" and guard.test == "counted")


def _is_loader(trace: Trace, name: str) -> bool:
    return any(obj.kind is Kind.LOADER and name in (obj.name, obj.symbol) for obj in trace.objects.values())


def _window_hit(built: SchedulerBuilt, move: SchedulerStep, one: Step, unit: str, rest: str) -> Hit:
    plan = _Plan(f"its length counts {unit}", belief=True)
    links = [*step(built.place, plan.reason), Evidence(move.place, "it moves here")]
    links += step(one.place, "the optimizer steps once in a window of batches")
    return _hit(
        move.place,
        plan,
        f"{called(built.scheduler, 'the schedule')} is planned in {unit} and moves with {rest}",
        links,
        built.scheduler,
    )


# --------------------------------------------------------------------------- planned in epochs


def _too_often(
    trace: Trace, built: SchedulerBuilt, moves: list[SchedulerStep], steps: list[Step]
) -> Iterator[Hit]:
    for move in moves:
        beside = next((s for s in steps if s.loops == move.loops), None)
        if beside is None or len(move.loops) < 2 or move.loops[-1].loop.kind is not LoopKind.BATCHES:
            continue
        if move.loops[-2].loop.is_call or not _under_same_tests(move, beside):
            continue
        plan = _epoch_plan(trace, built.scheduler, move.loops[-2].loop.place)
        if plan is not None:
            links = [*step(built.place, plan.reason), Evidence(move.place, "it moves for each batch here")]
            yield _hit(
                move.place,
                plan,
                f"{called(built.scheduler, 'the schedule')} is planned in epochs and stepped for each batch: "
                "the learning rate runs through its whole schedule within an epoch. Step it once per epoch.",
                links,
                built.scheduler,
            )
        return


def _under_same_tests(move: SchedulerStep, one: Step) -> bool:
    return {g.place for g in move.scene.guards} <= {g.place for g in one.scene.guards}


def _epoch_plan(trace: Trace, scheduler: Obj, epochs: Place) -> _Plan | None:
    plan = _small_plan(scheduler)
    if plan is not None:
        return plan
    if scheduler.type_name.endswith(".CosineAnnealingLR"):
        horizon, count = scheduler.arguments.get("T_max", 1), _count_of(trace, epochs)
        if horizon is not None and count is not None and _equal(horizon, count):
            return _Plan("its length is the number of epochs", belief=True)
    return None


def _small_plan(scheduler: Obj) -> _Plan | None:
    """Numbers that leave nothing of the learning rate when they count batches."""
    last = scheduler.type_name.rpartition(".")[2]
    arguments = scheduler.arguments
    if last in ("StepLR", "ExponentialLR"):
        size = 1 if last == "ExponentialLR" else _number(arguments.get("step_size", 1))
        gamma = _number(arguments.get("gamma", 1 if last == "ExponentialLR" else 2))
        gamma = 0.1 if gamma is None and last == "StepLR" else gamma
        if size and gamma and 0 < gamma < 1 and gamma ** (_MANY_BATCHES / size) < _NOTHING_LEFT:
            return _Plan(f"it leaves nothing of the learning rate after {_MANY_BATCHES:,} moves", belief=True)
    return None


def _number(value: Value | None) -> float | None:
    is_number = isinstance(value, Const) and isinstance(value.value, (int, float))
    return float(value.value) if is_number and isinstance(value, Const) else None  # type: ignore[arg-type]


def _count_of(trace: Trace, loop: Place) -> Value | None:
    """How often a loop over `range(n)` runs."""
    for entered in trace.of(LoopEntered):
        if entered.loop_place == loop:
            over = entered.over
            if isinstance(over, Const) and isinstance(over.value, range):
                return Const(None, len(over.value))
            if isinstance(over, Obj) and over.kind is Kind.ITERATOR:
                counts = [trait for trait in over.traits if trait.startswith("count:")]
                if counts:
                    return Const(None, int(counts[0].removeprefix("count:")))
                return over.over[0] if len(over.over) == 1 else None
    return None


def _equal(first: Value, second: Value) -> bool:
    if isinstance(first, Const) and isinstance(second, Const):
        return first.value == second.value
    # an unknown thing of the caller's is no proof: what is computed from it may be taken for the same
    if isinstance(first, Unknown) and isinstance(second, Unknown):
        return first.symbol is not None and first.symbol == second.symbol and first.offset == second.offset
    return False


# --------------------------------------------------------------------------- lengths in numbers


_LENGTH_AT = {
    "CosineAnnealingLR": ("T_max", 1),
    "OneCycleLR": ("total_steps", 2),
    "PolynomialLR": ("total_iters", 1),
}
_FAR_BEYOND = 20  # a cosine has lost 0.6 % of the learning rate after a twentieth of its length


def _hardly_begun(trace: Trace, built: SchedulerBuilt, moves: list[SchedulerStep]) -> Iterator[Hit]:
    """A length in numbers that all moves of the run, which are numbers too, never come near."""
    where = _LENGTH_AT.get(built.scheduler.type_name.rpartition(".")[2])
    length = None if where is None else _number(built.scheduler.arguments.get(*where))
    counts = {move.place: _turns_of(trace, move) for move in moves}
    if length is None or where is None or not counts or None in counts.values():
        return
    total = sum(count for count in counts.values() if count is not None)
    if total < 2 or length < _FAR_BEYOND * total:
        return
    move = moves[0]
    yield Hit(
        built.place,
        Severity.WARNING,
        grade(1),
        f"{called(built.scheduler, 'this schedule')} is {length:,.0f} moves long, the run makes {total:,}: "
        "the learning rate stays where it begins. Plan it for the moves of the run."
        + doubt((True, "the run may be shortened for a trial")),
        distinct(
            (
                Evidence(built.place, f"`{where[0]}` is {length:,.0f}"),
                Evidence(move.place, f"it moves here, {total:,} times in all"),
                *step(move.loops[0].loop.place, "in this loop"),
            )
        ),
        frozenset({("scheduler", built.scheduler.id)}),
        None,
    )


def _turns_of(trace: Trace, move: SchedulerStep) -> int | None:
    """How often a move happens, when every loop around it is counted."""
    total = 1
    for turn in move.loops:
        count = _count_of(trace, turn.loop.place)
        if turn.loop.is_call or not isinstance(count, Const) or not isinstance(count.value, int):
            return None
        total *= count.value
    return total if move.loops else None


# --------------------------------------------------------------------------- accelerate


class _TooShort(NamedTuple):
    """A schedule whose lengths count the steps of one process, and who runs several."""

    scheduler: Obj
    accelerator: str


def _per_process(trace: Trace, prepared: Prepared) -> Iterator[Hit]:
    """A prepared scheduler moves once for each process at every step of the optimizer.

    [accelerate `AcceleratedScheduler.step`: num_processes moves unless `split_batches`]
    """
    if _moves_alone(prepared.owner):
        return
    moved = {move.scheduler.id: move for move in trace.of(SchedulerStep)}
    bounds = [event for event in trace.of(LoopBounded) if isinstance(event.bound, Unknown)]
    for scheduler in prepared.objects:
        horizon = scheduler.arguments.get("num_training_steps", _total_at(scheduler))
        if scheduler.id not in moved or scheduler.place is None or not isinstance(horizon, Unknown):
            continue
        bound = next((event for event in bounds if _equal(horizon, event.bound)), None)
        if bound is None or "rank" in horizon.taint or "?" in (horizon.symbol or ""):
            continue
        yield Hit(
            scheduler.place,
            Severity.ERROR,
            grade(1),
            f"{called(scheduler, 'this schedule')} is as long as the run of one process, but a prepared "
            "scheduler moves once for each process at every step: with n processes the learning rate is at "
            "its end after 1/n of the run. Multiply its lengths by `num_processes`."
            + doubt((True, "how many processes run is not known")),
            distinct(
                (
                    Evidence(scheduler.place, f"its length is `{horizon.symbol}` steps"),
                    Evidence(prepared.place, "Accelerate prepares it: it moves with every process"),
                    Evidence(bound.place, f"and the loop ends after `{horizon.symbol}` steps"),
                    Evidence(moved[scheduler.id].place, "it moves here"),
                )
            ),
            frozenset({("scheduler", scheduler.id)}),
            _TooShort(scheduler, prepared.owner.name),
        )


# Schedules that are planned in epochs when they move once per epoch.
_BY_EPOCHS = (
    "StepLR",
    "MultiStepLR",
    "ExponentialLR",
    "CosineAnnealingLR",
    "ReduceLROnPlateau",
    "PolynomialLR",
)


def _per_epoch(trace: Trace, prepared: Prepared) -> Iterator[Hit]:
    """A prepared scheduler that moves once per epoch moves once for each process, too."""
    for scheduler in prepared.objects:
        if scheduler.kind is not Kind.SCHEDULER or scheduler.place is None:
            continue
        by_batch = _batch_plan(scheduler)
        if by_batch is not None:
            yield from _rare_for_all(trace, scheduler, by_batch)
            continue
        if scheduler.type_name.rpartition(".")[2] not in _BY_EPOCHS or _moves_alone(prepared.owner):
            continue
        moves = [move for move in trace.of(SchedulerStep) if move.scheduler.id == scheduler.id]
        steps = [one for one in trace.steps if any(one.optimizer is thing for thing in prepared.objects)]
        if moves and _all_too_rare(trace, moves, steps or list(trace.steps)):
            yield Hit(
                moves[0].place,
                Severity.ERROR,
                grade(1),
                f"{called(scheduler, 'this schedule')} is planned in epochs, but a prepared scheduler moves "
                "once for each process at every call: with n processes it is n epochs ahead after each. "
                "Leave it out of prepare()." + doubt((True, "how many processes run is not known")),
                distinct(
                    (
                        Evidence(scheduler.place, "it is made here"),
                        Evidence(prepared.place, "Accelerate prepares it: it moves with every process"),
                        Evidence(moves[0].place, "it moves once per epoch here"),
                    )
                ),
                frozenset({("scheduler", scheduler.id)}),
                None,
            )


def _rare_for_all(trace: Trace, scheduler: Obj, plan: _Plan) -> Iterator[Hit]:
    """Planned in batches and moved once per epoch: as many moves as processes make up for no epoch."""
    built = next((one for one in trace.of(SchedulerBuilt) if one.scheduler.id == scheduler.id), None)
    if built is None or built.optimizer is None:
        return
    moves = [move for move in trace.of(SchedulerStep) if move.scheduler.id == scheduler.id]
    steps = [one for one in trace.steps if one.optimizer.id == built.optimizer.id]
    if moves and _all_too_rare(trace, moves, steps):
        yield _rare(built, plan, moves[0], steps)


def _moves_alone(owner: Obj) -> bool:
    """Is it said how schedulers move, or may it be? [accelerate `AcceleratedScheduler.step`]"""
    arguments = owner.arguments
    names = ("split_batches", "dataloader_config", "step_scheduler_with_optimizer")
    return arguments.open or any(arguments.get(name) is not None for name in names)


def _of_shards(trace: Trace) -> Iterator[Hit]:
    """A schedule as long as the loader was before Accelerate or Fabric gave each process a part of it."""
    ready = {thing.id: event for event in trace.of(Prepared) for thing in event.objects}
    for built in trace.of(SchedulerBuilt):
        if built.scheduler.id in ready or built.scheduler.id in trace.escaped:
            continue
        length = _length_of(built.scheduler)
        found = _LENGTH.search(length) if length is not None and "/" not in length else None
        sharded = _sharded_later(trace, found.group("of"), built, ready) if found is not None else None
        moves = [move for move in trace.of(SchedulerStep) if move.scheduler.id == built.scheduler.id]
        if sharded is None or not moves or "process" in (length or "") or "world" in (length or ""):
            continue
        if all(move.loops and trace.walks_loader(move.loops[-1].loop) for move in moves):
            yield _too_long(built, sharded, moves[0])


def _sharded_later(
    trace: Trace, name: str, built: SchedulerBuilt, ready: Mapping[int, Prepared]
) -> Prepared | None:
    loaders = [
        obj for obj in trace.objects.values() if obj.kind is Kind.LOADER and name in (obj.name, obj.symbol)
    ]
    events = [ready[loader.id] for loader in loaders if loader.id in ready]
    is_later = bool(events) and len(events) == len(loaders) and all(e.order > built.order for e in events)
    return events[0] if is_later else None


def _too_long(built: SchedulerBuilt, sharded: Prepared, move: SchedulerStep) -> Hit:
    return Hit(
        move.place,
        Severity.ERROR,
        grade(1),
        f"{called(built.scheduler, 'this schedule')} is as long as the loader was before each process got a "
        "part of it, and is not prepared itself: with n processes the run ends after 1/n of it. Build it "
        "behind prepare()." + doubt((True, "how many processes run is not known")),
        distinct(
            (
                Evidence(built.place, "its length counts batches of the whole loader"),
                Evidence(sharded.place, "each process gets a part of the batches here"),
                Evidence(move.place, "and it moves once for each batch of a process"),
            )
        ),
        frozenset({("scheduler", built.scheduler.id)}),
        None,
    )


def _total_at(scheduler: Obj) -> int:
    return 3 if scheduler.type_name.endswith(".get_scheduler") else 2


def _longer(file: SourceFile, found: _TooShort) -> tuple[Edit, ...]:
    """The lengths, written as keywords, times the number of processes."""
    place = found.scheduler.place
    call = None if place is None or place.path != file.path else expression_at(file.module, place.span)
    if place is None or not isinstance(call, nodes.Call):
        return ()
    shift = place.span.line - call.span.line
    given = {keyword.name: keyword.value for keyword in call.keywords}
    if "num_training_steps" not in given:
        return ()
    factor = f" * {found.accelerator}.num_processes"
    out: list[Edit] = []
    for name in ("num_warmup_steps", "num_training_steps"):
        value = given.get(name)
        if value is None or (isinstance(value, nodes.Constant) and value.value == 0):
            continue
        if not isinstance(value, nodes.Name | nodes.Attribute | nodes.Constant | nodes.Call):
            return ()
        out.append(append_to(Place(file.path, value.span.shifted(shift)), factor))
    return tuple(out)


# --------------------------------------------------------------------------- lightning


def _of_lightning(trace: Trace, configured: Configured) -> Iterator[Hit]:
    if configured.owner.cls is None or not configured.scene.entry.framework.startswith("lightning"):
        return
    for scheduler in _schedulers_without_interval(trace, configured.value):
        plan = _batch_plan(scheduler)
        if plan is None or scheduler.place is None or _is_stepped(trace, scheduler):
            continue
        links = [Evidence(scheduler.place, plan.reason)]
        links += step(
            configured.place, 'returned without the interval "step": Lightning steps it once per epoch'
        )
        yield _hit(
            scheduler.place,
            plan,
            f"{called(scheduler, 'the schedule')} is planned in batches, but Lightning steps it once per "
            'epoch. Return {"scheduler": ..., "interval": "step"}.',
            links,
            scheduler,
        )
    for scheduler in _schedulers_per_step(trace, configured.value):
        plan = _planned_in_epochs(trace, configured.owner.cls, scheduler)
        if plan is None or scheduler.place is None or _batch_plan(scheduler) or _is_stepped(trace, scheduler):
            continue
        links = [Evidence(scheduler.place, plan.reason)]
        links += step(
            configured.place, 'returned with the interval "step": Lightning steps it for each batch'
        )
        yield _hit(
            scheduler.place,
            plan,
            f"{called(scheduler, 'the schedule')} is planned in epochs, but Lightning steps it for each "
            "batch: the learning rate runs through its whole schedule within an epoch or a few. Leave the "
            'interval "step" out.',
            links,
            scheduler,
        )


def _planned_in_epochs(trace: Trace, cls: Class, scheduler: Obj) -> _Plan | None:
    """By its numbers, or because its length is that of the Trainer in epochs."""
    plan = _small_plan(scheduler)
    if plan is not None or not scheduler.type_name.endswith(".CosineAnnealingLR"):
        return plan
    horizon = scheduler.arguments.get("T_max", 1)
    if _written_length(cls, scheduler) in _EPOCH_NAMES and not isinstance(horizon, Const):
        return _Plan("its length is a number of epochs by its name", belief=True)
    given = [event.arguments.get("max_epochs") for event in trace.api("lightning.Trainer")]
    if given and horizon is not None and all(g is not None and _equal(horizon, g) for g in given):
        return _Plan("its length is the Trainer's `max_epochs`", belief=True)
    return None


def _written_length(cls: Class, scheduler: Obj) -> str:
    """The last name of what is given as `T_max` in the source of the class: "max_epochs" of
    `T_max=self.trainer.max_epochs`, nothing for anything that computes."""
    made = [node for node in walk(cls.node) if isinstance(node, nodes.Call) and _makes(node, scheduler)]
    if len(made) != 1:
        return ""
    given = [*made[0].args[1:2], *(keyword.value for keyword in made[0].keywords if keyword.name == "T_max")]
    if given and isinstance(given[0], nodes.Attribute):
        return given[0].attr
    return given[0].id if given and isinstance(given[0], nodes.Name) else ""


def _makes(node: nodes.Call, scheduler: Obj) -> bool:
    func = node.func
    name = func.attr if isinstance(func, nodes.Attribute) else func.id if isinstance(func, nodes.Name) else ""
    return name == scheduler.type_name.rpartition(".")[2]


_EPOCH_NAMES = frozenset(
    ["max_epochs", "epochs", "n_epochs", "num_epochs", "num_train_epochs", "total_epochs"]
)


def _schedulers_per_step(trace: Trace, value: Value, depth: int = 0) -> Iterator[Obj]:
    """Schedulers in a dictionary with the interval "step" and no frequency."""
    for member in alternatives(value):
        if not isinstance(member, Obj) or depth > 3:
            continue
        if member.kind is Kind.DICT and _interval(trace, member) == "step":
            keyed = trace.entries(member.id)
            found = keyed.get("scheduler")
            if isinstance(found, Obj) and found.kind is Kind.SCHEDULER and "frequency" not in keyed:
                yield found
        elif member.kind in (Kind.LIST, Kind.TUPLE, Kind.DICT):
            for inner in trace.items(member.id):
                yield from _schedulers_per_step(trace, inner, depth + 1)


def _interval(trace: Trace, configuration: Obj) -> str | None:
    """What the configuration of a scheduler says; "?" for what is not known, None where it says nothing.

    One beside "lr_scheduler" is in the wrong dictionary: Lightning warns and does not read it.
    """
    keyed = trace.entries(configuration.id)
    if "lr_scheduler" in keyed or "interval" not in keyed:
        return None
    value = keyed["interval"]
    return value.value if isinstance(value, Const) and isinstance(value.value, str) else "?"


def _is_stepped(trace: Trace, scheduler: Obj) -> bool:
    return any(move.scheduler.id == scheduler.id for move in trace.of(SchedulerStep))


def _schedulers_without_interval(trace: Trace, value: Value, depth: int = 0) -> Iterator[Obj]:
    for member in alternatives(value):
        if not isinstance(member, Obj):
            continue
        if member.kind is Kind.SCHEDULER:
            yield member
        elif member.kind is Kind.DICT and depth < 4:
            if _interval(trace, member) not in (None, "epoch"):
                continue
            for inner in trace.items(member.id):
                yield from _schedulers_without_interval(trace, inner, depth + 1)
        elif member.kind in (Kind.LIST, Kind.TUPLE) and depth < 4:
            for inner in trace.items(member.id):
                yield from _schedulers_without_interval(trace, inner, depth + 1)


def _hit(place: Place, plan: _Plan, message: str, links: list[Evidence], scheduler: Obj) -> Hit:
    return Hit(
        place,
        Severity.ERROR,
        grade(int(plan.belief)),
        message,
        distinct(links),
        frozenset({("scheduler", scheduler.id)}),
        None,
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if isinstance(hit.facts, _TooShort):
        edits = _longer(file, hit.facts)
        title = "Multiply the lengths by the number of processes (changes the schedule)"
        yield Fix(title, Safety.UNSAFE if edits else Safety.ADVICE, edits)
        return
    yield Fix("Step the schedule in the unit that it is planned in", Safety.ADVICE, ())

"""accumulation-tail-dropped: what is left behind the last full window is wiped or leaks on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    Backward,
    Clear,
    Event,
    Guard,
    LoopEntered,
    LoopLeft,
    Step,
)
from torchwise_analysis.interp.abstract.loops import LoopKind, LoopPath
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._frames import call_beside
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, grade, step

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs, window):
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / window).backward()
            if (i + 1) % window == 0:
               ^^^^^^^^^^^^^^^^^^^^^ accumulation-tail-dropped warning likely
                optimizer.step()
                optimizer.zero_grad()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs, window):
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / window).backward()
            if (i + 1) % window == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""

RULE = Rule(
    code="TW504",
    name="accumulation-tail-dropped",
    category=Category.ACCUMULATION,
    severity=Severity.WARNING,
    claim="Micro-batches behind the last full accumulation window of an epoch are not applied in that epoch.",
    cost=(
        "When the number of batches is no multiple of the window, up to window - 1 micro-batches of every "
        "epoch are computed and then wiped by the clear of the next epoch, or stay in `.grad` and are added "
        "to the first window of the next epoch, whose step is then too large."
    ),
    wrong=Example("The rest is wiped by the next epoch", WRONG),
    right=Example("The last batch steps too", RIGHT),
    silent=(
        "a step on the last batch or behind the loop, also under a condition",
        "the loop over epochs is not in view, unless a function named after an epoch begins with a clear",
        "the counter goes on through the epochs, or a loop of a number of steps draws its batches itself",
        "a framework accumulates (Accelerate steps on the last batch by itself)",
        "no window: one backward for each step",
    ),
    grading=(
        "A warning, because the harm is bounded. Likely at most: the length of the loader may be a multiple "
        "of the window; possible when the optimizer also goes into a call that cannot be seen."
    ),
    fix="Advice only: step on the last batch too, or drop the rest on purpose with `drop_last`.",
    references=(
        Reference(
            "Automatic mixed precision examples: gradient accumulation",
            "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
        ),
        Reference(
            "Accelerate: performing gradient accumulation",
            "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
        ),
    ),
    examples=(
        Example(
            "The rest leaks into the next epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = 4


def train(loader):
    optimizer.zero_grad()
    for epoch in range(10):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if (i + 1) % window == 0:
               ^^^^^^^^^^^^^^^^^^^^^ accumulation-tail-dropped warning likely
                optimizer.step()
                optimizer.zero_grad()
""",
        ),
        Example(
            "A step behind the loop applies the rest",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = 4


def train(loader):
    for epoch in range(10):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if (i + 1) % window == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        Example(
            "A counter that goes on through the epochs loses nothing",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    seen = 0
    for epoch in range(10):
        for x, y in loader:
            (nn.functional.cross_entropy(model(x), y) / 4).backward()
            seen += 1
            if seen % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
""",
        ),
        Example(
            "Samples are counted, and each call begins with a clear",
            """
import torch
from torch import nn


class Agent:
    def __init__(self, model, threshold):
        self.model, self.threshold = model, threshold
        self.optimizer = torch.optim.Adam(model.parameters())

    def one_epoch(self, loader):
        group = 0
        self.optimizer.zero_grad()
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            (loss * len(x) / self.threshold).backward()
            group += len(x)
            if group >= self.threshold:
               ^^^^^^^^^^^^^^^^^^^^^^^ accumulation-tail-dropped warning likely
                self.optimizer.step()
                self.optimizer.zero_grad()
                group = 0

    def whole_epoch(self, loader):
        group = 0
        self.optimizer.zero_grad()
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            (loss * len(x) / self.threshold).backward()
            group += len(x)
            if group >= self.threshold:
                self.optimizer.step()
                self.optimizer.zero_grad()
                group = 0
        if group:
            self.optimizer.step()
            self.optimizer.zero_grad()
""",
        ),
        Example(
            "A window of varying length that a clear at the head of each epoch cuts off",
            """
import numpy as np
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()


def train(loader, epochs, warmup):
    last = -1
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            done = i + len(loader) * epoch
            window = max(1, np.interp(done, [0, warmup], [1, 8]).round())
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            scaler.scale(loss).backward()
            if done - last >= window:
               ^^^^^^^^^^^^^^^^^^^^^ accumulation-tail-dropped warning likely
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                last = done
""",
        ),
        Example(
            "The first batch is stepped alone, a helper clears",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]


def clear():
    for one in optimizers:
        one.zero_grad()


def train(loader, window):
    for epoch in range(10):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if i % window == 0:
               ^^^^^^^^^^^^^^^ accumulation-tail-dropped warning likely
                for one in optimizers:
                    one.step()
                clear()
""",
        ),
        Example(
            "A flag for the last batch, a micro-batch loop, a loop of steps",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def flagged(loader, window):
    for epoch in range(10):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            is_last = i == len(loader) - 1
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if (i + 1) % window == 0 or is_last:
                optimizer.step()
                optimizer.zero_grad()


def micro(loader, parts):
    for x, y in loader:
        optimizer.zero_grad()
        for i, (a, b) in enumerate(zip(x.chunk(parts), y.chunk(parts))):
            (nn.functional.cross_entropy(model(a), b) / parts).backward()
            if i == parts - 1:
                optimizer.step()


def steps(batches, window, count):
    optimizer.zero_grad()
    for i in range(count * window):
        x, y = next(batches)
        (nn.functional.cross_entropy(model(x), y) / window).backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Accelerate steps on the last batch",
            """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)


def train(loader):
    for epoch in range(10):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
""",
        ),
    ),
)


class _Window(NamedTuple):
    """Steps that a test of a counter lets pass only after several backwards at one place.

    loop: the loops around the backward, the one over the batches last. guard: the test.
    """

    step: Step
    backward: Backward
    guard: Guard

    @property
    def loops(self) -> LoopPath:
        return self.backward.loops


def detect(trace: Trace) -> Iterator[Hit]:
    for window in _windows(trace):
        if _is_flushed(trace, window):
            continue
        wiping = _wiping(trace, window)
        if wiping is not None:
            yield _wiped(trace, window, wiping)
        elif _leaks(trace, window):
            yield _leaked(trace, window)


def _windows(trace: Trace) -> Iterator[_Window]:
    """The windows of loops over data, each once."""
    seen: set[tuple[int, Place]] = set()
    by_place: dict[Place, list[Backward]] = {}
    for backward in trace.backwards:
        by_place.setdefault(backward.place, []).append(backward)
    for one in trace.steps:
        for place in sorted(_several(one), key=lambda place: (place.path, place.span)):
            key = (one.optimizer.id, place)
            if key in seen:
                continue
            before = [b for b in by_place.get(place, ()) if b.order < one.order and b.how == "tensor"]
            window = _window(one, before[-1]) if before else None
            if window is not None:
                seen.add(key)
                yield window


def _several(one: Step) -> set[Place]:
    """Places whose backward ran several times for this step."""
    return {place for atom in one.before if not atom.applied for place, runs in atom.sites if runs > 1}


def _window(one: Step, backward: Backward) -> _Window | None:
    loops = backward.loops
    if not loops or loops[-1].loop.kind not in (LoopKind.BATCHES, LoopKind.UNKNOWN):
        return None
    if _places(one.loops)[: len(loops)] != _places(loops):
        return None
    before = {guard.place for guard in backward.scene.guards}
    passed = [guard for guard in one.scene.guards if guard.place not in before]
    guard = next((g for g in passed if g.kind == "periodic" and g.test in ("counted", ">=", ">")), None)
    return None if guard is None else _Window(one, backward, guard)


def _places(loops: LoopPath) -> list[Place]:
    return [turn.loop.place for turn in loops]


def _is_flushed(trace: Trace, window: _Window) -> bool:
    """May something else apply what is left: a step behind the loop, on the last batch, on another test?"""
    if _ends_with_step(trace, window):
        return True
    around = _places(window.loops)
    for one in trace.steps:
        if one.optimizer.id != window.step.optimizer.id:
            continue
        if _is_beside(one, around) and one.order > window.backward.order:
            return True
        if _places(one.loops)[: len(around)] != around:
            continue
        passed = [guard for guard in one.scene.guards if guard.place == window.guard.place]
        if not passed:
            return True
        if any(_may_be_the_end(guard, passed[-1]) for guard in one.scene.guards):
            return True
    return False


def _ends_with_step(trace: Trace, window: _Window) -> bool:
    """Does each run of the loop end with a step, of a shorter window or because the loop is left there?

    A counted loop runs for an odd number of turns, so that a window of two is left open at its end.
    """
    depth, place, optimizer = len(window.loops) - 1, window.backward.place, window.step.optimizer.id
    left = {leaving.loops[:depth] for leaving in trace.of(LoopLeft) if _is_of(leaving, window)}
    last: dict[LoopPath, Event] = {}
    for event in trace.of_any(Backward, Step):
        is_own = event.place == place if isinstance(event, Backward) else event.optimizer.id == optimizer
        if is_own and len(event.loops) > depth:
            last[event.loops[:depth]] = event
    return all(
        isinstance(event, Step) and (loops in left or _is_short(event, window))
        for loops, event in last.items()
    )


def _is_short(one: Step, window: _Window) -> bool:
    """Does a counted test let the step pass although but one backward ran for it?"""
    runs = {n for atom in one.before for place, n in atom.sites if place == window.backward.place}
    return runs == {1} and any(guard.test == "counted" for guard in one.scene.guards)


def _is_of(leaving: LoopLeft, window: _Window) -> bool:
    """Is it the loop over the batches that is left, by a test of its counter?"""
    is_counted = any(guard.test == "counted" for guard in leaving.scene.guards)
    return is_counted and _places(leaving.loops) == _places(window.loops)


def _is_beside(event: Event, around: list[Place]) -> bool:
    """Does it happen in the loop over epochs, or around it, but not in the loop over the batches?"""
    places = _places(event.loops)
    shared = 0
    while shared < min(len(places), len(around)) and places[shared] == around[shared]:
        shared += 1
    return shared < len(around) and (shared == len(places) or shared == len(around) - 1)


def _may_be_the_end(guard: Guard, window: Guard) -> bool:
    """Is it another operand of the window's condition, true for the last batch perhaps?"""
    if guard.group != window.group or guard.place == window.place:
        return False
    return guard.kind == "periodic" or any(word in (guard.symbol or "") for word in ("[]", "last", "end"))


def _wiping(trace: Trace, window: _Window) -> Clear | None:
    """The clear outside the loop that takes away what a window has begun."""
    around = _places(window.loops)
    outside = [
        clear
        for clear in trace.clears
        if clear.optimizer.id == window.step.optimizer.id and _is_beside(clear, around)
    ]
    for clear in outside:
        if any(
            not atom.applied and window.backward.place in {place for place, _ in atom.sites}
            for atom in clear.before
        ):
            return clear
    if any(not turn.loop.is_call for turn in window.loops[:-1]):
        passed = set(window.backward.scene.guards)
        every = (c for c in outside if _places(c.loops) == around[:-1] and passed.issuperset(c.scene.guards))
        return next((clear for clear in every if clear.order < window.backward.order), None)
    entered = _entered(trace, window)
    is_of_epoch = entered is not None and "epoch" in entered.scene.function.lower()
    if entered is None or not is_of_epoch:
        return None
    # A function for one epoch: its next call clears what this one left, or nothing ever applies it.
    frame = entered.scene.frame
    own = [c for c in outside if frame in (c.scene.frame, *(caller.frame for caller in c.calls))]
    return next((clear for clear in own if clear.order < window.backward.order), None)


def _leaks(trace: Trace, window: _Window) -> bool:
    """Does a window that began in one epoch end in the next, although the count begins anew?"""
    epochs = [turn for turn in window.loops[:-1] if not turn.loop.is_call]
    # Two turns of a loop that looks at no counter itself fill a window of two: they tell nothing of a rest.
    is_counted = window.loops[-1].loop.window and window.guard.test == "counted"
    return bool(epochs) and is_counted and _restarts(trace, window)


def _restarts(trace: Trace, window: _Window) -> bool:
    """Does the counter of the window begin anew in each epoch? Then a window never spans two of them."""
    depth, one = len(window.loops) - 1, window.step
    epochs: dict[LoopPath, dict[int, None]] = {}
    for other in trace.steps:
        if other.place == one.place and other.optimizer.id == one.optimizer.id and len(other.loops) > depth:
            epochs.setdefault(other.loops[:depth], {})[other.loops[depth].iteration] = None
    return len(epochs) > 1 and len({tuple(turns) for turns in epochs.values()}) == 1


def _wiped(trace: Trace, window: _Window, clear: Clear) -> Hit:
    message = (
        "micro-batches behind the last full window are computed and then cleared without a step: up to "
        "window - 1 of them in every epoch. Step on the last batch too."
    )
    links = _chain(window)
    links += step(clear.place, "the rest of an epoch is cleared here")
    at_clear = Evidence(call_beside(clear, window.step), "what is left is cleared here")
    return _hit(trace, window, message, links, (at_clear,))


def _leaked(trace: Trace, window: _Window) -> Hit:
    message = (
        "gradients behind the last full window stay until the next epoch, whose first step is too large. "
        "Step on the last batch too."
    )
    return _hit(trace, window, message, _chain(window))


def _chain(window: _Window) -> list[Evidence]:
    links = [Evidence(window.backward.place, "this backward belongs to a window of several batches")]
    name = called(window.step.optimizer, "the optimizer")
    return [*links, *step(window.step.place, f"{name} steps on full windows only")]


def _entered(trace: Trace, window: _Window) -> LoopEntered | None:
    """Where the loop over the batches began."""
    entered = trace.at(LoopEntered, (window.loops[-1].loop.place,), window.step.order)
    return entered[-1] if entered else None


def _site(trace: Trace, window: _Window) -> Place:
    """The test, or the call that makes it in the function that loops over the batches."""
    loop = window.loops[-1].loop.place
    guard = window.guard.place
    if guard.path == loop.path and guard.span.line >= loop.span.line:
        return guard
    entered = _entered(trace, window)
    depth = len(window.step.calls) if entered is None else len(entered.calls)
    return window.step.calls[depth].place if depth < len(window.step.calls) else guard


def _hit(
    trace: Trace,
    window: _Window,
    message: str,
    links: list[Evidence],
    elsewhere: tuple[Evidence, ...] = (),
) -> Hit:
    beliefs = 1 + int(window.step.optimizer.id in trace.escaped)
    return Hit(
        _site(trace, window),
        Severity.WARNING,
        grade(beliefs),
        message,
        distinct(links),
        frozenset({("optimizer", window.step.optimizer.id)}),
        window.step,
        elsewhere,
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - the signature of BuildFixes
    yield Fix("Step on the last batch too, or drop the rest with drop_last", Safety.ADVICE, ())

"""accumulation-tail-dropped: what is left behind the last full window is wiped or leaks on."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, Clear, Step
from torchwise_analysis.interp.abstract.loops import LoopPath
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Gradients
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
            ^^^^^^^^^^^^^^^^^^^^^^^^^^ accumulation-tail-dropped warning likely
            if (i + 1) % window == 0:
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
        "the loop over epochs is not in view",
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


def detect(trace: Trace) -> Iterator[Hit]:
    windows = _windows(trace)
    for event in trace.of_any(Clear, Backward):
        if isinstance(event, Clear):
            for one in _left_over(event.before, event.optimizer.id, windows):
                if _is_outside(event, one[1]):
                    yield _wiped(trace, event, *one)
        elif event.how == "tensor":
            for optimizer, before in event.before.items():
                for place, stepped in _left_over(before, optimizer, windows):
                    if place == event.place and _is_new_epoch(event, stepped, trace):
                        yield _leaked(trace, stepped, place)


def _windows(trace: Trace) -> dict[tuple[int, Place], Step]:
    """The step of each backward that runs several times before it, by optimizer and place of the backward."""
    out: dict[tuple[int, Place], Step] = {}
    for one in trace.steps:
        is_counted = any(guard.kind in ("periodic", "flag") for guard in one.scene.guards)
        for atom in one.before:
            for place, runs in atom.sites:
                if runs > 1 and not atom.applied and is_counted and one.loops:
                    out.setdefault((one.optimizer.id, place), one)
    return out


def _left_over(
    before: Gradients, optimizer: int, windows: dict[tuple[int, Place], Step]
) -> Iterator[tuple[Place, Step]]:
    """Backwards of windows whose gradients are certainly still unused."""
    if not before or any(atom.applied or not atom.sites for atom in before):
        return
    for place in sorted({p for atom in before for p, _ in atom.sites}, key=lambda p: (p.path, p.span)):
        if (optimizer, place) in windows:
            yield place, windows[optimizer, place]


def _is_outside(clear: Clear, one: Step) -> bool:
    """Does the clear belong to a loop around the loop of the step?"""
    places = [turn.loop.place for turn in one.loops]
    return (
        0 < len(clear.loops) < len(places)
        and [t.loop.place for t in clear.loops] == places[: len(clear.loops)]
    )


def _is_new_epoch(backward: Backward, one: Step, trace: Trace) -> bool:
    """The first iteration of the step's loop in a later iteration of a loop around it."""
    turns = backward.loops
    if len(turns) < 2 or [t.loop.place for t in turns] != [t.loop.place for t in one.loops]:
        return False
    is_first = turns[-1].iteration == 0 and turns[-2].iteration > 0 and not turns[-2].loop.is_call
    return is_first and _restarts(one, trace)


def _restarts(one: Step, trace: Trace) -> bool:
    """Does the counter of the window begin anew in each epoch? Then a window never spans two of them."""
    epochs: dict[LoopPath, list[int]] = {}
    for other in trace.steps:
        if other.place == one.place and other.optimizer.id == one.optimizer.id and other.loops:
            epochs.setdefault(other.loops[:-1], []).append(other.loops[-1].iteration)
    return len({tuple(turns) for turns in epochs.values()}) == 1


def _wiped(trace: Trace, clear: Clear, place: Place, one: Step) -> Hit:
    message = (
        "micro-batches behind the last full window are computed and then cleared without a step: up to "
        "window - 1 of them in every epoch. Step on the last batch too."
    )
    backward = next(
        (b for b in reversed(trace.backwards) if b.place == place and b.order < clear.order), None
    )
    place = place if backward is None else call_beside(backward, clear)
    links = [Evidence(place, "this backward belongs to a window of several batches")]
    links += step(one.place, f"{called(one.optimizer, 'the optimizer')} steps on full windows only")
    links += step(clear.place, "the rest of an epoch is cleared here")
    return _hit(trace, place, one, message, links)


def _leaked(trace: Trace, one: Step, place: Place) -> Hit:
    guard = next((g for g in reversed(one.scene.guards) if g.kind in ("periodic", "flag")), None)
    message = (
        "gradients behind the last full window stay until the next epoch, whose first step is too large. "
        "Step on the last batch too."
    )
    links = [Evidence(place, "this backward belongs to a window of several batches")]
    links += step(one.place, f"{called(one.optimizer, 'the optimizer')} steps on full windows only")
    return _hit(trace, guard.place if guard else one.place, one, message, links)


def _hit(trace: Trace, place: Place, one: Step, message: str, links: list[Evidence]) -> Hit:
    beliefs = 1 + int(one.optimizer.id in trace.escaped)
    return Hit(
        place,
        Severity.WARNING,
        grade(beliefs),
        message,
        distinct(links),
        frozenset({("optimizer", one.optimizer.id)}),
        one,
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - the signature of BuildFixes
    yield Fix("Step on the last batch too, or drop the rest with drop_last", Safety.ADVICE, ())

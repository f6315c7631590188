"""optimizer-rebuilt-in-loop: an optimizer with memory is made anew while its model trains on."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    Event,
    FunctionEntered,
    LoopEntered,
    OptimizerBuilt,
    RequiresGrad,
    Step,
    WeightsLoaded,
)
from torchwise_analysis.interp.abstract.loops import LoopKind, Turn, inside
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, called, distinct, grade, loop_words

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)


def train(loader):
    for x, y in loader:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ optimizer-rebuilt-in-loop error certain
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)


def train(loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW208",
    name="optimizer-rebuilt-in-loop",
    category=Category.LOOP,
    severity=Severity.WARNING,
    claim="An optimizer with memory is constructed again inside the loop that trains one and the same model.",
    cost=(
        "Momentum and the running moments of Adam start from zero each time. Rebuilt for every batch, Adam "
        "becomes the sign of the gradient times the learning rate, at its largest step size, and momentum "
        "never acts; rebuilt for every epoch, each epoch begins with a jolt, and schedulers count from "
        "zero. The run needs more steps or ends worse, and nothing raises."
    ),
    wrong=Example("Adam for each batch", WRONG),
    right=Example("One Adam for the run", RIGHT),
    silent=(
        "the model is new in the same iteration (folds, seeds, tasks), or its weights are reset or loaded "
        "there",
        "an optimizer without memory (SGD without momentum), LBFGS, which restarts by design",
        "parameters are frozen or unfrozen in the loop: a new stage",
        "a loop of stages, rates or runs around the epochs",
        "the optimizer is made in a helper that is called for each client or task",
    ),
    grading=(
        "Error when it is rebuilt for every batch, warning for every epoch. Certain when model and "
        "optimizer are made in view, likely when the model is only known by its name."
    ),
    fix="Advice: construct it once, in front of the loop.",
    references=(
        Reference(
            "torch.optim: constructing it", "https://docs.pytorch.org/docs/stable/optim.html#constructing-it"
        ),
        Reference("Adam", "https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html"),
    ),
    examples=(
        Example(
            "An attribute that is made anew in each epoch",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(12, 4)

    def fit(self, loader):
        for epoch in range(100):
            self.optimizer = torch.optim.AdamW(self.model.parameters())
                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ optimizer-rebuilt-in-loop
            for x, y in loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
""",
        ),
        Example(
            "For each epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)


def train(loader, epochs):
    for epoch in range(epochs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ optimizer-rebuilt-in-loop
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "A new model for each fold",
            """
import torch
from torch import nn


def cross_validate(folds):
    for loader in folds:
        model = nn.Linear(12, 4)
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Runs of one model whose weights are drawn again",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)


def compare(loader, runs, epochs):
    for run in range(runs):
        model.reset_parameters()
        optimizer = torch.optim.Adam(model.parameters())
        for epoch in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
""",
        ),
        Example(
            "An image is optimised for each target",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).requires_grad_(False)


def invert(targets):
    for y in targets:
        x = torch.randn(1, 12, requires_grad=True)
        optimizer = torch.optim.Adam([x], lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Parts are unfrozen stage by stage",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 4))
model[0].requires_grad_(False)


def train(loader, epochs):
    for epoch in range(epochs):
        if epoch == 5:
            model[0].requires_grad_(True)
        optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Plain SGD remembers nothing",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)


def train(loader):
    rate = 0.1
    for x, y in loader:
        rate *= 0.999
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)

_REMEMBERING = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "Lion")


def detect(trace: Trace) -> Iterator[Hit]:
    for built in trace.of(OptimizerBuilt):
        owns = sorted(built.owns or ())
        models = [trace.objects[o] for o in owns if o in trace.objects]
        if not built.replaced or built.filtered or not models or not _remembers(built.optimizer):
            continue
        turn = _loop_of(trace, built)
        if turn is None or any(model.kind is not Kind.MODULE for model in models):
            continue
        if not all(turn in inside(built.loops, model.birth) for model in models):
            continue
        batches = turn.loop.kind is LoopKind.BATCHES
        if _trains_in(trace, built, turn, batches) and not _starts_anew(trace, turn):
            yield _hit(built, models[0], turn, batches)


def _remembers(optimizer: Obj) -> bool:
    last = optimizer.type_name.rpartition(".")[2]
    momentum = optimizer.arguments.get("momentum", 2)
    if last == "SGD":
        return isinstance(momentum, Const) and bool(momentum.value) and not optimizer.arguments.open
    return last in _REMEMBERING


def _loop_of(trace: Trace, built: OptimizerBuilt) -> Turn | None:
    """The innermost loop around the construction, written in the same function; or in one that calls a helper
    to replace the optimizer that the model had before."""
    if not built.loops:
        return None
    turn = built.loops[-1]
    if turn.loop.kind not in (LoopKind.BATCHES, LoopKind.RANGE, LoopKind.UNBOUNDED):
        return None
    entered = [e for e in trace.of(LoopEntered) if e.loop_place == turn.loop.place]
    if any(e.calls == built.calls for e in entered):
        return None if trace.is_bounded([turn.loop]) else turn  # a few turns may be folds or stages
    is_helper = any(len(built.calls) == len(e.calls) + 1 for e in entered)
    return turn if is_helper and _replaces(trace, built, turn) else None


def _replaces(trace: Trace, built: OptimizerBuilt, turn: Turn) -> bool:
    """Was there one of the same kind for the same parameters before the loop, and does the function that
    makes this one only make it? Whoever trains in it wants one of his own, as federated clients do."""
    if any(step.calls[: len(built.calls)] == built.calls for step in trace.steps):
        return False
    return any(
        other.owns == built.owns
        and other.order < built.order
        and turn.loop.place not in {t.loop.place for t in other.loops}
        and other.optimizer.type_name == built.optimizer.type_name
        for other in trace.of(OptimizerBuilt)
    )


def _trains_in(trace: Trace, built: OptimizerBuilt, turn: Turn, batches: bool) -> bool:
    """Does the loop step this optimizer in each turn, with at most the loop over the batches between?"""
    for one in trace.of(Step):
        if one.optimizer.place != built.optimizer.place or turn not in one.loops:
            continue
        inner = one.loops[one.loops.index(turn) + 1 :]
        if not inner or (not batches and len(inner) == 1 and trace.walks_loader(inner[0].loop)):
            return True
    return False


def _starts_anew(trace: Trace, turn: Turn) -> bool:
    """Are weights loaded, drawn again, frozen or unfrozen in the loop?"""
    for event in (*trace.of(WeightsLoaded), *trace.of(RequiresGrad)):
        if _in_loop(event, turn.loop.place):
            return True
    for entered in trace.of(FunctionEntered):
        if _in_loop(entered, turn.loop.place) and any(w in entered.name for w in ("reset", "init")):
            return True
    return False


def _in_loop(event: Event, place: Place) -> bool:
    return any(t.loop.place == place for t in event.loops)


def _hit(built: OptimizerBuilt, model: Obj, turn: Turn, batches: bool) -> Hit:
    every = "batch" if batches else "turn"
    last = built.optimizer.type_name.rpartition(".")[2]
    return Hit(
        built.place,
        Severity.ERROR if batches else Severity.WARNING,
        grade(min(belief_in(model), 1))
        if model.place is not None or belief_in(model)
        else Confidence.CERTAIN,
        f"this {last} is made anew for every {every} of the {loop_words(turn.loop)}: its moments start from "
        f"zero while {called(model, 'the model')} trains on. Make it once, in front of the loop.",
        distinct(
            (
                Evidence(turn.loop.place, "this loop trains one model"),
                Evidence(built.place, "and makes its optimizer again in every turn"),
            )
        ),
        frozenset({("optimizer", built.optimizer.id)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Construct the optimizer once, in front of the loop", Safety.ADVICE, ())

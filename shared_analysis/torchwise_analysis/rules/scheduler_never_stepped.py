"""scheduler-never-stepped: a learning-rate scheduler is made and has no effect."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    ApiCall,
    Configured,
    Prepared,
    Returned,
    SchedulerBuilt,
    SchedulerStep,
    Step,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import CONFIGURED, Kind, Obj, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, called, distinct, doubt, grade, known_by

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-never-stepped
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
"""

RULE = Rule(
    code="TW704",
    name="scheduler-never-stepped",
    category=Category.DATA,
    severity=Severity.WARNING,
    claim="A learning-rate scheduler is constructed and nothing ever steps it.",
    cost=(
        "The learning rate stays where the constructor put it. For a warm-up that is near zero, so that the "
        "model hardly learns; for a decay the last and best part of the schedule never comes. The run looks "
        "like one with a schedule in every log of its settings."
    ),
    wrong=Example("Made, and forgotten", WRONG),
    right=Example("Stepped once in each epoch", RIGHT),
    silent=(
        "it is returned, given to another function, a framework or another scheduler",
        "it is kept on an object, unless that is made in view, never given on, and all that it does is seen",
        "`configure_optimizers`, `prepare`, an engine or a Trainer has it",
        "its optimizer is not stepped here either",
        "several schedulers are made for a choice that cannot be followed",
    ),
    grading=(
        "Always a warning. Certain when the scheduler is local to the code that trains; likely when its "
        "optimizer is only known by its name."
    ),
    fix="Advice: once per epoch or once per batch is a decision about the schedule.",
    references=(
        Reference(
            "torch.optim: how to adjust learning rate",
            "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
        ),
        Reference(
            "CosineAnnealingLR",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html",
        ),
    ),
    examples=(
        Example(
            "Brackets forgotten",
            """
import torch
from torch import nn


def train(loader):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-never-stepped
    for epoch in range(50):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        cosine.step
""",
        ),
        Example(
            "Only its state is saved",
            """
import torch
from torch import nn


def train(loader, path):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters())
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 10)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-never-stepped warning certain
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "decay": decay.state_dict()}, path)
""",
        ),
        Example(
            "Given to a helper that steps it",
            """
import torch
from torch import nn


def advance(things):
    for thing in things:
        thing.step()


def train(loader, epochs):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters())
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        advance([decay])
""",
        ),
        Example(
            "Part of a sequence of schedulers",
            """
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


def train(loader, epochs):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters())
    warm, cool = LinearLR(optimizer), CosineAnnealingLR(optimizer, epochs)
    schedule = SequentialLR(optimizer, [warm, cool], [5])
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
""",
        ),
        Example(
            "Made for whoever trains",
            """
import torch
from torch import nn


def build(model, epochs):
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, epochs)
    return {"optimizer": optimizer, "scheduler": scheduler}
""",
        ),
        Example(
            "Kept on the trainer, stepped by another of its methods",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(12, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)

    def epoch(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        self.after()

    def after(self):
        self.schedule.step()
""",
        ),
    ),
)

_FEW = 3  # more alternatives than this are joined to something unknown


def detect(trace: Trace) -> Iterator[Hit]:
    stepped = {e.scheduler.id for e in trace.of(SchedulerStep)}
    gone = _given_away(trace)
    built_at = {e.place for e in trace.of(SchedulerBuilt)}
    if len(built_at) > _FEW or (trace.silence.lost and len(built_at) > 1) or trace.silence.fuel_spent:
        return
    for built in trace.of(SchedulerBuilt):
        optimizer = built.optimizer
        if built.scheduler.id in stepped | gone | trace.escaped or optimizer is None:
            continue
        step = _last_step(trace, built, optimizer)
        if trace.is_cut_short(built):
            continue  # what comes further down was not followed
        if step is None or optimizer.id in trace.escaped or _was_stepped(trace, built):
            continue
        yield Hit(
            built.place,
            Severity.WARNING,
            grade(min(belief_in(optimizer), 1)) if belief_in(optimizer) else Confidence.CERTAIN,
            f"{called(built.scheduler, 'this scheduler')} is never stepped: the learning rate of "
            f"{called(optimizer, 'the optimizer')} stays as it is. Call its `step()`."
            + doubt((belief_in(optimizer) > 0, known_by(optimizer))),
            distinct(
                (
                    Evidence(built.place, "made here"),
                    Evidence(step.place, "its optimizer steps here, the scheduler nowhere"),
                )
            ),
            frozenset({("scheduler", built.scheduler.id)}),
        )


def _last_step(trace: Trace, built: SchedulerBuilt, optimizer: Obj) -> Step | None:
    steps = [s for s in trace.of(Step) if s.optimizer.id == optimizer.id and s.order > built.order]
    return steps[-1] if steps else None


def _was_stepped(trace: Trace, built: SchedulerBuilt) -> bool:
    """The scheduler of another run of the same construction is stepped."""
    same = {e.scheduler.id for e in trace.of(SchedulerBuilt) if e.place == built.place}
    return any(e.scheduler.id in same for e in trace.of(SchedulerStep))


def _given_away(trace: Trace) -> set[int]:
    """Schedulers that something else holds: returned, an attribute, an argument, prepared."""
    out: set[int] = set()
    for prepared in trace.of(Prepared):
        out |= {obj.id for obj in prepared.objects}
    handed_back = (*(e.value for e in trace.of(Returned)), *(e.value for e in trace.of(Configured)))
    for value in handed_back:
        out |= _schedulers(trace, value)
    for obj in trace.objects.values():
        for argument in obj.arguments:
            out |= _schedulers(trace, argument)
    for key, fact in trace.facts.items():
        if key[0] == "a" and key[2] != CONFIGURED and isinstance(fact, Value):
            out |= set() if _is_all_seen(trace, key[1]) else _schedulers(trace, fact)
    return out


def _is_all_seen(trace: Trace, holder: object) -> bool:
    """Was the object that holds it made in view, of a class without a framework, and never given on?

    Then what its methods do not do with the scheduler, nobody does, when every call was followed.
    """
    obj = trace.objects.get(holder) if isinstance(holder, int) else None
    if obj is None or obj.kind is not Kind.INSTANCE or obj.cls is None or obj.id in trace.escaped:
        return False
    if obj.cls.open_bases or any(one.library_bases for one in obj.cls.mro):
        return False
    silence = trace.silence
    if silence.skipped or silence.cut or silence.lost or silence.dead_paths or silence.unknown_calls:
        return False
    given = (argument for call in trace.of(ApiCall) for argument in call.arguments)
    return not any(trace.holds(argument, obj.id) for argument in given)


def _schedulers(trace: Trace, value: Value, depth: int = 0) -> set[int]:
    out: set[int] = set()
    for member in alternatives(value):
        if not isinstance(member, Obj):
            continue
        if member.kind is Kind.SCHEDULER:
            out.add(member.id)
        elif member.kind in (Kind.LIST, Kind.TUPLE, Kind.DICT, Kind.SET) and depth < 3:
            for item in trace.items(member.id):
                out |= _schedulers(trace, item, depth + 1)
    return out


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Step the scheduler once in each epoch or batch, as its schedule counts", Safety.ADVICE, ())

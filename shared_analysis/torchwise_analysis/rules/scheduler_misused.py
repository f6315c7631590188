"""scheduler-misused: a scheduler that takes its metric, or its numbers, for something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at
from torchwise_analysis.interp.abstract.events import Configured, SchedulerBuilt, SchedulerStep
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Obj, Origin, Tensor, Unknown, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, loop_words, step, turn_tests
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)


def train(loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        plateau.step(epoch)
        ^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)


def train(loader, validate, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        plateau.step(validate())
"""

RULE = Rule(
    code="TW709",
    name="scheduler-misused",
    category=Category.DATA,
    severity=Severity.ERROR,
    claim="A learning-rate scheduler is set up against what it is given: the rate goes the wrong way.",
    cost=(
        "`ReduceLROnPlateau` cuts the rate when its metric stops getting better, and `mode` says what better "
        "is. With a loss and `mode='max'`, or an accuracy and the default `mode='min'`, every good epoch "
        "counts as a bad one: the rate is cut while training goes well, until nothing moves. The counter of "
        "a loop in place of the metric does the same. A `gamma` of 0 ends training at the first step of the "
        "scheduler, and a warm-up as long as the run never reaches the rate that was chosen."
    ),
    wrong=Example("The epoch is taken for a loss", WRONG),
    right=Example("A validation loss", RIGHT),
    silent=(
        "a metric of which neither its making nor its name tells which way is better",
        "a loss or an accuracy with its sign turned (`-loss`, `1 - accuracy`, `1 / loss`)",
        "a mode that is not written out, or other schedulers, whose `step` takes an epoch",
        "a counter given as the second argument",
    ),
    grading=(
        "Always an error. Certain when a loss of torch, or a count of equal predictions, is seen to arrive, "
        "and for counters and constants; likely when only the metric's name tells what it is."
    ),
    fix=(
        "The other mode. Unsafe: the rate is cut at other times, which is the point. For a counter advice: "
        "give it the validation metric."
    ),
    references=(
        Reference(
            "ReduceLROnPlateau",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
        ),
        Reference(
            "torch.optim: how to adjust learning rate",
            "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
        ),
    ),
    examples=(
        Example(
            "A counted epoch by keyword",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def train(loader):
    for number in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        plateau.step(metrics=number)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain
""",
        ),
        Example(
            "A falling loss counts as no improvement",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=2)


def train(loader, held_out):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            quality = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in held_out)
        plateau.step(quality / len(held_out))
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", patience=2)


def train(loader, held_out):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            quality = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in held_out)
        plateau.step(quality / len(held_out))
""",
        ),
        Example(
            "An accuracy with the default mode",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def train(loader, held_out):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        hits, seen = 0, 0
        with torch.no_grad():
            for x, y in held_out:
                hits += (model(x).argmax(1) == y).sum().item()
                seen += len(y)
        plateau.step(hits / seen)
        ^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")


def train(loader, held_out):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        hits, seen = 0, 0
        with torch.no_grad():
            for x, y in held_out:
                hits += (model(x).argmax(1) == y).sum().item()
                seen += len(y)
        plateau.step(hits / seen)
""",
        ),
        Example(
            "The name of the metric tells",
            """
import torch
from torch import nn
from scoring import evaluate

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max")


def train(loader):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        val_loss = evaluate(model)
        plateau.step(val_loss)
        ^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error likely
""",
        ),
        Example(
            "A rate of nothing after the first epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.0)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain


def train(loader):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        decay.step()
""",
        ),
        Example(
            "A warm-up longer than the run",
            """
import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = get_linear_schedule_with_warmup(optimizer, 2000, 1000)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error certain


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
""",
        ),
        Example(
            "Lightning monitors a loss in mode max",
            """
import lightning as L
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.body(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        plateau = ReduceLROnPlateau(optimizer, mode="max")
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ scheduler-misused error likely
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/loss"}}
""",
        ),
        Example(
            "A turned sign, and a maximum of hits",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
second = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min")


def train(loader, x, y):
    for epoch in range(20):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x), y).item()
            accuracy = (model(x).argmax(1) == y).float().mean().item()
        first.step(accuracy)
        first.step(-loss)
        second.step(loss)
        second.step(1 - accuracy)
""",
        ),
        Example(
            "The epoch comes second",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def train(loader):
    for epoch in range(100):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        plateau.step(total, epoch)
""",
        ),
        Example(
            "A scheduler that counts",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)


def train(loader):
    for epoch in range(100):
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step(epoch + i / 1000)
""",
        ),
        Example(
            "Either kind, chosen by its class",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, schedule, validate):
    for epoch in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            schedule.step(validate())
        else:
            schedule.step()
""",
        ),
    ),
)


# Words of a metric's name: is less better, or more?
_LESS = frozenset(["loss", "losses", "nll", "ppl", "perplexity", "mse", "rmse", "mae", "cer", "wer", "error"])
_MORE = frozenset(["acc", "accuracy", "f1", "auc", "auroc", "bleu", "iou", "miou", "dice", "psnr", "ssim"])
_TURNED = frozenset(["neg", "negative", "minus", "inv", "inverse"])
_DECAYING = frozenset(["StepLR", "MultiStepLR", "ExponentialLR"])


class _Found(NamedTuple):
    """The scheduler with the wrong mode, and the right one."""

    scheduler: Obj
    mode: str


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.of(SchedulerStep):
        if event.scheduler.type_name.endswith("ReduceLROnPlateau"):
            yield from _counted(event)
            yield from _turned(event)
    for built in trace.of(SchedulerBuilt):
        yield from _vanishing(built)
        yield from _too_long(built)
    for configured in trace.of(Configured):
        if configured.hook == "configure_optimizers":
            yield from _monitored(trace, configured.value)


def _counted(event: SchedulerStep) -> Iterator[Hit]:
    """The counter of a loop around the call is taken for the metric."""
    scheduler, metric = event.scheduler, event.arguments.get("metrics", 0)
    if not isinstance(metric, Const):
        return
    counts = metric.counter is not None and metric.counter.modulus is None and type(metric.value) is int
    loops = [t.loop for t in event.loops if t.loop.kind in (LoopKind.RANGE, LoopKind.BATCHES)]
    if not counts or not loops or turn_tests(event, 0):
        return
    yield Hit(
        event.place,
        Severity.ERROR,
        Confidence.CERTAIN,
        f"{called(scheduler, 'this scheduler')} takes a metric and gets the counter of the "
        f"{loop_words(loops[-1])}: the learning rate falls whatever the model learns. Give it the "
        "validation metric.",
        distinct(
            (
                *step(scheduler.place, "this scheduler acts on a metric"),
                Evidence(loops[-1].place, "this loop counts"),
                Evidence(event.place, "and its counter is taken for the metric"),
            )
        ),
        frozenset({("scheduler", scheduler.id)}),
    )


def _turned(event: SchedulerStep) -> Iterator[Hit]:
    """The mode is against the metric."""
    scheduler, metric = event.scheduler, event.arguments.get("metrics", 0)
    mode = _mode(scheduler)
    if mode is None or metric is None or scheduler.origin is not Origin.BUILT:
        return
    by_making = _by_making(metric)
    wanted = by_making or _by_name(event.metric)
    if wanted is None or wanted == mode:
        return
    what = "a loss" if wanted == "min" else "an accuracy"
    worse = "falls" if wanted == "min" else "rises"
    yield Hit(
        event.place,
        Severity.ERROR,
        Confidence.CERTAIN if by_making else Confidence.LIKELY,
        f"{called(scheduler, 'this scheduler')} in mode `{mode}` takes {what} that {worse} for one that gets "
        f"worse: it cuts the learning rate while training goes well. Use `mode='{wanted}'`."
        + doubt((not by_making, f"that `{event.metric}` is {what} is told by its name only")),
        distinct(
            (
                *step(scheduler.place, f"made in mode `{mode}`"),
                *step(metric.evidence.place if metric.evidence else None, f"{what} is computed here"),
                Evidence(event.place, f"and gets {what}"),
            )
        ),
        frozenset({("scheduler", scheduler.id)}),
        _Found(scheduler, wanted),
    )


def _monitored(trace: Trace, value: Value, depth: int = 0) -> Iterator[Hit]:
    """Lightning steps the scheduler with the metric logged under the name `monitor`."""
    for member in alternatives(value):
        if not isinstance(member, Obj) or depth > 3:
            continue
        entries = trace.entries(member.id)
        scheduler, monitor = entries.get("scheduler", entries.get("lr_scheduler")), entries.get("monitor")
        if isinstance(scheduler, Obj) and isinstance(monitor, Const) and isinstance(monitor.value, str):
            yield from _monitors(scheduler, monitor.value)
        for inner in (*trace.items(member.id), *entries.values()):
            yield from _monitored(trace, inner, depth + 1)


def _monitors(scheduler: Obj, name: str) -> Iterator[Hit]:
    mode, wanted = _mode(scheduler), _by_name(name)
    is_plateau = scheduler.type_name.endswith("ReduceLROnPlateau")
    if not is_plateau or None in (mode, wanted) or wanted == mode or scheduler.place is None:
        return
    what = "a loss" if wanted == "min" else "an accuracy"
    yield Hit(
        scheduler.place,
        Severity.ERROR,
        Confidence.LIKELY,
        f"this scheduler in mode `{mode}` monitors `{name}`: when that gets better it cuts the rate. "
        f"Use `mode='{wanted}'`." + doubt((True, f"that `{name}` is {what} is told by its name only")),
        (Evidence(scheduler.place, f"made in mode `{mode}`, and returned with `monitor={name!r}`"),),
        frozenset({("scheduler", scheduler.id)}),
        _Found(scheduler, wanted or ""),
    )


def _mode(scheduler: Obj) -> str | None:
    given = scheduler.arguments.get("mode", 1)
    if given is None:
        return None if scheduler.arguments.open else "min"
    return given.value if isinstance(given, Const) and isinstance(given.value, str) else None


def _by_making(metric: Value) -> str | None:
    if not isinstance(metric, (Tensor, Unknown)):
        return None
    directions = metric.taint & {"loss", "hits"}
    if len(directions) != 1:
        return None
    return "min" if "loss" in directions else "max"


def _by_name(name: str) -> str | None:
    words = frozenset(re.findall(r"[a-z]+[0-9]*", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
    if words & _TURNED or bool(words & _LESS) == bool(words & _MORE):
        return None
    return "min" if words & _LESS else "max"


def _vanishing(built: SchedulerBuilt) -> Iterator[Hit]:
    """A decay by the factor 0."""
    scheduler = built.scheduler
    name = scheduler.type_name.rpartition(".")[2]
    gamma = scheduler.arguments.get("gamma", 1 if name == "ExponentialLR" else 2)
    if (
        name in _DECAYING
        and isinstance(gamma, Const)
        and type(gamma.value) in (int, float)
        and not gamma.value
    ):
        yield _made_wrong(
            built, "with `gamma` 0 the learning rate is 0 from the first decay on: nothing trains."
        )


def _too_long(built: SchedulerBuilt) -> Iterator[Hit]:
    """A warm-up that lasts for all steps there are."""
    scheduler = built.scheduler
    first = 2 if scheduler.type_name.endswith(".get_scheduler") else 1
    warm_up = scheduler.arguments.get("num_warmup_steps", first)
    total = scheduler.arguments.get("num_training_steps", first + 1)
    if not isinstance(warm_up, Const) or not isinstance(total, Const):
        return
    if type(warm_up.value) is int and type(total.value) is int and warm_up.value >= total.value > 0:
        yield _made_wrong(
            built,
            f"the warm-up of {warm_up.value} steps is as long as the whole run of {total.value}: the rate "
            "never reaches the one that was chosen, and never decays.",
        )


def _made_wrong(built: SchedulerBuilt, message: str) -> Hit:
    return Hit(
        built.place,
        Severity.ERROR,
        Confidence.CERTAIN,
        message,
        (Evidence(built.place, "made with these numbers"),),
        frozenset({("scheduler", built.scheduler.id)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        yield Fix("Give it what it expects", Safety.ADVICE, ())
        return
    edit = _edit(file, hit.facts)
    title = f"Use mode '{hit.facts.mode}' (the learning rate is cut at other times)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _edit(file: SourceFile, found: _Found) -> Edit | None:
    place = found.scheduler.place
    call = None if place is None or place.path != file.path else expression_at(file.module, place.span)
    if place is None or not isinstance(call, nodes.Call):
        return None
    shift = place.span.line - call.span.line
    given = next((k.value for k in call.keywords if k.name == "mode"), None)
    given = call.args[1] if given is None and len(call.args) > 1 else given
    if given is not None:
        is_text = isinstance(given, nodes.Constant)
        text = file.slice(given.span.shifted(shift))
        return (
            Edit(Place(file.path, given.span.shifted(shift)), f"{text[0]}{found.mode}{text[0]}")
            if is_text
            else None
        )
    ends = [arg.span for arg in call.args] + [keyword.value.span for keyword in call.keywords]
    last = max(ends, key=lambda span: (span.end_line, span.end_column)).shifted(shift)
    return insert_at(file, last.end_line, last.end_column, f', mode="{found.mode}"')

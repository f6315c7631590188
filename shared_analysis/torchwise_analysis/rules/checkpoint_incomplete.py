"""checkpoint-incomplete: what a run is resumed from lacks the state of its optimizer or schedule."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    Prepared,
    Saved,
    SchedulerBuilt,
    SchedulerStep,
    Step,
    WeightsLoaded,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, StateDict, Unknown, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, step

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters())


def train(loader, epochs, path=None):
    if path is not None:
        model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, "last.pt")
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-incomplete
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters())


def train(loader, epochs, path=None):
    if path is not None:
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, "last.pt")
"""

RULE = Rule(
    code="TW313",
    name="checkpoint-incomplete",
    category=Category.MODE,
    severity=Severity.WARNING,
    claim=(
        "A checkpoint that the run is resumed from holds weights and epoch, but not the state of the "
        "optimizer or of its schedule."
    ),
    cost=(
        "After the resume Adam's moments or SGD's momentum begin at zero: the first updates are the largest "
        "that the learning rate allows, the loss jumps, and part of the work before the interruption is "
        "done again. A schedule counts its own steps: a new one goes through warm-up and decay from the "
        "beginning. Runs that were interrupted cannot be compared with those that were not."
    ),
    wrong=Example("Resumed with fresh moments", WRONG),
    right=Example("The optimizer comes back as well", RIGHT),
    silent=(
        "nothing loads the weights back before training: an export",
        "no counter is saved: the file is meant for inference or fine-tuning",
        "an optimizer without state (SGD without momentum)",
        "the optimizer's state is saved elsewhere or loaded from anywhere",
        "a schedule that needs no count (`ExponentialLR`), or that is told where it stands (`last_epoch`, "
        "`step(epoch)`, steps in a loop of its own)",
        "contents that cannot all be read, frameworks that save for themselves",
    ),
    grading="Always a warning. Certain: saving, loading and training are all seen. Likely where the learning "
    "rate is a setting: then a resumed run may be meant to begin anew.",
    fix="Advice: save and load `optimizer.state_dict()`, and the scheduler's and scaler's with it.",
    references=(
        Reference(
            "Saving and loading a general checkpoint",
            "https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html",
        ),
        Reference(
            "PolymathicAI/the_well#77: resume diverges, missing scheduler and scaler states",
            "https://github.com/PolymathicAI/the_well/issues/77",
        ),
    ),
    examples=(
        Example(
            "A resumed run of epochs",
            """
import torch
from torch import nn


def main(loader, path):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters())
    saved = torch.load(path, map_location="cpu")
    model.load_state_dict(saved["model"])
    for epoch in range(saved["epoch"] + 1, 100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, path)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-incomplete
""",
        ),
        Example(
            "The optimizer comes back, its schedule does not",
            """
import torch
from torch import nn


def main(loader, path):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    saved = torch.load(path, map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for epoch in range(saved["epoch"] + 1, 100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, path)
        ^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-incomplete
""",
        ),
        Example(
            "Schedules that are told where they stand, or need not be",
            """
import torch
from torch import nn


def main(loader, path):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters())
    saved = torch.load(path, map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100, last_epoch=first - 1)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for epoch in range(first, 100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        cosine.step()
        decay.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
""",
        ),
        Example(
            "Momentum is lost",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model.load_state_dict(torch.load("last.pt", map_location="cpu")["weights"])


def train(loader):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 1000 == 0:
            torch.save({"weights": model.state_dict(), "step": step}, "last.pt")
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-incomplete
""",
        ),
        Example(
            "Written for inference",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters())


def train(loader):
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, "last.pt")
""",
        ),
        Example(
            "Fine-tuning starts from weights alone",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
model.load_state_dict(torch.load("pretrained.pt", map_location="cpu"))
optimizer = torch.optim.Adam(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "tuned.pt")
""",
        ),
        Example(
            "Plain SGD has nothing to save",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, path=None):
    if path is not None:
        model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, "last.pt")
""",
        ),
    ),
)

_REMEMBERING = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "Lion")


# Where the learning rate follows from what the optimizer holds and from nothing else.
_WITHOUT_STATE = ("ExponentialLR", "MultiplicativeLR", "ConstantLR", "ReduceLROnPlateau")


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.of(Prepared):
        yield from _of_fabric(trace)
        return
    kept = _kept(trace)
    keeps_optimizer = any(owner.kind not in (Kind.MODULE, Kind.SCHEDULER, Kind.SCALER) for owner in kept)
    for saved in trace.of(Saved):
        if saved.how != "torch.save" or not _has_counter(saved):
            continue
        for owner in _owners(saved):
            load = _resumed(trace, owner)
            update = None if load is None else _step_of(trace, owner, load)
            if load is None or update is None or update.order > saved.order:
                continue
            if not keeps_optimizer:
                yield _hit(saved, load, update)
            elif update.optimizer.id in {one.id for one in kept}:
                yield from _without_schedule(trace, saved, load, update.optimizer, kept)


def _of_fabric(trace: Trace) -> Iterator[Hit]:
    """What `fabric.save` is given is all that comes back: model and count, and no optimizer."""
    loads = trace.of(WeightsLoaded)
    if any(load.target.kind is not Kind.MODULE for load in loads):
        return
    for saved in trace.of(Saved):
        values = [one for _, value in saved.contents for one in alternatives(value)]
        models = {v.id for v in values if isinstance(v, Obj) and v.kind is Kind.MODULE}
        others = [v for v in values if not (isinstance(v, Obj) and v.kind is Kind.MODULE)]
        is_readable = bool(others) and all(isinstance(v, (Const, Unknown)) for v in others)
        load = next((one for one in loads if one.target.id in models), None)
        if saved.how != f"{Kind.FABRIC.value}.save" or load is None or not is_readable:
            continue
        for one in trace.of(Step):
            prepared = any(one.optimizer is thing for event in trace.of(Prepared) for thing in event.objects)
            if one.order > load.order and prepared and _remembers(one.optimizer) and not _has_entry(saved):
                yield _hit(saved, load, one)
                break


def _has_entry(saved: Saved) -> bool:
    """Is something saved under the name of an optimizer?"""
    return any(key.lower().startswith("opt") for key, _ in saved.contents)


def _kept(trace: Trace) -> tuple[Obj, ...]:
    """What has its state saved or loaded anywhere."""
    values = (value for saved in trace.of(Saved) for value in (saved.value, *(v for _, v in saved.contents)))
    states = (state for value in values if value is not None for state in alternatives(value))
    loaded = (load.target for load in trace.of(WeightsLoaded))
    return (*loaded, *(state.owner for state in states if isinstance(state, StateDict)))


def _without_schedule(
    trace: Trace, saved: Saved, load: WeightsLoaded, optimizer: Obj, kept: tuple[Obj, ...]
) -> Iterator[Hit]:
    """The optimizer comes back, its schedule begins anew."""
    loaded = {one.target.id: one for one in trace.of(WeightsLoaded)}
    is_saved = any(one.kind is Kind.SCHEDULER for one in kept)
    if any(one.target.kind is Kind.SCHEDULER for one in loaded.values()):
        return
    if is_saved and optimizer.id not in loaded:
        return
    for built in trace.of(SchedulerBuilt):
        scheduler = built.scheduler
        is_of_it = built.optimizer is not None and built.optimizer.id == optimizer.id
        if not is_of_it or scheduler.type_name.endswith(_WITHOUT_STATE) or scheduler.id in trace.escaped:
            continue
        moves = [move for move in trace.of(SchedulerStep) if move.scheduler.id == scheduler.id]
        if moves and not _is_moved_on(trace, scheduler, moves):
            unread = loaded[optimizer.id] if is_saved else None
            yield _hit_of_schedule(saved, load, scheduler, moves[0], unread)


def _is_moved_on(trace: Trace, scheduler: Obj, moves: list[SchedulerStep]) -> bool:
    """Is it told where to go on: by an argument, an attribute or steps in a loop that trains nothing?"""
    if scheduler.arguments.get("last_epoch") is not None or scheduler.arguments.open:
        return True
    if trace.attribute(scheduler.id, "last_epoch") is not None or any(tuple(m.arguments) for m in moves):
        return True
    return any(move.loops and move.loops[-1].loop.place not in trace.training_loops() for move in moves)


def _hit_of_schedule(
    saved: Saved, load: WeightsLoaded, scheduler: Obj, move: SchedulerStep, unread: WeightsLoaded | None
) -> Hit:
    """`unread`: the load of the optimizer beside which that of the saved state is missing."""
    name = called(scheduler, "the schedule")
    lack, remedy, fact = (
        (f"lacks the state of {name}", "Save and load its `state_dict()` too.", "does not hold")
        if unread is None
        else (f"holds the state of {name}, unread", "Load its `state_dict()` too.", "holds in vain")
    )
    return Hit(
        saved.place if unread is None else unread.place,
        Severity.WARNING,
        Confidence.CERTAIN,
        f"the run is resumed from a checkpoint which {lack}: the learning rate goes through its schedule "
        f"from the beginning again. {remedy}",
        distinct(
            (
                *step(scheduler.place, "the schedule counts its own steps from here"),
                Evidence(load.place, "weights come back from a checkpoint here"),
                Evidence(move.place, "and the schedule goes on from its first step"),
                Evidence(saved.place, f"which this checkpoint {fact}"),
            )
        ),
        frozenset({("save", saved.place)}),
    )


# Things that are saved as they are, with all that they hold.
_WHOLE = (Kind.OPAQUE, Kind.INSTANCE, Kind.OPTIMIZER, Kind.SCHEDULER)


def _has_counter(saved: Saved) -> bool:
    """Does it say how far the run is? All contents must be readable."""
    values = [one for _, value in saved.contents for one in alternatives(value)]
    if any(isinstance(v, Obj) and v.kind in _WHOLE for v in values):
        return False
    return any(
        (isinstance(v, Const) and v.counter is not None) or (isinstance(v, Unknown) and v.varies)
        for v in values
    )


def _owners(saved: Saved) -> Iterator[Obj]:
    for _, value in saved.contents:
        if isinstance(value, StateDict) and value.owner.kind is Kind.MODULE:
            yield value.owner


def _resumed(trace: Trace, owner: Obj) -> WeightsLoaded | None:
    """The load of a file's entry into the module. Bare weights are a start, not a resume."""
    for load in trace.of(WeightsLoaded):
        value = load.value
        is_entry = isinstance(value, Unknown) and "loaded" in value.taint
        if load.target.id in (owner.id, *trace.lineage(owner.id)) and is_entry:
            return load
    return None


def _step_of(trace: Trace, owner: Obj, load: WeightsLoaded) -> Step | None:
    for one in trace.of(Step):
        owned = trace.owns.get(one.optimizer.id) or frozenset()
        if one.order > load.order and owner.id in owned and _remembers(one.optimizer):
            return one
    return None


def _remembers(optimizer: Obj) -> bool:
    last = optimizer.type_name.rpartition(".")[2]
    momentum = optimizer.arguments.get("momentum", 2)
    is_sgd = last == "SGD" and isinstance(momentum, Const) and bool(momentum.value)
    return is_sgd or last in _REMEMBERING


def _hit(saved: Saved, load: WeightsLoaded, update: Step) -> Hit:
    name = called(update.optimizer, "the optimizer")
    is_chosen = not isinstance(update.optimizer.arguments.get("lr", 1), Const | type(None))
    return Hit(
        saved.place,
        Severity.WARNING,
        Confidence.LIKELY if is_chosen else Confidence.CERTAIN,
        f"the run is resumed from this checkpoint, which lacks the state of {name}: its moments begin at "
        "zero again. Save and load its `state_dict()` too."
        + doubt((is_chosen, "the rate is a setting: a resumed run may be meant to begin anew")),
        distinct(
            (
                Evidence(load.place, "weights come back from a checkpoint here"),
                Evidence(update.place, f"then {name} goes on without its state"),
                Evidence(saved.place, "which this checkpoint does not hold"),
            )
        ),
        frozenset({("save", saved.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Save and load `optimizer.state_dict()` as well", Safety.ADVICE, ())

"""checkpoint-incomplete: what a run is resumed from lacks the state of its optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Prepared, Saved, Step, WeightsLoaded
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, StateDict, Unknown, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct

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
    claim="A checkpoint that the run is resumed from holds weights and epoch, but not the optimizer's state.",
    cost=(
        "After the resume Adam's moments or SGD's momentum begin at zero: the first updates are the largest "
        "that the learning rate allows, the loss jumps, and part of the work before the interruption is "
        "done again. Runs that were interrupted cannot be compared with those that were not."
    ),
    wrong=Example("Resumed with fresh moments", WRONG),
    right=Example("The optimizer comes back as well", RIGHT),
    silent=(
        "nothing loads the weights back before training: an export",
        "no counter is saved: the file is meant for inference or fine-tuning",
        "an optimizer without state (SGD without momentum)",
        "the optimizer's state is saved elsewhere or loaded from anywhere",
        "contents that cannot all be read, frameworks that save for themselves",
    ),
    grading="Always a warning. Certain: saving, loading and training are all seen.",
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


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.of(Prepared) or _keeps_optimizer(trace):
        return
    for saved in trace.of(Saved):
        if saved.how != "torch.save" or not _has_counter(saved):
            continue
        for owner in _owners(saved):
            load = _resumed(trace, owner)
            step = None if load is None else _step_of(trace, owner, load)
            if load is not None and step is not None and step.order < saved.order:
                yield _hit(saved, load, step)


def _keeps_optimizer(trace: Trace) -> bool:
    """Is the state of any optimizer saved or loaded anywhere?"""
    if any(load.target.kind is not Kind.MODULE for load in trace.of(WeightsLoaded)):
        return True
    values = (value for saved in trace.of(Saved) for value in (saved.value, *(v for _, v in saved.contents)))
    states = (state for value in values if value is not None for state in alternatives(value))
    return any(isinstance(state, StateDict) and state.owner.kind is not Kind.MODULE for state in states)


def _has_counter(saved: Saved) -> bool:
    """Does it say how far the run is? All contents must be readable."""
    values = [one for _, value in saved.contents for one in alternatives(value)]
    if any(isinstance(v, Obj) and v.kind in (Kind.OPAQUE, Kind.INSTANCE, Kind.OPTIMIZER) for v in values):
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


def _hit(saved: Saved, load: WeightsLoaded, step: Step) -> Hit:
    name = called(step.optimizer, "the optimizer")
    return Hit(
        saved.place,
        Severity.WARNING,
        Confidence.CERTAIN,
        f"the run is resumed from this checkpoint, which lacks the state of {name}: its moments begin at "
        "zero again. Save and load its `state_dict()` too.",
        distinct(
            (
                Evidence(load.place, "weights come back from a checkpoint here"),
                Evidence(step.place, f"then {name} goes on without its state"),
                Evidence(saved.place, "which this checkpoint does not hold"),
            )
        ),
        frozenset({("save", saved.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Save and load `optimizer.state_dict()` as well", Safety.ADVICE, ())

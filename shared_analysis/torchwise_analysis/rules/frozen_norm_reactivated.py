"""frozen-norm-reactivated: train() of the whole wakes up a part that was put in eval mode on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Forward, ModeChange
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._hooks import hook_of, in_training
from torchwise_analysis.rules._modes import has_sure_mode_layer, mode_layers
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, step

WRONG = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    net.backbone.eval()
    for epoch in range(10):
        net.train()
        ^^^^^^^^^^^ frozen-norm-reactivated warning certain
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
"""

RIGHT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    for epoch in range(10):
        net.train()
        net.backbone.eval()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
"""

RULE = Rule(
    code="TW304",
    name="frozen-norm-reactivated",
    category=Category.MODE,
    severity=Severity.WARNING,
    claim="A part that was put in eval mode is switched back by a train() of the whole before it is used.",
    cost=(
        "`train()` reaches all parts. Batch-norm layers that were frozen, often because batches are small, "
        "normalise by batch statistics again and overwrite their running ones; a frozen backbone drops "
        "units again. Fine-tuning gets worse than without the freeze, and the line that freezes is still "
        "there to be read."
    ),
    wrong=Example("Frozen once, woken in every epoch", WRONG),
    right=Example("Frozen after each train()", RIGHT),
    silent=(
        "the part is frozen again after `train()`, here, in a helper, or by an overridden `train`",
        "the part was only evaluated in between",
        "all parts were put in eval mode one by one, which is an eval() of the whole",
        "the model does not train after it",
    ),
    grading=(
        "A warning; an error when the part's parameters are frozen as well. Certain when the part is a known "
        "attribute; likely when parts are chosen in a loop over `modules()`, or when no layer of the part is "
        "seen that surely depends on the mode."
    ),
    fix="Advice only: repeat the freeze after `train()`, or override `train` in the class.",
    references=(
        Reference(
            "Module.train",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train",
        ),
        Reference(
            "Autograd mechanics: evaluation mode",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",
        ),
    ),
    examples=(
        Example(
            "The body was put in evaluation mode once",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


def fit(loader):
    net = Net()
    net.body.requires_grad_(False)
    net.body.eval()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    for epoch in range(10):
        net.train()
        ^^^^^^^^^^^ frozen-norm-reactivated
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "A helper freezes the batch-norm layers before the loop",
            """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def freeze_norms(model):
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()


def epoch(loader):
    net.train()
    ^^^^^^^^^^^ frozen-norm-reactivated warning likely
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def fit(loader):
    freeze_norms(net)
    for _ in range(10):
        epoch(loader)
""",
        ),
        Example(
            "train() is overridden to keep the part frozen",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32))
        self.head = nn.Linear(32, 4)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    net.backbone.eval()
    for epoch in range(10):
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "A part is evaluated alone, then training goes on",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(loader, probe):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(10):
        net.backbone.eval()
        with torch.no_grad():
            print(net.backbone(probe).mean())
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "All parts in eval mode is eval mode",
            """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def fit(loader, held_out):
    for epoch in range(10):
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        for part in net.children():
            part.eval()
        with torch.no_grad():
            for x, y in held_out:
                print((net(x).argmax(1) == y).float().mean())
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    yield from _in_hooks(trace)
    refrozen = _freezing_forwards(trace)
    frozen: dict[int, ModeChange] = {}  # part -> the eval() that froze it
    pending: dict[int, tuple[ModeChange, dict[int, ModeChange]]] = {}
    for event in trace.of_any(ModeChange, Forward):
        if isinstance(event, ModeChange) and event.to == "eval":
            if _chooses(event):
                frozen[event.module.id] = event
        elif isinstance(event, ModeChange) and event.to == "train":
            parts = {part: frozen[part] for part in event.undone if part in frozen}
            if parts:
                pending[event.module.id] = (event, parts)
        elif isinstance(event, Forward):
            if event.module.id in frozen and event.pass_ not in trace.trained:
                del frozen[event.module.id]  # it was only evaluated
            if event.module.id in pending and event.pass_ in trace.trained:
                change, parts = pending.pop(event.module.id)
                awake = {part: by for part, by in parts.items() if part not in event.eval_parts}
                modes = [mode_layers(trace, by.module) for by in awake.values() if not _is_chosen(by)]
                is_inert = bool(modes) and all(layers is False for layers in modes)
                if awake and not event.eval_parts and not is_inert and event.module.id not in refrozen:
                    yield _hit(trace, change, awake, event)


def _freezing_forwards(trace: Trace) -> frozenset[int]:
    """Modules whose own forward puts parts in eval mode: whatever train() has undone is done again."""
    inside = {change.scene.forward for change in trace.of(ModeChange) if change.to == "eval"}
    return frozenset(forward.module.id for forward in trace.forwards if forward.pass_ in inside)


def _in_hooks(trace: Trace) -> Iterator[Hit]:
    """A part of a LightningModule is frozen with it, and a hook of the training wakes the whole."""
    changes = trace.of(ModeChange)
    asleep = {
        change.module.id: change
        for change in changes
        if change.to == "eval" and not hook_of(change) and not _is_chosen(change)
    }
    again = {change.module.id for change in changes if change.to == "eval" and in_training(change)}
    for change in changes:
        if change.to != "train" or not in_training(change) or change.module.cls is None:
            continue
        parts = {oid: by for oid, by in asleep.items() if _is_part(trace, oid, change.module.id)}
        parts = {oid: by for oid, by in parts.items() if not again & set(trace.lineage(oid))}
        kept = {oid: by for oid, by in parts.items() if mode_layers(trace, by.module) is not False}
        run = next(
            (f for f in trace.forwards if in_training(f) and kept.keys() & set(trace.lineage(f.module.id))),
            None,
        )
        if kept and run is not None and change.module.cls.derives("LightningModule"):
            yield _hit(trace, change, kept, run)


def _is_part(trace: Trace, oid: int, whole: int) -> bool:
    return oid != whole and whole in trace.lineage(oid)


def _is_chosen(change: ModeChange) -> bool:
    """Is it a part that a loop over `modules()` picked by a test, of its type usually?"""
    return change.module.name.startswith("[")


def _chooses(change: ModeChange) -> bool:
    """Is one part meant? Parts of `modules()` without a test are all of them."""
    if not _is_chosen(change):
        return True
    return any(guard.kind == "value" for guard in change.scene.guards)


def _hit(trace: Trace, change: ModeChange, awake: dict[int, ModeChange], forward: Forward) -> Hit:
    first = min(awake.values(), key=lambda by: by.order)
    is_named = not _is_chosen(first)
    is_sure = not is_named or any(has_sure_mode_layer(trace, by.module) for by in awake.values())
    part = called(first.module, "a part") if is_named else "a part"
    has_no_gradients = any(trace.facts.get(("frozen", part)) == frozenset([True]) for part in awake)
    return Hit(
        change.place,
        Severity.ERROR if has_no_gradients else Severity.WARNING,
        weaker(_confidence(is_named, forward), grade(int(not is_sure))),
        f"train() of the whole puts {part} back in train mode, which eval() had frozen: its batch-norm "
        "learns and its dropout drops again. Freeze it after train()."
        + doubt((not is_sure, "no layer of it is seen that surely depends on the mode")),
        distinct(_chain(change, first, forward)),
        frozenset({("module", change.module.id)}),
        change,
    )


def _confidence(is_named: bool, forward: Forward) -> Confidence:
    return grade(int(not is_named or forward.belief))


def _chain(change: ModeChange, first: ModeChange, forward: Forward) -> Iterator[Evidence]:
    yield from step(first.place, "the part is put in eval mode here")
    yield Evidence(change.place, "train() of the whole undoes it")
    yield from step(forward.place, "the next training forward finds it awake")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - the signature of BuildFixes
    yield Fix("Freeze the part again after train()", Safety.ADVICE, ())

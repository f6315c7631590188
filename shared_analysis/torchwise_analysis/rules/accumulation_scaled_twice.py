"""accumulation-scaled-twice: the loss is divided by the window, and its owner divides it again."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Backward
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Factor, Kind, Obj, Unknown, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, called, distinct, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from accelerate import Accelerator
from torch import nn


def train(loader):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y) / 4
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ accumulation-scaled-twice error certain
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""

RIGHT = """
import torch
from accelerate import Accelerator
from torch import nn


def train(loader):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""

RULE = Rule(
    code="TW506",
    name="accumulation-scaled-twice",
    category=Category.ACCUMULATION,
    severity=Severity.ERROR,
    claim="The loss is divided by the accumulation window, and the owner of the backward divides it again.",
    cost=(
        "`Accelerator.backward` divides by `gradient_accumulation_steps` itself, and so does Lightning's "
        "Trainer by `accumulate_grad_batches` when it optimizes by itself. Divided twice, the "
        "gradient of a window of N is N times too small: with SGD the learning rate is N times too low, "
        "clipping never acts, and weight decay weighs N times more. The run is paid for in full and learns "
        "a fraction."
    ),
    wrong=Example("Both divide by 4", WRONG, fixed=RIGHT),
    right=Example("The Accelerator divides", RIGHT),
    silent=(
        "the owner accumulates nothing (`gradient_accumulation_steps` left out or 1), or does not divide "
        "(Fabric, `scale_wrt_gas=False`)",
        "the divisor is another number than the window",
        "the window of the owner cannot be read",
    ),
    grading="Always an error. Certain: divisor and window are the same number or the same name.",
    fix="Take the division out. Unsafe: the effective learning rate grows by N.",
    references=(
        Reference(
            "Accelerate: gradient accumulation",
            "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
        ),
        Reference(
            "huggingface/transformers#40052: a bug on accumulated gradients' losses",
            "https://github.com/huggingface/transformers/issues/40052",
        ),
    ),
    examples=(
        Example(
            "A literal in both places",
            """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=8)


def train(loader):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y) / 8
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ accumulation-scaled-twice
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "The same name gives both",
            """
import torch
from accelerate import Accelerator
from torch import nn


def train(loader, window):
    accelerator = Accelerator(gradient_accumulation_steps=window)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            loss = loss / window
                   ^^^^^^^^^^^^^ accumulation-scaled-twice error certain
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "The window is counted by hand and the Accelerator knows of none",
            """
import torch
from accelerate import Accelerator
from torch import nn


def train(loader):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 4
        accelerator.backward(loss)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Divided by something else",
            """
import torch
from accelerate import Accelerator
from torch import nn


def train(loader, length):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum") / length
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "The accelerator is asked for its window",
            """
import torch
from accelerate import Accelerator
from torch import nn


def train(loader):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            loss = loss / accelerator.gradient_accumulation_steps
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ accumulation-scaled-twice error certain
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Lightning's Trainer divides by the window that it was given",
            """
import lightning as L
import torch
from torch import nn

WINDOW = 4


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y) / WINDOW
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ accumulation-scaled-twice error certain

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(loader):
    L.Trainer(max_epochs=3, accumulate_grad_batches=WINDOW).fit(Model(), loader)
""",
        ),
        Example(
            "Two losses are averaged, and Lightning's manual optimization divides nothing",
            """
import lightning as L
import torch
from torch import nn


class Both(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y, z = batch
        out = self.net(x)
        return (nn.functional.cross_entropy(out, y) + nn.functional.cross_entropy(out, z)) / 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        self.manual_backward(nn.functional.cross_entropy(self.net(x), y) / 4)
        if (batch_idx + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(loader):
    L.Trainer(max_epochs=3, accumulate_grad_batches=2).fit(Both(), loader)
    L.Trainer(max_epochs=3).fit(Manual(), loader)
""",
        ),
        Example(
            "Fabric does not divide",
            """
import torch
from lightning.fabric import Fabric
from torch import nn


def train(loader):
    fabric = Fabric()
    model = nn.Linear(12, 4)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(loader)
    for i, (x, y) in enumerate(loader):
        fabric.backward(nn.functional.cross_entropy(model(x), y) / 4)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
    ),
)


_TRAINERS = ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer")


def detect(trace: Trace) -> Iterator[Hit]:
    for backward in trace.backwards:
        owner = backward.owner
        if not backward.divides or backward.loss is None or owner is None:
            continue
        for given, window in _windows(trace, owner):
            factors = sorted(backward.loss.factors, key=lambda f: f.place.span)
            found = [factor for factor in factors if _same(factor, window, owner)]
            for factor in found:
                yield _hit(backward, owner, given, factor)
            if found:
                break


def _windows(trace: Trace, owner: Obj) -> Iterator[tuple[Place | None, Value | None]]:
    """Where the owner of the backward is told how many micro-batches a step takes, and what it is told."""
    if owner.kind is Kind.ACCELERATOR:
        yield owner.place, owner.arguments.get("gradient_accumulation_steps")
    elif owner.kind is Kind.ENGINE:
        given = owner.arguments.get("config") or owner.arguments.get("config_params")
        for one in alternatives(given) if given is not None else ():
            if isinstance(one, Obj) and one.kind is Kind.DICT:
                yield owner.place, trace.entries(one.id).get("gradient_accumulation_steps")
    elif owner.cls is not None and owner.cls.derives("LightningModule"):
        for call in trace.api(*_TRAINERS):
            yield call.place, call.arguments.get("accumulate_grad_batches")


def _same(factor: Factor, window: Value | None, owner: Obj) -> bool:
    """Does the loss carry a division by the owner's window?"""
    if factor.op != "/" or window is None:
        return False
    if isinstance(window, Const):
        least = 1 if owner.kind is Kind.ACCELERATOR else 2  # a sum of two losses is halved as well
        if not isinstance(window.value, int) or window.value < 2:
            return False
        return (factor.number == window.value and window.value > least) or _is_asked(factor, owner)
    if isinstance(window, Unknown) and window.offset:
        return False
    symbol = window.symbol if isinstance(window, (Unknown, Obj)) else None
    return (symbol is not None and factor.symbol == symbol) or _is_asked(factor, owner)


def _is_asked(factor: Factor, owner: Obj) -> bool:
    """`loss / accelerator.gradient_accumulation_steps`, `loss / self.trainer.accumulate_grad_batches`."""
    of, _, name = (factor.symbol or "").rpartition(".")
    if owner.kind is Kind.ACCELERATOR:
        return name == "gradient_accumulation_steps" and of in (owner.symbol, owner.name, f"#{owner.id}")
    return name == "accumulate_grad_batches" and of.rpartition(".")[2] == "trainer"


def _hit(backward: Backward, owner: Obj, given: Place | None, factor: Factor) -> Hit:
    names = {Kind.ACCELERATOR: "the accelerator", Kind.ENGINE: "the engine"}
    name = called(owner, names[owner.kind]) if owner.kind in names else "the Trainer"
    return Hit(
        factor.place,
        Severity.ERROR,
        grade(belief_in(owner)),
        f"{name} divides the loss by its accumulation window already: divided twice, the gradient is N "
        "times too small. Take this division out.",
        distinct(
            (
                *step(given, "the window is given here"),
                Evidence(factor.place, "the loss is divided by it"),
                Evidence(backward.place, "and this backward divides once more"),
            )
        ),
        frozenset({("window", backward.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Take the division out (changes training)"
    expression = expression_at(file.module, hit.place.span)
    if isinstance(expression, nodes.Binary) and expression.op == "/":
        kept = expression.left.span.shifted(hit.place.span.line - expression.span.line)
        yield Fix(title, Safety.UNSAFE, (Edit(Place(file.path, hit.place.span), file.slice(kept)),))
        return
    yield Fix(title, Safety.ADVICE, ())

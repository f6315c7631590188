"""accumulation-scaled-twice: the loss is divided by the window, and its owner divides it again."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Backward
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Factor, Kind, Obj, Unknown
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
        "`Accelerator.backward` divides by `gradient_accumulation_steps` itself. Divided twice, the "
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


def detect(trace: Trace) -> Iterator[Hit]:
    for backward in trace.backwards:
        owner = backward.owner
        if not backward.divides or backward.loss is None or owner is None:
            continue
        if owner.kind is not Kind.ACCELERATOR:
            continue
        window = owner.arguments.get("gradient_accumulation_steps")
        for factor in sorted(backward.loss.factors, key=lambda f: f.place.span):
            if _same(factor, window):
                yield _hit(backward, owner, factor)


def _same(factor: Factor, window: object) -> bool:
    """Does the loss carry a division by the owner's window?"""
    if factor.op != "/":
        return False
    if isinstance(window, Const):
        return isinstance(window.value, int) and window.value > 1 and factor.number == window.value
    if isinstance(window, Unknown) and window.offset:
        return False
    symbol = window.symbol if isinstance(window, (Unknown, Obj)) else None
    return symbol is not None and factor.symbol == symbol


def _hit(backward: Backward, owner: Obj, factor: Factor) -> Hit:
    name = called(owner, "the owner")
    return Hit(
        factor.place,
        Severity.ERROR,
        grade(belief_in(owner)),
        f"{name} divides the loss by its accumulation window already: divided twice, the gradient is N "
        "times too small. Take this division out.",
        distinct(
            (
                *step(owner.place, "the window is given here"),
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

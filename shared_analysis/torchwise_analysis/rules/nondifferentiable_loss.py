"""nondifferentiable-loss: the only way from the model to the loss goes through a discrete operation."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Cut
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, forwards_of, grade, step
from torchwise_analysis.rules.loss_cut_from_graph import behind, should_train

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        guess = model(x).argmax(dim=1).float()
        loss = nn.functional.mse_loss(guess, y.float())
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ nondifferentiable-loss error certain
        loss.requires_grad_(True)
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW405",
    name="nondifferentiable-loss",
    category=Category.LOSS,
    severity=Severity.ERROR,
    claim="The loss depends on the model only through a discrete operation, which has no gradient.",
    cost=(
        "argmax, rounding, comparisons and casts to integers are flat almost everywhere: no gradient passes. "
        "`requires_grad_(True)` on the loss silences the error that says so, and the model never changes "
        "while the loss is logged."
    ),
    wrong=Example("A loss of predicted classes", WRONG),
    right=Example("A loss of scores", RIGHT),
    silent=(
        "discrete values on the target's side only (pseudo-labels)",
        "another path with a gradient reaches the loss: straight-through estimators, log-probabilities of "
        "sampled actions, gathered scores",
        "metrics: no backward runs on the result",
    ),
    grading=(
        "Always an error. Certain when the model is made in view; likely when it is only taken for one."
    ),
    fix="Advice only: use a loss of scores or probabilities.",
    references=(
        Reference("Autograd mechanics", "https://docs.pytorch.org/docs/stable/notes/autograd.html"),
        Reference("torch.argmax", "https://docs.pytorch.org/docs/stable/generated/torch.argmax.html"),
    ),
    examples=(
        Example(
            "A count of hits as the loss",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        guesses = model(x).argmax(dim=1).float()
        loss = nn.functional.mse_loss(guesses, y.float())
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ nondifferentiable-loss
        loss.requires_grad_()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Rounded predictions",
            """
import torch
from torch import nn

model = nn.Linear(12, 1)
criterion = nn.L1Loss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(torch.round(model(x)), y)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ nondifferentiable-loss error certain
        loss.requires_grad = True
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A metric and pseudo-labels",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        scores = model(x)
        labels = scores.argmax(dim=1)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(nn.functional.l1_loss(labels.float(), y.float()).item())
""",
        ),
        Example(
            "Straight through",
            """
import torch
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        soft = model(x)
        hard = soft + (soft.round() - soft).detach()
        optimizer.zero_grad()
        nn.functional.mse_loss(hard, y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Classes chosen, scores gathered",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, reward in loader:
        scores = model(x).log_softmax(-1)
        action = scores.argmax(dim=1, keepdim=True)
        optimizer.zero_grad()
        (-(scores.gather(1, action).squeeze(1) * reward)).mean().backward()
        optimizer.step()
""",
        ),
    ),
)

_DISCRETE = (
    *("argmax", "argmin", "argsort", "round", "floor", "ceil", "trunc", "sign"),
    *("long", "int", "bool", "comparison", "eq", "ne", "gt", "lt", "ge", "le"),
)


def detect(trace: Trace) -> Iterator[Hit]:
    losses: dict[Cut, LossCall] = {}
    for event in trace.of_any(LossCall, Backward):
        if isinstance(event, LossCall):
            for value in event.inputs:
                if value.cut is not None and value.cut.how in _DISCRETE and not value.passes:
                    losses[value.cut] = event
        elif event.how == "tensor" and event.loss is not None:
            cut = event.loss.cut
            if cut is None or event.loss.passes:
                continue
            if cut in losses:
                yield _hit(trace, event, cut, losses[cut])
            elif cut.how in _DISCRETE and any(
                should_train(trace, f) for f in forwards_of(trace, behind(trace, cut))
            ):
                yield _hit(trace, event, cut, None)  # a loss of the project's own


def _hit(trace: Trace, one: Backward, cut: Cut, loss: LossCall | None) -> Hit:
    place = cut.place if loss is None else loss.place
    return Hit(
        place,
        Severity.ERROR,
        _confidence(trace, cut),
        f"the loss depends on the model only through {cut.how}, which has no gradient: backward reaches no "
        "weight. Use scores or probabilities.",
        distinct(_chain(trace, one, cut, loss)),
        frozenset({("loss", place)}),
        cut,
    )


def _confidence(trace: Trace, cut: Cut) -> Confidence:
    return grade(int(any(forward.belief for forward in forwards_of(trace, cut.passes))))


def _chain(trace: Trace, one: Backward, cut: Cut, loss: LossCall | None) -> Iterator[Evidence]:
    for forward in forwards_of(trace, cut.passes)[:1]:
        yield from step(forward.place, "this forward makes a graph")
    yield Evidence(cut.place, f"{cut.how} ends it")
    if loss is not None:
        yield Evidence(loss.place, "the loss gets nothing else of the model")
    yield from step(one.place, "backward runs on the result")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - the signature of BuildFixes
    yield Fix("Use a loss of scores or probabilities", Safety.ADVICE, ())

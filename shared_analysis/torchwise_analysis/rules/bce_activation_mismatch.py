"""bce-activation-mismatch: binary cross-entropy gets probabilities where it wants scores, or the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Activation, Tensor
from torchwise_analysis.rules._activations import (
    activated_inputs,
    chain,
    confidence,
    is_inside,
    renamed,
    without_activation,
)
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct

WRONG = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = F.binary_cross_entropy_with_logits(torch.sigmoid(model(x)), y)
                                                  ^^^^^^^^^^^^^^^^^^^^^^^ bce-activation-mismatch error
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW402",
    name="bce-activation-mismatch",
    category=Category.LOSS,
    severity=Severity.ERROR,
    claim="Binary cross-entropy gets probabilities where it expects scores, or the other way round.",
    cost=(
        "`BCEWithLogitsLoss` applies sigmoid itself. After a first sigmoid all its inputs lie between 0 "
        "and 1, where a second one stays between 0.5 and 0.73: no prediction can get near a negative "
        "target, the loss has a floor and gradients are small. `BCELoss` in turn takes logarithms of its "
        "input: raw scores outside of 0 and 1 stop the run with an assertion, on a GPU a late and "
        "unspecific one."
    ),
    wrong=Example("Sigmoid inside the loss call", WRONG, fixed=RIGHT),
    right=Example("Raw scores into the loss with logits", RIGHT),
    silent=(
        "sigmoid on the target, for a metric or for a prediction",
        "sigmoid before `BCELoss`, which is right",
        "clamped or otherwise bounded values, arithmetic in between, and models that cannot be seen",
        "sigmoid only outside of training, or a loss under `no_grad`",
    ),
    grading=(
        "Error, and certain when the last operation on the way into the loss is resolved; likely when it "
        "is one of several or rests on a call that is only taken for one."
    ),
    fix=(
        "Remove a sigmoid that is written inside the loss call, or call the form with logits for raw "
        "scores. Unsafe, because training changes. Advice elsewhere: the same output may be used for "
        "predictions."
    ),
    references=(
        Reference(
            "BCEWithLogitsLoss",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html",
        ),
        Reference(
            "yudi-mars/daisyRec#15: the loss does not converge",
            "https://github.com/yudi-mars/daisyRec/issues/15",
        ),
        Reference(
            "avBuffer/UNet3plus_pth#23: sigmoid before BCEWithLogitsLoss",
            "https://github.com/avBuffer/UNet3plus_pth/issues/23",
        ),
    ),
    examples=(
        Example(
            "Sigmoid as the last layer, the loss as an object",
            """
import torch
from torch import nn

scorer = nn.Sequential(
    nn.Linear(12, 1),
    nn.Sigmoid(),
    ^^^^^^^^^^^^ bce-activation-mismatch error certain
)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(scorer.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(scorer(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A focal loss that reuses its probabilities",
            """
import torch
import torch.nn.functional as F
from torch import nn


class Focal(nn.Module):
    def forward(self, inputs, targets):
        p = torch.sigmoid(inputs)
            ^^^^^^^^^^^^^^^^^^^^^ bce-activation-mismatch error certain
        bce = F.binary_cross_entropy_with_logits(p, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        return ((1 - p_t) ** 2 * bce).mean()


def train(loader):
    model, criterion = nn.Linear(12, 1), Focal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Raw scores into the loss for probabilities",
            """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.binary_cross_entropy(model(x), y).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ bce-activation-mismatch error certain
        optimizer.step()
""",
            fixed="""
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Sigmoid for predictions, and a name that is a probability elsewhere",
            """
import torch
from torch import nn

model = nn.Linear(12, 1)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def predict(x):
    with torch.no_grad():
        out = torch.sigmoid(model(x))
    return out > 0.5


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        print(torch.sigmoid(out).mean().item())
""",
        ),
        Example(
            "Probabilities into the loss for probabilities, clamped or not",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 1), nn.Sigmoid())
other = nn.Linear(12, 1)
criterion = nn.BCELoss()
optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        (criterion(model(x), y) + criterion(other(x).clamp(1e-6, 1 - 1e-6), y)).backward()
        optimizer.step()
""",
        ),
        Example(
            "A critic's scores and a teacher's soft targets",
            """
import torch
import torch.nn.functional as F
from torch import nn

student, teacher = nn.Linear(12, 1), nn.Linear(12, 1)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)


def train(loader):
    for x, _ in loader:
        with torch.no_grad():
            target = torch.sigmoid(teacher(x))
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(student(x), target).backward()
        optimizer.step()
""",
        ),
    ),
)

_WITH_LOGITS = "binary_cross_entropy_with_logits"
_PLAIN = "binary_cross_entropy"


class _Found(NamedTuple):
    """The loss call and the activation before it."""

    loss: LossCall
    activation: Activation


def detect(trace: Trace) -> Iterator[Hit]:
    for loss in trace.losses:
        if loss.name == _WITH_LOGITS:
            for tensor, activation in activated_inputs(loss, "sigmoid", "softmax"):
                yield _of_probabilities(loss, tensor, activation)
        elif loss.name == _PLAIN:
            for tensor, activation in activated_inputs(loss, "linear"):
                yield _of_scores(loss, tensor, activation)


def _of_probabilities(loss: LossCall, tensor: Tensor, activation: Activation) -> Hit:
    message = (
        f"{activation.name} before a binary cross-entropy that applies sigmoid itself: predictions stay "
        "between 0.5 and 0.73, so training is slow and ends worse. Pass the raw scores."
    )
    return _hit(loss, tensor, activation, activation.place, message, "raw scores")


def _of_scores(loss: LossCall, tensor: Tensor, activation: Activation) -> Hit:
    message = (
        "raw scores into a binary cross-entropy that expects probabilities: values outside of 0 and 1 stop "
        "the run. Use the form with logits."
    )
    return _hit(loss, tensor, activation, loss.place, message, "probabilities")


def _hit(
    loss: LossCall, tensor: Tensor, activation: Activation, place: Place, message: str, expects: str
) -> Hit:
    return Hit(
        place,
        Severity.ERROR,
        confidence(loss, tensor),
        message,
        distinct(chain(loss, activation, expects)),
        frozenset({("loss", loss.place)}),
        _Found(loss, activation),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    loss, activation = hit.facts
    if activation.name == "linear":
        title = "Use the loss with logits (changes training)"
        edit = renamed(file, loss.place, _PLAIN, _WITH_LOGITS)
        if edit is None and loss.loss is not None:
            edit = renamed(file, loss.loss.place, "BCELoss", "BCEWithLogitsLoss")
    else:
        title = f"Pass the raw scores: remove the {activation.name} (changes training)"
        is_inline = is_inside(activation.place, loss.place)
        edit = without_activation(file, activation.place) if is_inline else None
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))

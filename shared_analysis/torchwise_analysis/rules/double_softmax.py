"""double-softmax: cross-entropy gets probabilities and applies its own softmax to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, is_imported, replace
from torchwise_analysis.interp.abstract.events import LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Activation, Tensor
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, grade, link_beliefs, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = F.cross_entropy(F.softmax(model(x), dim=1), y)
                               ^^^^^^^^^^^^^^^^^^^^^^^^^^ double-softmax error certain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW401",
    name="double-softmax",
    category=Category.LOSS,
    severity=Severity.ERROR,
    claim="The input of cross-entropy has been through a softmax already.",
    cost=(
        "`CrossEntropyLoss` applies log-softmax itself. Given probabilities, which all lie between 0 "
        "and 1, its own softmax is nearly flat: the loss cannot fall below a floor (0.74 for four "
        "classes) and gradients shrink, to a tenth in one measured case. The model learns slowly and "
        "ends worse, and accuracy still moves, so that the run looks healthy."
    ),
    wrong=Example("Softmax inside the loss call", WRONG, fixed=RIGHT),
    right=Example("Raw scores into cross-entropy", RIGHT),
    silent=(
        "softmax on the target, on attention weights, or for a metric or a prediction",
        "softmax only outside of training (`if not self.training`), or the loss is computed under `no_grad`",
        "what comes between softmax and loss changes the values (arithmetic, a log)",
        "log-softmax before cross-entropy changes neither value nor gradient: that is a hint only",
    ),
    grading=(
        "Error, and certain when the last operation on the way into the loss is resolved to a softmax; "
        "likely when it rests on a call that is only taken for one. For log-softmax a hint."
    ),
    fix=(
        "Remove the softmax where it is written inside the loss call: unsafe, because training changes "
        "(that is the point). Elsewhere advice only: the same output may be used for predictions."
    ),
    references=(
        Reference(
            "CrossEntropyLoss",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
        ),
        Reference(
            "ariecattan/SciCo#2: Double-softmax in validation loss",
            "https://github.com/ariecattan/SciCo/issues/2",
        ),
        Reference(
            "bowang-lab/Transformer-GCN-QA#32: Removes erroneous extra softmax",
            "https://github.com/bowang-lab/Transformer-GCN-QA/pull/32",
        ),
        Reference(
            "runame/laplace-redux#1: softmax is applied twice",
            "https://github.com/runame/laplace-redux/pull/1",
        ),
    ),
    examples=(
        Example(
            "The head that replaces the last layer of a library's model",
            """
import torch
from torch import nn
from torchvision import models

model = models.resnet50(weights="DEFAULT")
model.fc = nn.Sequential(nn.Linear(2048, 10), nn.Softmax(dim=1))
                                              ^^^^^^^^^^^^^^^^^ double-softmax error certain
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


plain = models.resnet50(weights="DEFAULT")
plain.fc = nn.Linear(2048, 10)
other = torch.optim.Adam(plain.parameters(), lr=1e-3)


def train_plain(loader):
    for x, y in loader:
        other.zero_grad()
        criterion(plain(x), y).backward()
        other.step()
""",
        ),
        Example(
            "In the last line of forward",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x):
        return torch.softmax(self.body(x), dim=-1)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ double-softmax error certain


def train(loader):
    net, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A Sequential that ends with a Softmax layer",
            """
import torch
from torch import nn

scorer = nn.Sequential(
    nn.Linear(12, 4),
    nn.Softmax(dim=-1),
    ^^^^^^^^^^^^^^^^^^ double-softmax error certain
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(scorer.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(scorer(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "log-softmax is harmless",
            """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = F.cross_entropy(F.log_softmax(model(x), dim=1), y)
                               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ double-softmax hint certain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Soft targets, metrics and predictions",
            """
import torch
import torch.nn.functional as F
from torch import nn

model, teacher = nn.Linear(12, 4), nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, _ in loader:
        with torch.no_grad():
            target = F.softmax(teacher(x), dim=1)
        logits = model(x)
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(F.softmax(logits, dim=1).max().item())
""",
        ),
        Example(
            "Only outside of training",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x):
        scores = self.body(x)
        if not self.training:
            scores = torch.softmax(scores, dim=-1)
        return scores


def train(loader):
    net, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The loss call and the activation before it."""

    loss: LossCall
    activation: Activation


def detect(trace: Trace) -> Iterator[Hit]:
    for loss in trace.losses:
        if loss.name != "cross_entropy" or True not in loss.grad:
            continue
        activations = [one.activation for one in loss.inputs]
        for tensor in loss.inputs:
            activation = tensor.activation
            if activation is None or activation.name not in ("softmax", "log_softmax"):
                continue
            if any(other is None or other.name != activation.name for other in activations):
                continue  # on another path the scores come raw: which one trains is not known
            yield _hit(loss, tensor, activation)


def _hit(loss: LossCall, tensor: Tensor, activation: Activation) -> Hit:
    is_log = activation.name == "log_softmax"
    if is_log:
        message = (
            "log-softmax before cross-entropy is computed twice: value and gradient are the same without it. "
            "Pass the raw scores, or use nll_loss."
        )
    else:
        message = (
            "softmax before cross-entropy, which applies softmax itself: gradients shrink and the loss "
            "cannot reach zero, so training is slow and ends worse. Pass the raw scores."
        )
    return Hit(
        activation.place,
        Severity.HINT if is_log else Severity.ERROR,
        _confidence(loss, tensor),
        message
        + doubt((link_beliefs(tensor.evidence) > 0, "what is called in between is known by convention only")),
        distinct(_chain(loss, activation)),
        frozenset({("loss", loss.place)}),
        _Found(loss, activation),
    )


def _confidence(loss: LossCall, tensor: Tensor) -> Confidence:
    return weaker(
        grade(min(link_beliefs(tensor.evidence), 1)), grade(int(len(loss.inputs) > 1 and loss.input is None))
    )


def _chain(loss: LossCall, activation: Activation) -> Iterator[Evidence]:
    layer = " (this layer)" if activation.in_sequence else ""
    yield from step(activation.place, f"{activation.name.replace('_', '-')} is applied here{layer}")
    if loss.loss is not None:
        yield from step(loss.loss.place, "the loss, which expects raw scores, is made here")
    yield from step(loss.place, "its result goes into cross-entropy here")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    loss, activation = hit.facts
    title = "Pass the raw scores: remove the " + activation.name.replace("_", "-") + " (changes training)"
    inner = _scores_of(file, activation.place)
    if inner is None or not _is_inside(activation.place, loss.place):
        yield Fix(title, Safety.ADVICE, ())
        return
    yield Fix(title, Safety.UNSAFE, (replace(activation.place, inner),))


def _scores_of(file: SourceFile, place: Place) -> str | None:
    """The text of what a softmax call is applied to: its first argument, or the receiver of a method."""
    expression = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(expression, nodes.Call):
        return None
    shift = place.span.line - expression.span.line
    first = expression.args[0] if expression.args else None
    if isinstance(first, nodes.Starred):
        return None
    if isinstance(expression.func, nodes.Attribute) and not is_imported(file, expression.func):
        subject: nodes.Expr | None = expression.func.value  # x.softmax(dim=1)
    else:  # F.softmax(x, dim=1), softmax(input=x), nn.Softmax(dim=1)(x)
        subject = first or next((k.value for k in expression.keywords if k.name in ("input", "self")), None)
    return None if subject is None else file.slice(subject.span.shifted(shift))


def _is_inside(inner: Place, outer: Place) -> bool:
    if inner.path != outer.path:
        return False
    first, second = inner.span, outer.span
    starts = (second.line, second.column) <= (first.line, first.column)
    return starts and (first.end_line, first.end_column) <= (second.end_line, second.end_column)

"""nll-without-log-softmax: nll_loss gets raw scores or probabilities instead of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Activation, Tensor
from torchwise_analysis.rules._activations import activated_inputs, chain, confidence, is_inside, renamed
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct

WRONG = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = F.nll_loss(F.softmax(model(x), dim=1), y)
                          ^^^^^^^^^^^^^^^^^^^^^^^^^^ nll-without-log-softmax error certain
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
        loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW403",
    name="nll-without-log-softmax",
    category=Category.LOSS,
    severity=Severity.ERROR,
    claim="The input of nll_loss is not log-probabilities: it comes raw, or from a softmax without log.",
    cost=(
        "`nll_loss` only picks the target's entry and negates it. On raw scores nothing holds the others "
        "down, so the loss has no lower bound: it runs to minus infinity while the model learns to shout "
        "(-10.8 after 50 steps in one measured case). On probabilities it is bounded by -1 and its "
        "gradient vanishes where the model is most wrong."
    ),
    wrong=Example("Softmax without log", WRONG, fixed=RIGHT),
    right=Example("log_softmax", RIGHT),
    silent=(
        "log-softmax, a log of a softmax, or log-sigmoid on the way, in the model or next to the loss",
        "models that cannot be seen: nothing is concluded from an activation that is absent from the file",
        "values are changed in between, or the loss is computed under `no_grad`",
    ),
    grading=(
        "Error, and certain when the last operation on the way into the loss is resolved; likely when it "
        "is one of several or rests on a call that is only taken for one."
    ),
    fix=(
        "For raw scores call cross-entropy instead; for a softmax written inside the loss call or as a "
        "layer, its log form. Unsafe, because training changes. Advice where the probabilities may be "
        "used elsewhere."
    ),
    references=(
        Reference("NLLLoss", "https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html"),
        Reference(
            "CrossEntropyLoss: equivalent to LogSoftmax and NLLLoss",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
        ),
    ),
    examples=(
        Example(
            "A model that returns raw scores",
            """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        return self.fc(torch.relu(x))


def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
               ^^^^^^^^^^^^^^^^^^^^^ nll-without-log-softmax error certain
        loss.backward()
        optimizer.step()
""",
            fixed="""
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        return self.fc(torch.relu(x))


def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A head that ends in a softmax layer, one of two outputs",
            """
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.real = nn.Linear(32, 1)
        self.label = nn.Sequential(nn.Linear(32, 4), nn.Softmax(dim=1))
                                                     ^^^^^^^^^^^^^^^^^ nll-without-log-softmax error certain

    def forward(self, x):
        x = self.body(x)
        return self.real(x), self.label(x)


critic = Critic()
bce, nll = nn.BCEWithLogitsLoss(), nn.NLLLoss()
optimizer = torch.optim.Adam(critic.parameters())


def train(loader):
    for x, y in loader:
        score, guess = critic(x)
        optimizer.zero_grad()
        (bce(score, torch.ones_like(score)) + nll(guess, y)).backward()
        optimizer.step()
""",
        ),
        Example(
            "log_softmax in the model",
            """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        return F.log_softmax(self.fc(x), dim=1)


def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.nll_loss(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The log of a softmax, taken next to the loss",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 4), nn.Softmax(dim=1))
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(torch.log(model(x) + 1e-9), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A model from elsewhere: its last layer is not known",
            """
import torch.nn.functional as F


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
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
        if loss.name == "nll_loss":
            for tensor, activation in activated_inputs(loss, "softmax", "linear"):
                yield _hit(loss, tensor, activation)


def _hit(loss: LossCall, tensor: Tensor, activation: Activation) -> Hit:
    is_raw = activation.name == "linear"
    message = (
        "nll_loss of raw scores has no lower bound: the loss runs to minus infinity. Use cross-entropy, or "
        "log_softmax before it."
        if is_raw
        else "nll_loss of probabilities without log: gradients vanish where the model is most wrong. Use "
        "log_softmax."
    )
    return Hit(
        loss.place if is_raw else activation.place,
        Severity.ERROR,
        confidence(loss, tensor),
        message,
        distinct(chain(loss, activation, "log-probabilities")),
        frozenset({("loss", loss.place)}),
        _Found(loss, activation),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    loss, activation = hit.facts
    edit = None
    if activation.name == "linear":
        title = "Use cross-entropy, which applies log_softmax itself (changes training)"
        edit = renamed(file, loss.place, "nll_loss", "cross_entropy")
        if edit is None and loss.loss is not None:
            edit = renamed(file, loss.loss.place, "NLLLoss", "CrossEntropyLoss")
    else:
        title = "Use the log form of the softmax (changes training)"
        if activation.in_sequence:
            edit = renamed(file, activation.place, "Softmax", "LogSoftmax")
        elif is_inside(activation.place, loss.place):
            edit = renamed(file, activation.place, "softmax", "log_softmax")
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))

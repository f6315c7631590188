"""softmax-wrong-dim: a softmax over the samples of a batch, or over a single value."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ActivationCall, LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Tensor
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, grade, link_beliefs, step

WRONG = """
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, query, context):
        scores = torch.bmm(query, context.transpose(1, 2))
        weights = torch.softmax(scores, dim=0)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ softmax-wrong-dim error likely
        return torch.bmm(weights, context)
"""

RIGHT = """
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, query, context):
        scores = torch.bmm(query, context.transpose(1, 2))
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights, context)
"""

RULE = Rule(
    code="TW407",
    name="softmax-wrong-dim",
    category=Category.LOSS,
    severity=Severity.ERROR,
    claim="A softmax, log-softmax or argmax runs over the samples of a batch, or over an axis of size 1.",
    cost=(
        "Over the batch axis the samples compete with each other: what one sample gets depends on which "
        "others are in its batch, and at inference with a batch of 1 every weight is 1. Over an axis of size "
        "1 a softmax is 1 everywhere and an argmax 0: the layers before it get no gradient, or every "
        "prediction is class 0. Shapes fit, so nothing is raised."
    ),
    wrong=Example("Attention weights over the batch", WRONG),
    right=Example("Over the positions", RIGHT),
    silent=(
        "the shape is not known: no `bmm`, no `view` with the batch size and no layer tells it",
        "a number of the axis that may stand for another one, because the rank is not known",
        "similarities within a batch (`x @ x.T`), whose softmax over either axis is meant",
    ),
    grading=(
        "Always an error. Certain for an axis of size 1; likely for the batch axis, which is told by "
        "convention: the first axis of `bmm`, the one that a `view` gives the batch size, or the axis over "
        "which `nll_loss` expects samples."
    ),
    fix="Advice: which axis is meant is not known. Usually it is the last one, `dim=-1`.",
    references=(
        Reference(
            "torch.nn.functional.softmax",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html",
        ),
        Reference("torch.bmm", "https://docs.pytorch.org/docs/stable/generated/torch.bmm.html"),
        Reference(
            "PetrochukM/PyTorch-NLP#2: Attention's softmax dimension is wrong?",
            "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
        ),
    ),
    examples=(
        Example(
            "Rows of all samples, and a layer made with the axis",
            """
import torch
from torch import nn


class DotAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=0)

    def forward(self, query, context):
        batch, length, width = query.shape
        scores = torch.bmm(query, context.transpose(1, 2))
        weights = self.softmax(scores.view(batch * length, context.size(1)))
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ softmax-wrong-dim error likely
        return torch.bmm(weights.view(batch, length, context.size(1)), context)
""",
        ),
        Example(
            "Without `dim` three axes mean the first",
            """
import torch
import torch.nn.functional as F


def attend(query, keys, values):
    scores = torch.bmm(query, keys.transpose(1, 2)) / 8.0
    return torch.bmm(F.softmax(scores), values)
                     ^^^^^^^^^^^^^^^^^ softmax-wrong-dim error likely
""",
        ),
        Example(
            "One output has no softmax",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 1)

    def forward(self, x):
        return torch.softmax(self.head(self.body(x).relu()), dim=-1)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ softmax-wrong-dim error certain
""",
        ),
        Example(
            "Log-probabilities over the samples go into nll_loss",
            """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(data):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        loss = F.nll_loss(F.log_softmax(model(x), dim=0), y)
                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ softmax-wrong-dim error likely
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Attention over time, whose scores have a last axis of one",
            """
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(12, 1)

    def forward(self, x):
        weights = torch.softmax(self.score(x), dim=1)
        return (weights * x).sum(1)
""",
        ),
        Example(
            "Similarities within the batch, both ways",
            """
import torch
from torch import nn


def contrast(image, text):
    scores = image @ text.T
    ways = torch.log_softmax(scores, dim=0).diag() + torch.log_softmax(scores, dim=1).diag()
    return -ways.mean()
""",
        ),
        Example(
            "Classes of flattened samples",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        scores = self.head(x.view(x.size(0), -1))
        return torch.log_softmax(scores, dim=1), scores.argmax(dim=1)
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.of(ActivationCall):
        if event.name in ("softmax", "log_softmax", "argmax") and event.input is not None:
            yield from _by_shape(event, event.input)
    for loss in trace.losses:
        if loss.name == "nll_loss":
            yield from _before_nll(trace, loss)


def _by_shape(event: ActivationCall, value: Tensor) -> Iterator[Hit]:
    axis = _axis(event, value)
    if axis is None or value.shape is None:
        return
    size, from_end = value.shape[axis], len(value.shape) - axis
    if size == 1 and (_is_whole(value) or (event.dim == -1 and from_end == 1)):
        result = "0" if event.name == "argmax" else "0 (its logarithm of 1)" if "log" in event.name else "1"
        yield _hit(
            event,
            value,
            Confidence.CERTAIN if not link_beliefs(value.evidence) else Confidence.LIKELY,
            f"this {_words(event)} runs over an axis of size 1: the result is {result} for every input.",
            "an axis of size 1 comes from here",
        )
    elif size == "batch" and axis == 0 and len(value.shape) > 1:
        implied = "" if event.dim_given else " (without `dim`, three axes mean the first)"
        yield _hit(
            event,
            value,
            Confidence.LIKELY,
            f"this {_words(event)} runs over the samples of the batch{implied}: each sample's result depends "
            "on the others. Give it the axis of the classes or positions, usually `dim=-1`."
            + doubt((True, "that the first axis holds the samples is a convention")),
            "the first axis holds the samples of the batch here",
        )


def _axis(event: ActivationCall, value: Tensor) -> int | None:
    """The axis that the call runs over, from the front. [torch `_get_softmax_dim`: 0 for rank 0, 1 and 3]"""
    if value.shape is None:
        return None
    rank = len(value.shape)
    if not event.dim_given:
        return (0 if rank in (0, 1, 3) else 1) if _is_whole(value) and event.name != "argmax" else None
    if event.dim is None or not -rank <= event.dim < rank:
        return None
    if event.dim >= 0 and not _is_whole(value):
        return None  # there may be axes in between that we do not know
    return event.dim % rank if rank else None


def _is_whole(value: Tensor) -> bool:
    """Is the rank known? A layer alone tells its last axis only."""
    shape = value.shape
    return shape is not None and (shape[:1] == ("batch",) or all(isinstance(size, int) for size in shape))


def _before_nll(trace: Trace, loss: LossCall) -> Iterator[Hit]:
    """`nll_loss` takes classes on axis 1 of a batch."""
    value = loss.input
    if value is None or value.activation is None or len(loss.inputs) != 1:
        return
    activation = value.activation
    sources = (trace.objects[one] for one in value.sources if one in trace.objects)
    is_batch = any(one.kind is Kind.LOADER and one.arguments.get("batch_size", 1) for one in sources)
    if activation.name != "log_softmax" or activation.dim != 0 or not is_batch:
        return
    yield Hit(
        activation.place,
        Severity.ERROR,
        grade(1),
        "this log-softmax runs over the samples of the batch, and nll_loss takes its result for "
        "log-probabilities of the classes. Use `dim=1`."
        + doubt((True, "that the first axis holds the samples is a convention")),
        distinct(
            (
                Evidence(activation.place, "over axis 0"),
                Evidence(loss.place, "nll_loss expects the classes on axis 1 of a batch"),
            )
        ),
        frozenset({("softmax", activation.place)}),
    )


def _words(event: ActivationCall) -> str:
    return event.name.replace("_", "-")


def _hit(event: ActivationCall, value: Tensor, confidence: Confidence, message: str, shape: str) -> Hit:
    origin = value.evidence.place if value.evidence is not None else None
    return Hit(
        event.place,
        Severity.ERROR,
        confidence,
        message,
        distinct((*step(origin, shape), Evidence(event.place, "and this runs over it"))),
        frozenset({("softmax", event.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Give it the axis of the classes or positions, usually `dim=-1`", Safety.ADVICE, ())

"""token-mean-mismatch: micro-batches of unequal length count alike."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, LossCall, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(12, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
        (loss / 8).backward()
        ^^^^^^^^^^^^^^^^^^^^^ token-mean-mismatch warning possible
        if (i + 1) % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

RIGHT = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(12, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(windows):
    for window in windows:
        count = sum((y != -100).sum() for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            scores = model(x).flatten(0, 1)
            loss = F.cross_entropy(scores, y.flatten(), ignore_index=-100, reduction="sum")
            (loss / count).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW508",
    name="token-mean-mismatch",
    category=Category.ACCUMULATION,
    severity=Severity.WARNING,
    claim="Means over the tokens of each micro-batch are averaged, although the numbers of tokens differ.",
    cost=(
        "A mean of means is the mean of all tokens only when each micro-batch has equally many. With padding "
        "that `ignore_index` leaves out, a token of a short micro-batch counts more than one of a long one: "
        "training with 8 micro-batches is not training with a batch 8 times as large. In runs of language "
        "models the losses differed visibly, until the libraries changed it."
    ),
    wrong=Example("The mean of eight means", WRONG),
    right=Example("One sum, divided by all tokens of the window", RIGHT),
    silent=(
        "targets that are parts of what the model is fed, where a negative number is ignored: there is none",
        "the loss is a sum that is divided by a number of tokens",
        "no token is left out: without `ignore_index` samples of one length count alike",
        "a step after each backward",
        "the Trainer of transformers, which divides by `num_items_in_batch`",
    ),
    grading=(
        "Possible at most, and so not shown unless asked for: whether the numbers of tokens differ depends "
        "on the data. What would settle it: the number of targets that are not ignored in each micro-batch."
    ),
    fix="Advice: sum over the tokens, and divide by the number of all tokens of the window.",
    references=(
        Reference(
            "transformers#34191: gradient accumulation with unequal numbers of tokens",
            "https://github.com/huggingface/transformers/pull/34191",
        ),
        Reference(
            "unslothai/unsloth-zoo#6: gradient accumulation",
            "https://github.com/unslothai/unsloth-zoo/pull/6",
        ),
        Reference(
            "Accelerate: gradient accumulation with variable-size samples",
            "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
        ),
    ),
    examples=(
        Example(
            "Accelerate divides by the window",
            """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=4)
criterion = nn.CrossEntropyLoss(ignore_index=0)


def train(data):
    model = nn.Linear(12, 100)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, data)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(x).flatten(0, 1), y.flatten())
            accelerator.backward(loss)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^ token-mean-mismatch warning possible
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A counter and a layer that ignores padding",
            """
import torch
from torch import nn

model = nn.Linear(12, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=0)


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader, 1):
        loss = criterion(model(x).flatten(0, 1), y.flatten()) / 16
        loss.backward()
        ^^^^^^^^^^^^^^^ token-mean-mismatch warning possible
        if i % 16 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Classes of images, one for each",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A step for each batch",
            """
import torch
from torch import nn

model = nn.Linear(12, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=0)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
""",
        ),
        Example(
            "A sum, divided later",
            """
import torch
from torch import nn

model = nn.Linear(12, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=0, reduction="sum")


def train(loader, tokens):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        (criterion(model(x).flatten(0, 1), y.flatten()) / tokens).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    losses: dict[Place, list[LossCall]] = {}
    for loss in trace.losses:
        if _leaves_out(loss):
            losses.setdefault(loss.place, []).append(loss)
    if not losses:
        return
    runs: dict[Place, list[Backward]] = {}
    for backward in trace.backwards:
        runs.setdefault(backward.place, []).append(backward)
    for one in trace.steps:
        sites = {place for atom in one.before if not atom.applied for place, many in atom.sites if many > 1}
        for place in sorted(sites, key=_position):
            for backward in runs.get(place, ())[-1:]:
                began = _loss_of(backward, losses)
                if began is not None and backward.how != "managed" and not _is_fed(trace, began):
                    yield _hit(one, backward, began)


def _position(place: Place) -> tuple[str, Span]:
    return place.path, place.span


def _leaves_out(loss: LossCall) -> bool:
    """A mean over the targets that are not ignored, by a number that somebody wrote."""
    ignored = loss.options.get("ignore_index")
    is_mean = loss.name in ("cross_entropy", "nll_loss") and loss.reduction == "mean"
    return is_mean and isinstance(ignored, Const) and type(ignored.value) is int


def _is_fed(trace: Trace, loss: LossCall) -> bool:
    """Are the targets parts of what the model is fed? Then there are no negative numbers among them: no
    embedding would take them."""
    target, ignored = loss.arguments.get("target", 1), loss.options.get("ignore_index")
    is_negative = isinstance(ignored, Const) and isinstance(ignored.value, int) and ignored.value < 0
    if not isinstance(target, Obj) or not is_negative:
        return False
    passes = (trace.passes[p] for one in loss.inputs for p in one.passes if p in trace.passes)
    given = (value for one in passes for value in one.forward.arguments)
    return any(isinstance(value, Obj) and value.id == target.id for value in given)


def _loss_of(backward: Backward, losses: dict[Place, list[LossCall]]) -> LossCall | None:
    """The loss that a backward of a scaled mean began with."""
    value = backward.loss
    if value is None or value.reduction != "mean" or not (value.divided or backward.divides):
        return None
    link = value.evidence
    while link is not None:
        if link.place in losses:
            found = losses[link.place]
            own = [loss for loss in found if any(one.passes & backward.passes for one in loss.inputs)]
            return (own or found)[-1]
        link = link.before
    return None


def _hit(one: Step, backward: Backward, loss: LossCall) -> Hit:
    name = called(one.optimizer, "the optimizer")
    return Hit(
        backward.place,
        Severity.WARNING,
        Confidence.POSSIBLE,
        "do the micro-batches of this window have equally many targets that are not ignored? If not, the "
        "mean of their means weighs tokens of short ones more. Sum, and divide by the tokens of the window.",
        distinct(
            (
                Evidence(loss.place, "a mean over the targets that are not ignored"),
                Evidence(backward.place, "several of these means are averaged"),
                Evidence(one.place, f"before {name} steps"),
            )
        ),
        frozenset({("window", backward.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Sum, and divide by the number of all tokens of the window", Safety.ADVICE, ())

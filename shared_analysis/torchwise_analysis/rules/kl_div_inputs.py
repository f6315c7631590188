"""kl-div-inputs: kl_div gets probabilities or scores where it expects log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Activation, Const
from torchwise_analysis.rules._activations import activated_inputs, chain, confidence, is_inside, renamed
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, step

WRONG = """
import torch
import torch.nn.functional as F
from torch import nn

student, teacher = nn.Linear(12, 4), nn.Linear(12, 4)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)


def distil(loader):
    for x, _ in loader:
        with torch.no_grad():
            target = F.softmax(teacher(x), dim=1)
        loss = F.kl_div(F.softmax(student(x), dim=1), target, reduction="batchmean")
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ kl-div-inputs error
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
import torch.nn.functional as F
from torch import nn

student, teacher = nn.Linear(12, 4), nn.Linear(12, 4)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)


def distil(loader):
    for x, _ in loader:
        with torch.no_grad():
            target = F.softmax(teacher(x), dim=1)
        loss = F.kl_div(F.log_softmax(student(x), dim=1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW404",
    name="kl-div-inputs",
    category=Category.LOSS,
    severity=Severity.ERROR,
    claim="The arguments of kl_div are not in the form it expects, so the result is no KL divergence.",
    cost=(
        "`kl_div(input, target)` expects log-probabilities as input and probabilities as target. Given "
        "probabilities it is smallest where the student puts everything on one class, and given raw scores "
        "it has no lower bound: in neither case does the student approach the target. The numbers look "
        "plausible."
    ),
    wrong=Example("The student's side is a probability", WRONG, fixed=RIGHT),
    right=Example("The student's side is a log-probability", RIGHT),
    silent=(
        "log-softmax, a log or log-sigmoid on the way into the first argument",
        "values from models that cannot be seen, or changed in between",
        "a target in log space with `log_target=True`",
        "a loss under `no_grad`",
    ),
    grading=(
        "Error, and certain when the last operations on both sides are resolved; likely when they are one "
        "of several. Only a missing `reduction`, whose default divides by the number of elements and not "
        "by the batch, is a hint."
    ),
    fix=(
        "For a softmax written inside the call, log-softmax. Unsafe, because training changes. Advice "
        "where the probabilities have a name and may be used elsewhere."
    ),
    references=(
        Reference("KLDivLoss", "https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html"),
        Reference("microsoft/ProDA#20 (confirmed)", "https://github.com/microsoft/ProDA/issues/20"),
        Reference(
            "HikariTJU/LD#74: kd_loss implementation issue", "https://github.com/HikariTJU/LD/issues/74"
        ),
        Reference(
            "sebastian-hofstaetter/matchmaker#18",
            "https://github.com/sebastian-hofstaetter/matchmaker/issues/18",
        ),
    ),
    examples=(
        Example(
            "A target in log space that is not announced",
            """
import torch.nn.functional as F


def consistency(first, second):
    p, q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    return F.kl_div(p, q, reduction="batchmean")
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ kl-div-inputs error certain
""",
        ),
        Example(
            "Raw scores",
            """
import torch
from torch import nn

student = nn.Linear(12, 4)
criterion = nn.KLDivLoss(reduction="batchmean")
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)


def distil(loader):
    for x, target in loader:
        optimizer.zero_grad()
        loss = criterion(student(x), target.softmax(dim=1))
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ kl-div-inputs error certain
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "The default reduction divides by the number of elements",
            """
import torch.nn.functional as F


def distil(student_scores, teacher_scores):
    p = F.log_softmax(student_scores / 2, dim=-1)
    return F.kl_div(p, F.softmax(teacher_scores / 2, dim=-1))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ kl-div-inputs hint certain
""",
        ),
        Example(
            "Both sides in log space, and said so",
            """
import torch.nn.functional as F


def consistency(first, second):
    p, q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    return F.kl_div(p, q, reduction="batchmean", log_target=True)
""",
        ),
        Example(
            "A log of probabilities",
            """
import torch
from torch import nn


def divergence(scores, target):
    p = scores.softmax(dim=-1)
    return nn.functional.kl_div(p.log(), target, reduction="sum") / len(scores)
""",
        ),
        Example(
            "Softmax on the target's side only, the model's last layer unknown",
            """
import torch
from torch import nn


def distil(student, teacher, optimizer, loader):
    criterion = nn.KLDivLoss(reduction="none")
    for x in loader:
        with torch.no_grad():
            target = teacher(x).softmax(dim=1)
        optimizer.zero_grad()
        criterion(student(x), target).sum(1).mean().backward()
        optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The loss call and the activation to exchange, if one is at fault."""

    loss: LossCall
    activation: Activation | None


def detect(trace: Trace) -> Iterator[Hit]:
    for loss in trace.losses:
        if loss.name != "kl_div":
            continue
        found = [
            _hit(loss, activation, confidence(loss, tensor))
            for tensor, activation in activated_inputs(loss, "softmax", "sigmoid", "linear")
        ]
        if not found and _is_unannounced_log(loss):
            found = [_of_target(loss)]
        if not found and loss.grad != frozenset({False}) and not _says_reduction(loss):
            found = [_of_reduction(loss)]
        yield from found[:1]


def _hit(loss: LossCall, activation: Activation, confidence_: Confidence) -> Hit:
    what = "raw scores" if activation.name == "linear" else "probabilities"
    return Hit(
        loss.place,
        Severity.ERROR,
        confidence_,
        f"kl_div expects log-probabilities as its first argument and gets {what}: the result is no KL "
        "divergence, and the student does not approach the target. Use log_softmax.",
        distinct(chain(loss, activation, "log-probabilities")),
        frozenset({("loss", loss.place)}),
        _Found(loss, activation),
    )


def _is_unannounced_log(loss: LossCall) -> bool:
    target, flag = loss.target, loss.options.get("log_target")
    if target is None or target.activation is None or loss.options.open or loss.grad == frozenset({False}):
        return False
    is_plain = flag is None or (isinstance(flag, Const) and flag.value is False)
    return is_plain and target.activation.name == "log_softmax"


def _of_target(loss: LossCall) -> Hit:
    activation = loss.target.activation if loss.target is not None else None
    assert activation is not None  # the caller looked
    links = [*step(activation.place, "the target is in log space"), Evidence(loss.place, "and used here")]
    return Hit(
        loss.place,
        Severity.ERROR,
        Confidence.CERTAIN,
        "kl_div expects probabilities as its target and gets log-probabilities: the result is no KL "
        "divergence. Use softmax for the target, or say log_target=True.",
        distinct(links),
        frozenset({("loss", loss.place)}),
        _Found(loss, None),
    )


def _says_reduction(loss: LossCall) -> bool:
    # nn.KLDivLoss(size_average, reduce, reduction), F.kl_div(input, target, size_average, reduce, reduction)
    positions = 2 if loss.loss is None else 0
    names = {name for name, _ in loss.options.keywords}
    given = bool(names & {"reduction", "reduce", "size_average"})
    return given or loss.options.open or len(loss.options.positional) > positions


def _of_reduction(loss: LossCall) -> Hit:
    return Hit(
        loss.place,
        Severity.HINT,
        Confidence.CERTAIN,
        "the default reduction of kl_div divides by the number of elements: use reduction='batchmean' for "
        "the KL divergence per sample.",
        (Evidence(loss.place, "no reduction is given"),),
        frozenset({("loss", loss.place)}),
        _Found(loss, None),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    loss, activation = hit.facts
    if activation is None:
        return
    edit: Edit | None = None
    if activation.name == "softmax" and is_inside(activation.place, loss.place):
        edit = renamed(file, activation.place, "softmax", "log_softmax")
    title = "Use log_softmax for the first argument (changes training)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))

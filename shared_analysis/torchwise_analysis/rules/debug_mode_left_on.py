"""debug-mode-left-on: a slow checking mode is on for the whole training."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ApiCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._moving import removed
from torchwise_analysis.rules._processes import in_file
from torchwise_analysis.rules._reading import distinct

WRONG = """
import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)
^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ debug-mode-left-on warning certain
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
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
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW801",
    name="debug-mode-left-on",
    category=Category.PERFORMANCE,
    severity=Severity.WARNING,
    claim="A mode for finding errors is switched on, without a condition, for the whole training.",
    cost=(
        "Anomaly detection keeps a stack trace for every operation and checks every gradient for nan, which "
        "waits for the device each time; `CUDA_LAUNCH_BLOCKING=1` makes the host wait for every kernel. "
        "Training runs at a fraction of its speed, and every GPU hour costs accordingly."
    ),
    wrong=Example("Anomaly detection for the whole run", WRONG, fixed=RIGHT),
    right=Example("Off unless something is searched for", RIGHT),
    silent=(
        "behind a flag, a count or any other test",
        "switched off again before training, or given a value that is not known",
        "a script that does not train",
    ),
    grading="Always a warning. Certain: the switch is a constant and a step is seen.",
    fix="Remove the switch. Unsafe: a nan then passes without being reported where it was made.",
    references=(
        Reference(
            "Anomaly detection", "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"
        ),
        Reference(
            "CUDA semantics: asynchronous execution",
            "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
        ),
    ),
    examples=(
        Example(
            "Every kernel is waited for",
            """
import os

import torch
from torch import nn

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ debug-mode-left-on warning certain
model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The loop runs inside the checking context",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    with torch.autograd.detect_anomaly():
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ debug-mode-left-on warning certain
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Behind a flag",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, args):
    if args.debug:
        torch.autograd.set_detect_anomaly(True)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Switched by a setting, or off",
            """
import torch
from torch import nn

torch.autograd.set_detect_anomaly(False)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, check):
    torch.autograd.set_detect_anomaly(check)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "One forward is looked at",
            """
import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)
model = nn.Linear(12, 4)
model(torch.randn(2, 12)).sum().backward()
""",
        ),
    ),
)

_SWITCHES = (
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.detect_anomaly",
    "torch.autograd.anomaly_mode.set_detect_anomaly",
    "torch.autograd.anomaly_mode.detect_anomaly",
)
_BLOCKING = "os.environ[CUDA_LAUNCH_BLOCKING]="


def detect(trace: Trace) -> Iterator[Hit]:
    switches = trace.api(*_SWITCHES, _BLOCKING)
    if any(not _is_on(call) for call in switches):
        return
    for call in switches:
        if call.scene.guards or call.scene.world:
            continue
        step = next((s for s in trace.updates if s.order > call.order and trace.repeats(s)), None)
        if step is not None:
            yield _hit(trace, call, step.place)


def _is_on(call: ApiCall) -> bool:
    """Is the switch a constant that turns the mode on?"""
    if call.name.endswith(".detect_anomaly"):
        return True
    given = call.arguments.get("mode", 0)
    return isinstance(given, Const) and given.value in (True, "1", 1)


def _hit(trace: Trace, call: ApiCall, step: Place) -> Hit:
    mode = (
        "every kernel launch waits" if call.name == _BLOCKING else "every operation is recorded and checked"
    )
    return Hit(
        in_file(trace, call),
        Severity.WARNING,
        Confidence.CERTAIN,
        f"this mode is for finding errors: {mode}, in the whole training. Put it behind a flag.",
        distinct(
            (Evidence(call.place, "switched on without a condition"), Evidence(step, "training runs in it"))
        ),
        frozenset({("switch", call.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Remove the debugging mode (a nan then passes unreported)"
    is_statement = not file.line(hit.place.span.line).lstrip().startswith("with ")
    edit = removed(file, hit.place) if is_statement else None
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))

"""module-forward-called-directly: `forward` is called in place of the module."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Forward
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, known_by
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model.forward(x), y)
                                           ^^^^^^^^^^^^^^^^ module-forward-called-directly hint certain
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
    code="TW806",
    name="module-forward-called-directly",
    category=Category.PERFORMANCE,
    severity=Severity.HINT,
    claim="A module's `forward` is called in place of the module itself, which skips its hooks.",
    cost=(
        "Calling the module runs forward hooks, which feature extraction, pruning, profilers, quantisation "
        "and FSDP rely on, and the compiled code of `model.compile()`. A direct call skips all of these "
        "without a message. Today that may change nothing; the day somebody adds a hook, it is searched for "
        "a long time."
    ),
    wrong=Example("A direct call", WRONG, fixed=RIGHT),
    right=Example("The module is called", RIGHT),
    silent=(
        "`super().forward(...)`, and a class that calls its own `forward`",
        "inside another module's forward",
        "an object that is no module",
    ),
    grading=(
        "A hint; an error where `fully_shard` gathers weights in a hook, so that the direct call computes "
        "with parts of them. Certain when the module is made in view, likely when it is only known by its "
        "name."
    ),
    fix="Call the module. Unsafe: hooks that were skipped run from then on.",
    references=(
        Reference(
            "Module.forward: call the instance instead, it runs the hooks",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.forward",
        ),
        Reference("dslinter, W5516", "https://github.com/SERG-Delft/dslinter"),
    ),
    examples=(
        Example(
            "A wrapped module, past its wrapper",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        out = model.forward(x)
              ^^^^^^^^^^^^^^^^ module-forward-called-directly
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A model that is handed in",
            """
import torch
from torch import nn


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        out = model.forward(x)
              ^^^^^^^^^^^^^^^^ module-forward-called-directly hint likely
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A class that runs its own forward",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x):
        return self.body(x)

    def predict(self, x):
        with torch.no_grad():
            return self.forward(x).argmax(1)
""",
        ),
        Example(
            "A subclass extends its base",
            """
import torch
from torch import nn


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


model = Scaled(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "No module",
            """
import torch


class Robot:
    def forward(self, distance):
        return distance + 1


print(Robot().forward(torch.ones(1)))
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for forward in trace.forwards:
        if forward.through != "forward" or forward.place.path != trace.path or _is_own(trace, forward):
            continue
        is_sharded = forward.wrapped == "fsdp" and not forward.module.over
        yield Hit(
            forward.place,
            Severity.ERROR if is_sharded and forward.module.place is not None else Severity.HINT,
            grade(int(forward.belief)),
            f"`forward` is called directly: hooks of {called(forward.module, 'the module')} are skipped. "
            "Call the "
            "module." + doubt((forward.belief, known_by(forward.module))),
            distinct((Evidence(forward.place, "called without going through the module"),)),
            frozenset({("forward", forward.place)}),
        )


def _is_own(trace: Trace, forward: Forward) -> bool:
    """Does the call stand in the source of the module's own class or of one of its bases?"""
    call = forward.place.span
    for cls in forward.module.cls.mro if forward.module.cls is not None else ():
        span = trace.place(cls.path, cls.node.span.shifted(cls.line)).span
        if cls.path == forward.place.path and span.line <= call.line and call.end_line <= span.end_line:
            return True
    return False


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Call the module (its hooks then run)"
    call = expression_at(file.module, hit.place.span)
    func = call.func if isinstance(call, nodes.Call) else None
    if not isinstance(call, nodes.Call) or not isinstance(func, nodes.Attribute) or func.attr != "forward":
        yield Fix(title, Safety.ADVICE, ())
        return
    shift = hit.place.span.line - call.span.line
    inner, outer = func.value.span.shifted(shift), func.span.shifted(shift)
    cut = Span(inner.end_line, inner.end_column, outer.end_line, outer.end_column)
    yield Fix(title, Safety.UNSAFE, (Edit(Place(file.path, cut), ""),))

"""graph-break-in-compiled-code: an expression at which torch.compile has to leave the graph."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Event, HostSync
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct

WRONG = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.body(x)
        if h.abs().max() > 100:
           ^^^^^^^^^^^^^^^^^^^ graph-break-in-compiled-code hint certain
            h = h / 100
        return self.head(h)


def train(loader):
    net = Net()
    fast = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(fast(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.body(x)
        h = torch.where(h.abs().max() > 100, h / 100, h)
        return self.head(h)


def train(loader):
    net = Net()
    fast = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(fast(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW807",
    name="graph-break-in-compiled-code",
    category=Category.PERFORMANCE,
    severity=Severity.HINT,
    claim="Code that torch.compile traces reads a tensor on the host, prints, or branches on a value.",
    cost=(
        "The compiler ends the graph there, runs the line in Python and begins a new graph behind it: what "
        "could be fused across the line is not, and the device is waited for. One break in each layer gives "
        "back most of what compiling won. With `fullgraph=True` it is an error instead."
    ),
    wrong=Example("A branch on a value", WRONG),
    right=Example("The choice stays in the graph", RIGHT),
    silent=(
        "code that is called outside of what is compiled, or under `torch.compiler.disable`",
        "NumPy calls and moves to the CPU, which the compiler follows",
        "branches on `self.training`, on shapes, on Python values: they are decided while tracing",
        "`torch._dynamo.config.capture_scalar_outputs` is set",
        "compiling the same module again in a loop, which compiles nothing anew",
    ),
    grading="A hint, and certain: the line is reached from the compiled call. What it costs is not known.",
    fix=(
        "Advice: keep the choice in the graph (`torch.where`, `torch.cond`), return what is to be read or "
        "printed, or read it outside of the compiled function."
    ),
    references=(
        Reference(
            "torch.compile troubleshooting: graph breaks",
            "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        ),
        Reference(
            "torch.compiler FAQ: why are there graph breaks",
            "https://docs.pytorch.org/docs/stable/torch.compiler_faq.html",
        ),
    ),
    examples=(
        Example(
            "A number read in a compiled step",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile
def loss_of(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    print("loss", loss.item())
                  ^^^^^^^^^^^ graph-break-in-compiled-code hint certain
    return loss


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A printed line",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(mode="max-autotune")
def loss_of(x, y):
    print("one more step")
    ^^^^^^^^^^^^^^^^^^^^^^ graph-break-in-compiled-code hint certain
    return nn.functional.cross_entropy(model(x), y)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Read outside, and not compiled on purpose",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compiler.disable
def report(loss):
    print("loss", loss.item())


@torch.compile
def loss_of(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    report(loss)
    return loss


def train(loader):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        if i % 100 == 0:
            print(loss.item())
""",
        ),
        Example(
            "Wrapped again in each epoch",
            """
import torch
from torch import nn


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        fast = torch.compile(model)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(fast(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "What the compiler decides while it traces",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.body(x)
        if self.training and x.shape[0] > 1:
            h = h + torch.randn_like(h)
        return self.head(h)


def train(loader):
    net = Net()
    fast = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(fast(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)

# Measured with `torch._dynamo.explain` of torch 2.13: each of these gives one break; `numpy()`, `cpu()` and
# `assert` give none.
_BREAKING = {
    "item": "reads a number on the host",
    "tolist": "reads numbers on the host",
    "float()": "reads a number on the host",
    "int()": "reads a number on the host",
    "if": "branches on the value of a tensor",
    "print": "prints",
    "mask": "selects by a mask, so that the shape depends on values",
}


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.api("torch._dynamo.config.capture_scalar_outputs="):
        return
    lines = {(read.place.path, read.place.span.line) for read in trace.of(HostSync)}
    for read in trace.of(HostSync):
        if read.how in _BREAKING and _is_traced(read) and _is_value(read):
            yield _hit(read, _BREAKING[read.how])
    for printed in trace.api("builtins.print"):
        if _is_traced(printed) and (printed.place.path, printed.place.span.line) not in lines:
            yield _hit(printed, _BREAKING["print"])


def _is_value(read: HostSync) -> bool:
    """What is tested must be seen to be a comparison: an unseen function may have answered with a bool."""
    return read.how != "if" or (read.value is not None and bool(read.value.taint & {"mask", "integer"}))


def _is_traced(event: Event) -> bool:
    return event.scene.compiled is not None and not any(g.kind == "handler" for g in event.scene.guards)


def _hit(event: Event, what: str) -> Hit:
    compiled = event.scene.compiled
    links = [] if compiled is None else [Evidence(compiled, "compiled here")]
    return Hit(
        event.place,
        Severity.HINT,
        Confidence.CERTAIN,
        f"this {what} in compiled code: the graph ends here and a new one begins behind it.",
        distinct((*links, Evidence(event.place, f"this {what}"))),
        frozenset({("break", event.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Keep it in the graph, or do it outside of the compiled function", Safety.ADVICE, ())

"""create-graph-backward-leak: gradients keep the graph that made them, and nobody lets them go."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, GradientsReset
from torchwise_analysis.interp.abstract.loops import Loop
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import LEAF, Obj, Tensor, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, forwards_of, grade, loop_words, step

WRONG = """
import torch
from torch import nn

meta = nn.Linear(12, 12)
optimizer = torch.optim.Adam(meta.parameters())


def adapt(tasks):
    for x, y in tasks:
        learner = nn.Linear(12, 4)
        inner = nn.functional.cross_entropy(learner(x), y)
        inner.backward(create_graph=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ create-graph-backward-leak warning certain
        fast = learner.weight - 0.1 * learner.weight.grad
        outer = nn.functional.cross_entropy(meta(x) @ fast.T, y)
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

meta = nn.Linear(12, 12)
optimizer = torch.optim.Adam(meta.parameters())


def adapt(tasks):
    for x, y in tasks:
        learner = nn.Linear(12, 4)
        inner = nn.functional.cross_entropy(learner(x), y)
        (slope,) = torch.autograd.grad(inner, [learner.weight], create_graph=True)
        fast = learner.weight - 0.1 * slope
        outer = nn.functional.cross_entropy(meta(x) @ fast.T, y)
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW108",
    name="create-graph-backward-leak",
    category=Category.AUTOGRAD,
    severity=Severity.WARNING,
    claim="`backward(create_graph=True)` in a loop leaves gradients that nobody resets.",
    cost=(
        "Such a gradient has a graph, which holds the parameter, which holds the gradient: a circle "
        "inside PyTorch that Python's garbage collector does not find (measured on 2.13). Each iteration "
        "leaves its whole graph, activations included, on the device for good: memory grows step by step, "
        "and the run ends at a place that has nothing to do with it. PyTorch warns once."
    ),
    wrong=Example("A learner for each task", WRONG),
    right=Example("autograd.grad stores no gradient", RIGHT),
    silent=(
        "`torch.autograd.grad`, which returns gradients and stores none",
        "gradients are cleared in the same loop: `zero_grad()` of the optimizer or module, `p.grad = None` "
        "(also those of data that requires gradients)",
        "outside of loops, or a flag whose value is not known",
    ),
    grading=(
        "A warning. Certain when the module behind the loss is seen and nothing clears it; likely when the "
        "module went into code that is not seen."
    ),
    fix="Advice: use `torch.autograd.grad`, or set `.grad` to None once the gradient was used.",
    references=(
        Reference(
            "Tensor.backward",
            "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",
        ),
        Reference(
            "torch.autograd.grad",
            "https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html",
        ),
        Reference(
            "pytorch/pytorch#7343: memory leak when using create_graph",
            "https://github.com/pytorch/pytorch/issues/7343",
        ),
    ),
    examples=(
        Example(
            "A penalty on the slope of a critic that is never cleared",
            """
import torch
from torch import nn

critic = nn.Linear(12, 1)


def roughness(batches):
    found = []
    for x in batches:
        x = x.clone().requires_grad_()
        critic(x).sum().backward(create_graph=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ create-graph-backward-leak warning certain
        found.append(x.grad.norm().item())
    return found
""",
        ),
        Example(
            "The weights are cleared, and the data of the penalty is not",
            """
import torch
from torch import nn


def train(critic: nn.Module, batches):
    optimizer = torch.optim.Adam(critic.parameters())
    for x in batches:
        x.requires_grad_(True)
        optimizer.zero_grad()
        score = critic(x).sum()
        score.backward(create_graph=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ create-graph-backward-leak warning certain
        ((x.grad.flatten(1).norm(2, 1) - 1) ** 2).mean().backward()
        optimizer.step()
""",
        ),
        Example(
            "The gradient of the data is let go",
            """
import torch
from torch import nn


def train(critic: nn.Module, batches):
    optimizer = torch.optim.Adam(critic.parameters())
    for x in batches:
        x = x.cuda().requires_grad_()
        optimizer.zero_grad()
        score = critic(x).sum()
        score.backward(create_graph=True)
        ((x.grad.flatten(1).norm(2, 1) - 1) ** 2).mean().backward()
        optimizer.step()
        x.grad = None
""",
        ),
        Example(
            "A helper called in the loop",
            """
import torch
from torch import nn

net = nn.Linear(12, 1)


def slope(x):
    loss = net(x).pow(2).mean()
    loss.backward(create_graph=True)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ create-graph-backward-leak warning certain
    return net.weight.grad.norm().item()


def measure(batches):
    return [slope(x) for x in batches]
""",
        ),
        Example(
            "Second-order optimizers clear in each step",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(create_graph=True)
        optimizer.step()
""",
        ),
        Example(
            "Reset by hand",
            """
import torch
from torch import nn


def curvature(batches):
    for x, y in batches:
        net = nn.Linear(12, 4)
        nn.functional.cross_entropy(net(x), y).backward(create_graph=True)
        print(net.weight.grad.norm().item())
        for p in net.parameters():
            p.grad = None
""",
        ),
        Example(
            "Once, outside of a loop",
            """
import torch
from torch import nn

net = nn.Linear(12, 4)
nn.functional.cross_entropy(net(torch.randn(8, 12)), torch.zeros(8).long()).backward(create_graph=True)
print(net.weight.grad.norm())
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.backwards:
        if not event.create_graph or not event.create_known or event.how != "tensor" or not event.passes:
            continue
        loop = _loop(event)
        if loop is None or event.modules is None:
            continue
        if not _is_cleared(trace, event):
            yield _hit(trace, event, loop)
            continue
        told = _leaf(trace, event)
        if told is not None:
            yield _hit(trace, event, loop, told)


def _loop(event: Backward) -> Loop | None:
    loops = [turn.loop for turn in event.loops if not turn.loop.is_call and turn.loop.count is None]
    return loops[-1] if loops else None


def _leaf(trace: Trace, event: Backward) -> Place | None:
    """Where data that a forward behind the backward got was told to require gradients, which nothing resets.

    The gradient of the data holds the graph, and the graph holds the data: no collector sees this circle.
    """
    if any(not reset.roots for reset in trace.of(GradientsReset)):
        return None
    told = [call for call in trace.api("torch.Tensor.requires_grad=") if call.order < event.order]
    reset_roots = {root for reset in trace.of(GradientsReset) for root in reset.roots}
    for forward in forwards_of(trace, event.passes):
        for value in forward.arguments:
            ids = {one.id for one in alternatives(value) if isinstance(one, Obj)} - reset_roots
            marked = any(isinstance(one, Tensor) and LEAF in one.taint for one in alternatives(value))
            calls = [c for c in told if (c.receiver is not None and c.receiver.id in ids) or marked]
            if calls:
                return calls[-1].place
    return None


def _is_cleared(trace: Trace, backward: Backward) -> bool:
    """Does anything clear gradients of what the backward reached?"""
    modules = backward.modules or frozenset[int]()
    reached = {oid for module in modules for oid in trace.lineage(module)}
    reached.update(part.id for module in modules for part in trace.parts(module))
    owners = {clear.optimizer.id for clear in trace.clears}
    if owners & set(backward.before):
        return True
    return any(event.roots & reached for event in trace.of(GradientsReset))


def _hit(trace: Trace, event: Backward, loop: Loop, told: Place | None = None) -> Hit:
    modules = event.modules or frozenset[int]()
    escaped = bool(modules & trace.escaped)
    holder = "the parameters hold" if told is None else "the data, which the graph holds, holds"
    first = min((trace.forward_of(p) for p in event.passes if p in trace.passes), key=lambda f: f.order)
    return Hit(
        event.place,
        Severity.WARNING,
        grade(int(escaped)),
        f"the gradients of {'the input' if told else 'this backward'} hold the graph that made them, and "
        "nothing resets them: each iteration leaves its graph in memory for good. Use `torch.autograd.grad`, "
        "or set `.grad` to None." + doubt((escaped, "the module went into code that is not seen")),
        distinct(
            (
                *step(told, "this data requires gradients"),
                *step(first.place, "the graph is made here"),
                Evidence(event.place, f"its gradients hold it, and {holder} them"),
                Evidence(loop.place, f"again in each turn of the {loop_words(loop)}"),
            )
        ),
        frozenset({("backward", event.place), *(("optimizer", oid) for oid in event.before)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Use `torch.autograd.grad`, or set `.grad` to None after use", Safety.ADVICE, ())

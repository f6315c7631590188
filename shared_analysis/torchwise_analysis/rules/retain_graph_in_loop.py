"""retain-graph-in-loop: a backward keeps its graph although nothing uses it again."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Backward
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, forwards_of, grade, step
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ retain-graph-in-loop warning certain
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW103",
    name="retain-graph-in-loop",
    category=Category.AUTOGRAD,
    severity=Severity.WARNING,
    claim="A backward inside a loop keeps its graph, and nothing runs backward through it again.",
    cost=(
        "Without the argument, backward frees the activations as it goes. With it they stay until the loss "
        "is bound to something new, which is after the next forward: two steps' activations are alive at "
        "once, so the peak is up to twice as high and the largest batch that fits is smaller."
    ),
    wrong=Example("Kept for nothing", WRONG, fixed=RIGHT),
    right=Example("Freed by backward", RIGHT),
    silent=(
        "a later backward or `autograd.grad` runs through a part of the same graph, here, in another "
        "iteration or on another path; of several such backwards only the last one is reported",
        "the value goes to a call that cannot be seen, or is returned to an unseen caller",
        "the argument is an expression that may be false",
        "no loop is in view",
    ),
    grading=(
        "A warning: memory, not results. Certain, because every backward in view is known; likely when the "
        "model is only taken for one. Where state is carried through the iterations, "
        "recurrent-state-not-detached speaks instead."
    ),
    fix=(
        "Remove the argument. Unsafe: should a second backward hide where the analysis did not look, it "
        "will raise, and say so."
    ),
    references=(
        Reference(
            "Tensor.backward",
            "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",
        ),
        Reference(
            "grey-eye/talking-heads#7: Update run.py to save some memory",
            "https://github.com/grey-eye/talking-heads/pull/7",
        ),
        Reference(
            "GBLin5566/toward-controlled-generation-of-text-pytorch#9",
            "https://github.com/GBLin5566/toward-controlled-generation-of-text-pytorch/issues/9",
        ),
    ),
    examples=(
        Example(
            "A helper keeps for nobody",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def learn(loss):
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ retain-graph-in-loop
    optimizer.step()


def train(loader):
    for x, y in loader:
        learn(nn.functional.cross_entropy(model(x), y))
""",
        ),
        Example(
            "Two losses over one trunk: only the last keeps for nothing",
            """
import torch
from torch import nn

trunk, a, b = nn.Linear(12, 12), nn.Linear(12, 4), nn.Linear(12, 1)
optimizer = torch.optim.SGD([*trunk.parameters(), *a.parameters(), *b.parameters()], lr=0.1)


def train(loader):
    for x, y, z in loader:
        h = trunk(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(a(h), y).backward(retain_graph=True)
        nn.functional.mse_loss(b(h), z).backward(retain_graph=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ retain-graph-in-loop warning certain
        optimizer.step()
""",
        ),
        Example(
            "A generator and a discriminator that share the fakes",
            """
import torch
from torch import nn

encoder, first, second = nn.Linear(12, 8), nn.Linear(8, 4), nn.Linear(8, 2)
opt_first = torch.optim.SGD([*encoder.parameters(), *first.parameters()], lr=0.1)
opt_second = torch.optim.SGD(second.parameters(), lr=0.1)


def train(loader):
    for x, y, z in loader:
        h = encoder(x)
        loss_first = nn.functional.cross_entropy(first(h), y)
        loss_second = nn.functional.cross_entropy(second(h), z)
        opt_first.zero_grad()
        opt_second.zero_grad()
        loss_first.backward(retain_graph=True)
        loss_second.backward()
        opt_first.step()
        opt_second.step()
""",
        ),
        Example(
            "A gradient of the same graph is taken afterwards",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x.requires_grad_(True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        sensitivity = torch.autograd.grad(loss, x)[0]
        print(sensitivity.abs().mean().item())
        optimizer.step()
""",
        ),
        Example(
            "Kept on all but the last task",
            """
import torch
from torch import nn

trunk = nn.Linear(12, 12)
heads = nn.ModuleList([nn.Linear(12, 4) for _ in range(3)])
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)


def train(loader, tasks):
    for x, targets in loader:
        h = trunk(x)
        optimizer.zero_grad()
        for i, head in enumerate(heads):
            loss = nn.functional.cross_entropy(head(h), targets[i])
            loss.backward(retain_graph=i < tasks - 1)
        optimizer.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    needed: set[Place] = set()
    found: dict[Place, Backward] = {}
    last: dict[int, int] = {}  # pass -> the last backward over it
    for one in trace.backwards:
        last.update(dict.fromkeys(one.passes, one.order))
    for one in trace.backwards:
        if not one.retain or one.create_graph or one.how == "autograd.grad":
            continue
        is_used_again = any(last[p] > one.order for p in one.passes)
        is_known = one.retain_known and one.passes and not one.passes & trace.escaped_passes
        if is_used_again or not is_known or _feeds_used_pass(trace, one) or _is_repeated(trace, one):
            needed.add(one.place)
        elif trace.repeats(one):
            found.setdefault(one.place, one)
    for place, one in found.items():
        if place not in needed:
            yield _hit(trace, one)


def _is_repeated(trace: Trace, one: Backward) -> bool:
    """Does a loop run it again and again over a graph that was made before the loop, as for each class?"""
    around = [{turn.loop.place for turn in forward.loops} for forward in forwards_of(trace, one.passes)]
    return any(all(turn.loop.place not in places for places in around) for turn in one.loops)


def _feeds_used_pass(trace: Trace, one: Backward) -> bool:
    """Does a forward that began later take this graph in and reach another backward?"""
    return any(
        pass_.inputs & one.passes and pass_.forward.order > one.order and number in trace.used
        for number, pass_ in trace.passes.items()
    )


def _hit(trace: Trace, one: Backward) -> Hit:
    forwards = forwards_of(trace, one.passes)
    links = [link for forward in forwards[:2] for link in step(forward.place, "this forward makes the graph")]
    links.append(Evidence(one.place, "this backward keeps it, and no other one runs through it"))
    return Hit(
        one.place,
        Severity.WARNING,
        grade(int(any(forward.belief for forward in forwards))),
        "retain_graph=True keeps all activations over the next forward, and no later backward uses them: the "
        "peak is up to twice as high.",
        distinct(links),
        frozenset(("pass", p) for p in one.passes),
        one,
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    edit = _without_argument(file, hit.place)
    yield Fix(
        "Remove retain_graph (a hidden second backward would raise)",
        Safety.ADVICE if edit is None else Safety.UNSAFE,
        () if edit is None else (edit,),
    )


def _without_argument(file: SourceFile, place: Place) -> Edit | None:
    """The call at `place` with its other arguments only."""
    call = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(call, nodes.Call):
        return None
    if not any(keyword.name == "retain_graph" for keyword in call.keywords):
        return None
    shift = place.span.line - call.span.line
    kept: list[nodes.Node] = [*call.args, *(k for k in call.keywords if k.name != "retain_graph")]
    text = ", ".join(file.slice(node.span.shifted(shift)) for node in kept)
    func = call.func.span.shifted(shift)
    tail = Span(func.end_line, func.end_column, place.span.end_line, place.span.end_column)
    return Edit(Place(file.path, tail), f"({text})")

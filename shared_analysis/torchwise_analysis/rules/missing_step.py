"""missing-step: gradients are made and cleared in every iteration, and the optimizer never steps."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    innermost_expression,
    innermost_statement,
    insert_statement_after,
)
from torchwise_analysis.interp.abstract.events import Backward, Clear, Prepared
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Origin
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, called, distinct, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ missing-step error certain
        print(loss.item())
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
        print(loss.item())
"""

RULE = Rule(
    code="TW206",
    name="missing-step",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="Every iteration clears and computes the gradients of an optimizer that never steps.",
    cost=(
        "The weights never change. The loss moves a little from batch to batch, so the log looks like slow "
        "learning, and the whole run is spent on gradients that nobody applies. `optimizer.step` without "
        "brackets is one way to get there."
    ),
    wrong=Example("No step", WRONG, fixed=RIGHT),
    right=Example("A step for each batch", RIGHT),
    silent=(
        "the optimizer steps anywhere in view: through a scaler, a closure, an engine or a helper",
        "the optimizer goes into a call that cannot be seen, or a framework owns it",
        "only the module is cleared (`model.zero_grad()`): gradients may be wanted for themselves",
        "the loop takes the gradients as they are, as for importances of weights; their size alone is none",
        "a method without a body runs on the object that has the optimizer, whose class is not known",
        "an optimizer of the same name steps there, and one of the two was not seen being made",
        "clear and backward are not in one function, or not every path was analysed",
    ),
    grading=(
        "Always an error. Certain when the optimizer is made in view or annotated; likely when it is only "
        "taken for one."
    ),
    fix="Insert the step below the backward. Unsafe: training begins to change the weights, as intended.",
    references=(
        Reference(
            "Optimizer.step",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.step.html",
        ),
        Reference(
            "Optimizing Model Parameters",
            "https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html",
        ),
    ),
    examples=(
        Example(
            "One of two optimizers never steps",
            """
import torch
from torch import nn

body, head = nn.Linear(12, 16), nn.Linear(16, 4)
slow = torch.optim.SGD(body.parameters(), lr=0.01)
fast = torch.optim.SGD(head.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        slow.zero_grad()
        fast.zero_grad()
        loss = nn.functional.cross_entropy(head(body(x)), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ missing-step
        fast.step()
""",
        ),
        Example(
            "Brackets forgotten",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ missing-step error certain
        optimizer.step
""",
        ),
        Example(
            "The step is a helper's",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def apply():
    scaler.step(optimizer)
    scaler.update()


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        apply()
""",
        ),
        Example(
            "Gradients wanted for themselves",
            """
from torch import nn

model = nn.Linear(12, 4)


def sensitivity(loader):
    maps = []
    for x, y in loader:
        x.requires_grad_(True)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        maps.append(x.grad.abs())
    return maps
""",
        ),
        Example(
            "Handed to somebody else",
            """
import torch
from somewhere import stepper
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        stepper.apply(optimizer)
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.silence.fuel_spent or trace.silence.failed:
        return
    # an engine steps by itself; Accelerate and Fabric leave the step to the script
    owners = (Kind.ACCELERATOR, Kind.FABRIC)
    managed = {t.id for event in trace.of(Prepared) if event.owner.kind not in owners for t in event.objects}
    for clear in trace.clears:
        optimizer = clear.optimizer
        if clear.how != "zero_grad" or not clear.loops or optimizer.id in trace.stepped:
            continue
        if optimizer.id in trace.escaped or optimizer.id in managed or clear.scene.entry.framework:
            continue
        if any(turn.loop.uses_gradients for turn in clear.loops) or _may_be_stepped(trace, clear):
            continue
        lost = {place for atom in clear.before for place, _ in atom.sites}
        for one in trace.backwards:
            if one.place in lost and optimizer.id in one.before and _in_one_loop(one, clear):
                yield _hit(clear, one)
                break


def _may_be_stepped(trace: Trace, clear: Clear) -> bool:
    """Does another optimizer step in the same loops that may be this one: not both were seen being made, and
    they are called alike?"""
    loops = [turn.loop.place for turn in clear.loops]
    return any(
        (clear.optimizer.origin is not Origin.BUILT or one.optimizer.origin is not Origin.BUILT)
        and one.optimizer.name == clear.optimizer.name
        and [turn.loop.place for turn in one.loops] == loops
        for one in trace.steps
    )


def _in_one_loop(one: Backward, clear: Clear) -> bool:
    same = [t.loop.place for t in one.loops] == [t.loop.place for t in clear.loops]
    return same and not one.loops[-1].loop.is_call and one.scene.function == clear.scene.function


def _hit(clear: Clear, one: Backward) -> Hit:
    name = called(clear.optimizer, "the optimizer")
    links = [Evidence(one.place, "gradients are made here")]
    links += step(clear.place, "and cleared here in the next iteration")
    links += step(clear.optimizer.place, f"nothing in view steps {name}")
    return Hit(
        one.place,
        Severity.ERROR,
        grade(min(belief_in(clear.optimizer), 1)),
        f"{name} never steps: gradients are made and cleared in every iteration, and the model never learns.",
        distinct(links),
        frozenset({("optimizer", clear.optimizer.id)}),
        clear,
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    clear = hit.facts
    if not isinstance(clear, Clear):
        return
    receiver = _receiver(file, clear.place)
    found = innermost_statement(file.module, hit.place.span) if hit.place.path == file.path else None
    edit = insert_statement_after(file, found[1], f"{receiver}.step()") if receiver and found else None
    yield Fix(
        "Step after the backward (changes training)",
        Safety.ADVICE if edit is None else Safety.UNSAFE,
        () if edit is None else (edit,),
    )


def _receiver(file: SourceFile, place: Place) -> str | None:
    """How the optimizer is written where it is cleared."""
    found = innermost_expression(file.module, place.span, nodes.Call) if place.path == file.path else None
    if found is None or not isinstance(found[0], nodes.Call):
        return None
    func = found[0].func
    if not isinstance(func, nodes.Attribute) or not isinstance(func.value, nodes.Name | nodes.Attribute):
        return None
    return file.slice(func.value.span.shifted(found[1].line - found[0].span.line))

"""grads-cleared-before-step: gradients are cleared between the backward that made them and their step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, Clear, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.policy import one_weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._moving import moved_before, moved_behind
from torchwise_analysis.rules._reading import belief_in, called, distinct, grade, step

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.zero_grad()
        ^^^^^^^^^^^^^^^^^^^^^ grads-cleared-before-step error certain
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
    code="TW203",
    name="grads-cleared-before-step",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="Gradients are cleared after the backward that made them and before the step that should use them.",
    cost=(
        "The step finds no gradients, so it skips every parameter and the model never learns. In an "
        "accumulation window the same slip keeps only the last micro-batch: the rest of the forward and "
        "backward work of the window is paid for and thrown away, and the effective batch is smaller than "
        "planned. Nothing raises."
    ),
    wrong=Example("Cleared between backward and step", WRONG, fixed=RIGHT),
    right=Example("Cleared before the backward", RIGHT),
    silent=(
        "the clear is for another optimizer, or a further backward follows it and the wiped gradients were "
        "only a by-product (a generator's backward also touches the discriminator)",
        "gradients are kept aside and written back by hand",
        "the step is skipped on some batches only (a loss that is not finite)",
        "sharpness-aware steps, which clear between their two halves",
        "a framework or an engine clears, decided for the very object",
    ),
    grading=(
        "Always an error. Certain when the optimizer is made in view or annotated; likely when it is only "
        "taken for one."
    ),
    fix=(
        "Move the clear above the backward, or below the step in an accumulation window, when both stand "
        "in one block. Unsafe: training changes on purpose."
    ),
    references=(
        Reference(
            "Optimizer.zero_grad",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
        ),
        Reference(
            "sacmehta/EdgeNets#14: Zeroing out the gradient before calling optimizer.step()",
            "https://github.com/sacmehta/EdgeNets/issues/14",
        ),
        Reference(
            "Accelerate: performing gradient accumulation",
            "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
        ),
    ),
    examples=(
        Example(
            "Cleared on every micro-batch of a window",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        ^^^^^^^^^^^^^^^^^^^^^ grads-cleared-before-step error certain
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
""",
        ),
        Example(
            "Accelerate: the clear is live on the micro-step that steps",
            """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)


def train(loader):
    for x, y in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            ^^^^^^^^^^^^^^^^^^^^^ grads-cleared-before-step error certain
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
""",
            fixed="""
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)


def train(loader):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A helper that backwards, then a clear of the module",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def gradients(x, y):
    nn.functional.cross_entropy(model(x), y).backward()


def train(loader):
    for x, y in loader:
        gradients(x, y)
        model.zero_grad()
        ^^^^^^^^^^^^^^^^^ grads-cleared-before-step error certain
        optimizer.step()
""",
        ),
        Example(
            "A generator's backward leaves gradients in the discriminator, which are cleared",
            """
import torch
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()


def update(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(loader):
    for real in loader:
        fake = G(torch.randn(16, 8))
        update(bce(D(fake), torch.ones(16, 1)), opt_g)
        update(bce(D(real), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1)), opt_d)
""",
        ),
        Example(
            "A step that is skipped when the loss is not finite",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if torch.isfinite(loss):
            optimizer.step()
""",
        ),
        Example(
            "Cleared behind the step of each window",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        if i % 4 == 0:
            optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The step, the clearing before it, the backward undone; whether other gradients remain."""

    step: Step
    clear: Clear
    wiped: Backward
    has_rest: bool


def detect(trace: Trace) -> Iterator[Hit]:
    last: dict[int, Clear] = {}
    backwards: dict[tuple[int, Place], list[Backward]] = {}
    fed = {(one.place, id(one.scene)) for one in trace.steps if any(atom.sites for atom in one.before)}
    for event in trace.of_any(Backward, Clear, Step):
        if isinstance(event, Backward):
            for optimizer in event.before:
                backwards.setdefault((optimizer, event.place), []).append(event)
        elif isinstance(event, Clear) and any(atom.sites and not atom.applied for atom in event.before):
            last[event.optimizer.id] = event
        elif isinstance(event, Step) and event.before and event.optimizer.id in last:
            clear = last[event.optimizer.id]
            if any(guard.often for guard in event.scene.guards):
                continue  # it steps in nearly every turn, and the others are to be left out
            wiped = _wiped_before(event, clear, backwards)
            if not any(atom.sites for atom in event.before) and (event.place, id(event.scene)) in fed:
                continue  # one of several optimizers that this may be, and another one has its gradients
            if wiped is not None:
                yield _hit(trace, event, clear, wiped)


def _wiped_before(
    one: Step, clear: Clear, backwards: dict[tuple[int, Place], list[Backward]]
) -> Backward | None:
    """The backward whose gradients this step should have used and `clear` took away."""
    lost = frozenset[Place]().union(*(atom.lost for atom in one.before))
    if any(atom.applied or atom.replaced or not atom.lost for atom in one.before):
        return None
    if not any(atom.sites for atom in one.before):
        site = min(lost, key=lambda place: (place.path, place.span))
        found = [b for b in backwards.get((one.optimizer.id, site), ()) if b.order < clear.order]
        return found[-1] if found else None
    if len(clear.loops) < len(one.loops):
        return None  # the tail of an epoch is another fault
    # cleared where a window holds one micro-batch: its loop, the outermost beside the step, has one turn then
    is_single = any(guard.taken and (guard.symbol or "").endswith(" == 1") for guard in clear.scene.guards)
    within = len(one.loops) + 1 if is_single else 0
    for site in sorted(lost, key=lambda place: (place.path, place.span)):
        if not all(site in {place for place, _ in atom.sites} for atom in one.before):
            continue
        runs = backwards.get((one.optimizer.id, site), ())
        wiped = [b for b in runs if b.order < clear.order]
        kept = [b for b in runs if clear.order < b.order < one.order]
        if wiped and kept and _is_next_turn(wiped[-1], kept[0], within):
            return wiped[-1]
    return None


def _is_next_turn(wiped: Backward, kept: Backward, within: int) -> bool:
    """The same backward by the same callers in another iteration: not a helper that two losses share.

    `within`: in how many of the outer loops it has to be the same turn.
    """
    if wiped.loops[:within] != kept.loops[:within]:
        return False
    return wiped.calls == kept.calls and wiped.loops != kept.loops


def _hit(trace: Trace, one: Step, clear: Clear, wiped: Backward) -> Hit:
    name = called(one.optimizer, "the optimizer")
    has_rest = any(atom.sites for atom in one.before)
    message = (
        f"this clears the gradients of earlier micro-batches before the step of {name}: only the last "
        "micro-batch of each window is learned from."
        if has_rest
        else f"gradients are cleared between backward and the step of {name}, which then finds none: the "
        "model never learns."
    )
    return Hit(
        clear.place,
        Severity.ERROR,
        _confidence(trace, one),
        message,
        distinct(_chain(one, clear, wiped)),
        frozenset({("optimizer", one.optimizer.id)}),
        _Found(one, clear, wiped, has_rest),
    )


def _confidence(trace: Trace, one: Step) -> Confidence:
    confidence = grade(min(belief_in(one.optimizer), 1))
    return one_weaker(confidence) if one.optimizer.id in trace.escaped else confidence


def _chain(one: Step, clear: Clear, wiped: Backward) -> Iterator[Evidence]:
    yield from step(wiped.place, "this backward makes gradients")
    yield Evidence(clear.place, "which are cleared here before any step")
    yield from step(one.place, f"this step of {called(one.optimizer, 'the optimizer')} should use them")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    one, clear, wiped, has_rest = hit.facts
    if has_rest:
        title = "Clear behind the step instead (changes training)"
        edits = moved_behind(file, clear.place, one.place)
    else:
        title = "Clear before the backward instead (changes training)"
        edits = moved_before(file, clear.place, wiped.place)
    yield Fix(title, Safety.ADVICE if edits is None else Safety.UNSAFE, edits or ())

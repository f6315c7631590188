"""clip-order: gradients are clipped before they exist or after the step has used them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchwise_analysis.findings import Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, Clear, Clip, Event, Step
from torchwise_analysis.interp.abstract.loops import LoopKind, LoopPath
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._moving import moved_before, moved_behind
from torchwise_analysis.rules._reading import belief_in, distinct, grade, step

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-order error certain
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
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""

RULE = Rule(
    code="TW204",
    name="clip-order",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="Gradients are clipped where clipping has no effect: before backward or after the step.",
    cost=(
        "The step uses unclipped gradients, so the protection that the run counts on is not there: one bad "
        "batch can destroy a model after days of training, and the loss curve does not tell why."
    ),
    wrong=Example("Clipped after the step", WRONG, fixed=RIGHT),
    right=Example("Clipped between backward and step", RIGHT),
    silent=(
        "some optimizer that the clipped parameters belong to still has gradients to apply",
        "the norm is only measured (`get_total_norm`)",
        "backward or step happen in a call that cannot be seen",
        "a framework clips between its own backward and step",
    ),
    grading=(
        "Always an error. Certain when the optimizer is made in view or annotated, and under Lightning's "
        "automatic optimisation, whose backward follows `training_step`; likely when the optimizer is only "
        "taken for one."
    ),
    fix=(
        "Move the clipping between backward and step when all stand in one block. Unsafe, because training "
        "changes. Advice elsewhere; under Lightning use `gradient_clip_val` of the Trainer."
    ),
    references=(
        Reference(
            "clip_grad_norm_",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
        ),
        Reference(
            "Lightning: gradient clipping",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/cfc8f001d776d65ba4bf866eb98f139c5e55ba45/docs/source-pytorch/advanced/training_tricks.rst",
        ),
    ),
    examples=(
        Example(
            "Before the backward",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-order error certain
        loss.backward()
        optimizer.step()
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
""",
        ),
        Example(
            "After the step, behind a setting",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, limit):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if limit:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-order error certain
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, limit):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if limit:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
""",
        ),
        Example(
            "In Lightning's training_step, whose backward comes later",
            """
import lightning as L
import torch
from torch import nn


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-order error certain
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
""",
        ),
        Example(
            "In Lightning's hook before the optimizer step, and with manual optimisation",
            """
import lightning as L
import torch
from torch import nn


class Automatic(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def on_before_optimizer_step(self, optimizer):
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Manual(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(x), y))
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
""",
        ),
        Example(
            "Two optimizers: one has stepped, the other is about to",
            """
import torch
from torch import nn

body, head = nn.Linear(12, 12), nn.Linear(12, 4)
opt_body = torch.optim.SGD(body.parameters(), lr=0.1)
opt_head = torch.optim.SGD(head.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        opt_body.zero_grad()
        opt_head.zero_grad()
        nn.functional.cross_entropy(head(body(x)), y).backward()
        opt_head.step()
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
        opt_body.step()
""",
        ),
        Example(
            "The norm of what was applied is only measured",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        print(norm.item())
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The clipping; the backward that it should follow; the step or managed backward beside it."""

    clip: Clip
    backward: Backward | None
    other: Step | Backward | None


def detect(trace: Trace) -> Iterator[Hit]:
    changes = trace.of_any(Backward, Step, Clear, Clip)
    for index, clip in enumerate(changes):
        if not isinstance(clip, Clip) or "clip_grad" not in clip.how:
            continue
        if clip.before_managed_backward:
            yield _hit(clip, None, _managed(trace, clip), 0)
            continue
        atoms = [atom for found in clip.before.values() for atom in found]
        if clip.roots is None or not atoms or any(atom.sites for atom in atoms):
            continue
        later = _backward_that_steps(clip, changes[index + 1 :])
        beliefs = min(sum(belief_in(trace.objects.get(oid)) for oid in clip.before), 1)
        if later is not None:
            yield _hit(clip, later, None, beliefs)
        elif all(atom.applied for atom in atoms):
            earlier = _step_before(clip, changes[:index])
            if earlier is not None:
                yield _hit(clip, None, earlier, beliefs)


def _backward_that_steps(clip: Clip, later: Sequence[Event]) -> Backward | None:
    """The next change is a backward of the same iteration, and a step follows without another clip."""
    following = next(iter(later), None)
    if isinstance(following, Clear):  # `clip; zero_grad; backward; step` clips nothing either
        following = next((e for e in later if not isinstance(e, Clear)), None)
    if not isinstance(following, Backward) or following.loops != clip.loops:
        return None
    after = next((e for e in later if isinstance(e, Step | Clip | Clear) and e.order > following.order), None)
    return following if isinstance(after, Step) and after.loops == clip.loops else None


def _step_before(clip: Clip, earlier: Sequence[Event]) -> Step | None:
    for event in reversed(earlier):
        if (
            isinstance(event, Step)
            and event.optimizer.id in clip.before
            and _same_turn(event.loops, clip.loops)
        ):
            return event
    return None


def _same_turn(step: LoopPath, clip: LoopPath) -> bool:
    """The clipping stands in the turn of the step, or there in a loop over callbacks, groups, parameters."""
    inner = clip[len(step) :]
    return clip[: len(step)] == step and all(loop.loop.kind in _LISTS for loop in inner)


_LISTS = (LoopKind.LITERAL, LoopKind.LIST, LoopKind.PARAMETERS, LoopKind.MODULES)


def _managed(trace: Trace, clip: Clip) -> Backward | None:
    return next((b for b in trace.backwards if b.order > clip.order and b.how == "managed"), None)


def _hit(clip: Clip, backward: Backward | None, other: Step | Backward | None, beliefs: int) -> Hit:
    if isinstance(other, Step):
        message = "gradients are clipped after the step has used them: clipping has no effect. Move it above."
        links = [*step(other.place, "this step uses the gradients as they are")]
        links += [Evidence(clip.place, "they are clipped only afterwards")]
    else:
        made = backward or other
        message = "gradients are clipped before backward has made them: clipping has no effect."
        links = [Evidence(clip.place, "there are no gradients yet, or old ones")]
        if made is not None:
            why = "the framework runs backward on what is returned here" if backward is None else "made here"
            links += step(made.place, why)
    return Hit(
        clip.place,
        Severity.ERROR,
        grade(beliefs),
        message,
        distinct(links),
        frozenset({("clip", clip.place)}),
        _Found(clip, backward, other),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    clip, backward, other = hit.facts
    title = "Clip between backward and step (changes training)"
    edits = None
    if isinstance(other, Step):
        edits = moved_before(file, clip.place, other.place)
    elif backward is not None:
        edits = moved_behind(file, clip.place, backward.place)
    yield Fix(title, Safety.ADVICE if edits is None else Safety.UNSAFE, edits or ())

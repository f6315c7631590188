"""scaler-protocol: a scaled backward is followed by a step that does not know of the scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    innermost_expression,
    innermost_statement,
    insert_statement_after,
    replace,
)
from torchwise_analysis.interp.abstract.events import Backward, Clear, ScalerUpdate, Step, Unscale
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Origin
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, called, distinct, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()
        ^^^^^^^^^^^^^^^^ scaler-protocol error certain
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

RULE = Rule(
    code="TW503",
    name="scaler-protocol",
    category=Category.ACCUMULATION,
    severity=Severity.ERROR,
    claim="The loss is scaled, but a step goes past the scaler, or the scaler is updated never or too early.",
    cost=(
        "A plain `optimizer.step()` applies gradients that are 65536 times too large: with SGD the model is "
        "destroyed in one step, with Adam the step looks normal until an overflow, which nothing skips. "
        "`scaler.step()` without `scaler.update()` raises at the second step."
    ),
    wrong=Example("Scaled backward, plain step", WRONG, fixed=RIGHT),
    right=Example("Scale, step and update by the scaler", RIGHT),
    silent=(
        "`scaler.unscale_(optimizer)` ran before a plain step",
        "the scaler is switched off, or the loss is not scaled on this path",
        "the scaler comes from outside and may be updated there",
        "an Accelerator, a Trainer or an engine owns scaling",
    ),
    grading=(
        "An error; a warning where only the scale may change too early. Certain when the optimizer is made "
        "in view or annotated; likely when it is only taken for one."
    ),
    fix=(
        "Replace the plain step by `scaler.step(optimizer)` with `scaler.update()` behind it, or add the "
        "missing update. Unsafe, because training changes."
    ),
    references=(
        Reference(
            "Automatic mixed precision examples",
            "https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
        ),
        Reference("torch.amp: gradient scaling", "https://docs.pytorch.org/docs/stable/amp.html"),
    ),
    examples=(
        Example(
            "Unscaled for each micro-batch, stepped for each window",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader, window):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y) / window
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^ scaler-protocol error certain
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (i + 1) % window == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Unscaled once for each window, also under a test",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader, window, is_clipped):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y) / window
        scaler.scale(loss).backward()
        if (i + 1) % window == 0:
            if is_clipped:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A class that steps past its scaler",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(12, 4).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
            self.scaler.scale(loss).backward()
            self.optimizer.step()
            ^^^^^^^^^^^^^^^^^^^^^ scaler-protocol
            self.scaler.update()
""",
        ),
        Example(
            "Never updated",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        ^^^^^^^^^^^^^^^^^^^^^^ scaler-protocol error certain
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            "Unscaled by hand, then a plain step",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update()
""",
        ),
        Example(
            "Two branches, each right",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader, amp):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=amp):
            loss = nn.functional.cross_entropy(model(x), y)
        if amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        ),
        Example(
            "A scaler that is off",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """What is wrong ("plain": a step of its own, "update": none); the scaled backward; is update called?"""

    kind: str
    backward: Backward | None
    has_update: bool


def detect(trace: Trace) -> Iterator[Hit]:
    backwards: dict[Place, Backward] = {}
    updated = frozenset(event.scaler.id for event in trace.of(ScalerUpdate))
    for unscale in trace.of(Unscale):
        if unscale.again and unscale.scaler.id not in trace.escaped:
            yield _again(unscale)
    for event in trace.of_any(Backward, Step):
        if isinstance(event, Backward):
            backwards[event.place] = event
        else:
            filled = [atom for atom in event.before if atom.sites]
            if event.via == "plain" and filled and all(atom.scaled for atom in filled):
                made = [backwards[place] for atom in filled for place, _ in atom.sites if place in backwards]
                first = min(made, key=lambda backward: backward.order, default=None)
                yield _plain(event, first, bool(updated))
            elif event.via == "scaler" and _is_never_updated(trace, event, updated):
                yield _without_update(event)
    yield from _twice(trace)
    yield from _scale_changed(trace)


def _twice(trace: Trace) -> Iterator[Hit]:
    """A plain step on what the scaler has just stepped on: the same gradients are applied again, and those
    that the scaler found not finite, too."""
    last: dict[int, Step] = {}
    for one in trace.steps:
        before = last.get(one.optimizer.id)
        last[one.optimizer.id] = one
        is_again = bool(one.before) and all(atom.applied and not atom.sites for atom in one.before)
        if one.via != "plain" or not is_again or before is None or before.via != "scaler":
            continue
        if before.loops == one.loops and before.scene.guards == one.scene.guards:
            yield _again_plain(one, before)


def _scale_changed(trace: Trace) -> Iterator[Hit]:
    """An update between the scaled backward and the scaler's step, which divides by another scale then."""
    waiting: dict[int, ScalerUpdate] = {}
    for event in trace.of_any(Clear, Step, Unscale, ScalerUpdate):
        if isinstance(event, ScalerUpdate):
            waiting.update(dict.fromkeys(event.waiting, event))
            continue
        assert isinstance(event, (Clear, Step, Unscale))
        change = waiting.pop(event.optimizer.id, None)
        if change is None or not isinstance(event, Step) or event.via != "scaler":
            continue
        is_scaled = bool(event.before) and all(atom.sites and atom.scaled for atom in event.before)
        is_beside = [t.loop.place for t in change.loops] == [t.loop.place for t in event.loops]
        if is_scaled and event.scaler is change.scaler and is_beside:
            yield _too_early(change, event)


def _is_never_updated(trace: Trace, one: Step, updated: frozenset[int]) -> bool:
    scaler = one.scaler
    if (
        scaler is None
        or not trace.repeats(one)
        or scaler.origin is not Origin.BUILT
        or scaler.id in trace.escaped
    ):
        return False
    flag = scaler.arguments.get("enabled")
    return scaler.type_name.startswith("torch.") and scaler.id not in updated and flag is None


def _plain(one: Step, backward: Backward | None, has_update: bool) -> Hit:
    name = called(one.optimizer, "the optimizer")
    links = list(step(backward.place, "this backward runs on the scaled loss")) if backward else []
    return Hit(
        one.place,
        Severity.ERROR,
        grade(min(belief_in(one.optimizer), 1)),
        f"{name} steps on gradients that are still multiplied by the loss scale (65536 at first). Let the "
        "scaler step and update.",
        distinct([*links, Evidence(one.place, "this step does not divide by the scale")]),
        frozenset({("optimizer", one.optimizer.id)}),
        _Found("plain", backward, has_update),
    )


def _again_plain(one: Step, before: Step) -> Hit:
    name = called(one.optimizer, "the optimizer")
    return Hit(
        one.place,
        Severity.ERROR,
        grade(min(belief_in(one.optimizer), 1)),
        f"{name} steps a second time on the gradients that the scaler has just stepped on, also where that "
        "found them not finite and skipped its own. Leave this step out.",
        distinct(
            (
                Evidence(before.place, "the scaler unscales the gradients and steps here"),
                Evidence(one.place, "no backward came in between"),
            )
        ),
        frozenset({("optimizer", one.optimizer.id)}),
        None,
    )


def _too_early(change: ScalerUpdate, one: Step) -> Hit:
    name = called(one.optimizer, "the optimizer")
    return Hit(
        change.place,
        Severity.WARNING,
        grade(min(belief_in(one.optimizer) + belief_in(change.scaler), 1)),
        f"the scale may change here, before the gradients of {name} are divided by it: they were made with "
        "the old one. Update once, behind the last step.",
        distinct(
            (
                Evidence(change.place, "update() chooses a new scale"),
                Evidence(one.place, "this step divides by it what was multiplied by the old one"),
            )
        ),
        frozenset({("optimizer", one.optimizer.id)}),
        None,
    )


def _again(one: Unscale) -> Hit:
    return Hit(
        one.place,
        Severity.ERROR,
        grade(min(belief_in(one.optimizer) + belief_in(one.scaler), 1)),
        f"the gradients of {called(one.optimizer, 'the optimizer')} are unscaled again before update(): this "
        "raises. Unscale once for each step, behind the last micro-batch.",
        distinct([Evidence(one.place, "unscale_() runs again, and no update() ran since it did last")]),
        frozenset({("optimizer", one.optimizer.id)}),
        None,
    )


def _without_update(one: Step) -> Hit:
    links = step(one.scaler.place if one.scaler else None, "the scaler is made here")
    return Hit(
        one.place,
        Severity.ERROR,
        grade(0),
        "the scaler steps and is never updated: its second step raises. Call update() behind the step.",
        distinct([*links, Evidence(one.place, "it steps here, and nothing calls update()")]),
        frozenset({("optimizer", one.optimizer.id)}),
        _Found("update", None, False),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        title = (
            "Unscale where the step is" if "unscaled again" in hit.message else "Let the scaler alone step"
        )
        title = "Update behind the last step" if hit.severity is Severity.WARNING else title
        yield Fix(title, Safety.ADVICE, ())
        return
    kind, backward, has_update = hit.facts
    title = "Let the scaler step and update (changes training)"
    edits = _update_edits(file, hit.place) if kind == "update" else None
    if kind == "plain" and backward is not None:
        edits = _step_edits(file, hit.place, backward.place, has_update)
    yield Fix(title, Safety.ADVICE if edits is None else Safety.UNSAFE, edits or ())


def _update_edits(file: SourceFile, place: Place) -> tuple[Edit, ...] | None:
    scaler = _receiver(file, place)
    found = innermost_statement(file.module, place.span)
    edit = insert_statement_after(file, found[1], f"{scaler}.update()") if scaler and found else None
    return None if edit is None else (edit,)


def _step_edits(file: SourceFile, place: Place, backward: Place, has_update: bool) -> tuple[Edit, ...] | None:
    """`scaler.step(optimizer)` in the words of `scaler.scale(loss).backward()` and `optimizer.step()`."""
    optimizer, scaler = _receiver(file, place), _scaler_text(file, backward)
    found = innermost_statement(file.module, place.span)
    if optimizer is None or scaler is None or found is None:
        return None
    edit = replace(place, f"{scaler}.step({optimizer})")
    if has_update:
        return (edit,)
    update = insert_statement_after(file, found[1], f"{scaler}.update()")
    return None if update is None else (edit, update)


def _receiver(file: SourceFile, place: Place) -> str | None:
    """The text before the last dot of a call, where it costs nothing to repeat it."""
    found = innermost_expression(file.module, place.span, nodes.Call) if place.path == file.path else None
    if found is None or not isinstance(found[0], nodes.Call):
        return None
    func = found[0].func
    if not isinstance(func, nodes.Attribute) or not isinstance(func.value, nodes.Name | nodes.Attribute):
        return None
    return file.slice(func.value.span.shifted(found[1].line - found[0].span.line))


def _scaler_text(file: SourceFile, place: Place) -> str | None:
    found = innermost_expression(file.module, place.span, nodes.Call) if place.path == file.path else None
    if found is None or not isinstance(found[0], nodes.Call):
        return None
    func = found[0].func
    scaling = func.value if isinstance(func, nodes.Attribute) else None
    if not isinstance(scaling, nodes.Call) or not isinstance(scaling.func, nodes.Attribute):
        return None
    if scaling.func.attr != "scale" or not isinstance(scaling.func.value, nodes.Name | nodes.Attribute):
        return None
    return file.slice(scaling.func.value.span.shifted(found[1].line - found[0].span.line))

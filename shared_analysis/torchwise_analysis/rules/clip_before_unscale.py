"""clip-before-unscale: gradients are clipped while they still carry the factor of the GradScaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    innermost_expression,
    innermost_statement,
    insert_statement_before,
)
from torchwise_analysis.interp.abstract.events import (
    Backward,
    Clip,
    Event,
    Guard,
    MeasureUsed,
    Prepared,
    Step,
    Unscale,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Gradients, Kind, Obj
from torchwise_analysis.rules._frames import call_beside
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, distinct, grade, step
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
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-before-unscale error certain
        scaler.step(optimizer)
        scaler.update()
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
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""

RULE = Rule(
    code="TW502",
    name="clip-before-unscale",
    category=Category.ACCUMULATION,
    severity=Severity.ERROR,
    claim="Gradients are clipped or measured while they are still multiplied by the GradScaler's factor.",
    cost=(
        "The scale begins at 65536, so a limit of 1.0 acts like one of 0.000015: every step is clipped to "
        "almost nothing, and because the scale changes over the run, so does the effective learning rate. "
        "Training crawls and the cause looks like a bad learning rate."
    ),
    wrong=Example("Clipped as scaled", WRONG, fixed=RIGHT),
    right=Example("Unscaled first", RIGHT),
    silent=(
        "scaling, and unscaling or clipping, behind tests that may be the same or exclude each other",
        "`scaler.unscale_(optimizer)` runs before, here or in a helper",
        "the scaler is switched off (`enabled=False`), or the loss is not scaled on this path",
        "Accelerate, Lightning, Fabric, an engine or a scaler object of timm's kind clips: they unscale "
        "themselves",
        "norms of which nothing is made: neither shown nor compared, nor a factor of the gradients",
        "tests for numbers that are not finite, ratios of two norms, and norms divided by the scale",
    ),
    grading=(
        "An error where gradients are clipped or training acts on their norm, a warning where that is only "
        "shown. Certain when scaler and optimizer are made in view or annotated; likely when the "
        "optimizer is only taken for one, or when gradients may also come unscaled."
    ),
    fix=(
        "Insert `scaler.unscale_(optimizer)` above the clipping, once for each optimizer and window. Unsafe, "
        "because training changes."
    ),
    references=(
        Reference(
            "Automatic mixed precision examples: gradient clipping",
            "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",
        ),
        Reference(
            "milesial/Pytorch-UNet#468: Gradients are clipped before the unscaling",
            "https://github.com/milesial/Pytorch-UNet/issues/468",
        ),
        Reference("TorchSSL/TorchSSL#59: clip after unscale", "https://github.com/TorchSSL/TorchSSL/pull/59"),
        Reference(
            "Lightning-AI/pytorch-lightning#9599: Clip norm after scaler.unscale_",
            "https://github.com/Lightning-AI/pytorch-lightning/issues/9599",
        ),
    ),
    examples=(
        Example(
            "Without a scaler nothing is scaled",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())


def backward(loss, scaler):
    if scaler is not None:
        scaler.scale(loss).backward()
    else:
        loss.backward()


def finish(scaler):
    if scaler is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def train(loader, is_half):
    scaler = torch.amp.GradScaler("cuda") if is_half else None
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        backward(loss, scaler)
        finish(scaler)
""",
        ),
        Example(
            "A scaler that somebody else makes, or does not",
            """
import torch
from torch import nn


def backward(loss, scaler):
    if scaler is not None:
        scaler.scale(loss).backward()
    else:
        loss.backward()


def train(model, loader, optimizer, scaler, args):
    for x, y in loader:
        optimizer.zero_grad()
        if args.windows == 1:
            backward(nn.functional.cross_entropy(model(x), y), scaler)
        else:
            for a, b in zip(x.chunk(2), y.chunk(2)):
                backward(nn.functional.cross_entropy(model(a), b) / 2, scaler)
        if scaler is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
""",
        ),
        Example(
            "A norm that training acts on, in a helper",
            """
import torch
from torch import nn


def norm_of(parameters):
    total = 0.0
    for p in parameters:
        if p.grad is not None:
            total += p.grad.data.norm(2).item() ** 2
    return total**0.5


def train(model: nn.Module, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        norm = norm_of(model.parameters())
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-before-unscale error certain
        if norm > 100:
            continue
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            "A norm that is only shown",
            """
import torch
from torch import nn


def train(model: nn.Module, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        norms = [p.grad.norm() for p in model.parameters()]
                 ^^^^^^^^^^^^^ clip-before-unscale warning certain
        if step % 100 == 0:
            print("gradients", torch.stack(norms).max())
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            "Looks for infinite gradients, and divides the scale out",
            """
import torch
from torch import nn


def train(model: nn.Module, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        if any(torch.isinf(p.grad).any() for p in model.parameters()):
            print("overflow at scale", scaler.get_scale())
        norms = torch.stack([p.grad.norm() for p in model.parameters()])
        if step % 100 == 0:
            print("gradients", norms.norm() / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            "Clipped by value, in the loop",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ clip-before-unscale
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            "Trained again after a failure, with an optimizer of its own",
            """
import torch
from torch import nn


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def main(loader):
    model = nn.Linear(12, 4).cuda()
    try:
        train(model, loader)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        train(model, loader)
""",
        ),
        Example(
            "A helper that clips: the call stands in the wrong place",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self, model: nn.Module):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def clip(self):
        return nn.utils.clip_grad_value_(self.model.parameters(), 0.5)

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.clip()
            ^^^^^^^^^^^ clip-before-unscale error certain
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
            fixed="""
import torch
from torch import nn


class Trainer:
    def __init__(self, model: nn.Module):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def clip(self):
        return nn.utils.clip_grad_value_(self.model.parameters(), 0.5)

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
        ),
        Example(
            "Unscaled behind a flag, in a helper",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def prepare(amp):
    if amp:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(loader, amp):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        prepare(amp)
        if amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        ),
        Example(
            "A scaler that is off, and bfloat16",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            "Accelerate unscales when it clips",
            """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(mixed_precision="fp16")
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """Where the clipping stands, and the step that unscales too late."""

    place: Place
    later: Step | None


def detect(trace: Trace) -> Iterator[Hit]:
    scaled: dict[Place, Backward] = {}
    uses = _uses(trace)
    for event in trace.of_any(Backward, Clip):
        if isinstance(event, Backward):
            scaled[event.place] = event
        elif event.owner is None and _is_clip(event, uses) and not _is_without_scaler(event):
            for oid, atoms in _read_for(trace, event).items():
                managed = _scaled_by_owner(trace, event, oid, atoms, scaled)
                if managed is not None:
                    yield _of_owner(event, oid, managed)
                    break
                sites = [place for atom in atoms if atom.scaled for place, _ in atom.sites]
                made = [scaled[place] for place in sites if place in scaled]
                if (
                    made
                    and not any(_exclude(event, backward) for backward in made)
                    and not _is_unscaled_where_scaled(trace, event, oid, made)
                ):
                    is_mixed = any(atom.sites and not atom.scaled for atom in atoms)
                    first = min(made, key=lambda backward: backward.order)
                    if is_mixed and _vague(event, first) and _vague(first, event):
                        continue  # tests that may exclude each other
                    yield _hit(trace, event, oid, first, is_mixed, uses.get(event.order))
                    break


def _scaled_by_owner(
    trace: Trace, clip: Clip, oid: int, atoms: Gradients, backwards: Mapping[Place, Backward]
) -> Backward | None:
    """The backward of Accelerate or Fabric that made all of the gradients, where these scale the loss.

    [accelerate `Accelerator.backward`, lightning.fabric `MixedPrecision.backward`: float16 has a GradScaler]
    """
    sites = {place for atom in atoms for place, _ in atom.sites}
    made = [backwards[place] for place in sites if place in backwards]
    if "clip_grad" not in clip.how or not made or not all(atom.sites for atom in atoms):
        return None
    if any(one.optimizer.id == oid for one in trace.of(Unscale)):
        return None
    is_scaled = all(one.owner is not None and _scales(one.owner) for one in made)
    is_prepared = any(oid == thing.id for event in trace.of(Prepared) for thing in event.objects)
    return min(made, key=lambda one: one.order) if is_scaled and is_prepared else None


_FLOAT16 = {
    Kind.ACCELERATOR: ("mixed_precision", ("fp16",)),
    Kind.FABRIC: ("precision", ("16-mixed", "16", 16)),
}


def _scales(owner: Obj) -> bool:
    """Is it made for float16, in so many words?"""
    if owner.kind not in _FLOAT16:
        return False
    name, kinds = _FLOAT16[owner.kind]
    value = owner.arguments.get(name)
    is_plugged = any(
        owner.arguments.get(one) is not None for one in ("deepspeed_plugin", "fsdp_plugin", "plugins")
    )
    return isinstance(value, Const) and value.value in kinds and not is_plugged


def _of_owner(clip: Clip, oid: int, backward: Backward) -> Hit:
    is_fabric = backward.how == "fabric"
    owner, clipping = ("Fabric", "clip_gradients()") if is_fabric else ("Accelerate", "clip_grad_norm_()")
    place = call_beside(clip, backward)
    return Hit(
        place,
        Severity.ERROR,
        Confidence.CERTAIN,
        f"gradients are clipped while they are still multiplied by the loss scale that {owner} uses for "
        f"float16 (65536 at first): the limit acts that much smaller and training crawls. Use its own "
        f"{clipping}.",
        distinct(
            (
                *step(
                    backward.owner.place if backward.owner else None,
                    "float16 with a scaled loss is chosen here",
                ),
                Evidence(backward.place, "this backward makes gradients of the scaled loss"),
                Evidence(place, "they are clipped here, not yet unscaled"),
            )
        ),
        frozenset({("optimizer", oid)}),
        None,
    )


def _uses(trace: Trace) -> dict[int, MeasureUsed]:
    """By the order of a reading: what is made of it; what the training acts on first."""
    found: dict[int, MeasureUsed] = {}
    for event in trace.of(MeasureUsed):
        for order in event.reads:
            if order not in found or found[order].how in _SHOWN:
                found[order] = event
    return found


_SHOWN = ("print", "log")


def _is_clip(clip: Clip, uses: Mapping[int, MeasureUsed]) -> bool:
    return "clip_grad" in clip.how or clip.order in uses


def _is_unscaled_where_scaled(trace: Trace, clip: Clip, oid: int, made: list[Backward]) -> bool:
    """Are gradients scaled behind a test, and unscaled behind one beside the clip? Whoever does the one does
    the other: functions that ask the same are followed apart."""
    if not all(_own_tests(backward, clip) for backward in made):
        return False
    first = min(backward.order for backward in made)
    return any(
        one.optimizer.id == oid
        and first < one.order < clip.order
        and one.scene.frame == clip.scene.frame
        and _own_tests(one, clip)
        for one in trace.of(Unscale)
    )


def _vague(event: Event, other: Event) -> list[Guard]:
    """The tests of an event, not of the other, of which it is not known what they ask."""
    return [guard for guard in _own_tests(event, other) if guard.symbol is None and guard.kind == "value"]


def _own_tests(event: Event, other: Event) -> list[Guard]:
    around = {guard.place for guard in other.scene.guards}
    return [guard for guard in event.scene.guards if guard.place not in around and guard.kind != "periodic"]


def _is_without_scaler(clip: Clip) -> bool:
    """Does this path know that there is no scaler?"""
    return any(
        (guard.symbol or "").startswith(Kind.SCALER.value) and _is_none(guard)
        for guard in clip.scene.guards
        if guard.kind == "none"
    )


def _exclude(clip: Clip, backward: Backward) -> bool:
    """Does one lie where a thing is None, and the other where it is not?"""
    nones = {(guard.symbol, _is_none(guard)) for guard in clip.scene.guards if guard.kind == "none"}
    return any(
        guard.kind == "none" and guard.symbol and (guard.symbol, not _is_none(guard)) in nones
        for guard in backward.scene.guards
    )


def _is_none(guard: Guard) -> bool:
    return guard.taken is (guard.test in ("is", "=="))


def _read_for(trace: Trace, clip: Clip) -> Mapping[int, Gradients]:
    """The gradients before the clip by optimizer: of those that step afterwards, where some do.

    One that was dropped, such as that of a run that an exception ended, leaves gradients that nobody uses.
    """
    used = {oid: atoms for oid, atoms in clip.before.items() if trace.steps_after(clip.order, oid)}
    return used or clip.before


def _hit(
    trace: Trace, clip: Clip, oid: int, backward: Backward, is_mixed: bool, use: MeasureUsed | None
) -> Hit:
    place = call_beside(clip, backward)
    is_shown = use is not None and use.how in _SHOWN
    later = [
        one
        for one in trace.steps
        if one.order > clip.order and one.optimizer.id == oid and one.via == "scaler"
    ]
    return Hit(
        place,
        Severity.WARNING if is_shown else Severity.ERROR,
        _confidence(trace, clip, oid, is_mixed),
        _message(is_shown, use is not None),
        distinct(_chain(clip, backward, place, later, use)),
        frozenset({("optimizer", oid)}),
        _Found(place, later[0] if later else None),
    )


def _confidence(trace: Trace, clip: Clip, oid: int, is_mixed: bool) -> Confidence:
    return grade(min(belief_in(trace.objects.get(oid)) + int(is_mixed) + int(clip.roots is None), 1))


def _message(is_shown: bool, is_measured: bool) -> str:
    if is_shown:
        return (
            "the norm that is shown is that of gradients still multiplied by the loss scale (65536 at first, "
            "and changing). Unscale them first."
        )
    if is_measured:
        return (
            "gradients are measured while they are still multiplied by the loss scale (65536 at first): what "
            "follows from their size follows from the scale. Unscale them first."
        )
    return (
        "gradients are clipped while they are still multiplied by the loss scale (65536 at first): the limit "
        "acts that much smaller and training crawls. Unscale them first."
    )


def _chain(
    clip: Clip, backward: Backward, place: Place, later: list[Step], use: MeasureUsed | None
) -> Iterator[Evidence]:
    yield from step(backward.place, "this backward makes gradients of the scaled loss")
    done = "clipped" if use is None else "measured"
    yield Evidence(place, f"they are {done} here, not yet unscaled")
    if clip.place != place:
        yield Evidence(clip.place, "inside this call")
    if use is not None:
        yield from step(use.place, "the result is used here")
    for one in later[:1]:
        yield from step(one.place, "the scaler divides them by the scale only here")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        yield Fix("Clip with what owns the scale", Safety.ADVICE, ())
        return
    place, later = hit.facts
    title = "Unscale the gradients first (changes training)"
    statement = _unscaling(file, later) if later is not None else None
    found = innermost_statement(file.module, place.span) if statement else None
    edit = None
    if statement is not None and found is not None:
        edit = insert_statement_before(file, found[1].line, found[1].column, statement)
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _unscaling(file: SourceFile, later: Step) -> str | None:
    """`scaler.unscale_(optimizer)` in the words of `scaler.step(optimizer)`."""
    if later.place.path != file.path:
        return None
    found = innermost_expression(file.module, later.place.span, nodes.Call)
    if found is None:
        return None
    call, span = found
    assert isinstance(call, nodes.Call)  # the search was for calls
    if not isinstance(call.func, nodes.Attribute) or not call.args:
        return None
    shift = span.line - call.span.line
    scaler, optimizer = call.func.value, call.args[0]
    if not isinstance(scaler, nodes.Name | nodes.Attribute):
        return None
    if not isinstance(optimizer, nodes.Name | nodes.Attribute):
        return None
    return f"{file.slice(scaler.span.shifted(shift))}.unscale_({file.slice(optimizer.span.shifted(shift))})"

"""unscaled-accumulation: a window of micro-batches is summed where its mean is meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    expressions,
    innermost_expression,
    innermost_statement,
    statements,
    wrap,
)
from torchwise_analysis.interp.abstract.events import (
    ApiCall,
    Backward,
    Clip,
    Event,
    MeasureUsed,
    NoSync,
    Step,
)
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import BY_SIZE, Const, Factor, Obj, Origin, Tensor
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import (
    belief_in,
    called,
    distinct,
    doubt,
    forwards_of,
    grade,
    known_by,
    step,
)
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulate = 4


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ unscaled-accumulation error certain
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulate = 4


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

RULE = Rule(
    code="TW501",
    name="unscaled-accumulation",
    category=Category.ACCUMULATION,
    severity=Severity.ERROR,
    claim=(
        "The gradients of several micro-batches add up before one step, and nothing divides by their number."
    ),
    cost=(
        "The loss is a mean over the micro-batch, so the sum over a window of N is N times the gradient "
        "of the large batch that was meant. With SGD the learning rate is N times too high; with "
        "clipping nearly every step is clipped; with Adam a constant factor cancels, but epsilon, clipping "
        "and weight decay in the gradient see it. Changing N to fit another GPU silently changes the "
        "training."
    ),
    wrong=Example("A window without a division", WRONG, fixed=RIGHT),
    right=Example("Divided by the window", RIGHT),
    silent=(
        "the loss or its gradients are divided (or multiplied by a fraction) on the way, also through "
        "aliases, attributes and helpers",
        'the loss is a sum (`reduction="sum"`), to be divided by a total',
        "gradients are cleared between the backwards, so that nothing accumulates (several critics' "
        "steps, lazy regularisation)",
        "several different losses of one batch: they are meant to add up",
        "the loss is handed in, and how it was made is not seen",
        "a framework divides (Accelerate, an engine, a Trainer), decided by the object whose backward runs",
    ),
    grading=(
        "Error with SGD or when gradients are clipped. Adam and its kin make up for a factor that all steps "
        "have in common: a hint, unless weight decay is added to the gradient (a warning), or the windows "
        "differ in length because something else makes a step, too (a warning, likely). "
        "Certain when loss and optimizer are resolved, likely when one is only taken for what it seems "
        "to be, and for a Trainer's `compute_loss` that drops `num_items_in_batch`."
    ),
    fix=(
        "`(loss / N).backward()` when the window is written as a test against a plain name or number "
        "that is bound there, and only when nothing else scales the loss. Unsafe: it changes the "
        "effective learning rate."
    ),
    references=(
        Reference(
            "AMP examples: Gradient accumulation",
            "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
        ),
        Reference(
            "Accelerate: Gradient accumulation",
            "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
        ),
        Reference(
            "agokrani/distillKitPlus#5: Normalize Loss by Gradient Accumulation Steps Absent",
            "https://github.com/agokrani/distillKitPlus/issues/5",
        ),
        Reference(
            "hirofumi0810/neural_sp#168: accum_grad loss error",
            "https://github.com/hirofumi0810/neural_sp/issues/168",
        ),
    ),
    examples=(
        Example(
            "Losses weighted by their tokens, gradients divided by all of them",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def scale_gradients(parameters, factor):
    gradients = [p.grad for p in parameters if p.grad is not None]
    by_device = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    for group in by_device.values():
        torch._foreach_mul_(group, factor)


def train(loader, window):
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (i + 1) % window == 0:
            scale_gradients(model.parameters(), 1 / window)
            optimizer.step()
            optimizer.zero_grad()


def train_weighted(loader, window):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) * (y != 0).sum()
        loss.backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "An early continue, a loss in one expression, Adam",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(loader, accumulate):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unscaled-accumulation hint certain
        if (i + 1) % accumulate != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        Example(
            "Adam, and a last window that is shorter",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train(loader, accumulate):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unscaled-accumulation warning likely
        if (i + 1) % accumulate == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Adam with weight decay in the gradient; Adam with clipping",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
decaying = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-2)
head = nn.Linear(12, 4)
clipped = torch.optim.AdamW(head.parameters(), lr=1e-3)


def train(loader, accumulate):
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unscaled-accumulation warning certain
        if (i + 1) % accumulate == 0:
            decaying.step()
            decaying.zero_grad()


def train_head(loader, accumulate):
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(head(x), y).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unscaled-accumulation error certain
        if (i + 1) % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            clipped.step()
            clipped.zero_grad()
""",
        ),
        Example(
            "A counter instead of a modulo",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accumulate):
    seen = 0
    optimizer.zero_grad()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ unscaled-accumulation error certain
        seen += 1
        if seen == accumulate:
            optimizer.step()
            optimizer.zero_grad()
            seen = 0
""",
        ),
        Example(
            "The window is a loop of its own",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def get_batch():
    return torch.randn(4, 12), torch.randint(4, (4,))


def train(accumulate):
    for step in range(10000):
        optimizer.zero_grad()
        for micro in range(accumulate):
            x, y = get_batch()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            ^^^^^^^^^^^^^^^ unscaled-accumulation error certain
        optimizer.step()
""",
        ),
        Example(
            "Steps in time, and one batch seen several times",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, times):
    for x, y in loader:
        optimizer.zero_grad()
        for t in range(times):
            nn.functional.cross_entropy(model(x[:, t]), y[:, t]).backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(times):
            nn.functional.cross_entropy(nn.functional.dropout(model(x)), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The factor is a configured fraction",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Config:
    accumulate = 4


def train(loader):
    scale = 1.0 / Config.accumulate
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) * scale
        loss.backward()
        if (i + 1) % Config.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Two losses of one batch add up on purpose",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        model(x).pow(2).mean().backward()
        optimizer.step()
""",
        ),
        Example(
            "The critic steps on every batch, the generator on every fifth",
            """
import torch
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g = torch.optim.SGD(G.parameters(), lr=0.1)
opt_d = torch.optim.SGD(D.parameters(), lr=0.1)


def train(loader):
    for i, real in enumerate(loader):
        noise = torch.randn(16, 8)
        opt_d.zero_grad()
        (D(G(noise).detach()).mean() - D(real).mean()).backward()
        opt_d.step()
        if i % 5 == 0:
            opt_g.zero_grad()
            (-D(G(noise)).mean()).backward()
            opt_g.step()
""",
        ),
        Example(
            "A Trainer's own loss drops the number of items",
            """
from torch import nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Distiller(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = nn.functional.mse_loss(out.logits, inputs["teacher"])
        return (loss, out) if return_outputs else loss
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unscaled-accumulation error likely


def main(dataset):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", gradient_accumulation_steps=8)
    Distiller(model=model, args=args, train_dataset=dataset).train()
""",
        ),
        Example(
            "A Trainer's own loss without the parameter: the Trainer divides",
            """
from torch import nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Distiller(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        out = model(**inputs)
        loss = nn.functional.mse_loss(out.logits, inputs["teacher"])
        return (loss, out) if return_outputs else loss


def main(dataset):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", gradient_accumulation_steps=8)
    Distiller(model=model, args=args, train_dataset=dataset).train()
""",
        ),
        Example(
            "Gradients are divided before the step",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accumulate):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (i + 1) % accumulate == 0:
            for p in model.parameters():
                p.grad.div_(accumulate)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
    ),
)

# Their update divides by the size of the gradients themselves, or takes their sign: a factor that all steps
# have in common cancels, up to epsilon.
_SCALE_FREE = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adafactor",
    "RMSprop",
    "Lion",
    "LAMB",
    "Lamb",
    "PagedAdamW",
    "FusedAdam",
    "DeepSpeedCPUAdam",
    "Adam8bit",
    "AdamW8bit",
)


# Of these, the ones that add weight decay to the gradient, where N counts against it.
_DECAY_IN_GRADIENT = ("Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adam8bit")


class _Found(NamedTuple):
    """The step of a window and its backward."""

    step: Step
    backward: Backward


def detect(trace: Trace) -> Iterator[Hit]:
    yield from _dropped_counts(trace)
    yield from _entered_once(trace)
    runs: dict[Place, list[Backward]] = {}
    for backward in trace.backwards:
        runs.setdefault(backward.place, []).append(backward)
    divided = {one.place for one in trace.steps if any(atom.divided for atom in one.before)}
    for one in trace.steps:
        if one.via == "closure" or one.place in divided:
            continue
        for atom in one.before:
            if atom.applied:
                continue
            for place, count in sorted(atom.sites, key=lambda site: (site[0].path, site[0].span)):
                backwards = [b for b in runs.get(place, ()) if b.order < one.order]
                if count > 1 and backwards and all(_is_plain(trace, b, one, backwards) for b in backwards):
                    yield _hit(trace, one, backwards[-1])


def _entered_once(trace: Trace) -> Iterator[Hit]:
    """`accumulate()` around the whole loop counts one micro-batch for it, and decides for all of its batches.

    [accelerate `Accelerator.accumulate`: counts, and chooses to step or not, when it is entered]
    """
    scopes = [event for event in trace.of(NoSync) if event.how == "accumulate"]
    inner = {tuple(turn.loop.place for turn in event.loops) for event in scopes}
    told: set[Place] = set()
    for scope in scopes:
        owner = scope.owner
        if owner is None or scope.place in told or not _has_window(owner):
            continue
        for backward in trace.backwards:
            around = tuple(turn.loop.place for turn in backward.loops)
            depth = len(scope.loops)
            is_inside = backward.order > scope.order and backward.loops[:depth] == scope.loops
            if backward.owner is not owner or not is_inside or len(around) <= depth or around in inner:
                continue
            if trace.walks_loader(backward.loops[depth].loop):
                told.add(scope.place)
                yield _of_scope(scope, owner, backward)
                break


def _has_window(owner: Obj) -> bool:
    value = owner.arguments.get("gradient_accumulation_steps")
    is_one = isinstance(value, Const) and value.value == 1
    return owner.origin is Origin.BUILT and value is not None and not is_one


def _of_scope(scope: NoSync, owner: Obj, backward: Backward) -> Hit:
    return Hit(
        scope.place,
        Severity.ERROR,
        Confidence.CERTAIN,
        "`accumulate()` counts one micro-batch each time it is entered, and is entered once for all batches "
        "of this loop: they add up without a step, whole epochs long, or each of them steps. Enter it in "
        "the loop.",
        distinct(
            (
                *step(owner.place, "the window is given here"),
                Evidence(scope.place, "it is decided here whether this loop steps"),
                Evidence(backward.loops[len(scope.loops)].loop.place, "for all turns of this loop"),
                Evidence(backward.place, "which each add their gradients"),
            )
        ),
        frozenset({("window", scope.place)}),
    )


def _dropped_counts(trace: Trace) -> Iterator[Hit]:
    """`compute_loss` takes the number of items of the window and does not use it.

    The Trainer leaves the division to it when the model takes loss keywords, as those of transformers do.
    """
    for call in trace.api("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"):
        window = call.arguments.get("gradient_accumulation_steps")
        if not (isinstance(window, Const) and isinstance(window.value, int) and window.value > 1):
            continue
        for backward in trace.backwards:
            is_mean = backward.loss is not None and _is_mean(backward.loss) and not _in_windows(backward.loss)
            if backward.how == "managed" and not backward.divides and is_mean:
                yield _dropped(call, backward, window.value)


def _is_mean(loss: Tensor) -> bool:
    """Of one micro-batch: a sum that is divided by something that was counted there is one, too."""
    return loss.reduction != "sum" or any(factor.op == "/" for factor in loss.factors)


def _in_windows(loss: Tensor) -> bool:
    """Does `compute_loss` divide by the window itself?"""
    names = (factor.symbol or "" for factor in loss.factors if factor.op == "/")
    return any(name.endswith("gradient_accumulation_steps") for name in names)


def _dropped(call: ApiCall, backward: Backward, window: int) -> Hit:
    return Hit(
        backward.place,
        Severity.ERROR,
        Confidence.LIKELY,
        f"the Trainer sums the losses of {window} micro-batches and leaves it to `compute_loss` to divide by "
        f"`num_items_in_batch`, which is not used here: gradients are {window} times too large, and clipping "
        "sees them. Divide by it, or leave the parameter out."
        + doubt((True, "the model may take no loss keywords")),
        (
            *step(call.place, f"the window: {window} micro-batches for each step"),
            *step(backward.place, "the loss that the Trainer differentiates, a mean over one micro-batch"),
        ),
        frozenset({("window", backward.place)}),
    )


def _is_plain(trace: Trace, backward: Backward, one: Step, runs: Sequence[Backward]) -> bool:
    """A backward of a mean, scaled by nobody, whose repetition (`runs`) makes the window of `one`."""
    loss = backward.loss
    if (
        loss is None
        or loss.reduction is None  # how it was made is not seen: it may have been divided there
        or loss.reduction == "sum"
        or loss.divided
        or backward.divides
        or backward.how == "managed"
    ):
        return False
    inner = _inner_loops(backward, one)
    if inner and BY_SIZE in loss.taint:
        return False  # the number may be that of the whole batch, of which these are parts
    if len(inner) == 1 and inner[0].kind is LoopKind.RANGE:
        return _is_window(trace, inner[0], runs)
    if inner:  # the window is a loop of its own: chunks of one batch, never elements or heads
        return all(loop.kind in (LoopKind.CHUNKS, LoopKind.BATCHES) for loop in inner)
    if not backward.loops or not backward.loops[-1].loop.is_call:
        return True
    # calls from outside are a window only where the caller counts them, as Lightning does
    is_counted = any(guard.kind == "periodic" and guard.test == "counted" for guard in one.scene.guards)
    return is_counted and one.scene.entry.framework == "lightning"


def _is_window(trace: Trace, loop: Loop, runs: Sequence[Backward]) -> bool:
    """Does each turn of a counting loop take a batch of its own? Never steps of time, heads or critics."""
    if not loop.repeats or any(loop.place in _places(one) for one in trace.steps):
        return False
    forwards = [forward for backward in runs for forward in forwards_of(trace, backward.passes)]
    if not forwards or not all(loop.place in _places(forward) for forward in forwards):
        return False
    if loop.draws:
        return True
    is_mean = all(backward.loss is not None and backward.loss.reduction == "mean" for backward in runs)
    batches = {tuple(id(value) for value in forward.arguments) for forward in forwards}
    return is_mean and len(batches) == len(forwards) > 1


def _places(event: Event) -> set[Place]:
    return {turn.loop.place for turn in event.loops}


def _inner_loops(backward: Backward, one: Step) -> Sequence[Loop]:
    outer = _places(one)
    return tuple(turn.loop for turn in backward.loops if turn.loop.place not in outer)


def _hit(trace: Trace, one: Step, backward: Backward) -> Hit:
    name = called(one.optimizer, "the optimizer")
    harm = _harm(trace, one, backward)
    return Hit(
        backward.place,
        harm.severity,
        weaker(harm.confidence, _confidence(one)),
        f"the gradients of N micro-batches are summed before each step of {name} and nothing divides by "
        f"N: {harm.words}. Divide the loss by N."
        + doubt((belief_in(one.optimizer) > 0, known_by(one.optimizer))),
        (*_chain(trace, one, backward), *harm.links),
        frozenset({("window", backward.place)}),
        _Found(one, backward),
    )


class _Harm(NamedTuple):
    """What a factor of N does to the updates of an optimizer."""

    severity: Severity
    confidence: Confidence
    words: str
    links: tuple[Evidence, ...] = ()


def _clips(trace: Trace) -> Iterator[Clip]:
    """Where gradients are clipped, and not only looked at."""
    factors = {order for used in trace.of(MeasureUsed) if used.how == "factor" for order in used.reads}
    return (clip for clip in trace.of(Clip) if "clip" in clip.how.lower() or clip.order in factors)


def _harm(trace: Trace, one: Step, backward: Backward) -> _Harm:
    kind = one.optimizer.type_name.rpartition(".")[2]
    clip = next((clip for clip in _clips(trace) if one.optimizer.id in clip.before), None)
    if kind not in _SCALE_FREE:
        return _Harm(Severity.ERROR, Confidence.CERTAIN, "the learning rate is N times too high")
    if clip is not None:
        words = "clipping sees gradients N times too large"
        return _Harm(
            Severity.ERROR, Confidence.CERTAIN, words, step(clip.place, "gradients are clipped here")
        )
    made = step(one.optimizer.place, f"{kind} divides by the size of the gradients: a common factor cancels")
    decay = one.optimizer.arguments.get("weight_decay") if kind in _DECAY_IN_GRADIENT else None
    if isinstance(decay, Const) and decay.value:
        words = "weight decay, which is added to the gradient, counts N times too little"
        return _Harm(Severity.WARNING, Confidence.CERTAIN, words, made)
    if _is_uneven(trace, one, backward):
        words = f"shorter windows count less, although {kind} makes up for a factor that all have in common"
        return _Harm(Severity.WARNING, Confidence.LIKELY, words, made)
    return _Harm(
        Severity.HINT, Confidence.CERTAIN, f"{kind} makes up for that, epsilon and clipping do not", made
    )


def _is_uneven(trace: Trace, one: Step, backward: Backward) -> bool:
    """Does anything but the window decide when to step: the end of the data, a step behind the loop?"""
    passed = {guard.place for guard in backward.scene.guards}
    steps = (other for other in trace.steps if other.place == one.place)
    if len({place for other in steps for place in _window_tests(other)} - passed) > 1:
        return True
    around = _places(backward)
    return any(
        other.optimizer.id == one.optimizer.id
        and other.place != one.place
        and not around <= _places(other)
        and any(not atom.applied and backward.place in dict(atom.sites) for atom in other.before)
        for other in trace.steps
    )


def _window_tests(one: Step) -> Iterator[Place]:
    """The operands of the conditions around a step that look at a counter."""
    counted = {guard.group for guard in one.scene.guards if guard.kind == "periodic"}
    return (guard.place for guard in one.scene.guards if guard.group in counted)


def _confidence(one: Step) -> Confidence:
    return grade(min(belief_in(one.optimizer), 1))


def _chain(trace: Trace, one: Step, backward: Backward) -> tuple[Evidence, ...]:
    links = [Evidence(backward.place, "this backward runs several times before each step")]
    for loop in _inner_loops(backward, one):
        links += step(loop.place, "the window: all turns of this loop come before one step")
    for guard in one.scene.guards[-1:]:
        links += step(guard.place, "the window: this test decides when to step")
    links += step(one.place, "this step uses the sum of all of them")
    for clear in trace.clears:
        if clear.optimizer.id == one.optimizer.id:
            links += step(clear.place, "the window ends here: gradients are cleared")
    if backward.loss is not None:
        for factor in sorted(backward.loss.factors, key=lambda f: f.place.span):
            links += step(factor.place, "this factor does not make up for the window")
    return distinct(links)[:6]


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    one, backward = hit.facts
    title = "Divide the loss by the window (changes training)"
    window = _window_text(file, one, backward)
    found = innermost_expression(file.module, backward.place.span, nodes.Call)
    if window is None or found is None or backward.how != "tensor" or _factors(backward):
        yield Fix(title, Safety.ADVICE, ())
        return
    call, span = found
    receiver = (
        call.func.value if isinstance(call, nodes.Call) and isinstance(call.func, nodes.Attribute) else None
    )
    if not isinstance(receiver, nodes.Name | nodes.Attribute | nodes.Call | nodes.Subscript):
        yield Fix(title, Safety.ADVICE, ())
        return
    place = Place(file.path, receiver.span.shifted(span.line - call.span.line))
    yield Fix(title, Safety.UNSAFE, wrap(place, "(", f" / {window})"))


def _factors(backward: Backward) -> frozenset[Factor]:
    return frozenset() if backward.loss is None else backward.loss.factors


def _window_text(file: SourceFile, one: Step, backward: Backward) -> str | None:
    """N as written in the window's test, when it is a plain name, attribute or number of the function."""
    if (
        one.place.path != file.path
        or backward.place.path != file.path
        or one.scene.frame != backward.scene.frame
    ):
        return None
    head = next((t.loop.place.span for t in reversed(backward.loops) if not t.loop.is_call), None)
    around = innermost_statement(file.module, head) if head is not None else None
    loop = around[1] if around is not None else None
    if around is not None and head not in {place.span for place in _places(one)}:
        return _range_text(file, around[0], around[1])
    found: str | None = None
    for statement, span in statements(file.module):
        if not isinstance(statement, nodes.If) or loop is None or not _within(span, loop):
            continue
        shift = span.line - statement.span.line
        for expression in (statement.test, *expressions(statement.test)):
            if isinstance(expression, nodes.Binary) and expression.op == "%":
                right = expression.right
                if isinstance(right, nodes.Name | nodes.Attribute | nodes.Constant):
                    text = file.slice(right.span.shifted(shift))
                    if found not in (None, text):
                        return None  # two windows: which of them is meant is not known
                    found = text
    return found


def _range_text(file: SourceFile, loop: nodes.Stmt, span: nodes.Span) -> str | None:
    """N of `for ... in range(N)`."""
    if not (isinstance(loop, nodes.For) and isinstance(loop.iter, nodes.Call) and len(loop.iter.args) == 1):
        return None
    is_range = isinstance(loop.iter.func, nodes.Name) and loop.iter.func.id == "range"
    length = loop.iter.args[0]
    if not is_range or not isinstance(length, nodes.Name | nodes.Attribute | nodes.Constant):
        return None
    return file.slice(length.span.shifted(span.line - loop.span.line))


def _within(inner: nodes.Span, outer: nodes.Span) -> bool:
    return outer.line <= inner.line and inner.end_line <= outer.end_line

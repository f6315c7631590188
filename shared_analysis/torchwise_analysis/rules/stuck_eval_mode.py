"""stuck-eval-mode: training goes on in eval mode after an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    innermost_expression,
    innermost_statement,
    insert_statement_before,
)
from torchwise_analysis.interp.abstract.events import Forward, ModeChange, RequiresGrad
from torchwise_analysis.interp.abstract.trace import ENGINE_STEP, Trace
from torchwise_analysis.interp.abstract.values import Kind, Obj, Origin
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._hooks import in_training, is_same_call
from torchwise_analysis.rules._modes import has_sure_mode_layer, mode_layers
from torchwise_analysis.rules._reading import MODE_LAYERS, called, distinct, doubt, grade, known_by, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(loader):
    model.eval()
    ^^^^^^^^^^^^ stuck-eval-mode error certain
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def train(train_loader, val_loader, epochs):
    model.train()
    for epoch in range(epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(epoch, evaluate(val_loader))
"""

RIGHT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def train(train_loader, val_loader, epochs):
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(epoch, evaluate(val_loader))
"""

FIXED = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def train(train_loader, val_loader, epochs):
    model.train()
    for epoch in range(epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            model.train()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(epoch, evaluate(val_loader))
"""

RULE = Rule(
    code="TW301",
    name="stuck-eval-mode",
    category=Category.MODE,
    severity=Severity.ERROR,
    claim="A model is put in eval mode for an evaluation and training goes on without `train()`.",
    cost=(
        "In eval mode dropout is off and batch-norm neither uses nor updates batch statistics. "
        "Everything after the first evaluation trains without the regularisation that was asked for, "
        "and with frozen statistics: the model overfits or stalls, and no message ever says so. The "
        "most frequent form is an evaluation in the middle of an epoch."
    ),
    wrong=Example("An evaluation helper that leaves eval mode behind", WRONG, fixed=FIXED),
    right=Example("Back in training mode at each epoch", RIGHT),
    silent=(
        "`train()`, `train(True)`, `train(was_training)` or the same on a parent lies on every path to "
        "the next training forward",
        "the model is never trained (teacher, metric network), or only parts of it were put in eval "
        "mode (frozen batch-norm)",
        "the model trains in eval mode from the start and is never evaluated between: fine-tuning of "
        "that kind is deliberate",
        "no layer of the model depends on the mode, as far as its own code tells, or only batch-norm that is "
        "frozen",
        "no optimizer owns the model: the loss only runs through it",
        "a framework switches modes around its hooks",
    ),
    grading=(
        "Error. Certain when a layer that depends on the mode (dropout, batch-norm) is seen in the "
        "model; likely when settings decide over it (the rate of a dropout, a batch-norm behind a test), "
        "and when nothing is known of its layers: what a library builds has some as a rule."
    ),
    fix=(
        "Insert `model.train()` before the training forward. Unsafe, because training changes on "
        "purpose. Restoring the previous mode at the end of the evaluation is as good."
    ),
    references=(
        Reference(
            "Module.train",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train",
        ),
        Reference(
            "Autograd mechanics: Evaluation Mode",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",
        ),
        Reference(
            "wkentaro/pytorch-fcn#57: Return to train mode after validation",
            "https://github.com/wkentaro/pytorch-fcn/pull/57",
        ),
        Reference("joeynmt/joeynmt#184: model.eval()", "https://github.com/joeynmt/joeynmt/issues/184"),
        Reference("ermongroup/ncsn#2: Model in eval forever", "https://github.com/ermongroup/ncsn/issues/2"),
    ),
    examples=(
        Example(
            "A model that has no layer with a mode, and a loss that runs through a fixed network",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12))
features = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8))
features.eval()
optimizer = torch.optim.Adam(model.parameters())


def evaluate(loader):
    model.eval()
    with torch.no_grad():
        print(sum((features(model(x)) - features(y)).abs().mean().item() for x, y in loader))


def train(loader, held_out):
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            (features(model(x)) - features(y)).pow(2).mean().backward()
            optimizer.step()
        features.eval()
        evaluate(held_out)
""",
        ),
        Example(
            "A head on a frozen body, whose batch-norm is best left in eval mode",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32))
for parameter in model.parameters():
    parameter.requires_grad = False
model.fc = nn.Linear(32, 4)
optimizer = torch.optim.Adam(model.parameters())


@torch.no_grad()
def evaluate(loader):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def train(loader, held_out):
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(evaluate(held_out))
""",
        ),
        Example(
            "Dropout that a class of the project switches by its mode",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x):
        return self.layer(nn.functional.dropout(x, 0.2, training=self.training))


model = Net()
optimizer = torch.optim.Adam(model.parameters())


def evaluate(loader):
    model.eval()
    ^^^^^^^^^^^^ stuck-eval-mode error certain
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def train(loader, held_out):
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(evaluate(held_out))
""",
        ),
        Example(
            "A method evaluates and leaves",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def validate(self, loader):
        self.model.eval()
        ^^^^^^^^^^^^^^^^^ stuck-eval-mode
        with torch.no_grad():
            return sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader)

    def fit(self, loader, held_out):
        self.model.train()
        for epoch in range(10):
            for x, y in loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            print(self.validate(held_out))
""",
        ),
        Example(
            "In the middle of an epoch",
            """
import torch
from torch import nn


def train(loader, val_loader):
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        model.train()
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if i % 100 == 0:
                model.eval()
                ^^^^^^^^^^^^ stuck-eval-mode error certain
                with torch.no_grad():
                    for a, b in val_loader:
                        print((model(a).argmax(1) == b).sum().item())
""",
        ),
        Example(
            "The mode is restored",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(loader):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train(was_training)
    return hits


def train(train_loader, val_loader):
    for epoch in range(10):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(epoch, evaluate(val_loader))
""",
        ),
        Example(
            "A teacher stays in eval mode",
            """
import torch
from torch import nn

teacher = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.2), nn.Linear(32, 4))
student = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.2), nn.Linear(8, 4))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)


def distil(loader):
    teacher.eval()
    student.train()
    for x, _ in loader:
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        nn.functional.mse_loss(student(x), target).backward()
        optimizer.step()
""",
        ),
        Example(
            "Batch-norm frozen on purpose",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for epoch in range(10):
        model.train()
        for m in model.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.eval()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "An attack needs gradients of its input, in eval mode",
            """
import torch
from torch import nn


def attack(model, x, y, steps):
    model.eval()
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x + delta), y)
        (slope,) = torch.autograd.grad(loss, delta)
        delta = (delta + 0.01 * slope.sign()).detach().requires_grad_()
    return delta


def train(loader, steps):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    for x, y in loader:
        with torch.no_grad():
            print(model(x).argmax(1).eq(y).sum().item())
        attack(model, x, y, steps)
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    yield from _left_by_hooks(trace)
    evaluated: dict[tuple[int, Place], Forward] = {}
    trained_before: dict[int, int] = {}  # module: order of its first training forward outside eval mode
    awake_parts: dict[
        int, set[int]
    ] = {}  # by module: parts that a training forward of it ran outside eval mode
    if not trace.updates:
        return
    switched: dict[Place, list[int]] = {}
    for change in trace.of(ModeChange):
        switched.setdefault(change.place, []).append(change.order)
    trained = trace.taught
    steps = {one.loops[-1].loop.place for one in trace.backwards if one.loops}
    for forward in trace.forwards:
        places = [mode.place for mode in forward.modes if mode.name == "eval" and mode.place is not None]
        if forward.pass_ not in trained:
            if forward.loops and forward.loops[-1].loop.place in steps and _was_off(trace, forward):
                continue  # features, beside a backward, of a part that is frozen for the time being
            evaluated.update({(forward.module.id, place): forward for place in places})
            continue
        for place in places:
            between = evaluated.get((forward.module.id, place))
            # an eval() before all training chooses the mode of the run (`if args.eval: ... else: ...`)
            begun = trained_before.get(forward.module.id, forward.order)
            again = any(begun < at < forward.order for at in switched.get(place, ()))
            if (between is not None or again) and not _is_harmless(trace, forward):
                yield _hit(trace, forward, place, between)
        if any(mode.name != "eval" for mode in forward.modes):
            trained_before.setdefault(forward.module.id, forward.order)
        awake = awake_parts.setdefault(forward.module.id, set())
        asleep = forward.eval_parts & awake
        for (oid, place), between in evaluated.items() if asleep else ():
            if oid in asleep and oid in trace.objects:
                part = replace(forward, module=trace.objects[oid])
                if not _is_harmless(trace, part):
                    yield _hit(trace, part, place, between)
        awake.update(part.id for part in trace.parts(forward.module.id) if part.id not in forward.eval_parts)


def _left_by_hooks(trace: Trace) -> Iterator[Hit]:
    """A hook of Lightning evaluates the module that is trained and leaves it in eval mode."""
    changes = [change for change in trace.of(ModeChange) if in_training(change)]
    wholes = [change for change in changes if _is_trained_whole(trace, change.module)]
    if any(change.to != "eval" for change in wholes):
        return  # some hook switches back
    for change in wholes:
        after = (f for f in trace.forwards if f.order > change.order and is_same_call(f, change))
        runs = [
            f
            for f in after
            if change.module.id in trace.lineage(f.module.id) and f.pass_ not in trace.trained
        ]
        if not runs or mode_layers(trace, change.module) is False:
            continue
        is_sure = has_sure_mode_layer(trace, change.module)
        yield Hit(
            change.place,
            Severity.ERROR,
            grade(int(not is_sure)),
            f"{called(change.module, 'the module')} stays in eval mode when the hook is left, and Lightning "
            "does not switch it back: training goes on with dropout off and batch-norm frozen. Call train() "
            "behind the evaluation." + doubt((not is_sure, "no dropout or batch-norm is seen in it")),
            distinct(
                (
                    Evidence(change.place, "eval() here"),
                    Evidence(runs[0].place, "the evaluation it is meant for"),
                    Evidence(change.scene.entry.place, "the hook ends without train(), and training goes on"),
                )
            ),
            frozenset({("module", change.module.id)}),
        )


def _is_trained_whole(trace: Trace, module: Obj) -> bool:
    """Is it what the Trainer trains: the LightningModule itself, or what a callback is given for it?"""
    if module.cls is not None:
        return module.cls.derives("LightningModule")
    return module.origin is Origin.PART or (module.place is None and len(trace.lineage(module.id)) == 1)


def _was_off(trace: Trace, forward: Forward) -> bool:
    """Did nothing in the module require gradients when it ran?"""
    lineage = set(trace.lineage(forward.module.id))
    before = [event for event in trace.of(RequiresGrad) if event.order < forward.order]
    last = next((event for event in reversed(before) if event.roots & lineage), None)
    return last is not None and last.value is False


def _is_harmless(trace: Trace, forward: Forward) -> bool:
    """Has the module no layer with a mode, or only batch-norm that is frozen and best left in eval mode?

    Or does no optimizer own it, so that the loss only runs through it?
    """
    if mode_layers(trace, forward.module) is False or not _is_owned(trace, forward.module):
        return True
    if _has_shown_none(trace, forward.module):
        return True
    layers = [p for p in trace.parts(forward.module.id) if any(n in p.type_name for n in MODE_LAYERS)]
    return bool(layers) and all("Norm" in p.type_name and _is_frozen(trace, p) for p in layers)


def _is_owned(trace: Trace, module: Obj) -> bool:
    """May an optimizer that steps own it, or a part of it?"""
    lineage = set(trace.lineage(module.id))
    if any(one.receiver is not None and one.receiver.id in lineage for one in trace.api(ENGINE_STEP)):
        return True
    for one in trace.stepped:
        owned = trace.owns.get(one)
        if owned is None or owned & lineage or any(module.id in trace.lineage(root) for root in owned):
            return True
    return False


def _is_frozen(trace: Trace, part: Obj) -> bool:
    facts = (trace.facts.get(("frozen", oid)) for oid in trace.lineage(part.id))
    return next((fact for fact in facts if fact is not None), None) == frozenset([True])


def _hit(trace: Trace, forward: Forward, place: Place, between: Forward | None) -> Hit:
    name = called(forward.module, "the model")
    has_layers = bool(mode_layers(trace, forward.module))
    is_sure = has_sure_mode_layer(trace, forward.module)
    return Hit(
        place,
        Severity.ERROR,
        weaker(_confidence(forward, has_layers), grade(int(has_layers and not is_sure))),
        f"{name} stays in eval mode when training goes on: dropout is off and batch-norm frozen for the "
        "rest of the run. Call train() before training again."
        + doubt(
            (not has_layers, "no dropout or batch-norm is seen in it"),
            (has_layers and not is_sure, "whether it has dropout or batch-norm depends on its settings"),
            (forward.belief, known_by(forward.module)),
        ),
        _chain(trace, forward, place, between),
        frozenset({("module", forward.module.id)}),
        forward,
    )


def _confidence(forward: Forward, has_layers: bool) -> Confidence:
    """What a library builds has dropout or batch-norm as a rule."""
    return weaker(grade(int(not has_layers)), grade(int(forward.belief)))


def _has_shown_none(trace: Trace, module: Obj) -> bool:
    """Was a model of the project read that shows no layer with a mode, and holds nothing a library built?"""
    parts = [part for part in trace.parts(module.id) if part.id != module.id]
    if not parts or mode_layers(trace, module):
        return False
    return not any(
        part.kind is Kind.MODULE and part.cls is None and not part.type_name.startswith("torch.")
        for part in parts
        if part.type_name
    )


def _chain(trace: Trace, forward: Forward, place: Place, between: Forward | None) -> tuple[Evidence, ...]:
    links = [Evidence(place, "eval() here")]
    if between is not None:
        links += step(between.place, "the evaluation it is meant for")
    links += step(forward.place, "the next training forward, still in eval mode")
    links += step(trace.trained[forward.pass_].place, "its backward: this is training")
    lineage = trace.lineage(forward.module.id)
    back = [change for change in trace.of(ModeChange) if change.to == "train" and change.module.id in lineage]
    if back:
        links += step(back[-1].place, "this train() runs too early or too rarely to help")
    return distinct(links)


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    forward = hit.facts
    if not isinstance(forward, Forward):
        return
    title = "Call train() before the training forward (changes training)"
    edit = None
    receiver = _module_text(file, forward) if forward.place.path == file.path else None
    found = innermost_statement(file.module, forward.place.span) if receiver else None
    if found is not None:
        edit = insert_statement_before(file, found[1].line, found[1].column, f"{receiver}.train()")
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _module_text(file: SourceFile, forward: Forward) -> str | None:
    """How the module is written where it is called: a name or attribute that costs nothing to repeat."""
    found = innermost_expression(file.module, forward.place.span, nodes.Call)
    if found is None or forward.through != "call":
        return None
    call, span = found
    assert isinstance(call, nodes.Call)  # the search was for calls
    if not isinstance(call.func, nodes.Name | nodes.Attribute):
        return None
    return file.slice(call.func.span.shifted(span.line - call.span.line))

"""eval-in-train-mode: an evaluation runs with dropout on and batch-norm learning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    innermost_expression,
    innermost_statement,
    insert_statement_before,
    statements,
)
from torchwise_analysis.interp.abstract.events import Forward, LoopEntered, ModeChange, WeightsLoaded
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Obj, Origin, Unknown, alternatives
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._hooks import in_training
from torchwise_analysis.rules._modes import depends_on_mode, has_sure_mode_layer, mode_layers
from torchwise_analysis.rules._reading import called, distinct, grade, step
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def fit(train_loader, held_out, epochs):
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        right = 0
        with torch.no_grad():
            for x, y in held_out:
            ^^^ eval-in-train-mode warning certain
                right += (model(x).argmax(1) == y).sum().item()
        print(epoch, right)
"""

RIGHT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def fit(train_loader, held_out, epochs):
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        right = 0
        with torch.no_grad():
            model.eval()
            for x, y in held_out:
                right += (model(x).argmax(1) == y).sum().item()
        print(epoch, right)
"""

RULE = Rule(
    code="TW302",
    name="eval-in-train-mode",
    category=Category.MODE,
    severity=Severity.WARNING,
    claim="A model is evaluated in train mode: dropout drops units and batch-norm learns from the test data.",
    cost=(
        "The reported numbers are wrong, mostly too low and different in each run, and decisions rest on "
        "them: early stopping, the checkpoint that is kept, the comparison in a paper. With batch-norm the "
        "evaluation also changes the model, because its running statistics move towards the held-out data. "
        "`no_grad` and `inference_mode` do not change this."
    ),
    wrong=Example("Validation right after training", WRONG, fixed=RIGHT),
    right=Example("eval() before validation", RIGHT),
    silent=(
        "the model has no layer that depends on the mode, as far as all its parts are known",
        "`eval()` was called here, in a helper or by the caller, or the model comes from "
        "`from_pretrained`, which returns it in eval mode",
        "batches of the same loader train the model: statistics are recalibrated, targets are computed",
        "a model that is updated beside another one (an average, a momentum encoder), or whose weights do "
        "not come from a file",
        "several stochastic forwards of one batch (Monte-Carlo dropout)",
        "a framework runs the evaluation (Lightning, Trainer)",
    ),
    grading=(
        "A warning, an error where batch-norm is in view. Certain when dropout or batch-norm is in view; "
        "likely when the layers of the model are not all known, or settings decide over them (the rate of "
        "a dropout, a batch-norm behind a test)."
    ),
    fix=(
        "Call `eval()` above the evaluation loop, when training sets train mode again by itself. Unsafe: "
        "the numbers change on purpose. Advice elsewhere."
    ),
    references=(
        Reference(
            "Autograd mechanics: evaluation mode",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",
        ),
        Reference(
            "wolny/pytorch-3dunet#53: set the model to 'eval' mode for validation",
            "https://github.com/wolny/pytorch-3dunet/issues/53",
        ),
        Reference(
            "ipolharvard/ethos-ares#20: paper results affected",
            "https://github.com/ipolharvard/ethos-ares/issues/20",
        ),
        Reference(
            "LAION-AI/CLIP_benchmark#73: evaluation in train mode",
            "https://github.com/LAION-AI/CLIP_benchmark/issues/73",
        ),
    ),
    examples=(
        Example(
            "No layer of the model depends on the mode",
            """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return F.dropout(self.linear(x), p=self.dropout, training=self.training)

    def export(self):
        assert not self.training
        return self.linear

    def again(self, x):
        if self.training and x.requires_grad:
            return checkpoint(self.linear, x, use_reentrant=False)
        return self.linear(x)


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.parts = nn.ModuleDict(dict(norm=nn.LayerNorm(width), blocks=nn.ModuleList([Block(width)])))

    def forward(self, x):
        for block in self.parts.blocks:
            x = block(x)
        return self.parts.norm(x)


def main(train_loader, val_loader):
    model = Network(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in val_loader:
                print(epoch, (model(x).argmax(-1) == y).sum())
""",
        ),
        Example(
            "Whether there is dropout depends on a setting",
            """
import torch
from torch import nn


def main(args, train_loader, val_loader):
    model = nn.Sequential(nn.Linear(12, 12), nn.Dropout(args.dropout), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in val_loader:
            ^^^ eval-in-train-mode warning likely
                print(epoch, (model(x).argmax(-1) == y).sum())
""",
        ),
        Example(
            "An inference script that loads weights and never calls eval()",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        return self.norm(self.body(x))


@torch.inference_mode()
def predict(net, loader):
    out = []
    for x in loader:
    ^^^ eval-in-train-mode error certain
        out.append(net(x).argmax(-1))
    return torch.cat(out)


net = Net()
net.load_state_dict(torch.load("net.pt"))
print(predict(net, DataLoader(torch.randn(64, 12), batch_size=8)))
""",
        ),
        Example(
            "A model passed in: its layers are not known",
            """
import torch


def fit(model, train_loader, val_loader, optimizer, criterion, epochs):
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in val_loader:
            ^^^ eval-in-train-mode warning likely
                print(criterion(model(x), y).item())
""",
        ),
        Example(
            "A teacher in train mode, made with its trainer",
            """
import torch
from torch import nn
from torchvision.models import resnet18, resnet50


class Distiller:
    def __init__(self):
        self.teacher = resnet50(num_classes=10)
        self.teacher.load_state_dict(torch.load("teacher.pt", weights_only=True))
        self.student = resnet18(num_classes=10)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)

    def step(self, x):
        with torch.no_grad():
            wanted = self.teacher(x).softmax(1)
                     ^^^^^^^^^^^^^^^ eval-in-train-mode warning likely
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.student(x), wanted).backward()
        self.optimizer.step()

    def fit(self, loader):
        self.student.train()
        for x, _ in loader:
            self.step(x)
""",
        ),
        Example(
            "A teacher with pretrained weights, and one that follows its student",
            """
import copy

import torch
from torch import nn
from torchvision.models import resnet18, resnet50


def main(loader):
    teacher = resnet50(weights="IMAGENET1K_V2")
    student = resnet18()
    average = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for x, _ in loader:
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
                     ^^^^^^^^^^ eval-in-train-mode warning certain
            also = average(x).softmax(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(student(x), 0.5 * wanted + 0.5 * also).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), student.parameters()):
                slow.lerp_(fast, 0.01)
""",
        ),
        Example(
            "No layer depends on the mode",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def fit(train_loader, held_out):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in held_out:
            print((model(x).argmax(1) == y).float().mean().item())
""",
        ),
        Example(
            "A helper sets the mode",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def run(loader, training):
    model.train(training)
    with torch.set_grad_enabled(training):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def fit(train_loader, held_out):
    for epoch in range(10):
        run(train_loader, True)
        run(held_out, False)
""",
        ),
        Example(
            "Batch-norm statistics are recalibrated on the training data",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def fit(train_loader):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, _ in train_loader:
            model(x)
""",
        ),
        Example(
            "Monte-Carlo dropout",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def fit(train_loader, held_out):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, _ in held_out:
            draws = torch.stack([model(x).softmax(1) for _ in range(20)])
            print(draws.mean(0), draws.var(0))
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The forward in train mode and the evaluation loop around it."""

    forward: Forward
    loop: Loop


def detect(trace: Trace) -> Iterator[Hit]:
    yield from _in_callbacks(trace)
    trained = {p: trace.forward_of(p) for p in trace.trained}
    training_modes = {(f.module.id, mode.place) for f in trained.values() for mode in f.modes}
    walked = {e.loop_place: e.over.id for e in trace.of(LoopEntered) if isinstance(e.over, Obj)}
    training_loops = {turn.loop.place for f in trained.values() for turn in f.loops}
    training_data = {walked[place] for place in training_loops if place in walked}
    for forward in trace.forwards:
        loop = _evaluation_loop(forward)
        names = {mode.name for mode in forward.modes}
        if loop is None or forward.pass_ in trace.used or not names:
            continue
        if not names <= {"train", "new"} and not _is_never_switched(trace, forward):
            continue
        if forward.eval_parts:
            continue  # its parts were switched one by one
        layers = mode_layers(trace, forward.module)
        if trained and loop.place in training_loops and _is_teacher(trace, forward, names):
            yield _teacher_hit(trace, forward, loop)
            continue
        if not names <= {"train", "new"}:
            continue
        copied = _averaged(trace, forward.module)
        if copied is not None:
            if copied.id in trace.trained_modules and mode_layers(trace, copied) is True:
                yield _hit(trace, forward, loop, True, has_sure_mode_layer(trace, copied))
            continue
        if trained:
            if loop.place in training_loops or walked.get(loop.place) in training_data:
                continue
            if any(trace.is_training_source(source) for source in forward.sources):
                continue
            set_for_training = {(forward.module.id, mode.place) for mode in forward.modes} <= training_modes
            if not set_for_training or (names != {"train"} and layers is not True) or layers is False:
                continue
        elif names != {"new"} or not _is_built_in_view(trace, forward.module):
            continue
        is_sure = _is_sure(trace, forward)
        if trained or is_sure:
            yield _hit(trace, forward, loop, layers is True, is_sure)


def _averaged(trace: Trace, module: Obj) -> Obj | None:
    """The model whose weights this one averages: a copy of it, with its layers, and in its mode then."""
    if not module.type_name.endswith(".AveragedModel"):
        return None
    given = module.arguments.get("model", 0)
    found = next((one for one in alternatives(given) if isinstance(one, Obj)), None) if given else None
    return None if found is None else trace.objects.get(found.id, found)


def _in_callbacks(trace: Trace) -> Iterator[Hit]:
    """A callback of Lightning runs what is trained over a loader of its own between two steps: Lightning
    switches modes around a validation only."""
    if any(in_training(change) for change in trace.of(ModeChange)):
        return
    told: set[Place] = set()
    for forward in trace.forwards:
        loop = _evaluation_loop(forward)
        whole = trace.objects.get(trace.lineage(forward.module.id)[-1])
        is_given = whole is not None and whole.type_name == "lightning.LightningModule"
        if loop is None or not is_given or not in_training(forward) or forward.pass_ in trace.used:
            continue
        if forward.grad == frozenset([False]) and forward.sources and forward.place not in told:
            told.add(forward.place)
            yield _hit_in_callback(forward, loop)


def _hit_in_callback(forward: Forward, loop: Loop) -> Hit:
    name = called(forward.module, "the module")
    return Hit(
        _header(loop, forward),
        Severity.WARNING,
        grade(1),
        f"{name} is evaluated in the mode in which it is trained: dropout is on and batch-norm learns from "
        "this data (if it has any: it is not seen). Call eval() before, and train() behind.",
        distinct(
            (
                Evidence(forward.scene.entry.place, "Lightning calls this between two steps of the training"),
                Evidence(loop.place, "this loop evaluates, without autograd"),
                Evidence(forward.place, "and nothing switches the mode for it"),
            )
        ),
        frozenset({("module", forward.module.id)}),
    )


def _is_never_switched(trace: Trace, forward: Forward) -> bool:
    """Is it an attribute of an object, made in train mode with it, that nothing in view switches?

    Between two methods an unseen caller could switch it.
    """
    module = forward.module
    own = set(trace.lineage(module.id)) | {part.id for part in trace.parts(module.id)}
    entry = forward.scene.entry
    is_called = entry.kind == "method" or entry.name.rpartition(".")[2].startswith("on_train_")
    is_method = is_called and {mode.name for mode in forward.modes} == {"unknown"}
    switched = trace.once("switched", lambda: frozenset(e.module.id for e in trace.of(ModeChange)))
    return is_method and _is_built_in_view(trace, module) and not own & switched


def _is_teacher(trace: Trace, forward: Forward, names: set[str]) -> bool:
    """Trained weights that nothing trains: loaded from a file for good, and run without autograd beside the
    training of something else."""
    module = forward.module
    is_left = names <= {"new", "unknown"} and _is_built_in_view(trace, module)
    if not is_left or set(trace.lineage(module.id)) & trace.trained_modules or not forward.sources:
        return False
    return _is_loaded(trace, module) and mode_layers(trace, module) is True and "copy" not in module.traits


def _is_loaded(trace: Trace, module: Obj) -> bool:
    weights = module.arguments.get("weights") or module.arguments.get("pretrained", 0)
    is_pretrained = module.type_name.startswith("torchvision.models.") and weights is not None
    if is_pretrained and not (isinstance(weights, Const) and not weights.value):
        return True
    return any(
        load.target.id == module.id
        and not load.scene.guards
        and isinstance(load.value, Unknown)
        and "loaded" in load.value.taint
        for load in trace.of(WeightsLoaded)
    )


def _teacher_hit(trace: Trace, forward: Forward, loop: Loop) -> Hit:
    name = called(forward.module, "the model")
    is_sure = {mode.name for mode in forward.modes} == {"new"}
    unseen = "" if is_sure else " Not certain: code that is not seen may call it."
    links = [*step(forward.module.place, "made here, in train mode, and never switched")]
    links += step(loop.place, "beside the training of another model")
    links += step(forward.place, "this forward learns nothing and runs in train mode")
    return Hit(
        forward.place,
        Severity.ERROR if trace.has_layer(forward.module.id, "BatchNorm") else Severity.WARNING,
        weaker(grade(int(not is_sure)), grade(int(forward.belief))),
        f"{name} has trained weights, learns nothing and runs in train mode: dropout makes results random, "
        f"and batch-norm uses this batch and goes on changing. Call eval() where it is made.{unseen}",
        distinct(links),
        frozenset({("module", forward.module.id)}),
        _Found(forward, loop),
    )


def _is_sure(trace: Trace, forward: Forward) -> bool:
    """Has it a layer that depends on the mode, and so has everything else that may run here instead?"""
    run = trace.once("modules run at", lambda: _run_at(trace))[forward.place]
    return all(has_sure_mode_layer(trace, module) for module in run.values())


def _run_at(trace: Trace) -> dict[Place, dict[int, Obj]]:
    found: dict[Place, dict[int, Obj]] = {}
    for forward in trace.forwards:
        found.setdefault(forward.place, {})[forward.module.id] = forward.module
    return found


def _evaluation_loop(forward: Forward) -> Loop | None:
    """The loop over data that the forward runs in directly, without autograd."""
    if (
        forward.grad != frozenset({False})
        or forward.through in ("loss", "entry", "functional")
        or not forward.loops
    ):
        return None
    loop = forward.loops[-1].loop
    return loop if loop.kind in (LoopKind.BATCHES, LoopKind.UNKNOWN) else None


def _is_built_in_view(trace: Trace, module: Obj) -> bool:
    return module.origin is Origin.BUILT and not trace.escaped & set(trace.lineage(module.id))


def _hit(trace: Trace, forward: Forward, loop: Loop, has_layers: bool, is_sure: bool) -> Hit:
    name = called(forward.module, "the model")
    learns = trace.has_layer(forward.module.id, "BatchNorm")
    unknown = "its layers are not all known" if not has_layers else "that depends on its settings"
    doubt = "" if is_sure else f" (if it has dropout or batch-norm: {unknown})"
    return Hit(
        _header(loop, forward),
        Severity.ERROR if learns else Severity.WARNING,
        weaker(grade(int(not is_sure)), grade(int(forward.belief))),
        f"{name} is evaluated in train mode: dropout is on and batch-norm learns from this data{doubt}. Call "
        "eval() before.",
        distinct(_chain(trace, forward)),
        frozenset({("module", forward.module.id)}),
        _Found(forward, loop),
    )


def _header(loop: Loop, forward: Forward) -> Place:
    """The word `for` of the evaluation loop: the mode is wrong for all of it."""
    if loop.place.path != forward.place.path:
        return forward.place
    line, column = loop.place.span.line, loop.place.span.column
    return Place(loop.place.path, Span(line, column, line, column + len("for")))


def _chain(trace: Trace, forward: Forward) -> Iterator[Evidence]:
    places = sorted(
        {mode.place for mode in forward.modes if mode.place is not None},
        key=lambda place: (place.path, place.span),
    )
    for place in places[:2]:
        yield from step(place, "train mode is set here")
    if not places:
        yield from step(forward.module.place, "made here, in train mode, and never switched")
    part = next((p for p in trace.parts(forward.module.id) if depends_on_mode(trace, p)), None)
    if part is not None:
        name = part.type_name.rpartition(".")[2] or (part.cls.name if part.cls is not None else "this part")
        yield from step(part.place, f"`{name}` depends on the mode")
    yield from step(forward.place, "this forward of the evaluation runs in train mode")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    forward, loop = hit.facts
    title = "Call eval() before the evaluation (changes its numbers)"
    receiver = _module_text(file, forward)
    edit = None
    found = innermost_statement(file.module, hit.place.span)
    same = _function_of(file, forward.place) == _function_of(file, loop.place)
    if receiver is not None and found is not None and same and isinstance(found[0], nodes.For):
        edit = insert_statement_before(file, found[1].line, found[1].column, f"{receiver}.eval()")
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _module_text(file: SourceFile, forward: Forward) -> str | None:
    """How the module is written where it is called: a name or attribute that costs nothing to repeat."""
    if forward.place.path != file.path or forward.through != "call":
        return None
    found = innermost_expression(file.module, forward.place.span, nodes.Call)
    if found is None or not isinstance(found[0], nodes.Call):
        return None
    if not isinstance(found[0].func, nodes.Name | nodes.Attribute):
        return None
    return file.slice(found[0].func.span.shifted(found[1].line - found[0].span.line))


def _function_of(file: SourceFile, place: Place) -> tuple[int, int] | None:
    """Where the innermost function around `place` begins."""
    inner = None
    for statement, span in statements(file.module):
        if isinstance(statement, nodes.FunctionDef) and span.line <= place.span.line <= span.end_line:
            inner = (span.line, span.column)
    return inner

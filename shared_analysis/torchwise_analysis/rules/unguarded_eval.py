"""unguarded-eval: an evaluation records a graph that nothing differentiates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    indent_under,
    innermost_statement,
    name_for_module,
    statements,
)
from torchwise_analysis.interp.abstract.events import Forward, GraphCut, LossCall, ModeChange
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import LEAF, Kind, Link, Obj, Tensor, Value, alternatives
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._frames import is_in_construction
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, known_by, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def evaluate(val_loader):
    model.eval()
    hits = 0
    for x, y in val_loader:
        logits = model(x)
                 ^^^^^^^^ unguarded-eval warning certain
        hits += (logits.argmax(1) == y).sum().item()
    return hits


def main(val_loader):
    print(evaluate(val_loader))
"""

RIGHT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def evaluate(val_loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in val_loader:
            logits = model(x)
            hits += (logits.argmax(1) == y).sum().item()
    return hits


def main(val_loader):
    print(evaluate(val_loader))
"""

RULE = Rule(
    code="TW102",
    name="unguarded-eval",
    category=Category.AUTOGRAD,
    severity=Severity.WARNING,
    claim="An evaluation forward runs with autograd on, although nothing ever differentiates its result.",
    cost=(
        "`eval()` does not switch autograd off. Every intermediate result is kept for a backward that "
        "never comes, as long as the output lives: the evaluation needs about as much memory as "
        "training, and often dies with a batch size that would fit twice. If outputs are collected as "
        "well, memory grows with every batch."
    ),
    wrong=Example("An evaluation without no_grad", WRONG, fixed=RIGHT),
    right=Example("The same under no_grad", RIGHT),
    silent=(
        "`no_grad`, `inference_mode` or `set_grad_enabled(False)` in any form around it: with, "
        "decorator, statement, in a caller, or by the framework that calls the hook",
        "some backward or `autograd.grad` uses the result or what is computed from it, also in a caller",
        "the parameters are frozen and the input needs no gradient: nothing is recorded",
        "a single forward outside any loop, or one while the model is built",
        "without `eval()`: its module trains nowhere in view, its results are never taken out of the graph, "
        "or they go into a loss or a forward that trains",
    ),
    grading=(
        "Warning: the peak is too high. Error when the outputs are kept too, for then memory grows. Hint "
        "for a few turns of a literal loop beside no training, as to warm up, where nothing trains and the "
        "model gets made-up tensors, as to measure it, and without `eval()` where the data come from no "
        "loader of their own. "
        "Certain when all uses are in view; likely when the result goes to a caller that cannot be seen, in "
        "a method that nobody in view calls, or when the module is only taken for one. A function called "
        "`evaluate` proves nothing."
    ),
    fix=(
        "`with torch.no_grad():` around the loop. Safe when no value with a graph leaves the loop, else "
        "unsafe. A decorator on the function is never proposed: it would also switch off what the "
        "function does for training."
    ),
    references=(
        Reference("no_grad", "https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html"),
        Reference(
            "Locally disabling gradient computation",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",
        ),
        Reference(
            "hszhao/semseg#60: 'out of memory' during validation",
            "https://github.com/hszhao/semseg/issues/60",
        ),
        Reference("dmlc/dgl#745: Validation out of memory", "https://github.com/dmlc/dgl/issues/745"),
        Reference(
            "facebookresearch/fairchem#199: Resolves validation gpu memory issue",
            "https://github.com/facebookresearch/fairchem/pull/199",
        ),
    ),
    examples=(
        Example(
            "What a forward costs is measured with made-up tensors",
            """
import time

import torch


def measure(model, sizes):
    model.eval()
    for size in sizes:
        x = torch.randn(size, 3, 224, 224, device="cuda")
        begin = time.time()
        model(x)
        ^^^^^^^^ unguarded-eval hint likely
        torch.cuda.synchronize()
        print(size, time.time() - begin)
""",
        ),
        Example(
            "Scores within the training loop, without `eval()`",
            """
import numpy as np
import torch
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.Adam(model.parameters())


def scores(truth, means):
    return [float(np.mean(t - m.detach().numpy())) for t, m in zip(truth, means)]


def fit(x, y, truth):
    for k in range(1000):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if k > 10:
            means = model(x)
                    ^^^^^^^^ unguarded-eval hint certain
            print(np.mean(scores(truth, means)))
""",
        ),
        Example(
            "A detached result that something else learns from",
            """
import torch
from torch import nn

teacher, student = nn.Linear(12, 4), nn.Linear(12, 4)
optimizer = torch.optim.Adam([*teacher.parameters(), *student.parameters()])


def fit(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(teacher(x), y).backward()
        wanted = teacher(x).detach()
        nn.functional.mse_loss(student(x), wanted).backward()
        optimizer.step()
""",
        ),
        Example(
            "Decoding step by step with methods of the model",
            """
import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 8)
        self.decoder = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, 100)

    def encode(self, source):
        hidden = self.encoder(source)
        return torch.tanh(hidden)

    def decode(self, word, memory):
        return self.decoder(word, memory)


def greedy(model, source, longest, start, end):
    memory = model.encode(source)
    memory = memory.view(1, -1).contiguous().to(source.device)
    word = torch.full((1, 8), start, dtype=source.dtype, device=source.device)
    words = []
    for _ in range(longest - 1):
        scores = model.head(model.decode(word, memory))
        number = int(scores.view(-1).max(0)[1])
        words.append(number)
        if number == end:
            break
        word = torch.full((1, 8), number, dtype=source.dtype, device=source.device)
    return words


def translate(model: Translator, longest):
    model.eval()
    while True:
        source = torch.tensor([float(n) for n in input().split()])
        print(greedy(model, source, longest, 1, 2))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unguarded-eval warning certain
""",
        ),
        Example(
            "Outputs are collected too: one finding, as an error",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def main(loader):
    model.eval()
    outputs = []
    for x, _ in loader:
        outputs.append(model(x))
                       ^^^^^^^^ unguarded-eval error certain
    print(torch.cat(outputs).argmax(1).tolist())
""",
        ),
        Example(
            "Switched off by the only caller",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def evaluate(loader):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def main(loader):
    with torch.inference_mode():
        print(evaluate(loader))
""",
        ),
        Example(
            "Gradients with respect to the input",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))


def saliency(loader):
    model.eval()
    maps = []
    for x, _ in loader:
        x.requires_grad_(True)
        score = model(x).sum()
        (gradient,) = torch.autograd.grad(score, x)
        maps.append(gradient)
    return maps
""",
        ),
        Example(
            "The result is part of a loss",
            """
import torch
from torch import nn

encoder = nn.Linear(12, 4)
head = nn.Linear(4, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)


def predict(x):
    encoder.eval()
    return encoder(x)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(predict(x)), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A warm-up of three turns",
            """
import torch
from torch import nn


def measure(x, clock):
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    model.eval()
    for _ in range(3):
        clock.tick(model(x).shape)
                   ^^^^^^^^ unguarded-eval hint certain
""",
        ),
        Example(
            "Switched off as a statement",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def main(loader):
    torch.set_grad_enabled(False)
    model.eval()
    for x, _ in loader:
        print(model(x).argmax(1))
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The forward; whether no value with its graph leaves the loop."""

    forward: Forward
    is_closed: bool


def detect(trace: Trace) -> Iterator[Hit]:
    first_in_loop: dict[object, Place] = {}
    for forward in trace.forwards:
        if False in forward.grad or forward.pass_ in trace.used or forward.through in ("loss", "entry"):
            continue
        if not trace.repeats(forward) or is_in_construction(forward) or _guards_itself(trace, forward):
            continue
        is_switched = {mode.name for mode in forward.modes} == {"eval"}
        if not is_switched and not _is_only_read(trace, forward):
            continue
        leaves = forward.pass_ in trace.escaped_passes
        if (leaves and forward.pass_ not in trace.stored_passes) or _starts_at_inputs(forward):
            continue  # whoever receives it may still differentiate it
        switched = _switch(trace, forward) if is_switched else None
        is_called_unseen = forward.scene.entry.kind == "method"
        loop = _loop_of(forward)
        # Several forwards of one evaluation are one finding, at the first of them.
        site = first_in_loop.setdefault((loop, forward.module.id), _site(forward, switched))
        yield Hit(
            site,
            _severity(trace, forward, is_switched),
            weaker(grade(int(forward.belief)), grade(int(leaves or is_called_unseen))),
            f"this evaluation of {called(_whole(trace, forward.module), 'the model')} records a graph that "
            "nothing uses: it needs about the memory of training. Switch autograd off with torch.no_grad()."
            + doubt(
                (forward.belief, known_by(forward.module)),
                (leaves, "its result goes into a call that is not seen"),
                (is_called_unseen, "who calls this method is not seen"),
            ),
            _chain(trace, forward, switched),
            frozenset({("pass", forward.pass_)}),
            None if _trains_inside(trace, forward) else _Found(forward, _nothing_leaves(trace, forward)),
        )


def _starts_at_inputs(forward: Forward) -> bool:
    """Were its inputs told to require gradients, as for an equation with derivatives by them?"""
    return any(LEAF in one.taint for value in forward.arguments for one in _tensors(value))


def _guards_itself(trace: Trace, forward: Forward) -> bool:
    """Does the forward switch autograd off for all that it runs, with no parameters of its own beside?"""
    whole = (forward.module, *trace.parts(forward.module.id))
    return trace.passes[forward.pass_].is_quiet and not any(one.kind is Kind.PARAMETER for one in whole)


def _severity(trace: Trace, forward: Forward, is_switched: bool) -> Severity:
    if _is_trial(trace, forward) or (not trace.backwards and _is_measured(forward)):
        return Severity.HINT
    is_data_apart = bool(forward.sources) and not any(
        trace.is_training_source(source) for source in forward.sources
    )
    return Severity.WARNING if is_switched or is_data_apart else Severity.HINT


def _is_only_read(trace: Trace, forward: Forward) -> bool:
    """Does a module that is trained elsewhere run here for numbers alone?

    Its results are taken out of the graph and go neither into a loss nor into another forward that trains,
    nor is this very call a training step on another path, or under a caller that other runs come from. A part
    that was not followed to its end says nothing.
    """
    if not trace.trained_modules & set(trace.lineage(forward.module.id)):
        return False
    if forward.pass_ not in trace.once("read passes", lambda: _read_passes(trace)):
        return False
    if forward.pass_ in trace.returned_passes | trace.stored_passes or trace.is_cut_short(forward):
        return False
    training = trace.once("training calls", lambda: _training_calls(trace)).get(forward.place, ())
    judged = tuple(call.place for call in forward.calls)
    return not any(calls[len(calls) - len(judged) :] == judged for calls in training)


def _read_passes(trace: Trace) -> frozenset[int]:
    """Passes whose values are taken out of the graph and feed nothing that trains."""
    read = {p for event in trace.of(GraphCut) for p in event.value.passes}
    for event in trace.of_any(Forward, LossCall):
        is_apart = isinstance(event, Forward) and event.pass_ not in trace.used
        given = event.arguments if not is_apart else ()
        for value in given:
            read -= {p for one in _tensors(value) if one.cut is not None for p in one.cut.passes}
    return frozenset(read)


def _tensors(value: Value) -> Iterator[Tensor]:
    return (one for one in alternatives(value) if isinstance(one, Tensor))


def _training_calls(trace: Trace) -> dict[Place, set[tuple[Place, ...]]]:
    """How the forwards of each place that train were called."""
    passes = trace.used | trace.escaped_passes
    found: dict[Place, set[tuple[Place, ...]]] = {}
    for forward in trace.forwards:
        if forward.pass_ in passes:
            found.setdefault(forward.place, set()).add(tuple(call.place for call in forward.calls))
    return found


def _switch(trace: Trace, forward: Forward) -> ModeChange | None:
    """The eval() that put the module in eval mode."""
    places = {mode.place for mode in forward.modes if mode.name == "eval" and mode.place is not None}
    changes = (change for change in trace.at(ModeChange, places, forward.order) if change.to == "eval")
    return max(changes, key=lambda change: change.order, default=None)


def _whole(trace: Trace, module: Obj) -> Obj:
    """The model that a layer is a part of, when one of its methods other than forward ran the layer."""
    named = [trace.objects[oid] for oid in trace.lineage(module.id) if oid in trace.objects]
    return next((o for o in reversed(named) if o.kind is Kind.MODULE and o.name), module)


_NEAR = 2  # calls between the function that evaluates and the forward


def _site(forward: Forward, switched: ModeChange | None) -> Place:
    """In the function that chose to evaluate: the helper that it calls may be right for training as well."""
    if switched is None:
        return forward.place
    near = forward.calls[-_NEAR:]
    return next((c.place for c in near if c.frame == switched.scene.frame), forward.place)


def _nothing_leaves(trace: Trace, forward: Forward) -> bool:
    """No value with this graph is kept, escapes or is returned: then only memory changes without it."""
    leaving = (trace.escaped_passes, trace.stored_passes, trace.returned_passes)
    return not any(forward.pass_ in passes for passes in leaving)


def _is_trial(trace: Trace, forward: Forward) -> bool:
    """A few turns of a literal loop beside no training: a warm-up, a measurement."""
    loops = [turn.loop for turn in forward.loops if not turn.loop.is_call]
    trains = trace.training_loops()
    return trace.is_bounded(loops) and not any(loop.place in trains for loop in loops)


def _is_measured(forward: Forward) -> bool:
    """Is all that it gets made up on the spot (`torch.ones(shape)`)? Speed or size is measured then."""
    given = [value for value in forward.arguments if isinstance(value, Tensor)]
    return bool(given) and all(_is_made_up(value.evidence) for value in given)


_MADE_UP = frozenset(
    f"{factory} makes a new tensor" for factory in ("ones", "zeros", "rand", "randn", "randint", "empty")
)


def _is_made_up(link: Link | None) -> bool:
    while link is not None:
        if link.fact in _MADE_UP:
            return True
        link = link.before
    return False


def _loop_of(forward: Forward) -> Place | None:
    return next((turn.loop.place for turn in reversed(forward.loops) if not turn.loop.is_call), None)


def _trains_inside(trace: Trace, forward: Forward) -> bool:
    """The innermost loop also holds a training forward: no_grad around it would end training."""
    return _loop_of(forward) in trace.used_loops


def _chain(trace: Trace, forward: Forward, switched: ModeChange | None) -> tuple[Evidence, ...]:
    links: list[Evidence] = []
    if switched is not None:
        links += step(switched.place, "eval() changes layers, it does not switch autograd off")
    links += step(_loop_of(forward), "each turn of this loop records a graph")
    links += step(forward.place, "the forward; no backward of the run reaches it")
    for backward in trace.backwards[:1]:
        links += step(backward.place, "the training backward uses other forwards")
    return distinct(links)


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Switch autograd off around the loop: with torch.no_grad()"
    if not isinstance(hit.facts, _Found):
        yield Fix("Switch autograd off around the evaluation", Safety.ADVICE, ())
        return
    forward, is_closed = hit.facts
    loop = _loop_around(file, hit.place, forward)
    if loop is None:
        yield Fix(title, Safety.ADVICE, ())
        return
    torch_name, import_edit = name_for_module(file, "torch")
    edits = indent_under(file, loop, f"with {torch_name}.no_grad():")
    if edits is None:
        yield Fix(title, Safety.ADVICE, ())
        return
    safety = Safety.SAFE if is_closed else Safety.UNSAFE
    yield Fix(title, safety, edits if import_edit is None else (import_edit, *edits))


def _loop_around(file: SourceFile, place: Place, forward: Forward) -> nodes.Span | None:
    """The innermost loop statement that holds the finding; its comprehension's statement else."""
    if place.path != file.path:
        return None
    loops = [t.loop for t in forward.loops if not t.loop.is_call]
    if loops and loops[-1].kind is LoopKind.COMPREHENSION:
        found = innermost_statement(file.module, place.span)
        is_simple = found is not None and isinstance(
            found[0], nodes.Assign | nodes.ExprStmt | nodes.AugAssign
        )
        return found[1] if found is not None and is_simple else None
    inner = None
    for statement, span in statements(file.module):
        is_loop = isinstance(statement, nodes.For | nodes.While)
        if is_loop and span.line <= place.span.line and place.span.end_line <= span.end_line:
            inner = span
    return inner

"""reseed-in-loop: the random numbers start over in every step."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ApiCall, Event, Step
from torchwise_analysis.interp.abstract.loops import LoopKind, Turn
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Obj, Origin, Unknown
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import in_file
from torchwise_analysis.rules._reading import distinct, happens_each_turn, loop_words

WRONG = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, seed):
    for x, y in loader:
        torch.manual_seed(seed)
        ^^^^^^^^^^^^^^^^^^^^^^^ reseed-in-loop warning certain
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, seed):
    torch.manual_seed(seed)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW707",
    name="reseed-in-loop",
    category=Category.DATA,
    severity=Severity.WARNING,
    claim="A random generator gets the same seed in every step of the training loop.",
    cost=(
        "Dropout switches off the same units in every step, noise and augmentation repeat, and sampling "
        "draws the same numbers: the model is regularised against one draw instead of many. It looks "
        "reproducible and generalises worse."
    ),
    wrong=Example("Seeded in each step", WRONG),
    right=Example("Seeded once", RIGHT),
    silent=(
        "the seed depends on the epoch, the step or the rank",
        "behind any test in the loop, or inside `fork_rng`",
        "loops that do not train: the same noise for each evaluation is often meant",
        "a loop of folds or runs, in which model and optimizer are made anew",
    ),
    grading="Always a warning. Certain: the seed is seen not to change in the loop.",
    fix="Advice: seed once in front of the loop, or add the step to the seed.",
    references=(
        Reference("Reproducibility", "https://docs.pytorch.org/docs/stable/notes/randomness.html"),
        Reference(
            "torch.manual_seed", "https://docs.pytorch.org/docs/stable/generated/torch.manual_seed.html"
        ),
    ),
    examples=(
        Example(
            "Folds begin anew with the same numbers",
            """
import torch
from torch import nn


def validate(folds):
    for loader in folds:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "At the head of each epoch",
            """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, seed):
    for epoch in range(100):
        torch.manual_seed(seed)
        ^^^^^^^^^^^^^^^^^^^^^^^ reseed-in-loop
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "A constant, in NumPy",
            """
import numpy as np
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        np.random.seed(0)
        ^^^^^^^^^^^^^^^^^ reseed-in-loop warning certain
        x = x + torch.as_tensor(np.random.normal(size=12))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The step is part of the seed",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, seed):
    for step, (x, y) in enumerate(loader):
        torch.manual_seed(seed + step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The same noise in each evaluation",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, held_out):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in held_out:
            torch.manual_seed(0)
            print(model(x + torch.randn_like(x)).argmax(1))
""",
        ),
        Example(
            "Runs with seeds of their own",
            """
import torch
from torch import nn


def compare(loader, seeds):
    for seed in seeds:
        torch.manual_seed(seed)
        model = nn.Linear(12, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
    ),
)

_SEEDS = (
    "torch.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "numpy.random.seed",
    "random.seed",
)


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.api("torch.random.fork_rng"):
        return
    for call in trace.api(*_SEEDS):
        if not call.loops or not _is_fixed(call) or not happens_each_turn(trace, call):
            continue
        turn = call.loops[-1]
        step = next((s for s in trace.updates if s.loops[: len(call.loops)] == call.loops), None)
        if step is None or not (_is_step_loop(turn, call, step) or _is_epoch_loop(trace, turn, call, step)):
            continue
        yield Hit(
            in_file(trace, call),
            Severity.WARNING,
            Confidence.CERTAIN,
            f"the same seed in every turn of the {loop_words(turn.loop)}: dropout and noise repeat "
            f"themselves in each {'step' if _is_step_loop(turn, call, step) else 'epoch'}. Seed once, "
            "in front of the loop.",
            distinct(
                (
                    Evidence(turn.loop.place, "this loop trains"),
                    Evidence(call.place, "and starts the numbers over"),
                )
            ),
            frozenset({("seed", call.place)}),
        )


def _is_step_loop(turn: Turn, call: ApiCall, step: Event) -> bool:
    return turn.loop.takes_batches and len(step.loops) == len(call.loops)


def _is_epoch_loop(trace: Trace, turn: Turn, call: ApiCall, step: Event) -> bool:
    """Epochs of one run: what trains in them was made before. Folds and other runs begin anew on purpose."""
    inner = step.loops[len(call.loops) :]
    if not isinstance(step, Step) or not _is_called_beside(trace, call, step):
        return False
    is_epoch = turn.loop.kind is LoopKind.RANGE and [t.loop.kind for t in inner] == [LoopKind.BATCHES]
    return is_epoch and step.optimizer.origin is Origin.BUILT and turn not in step.optimizer.birth


def _is_called_beside(trace: Trace, call: ApiCall, step: Event) -> bool:
    """In the function that trains, or in a helper that does nothing but seed. A function that seeds and runs
    a model is an evaluation, which may want the same noise each time."""
    path = call.calls
    while step.calls[: len(path)] != path:
        if any(forward.calls[: len(path)] == path for forward in trace.forwards):
            return False
        path = path[:-1]
    return True


def _is_fixed(call: ApiCall) -> bool:
    """Is the seed the same in every turn, as far as its value tells?"""
    seed = call.arguments.get("seed", 0) or call.arguments.get("a")
    if isinstance(seed, Const):
        return seed.counter is None and seed.value is not None
    if isinstance(seed, Unknown):
        return seed.symbol is not None and not seed.varies and not seed.taint and "(" not in seed.symbol
    return isinstance(seed, Obj) and seed.symbol is not None and not seed.birth and not seed.traits


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Seed once, in front of the loop", Safety.ADVICE, ())

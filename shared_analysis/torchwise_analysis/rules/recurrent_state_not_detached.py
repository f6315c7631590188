"""recurrent-state-not-detached: each backward runs through the state of all earlier iterations."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, Forward
from torchwise_analysis.interp.abstract.loops import Loop
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, grade, loop_words, step

WRONG = """
import torch
from torch import nn

rnn, head = nn.GRU(8, 16), nn.Linear(16, 4)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)


def train(chunks):
    state = None
    for x, y in chunks:
        out, state = rnn(x, state)
                     ^^^^^^^^^^^^^ recurrent-state-not-detached error certain
        loss = nn.functional.cross_entropy(head(out[-1]), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

rnn, head = nn.GRU(8, 16), nn.Linear(16, 4)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)


def train(chunks):
    state = None
    for x, y in chunks:
        out, state = rnn(x, state)
        state = state.detach()
        loss = nn.functional.cross_entropy(head(out[-1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW104",
    name="recurrent-state-not-detached",
    category=Category.AUTOGRAD,
    severity=Severity.ERROR,
    claim="State enters the next iteration with its graph, and every iteration runs backward.",
    cost=(
        "Step n runs backward through all n chunks so far: time and memory of a step grow without end until "
        "the run is out of memory, and old chunks are trained on again and again with weights that have "
        "moved since. `retain_graph=True` is what hides the error that PyTorch would raise."
    ),
    wrong=Example("Truncated backpropagation without truncation", WRONG),
    right=Example("The state is detached between chunks", RIGHT),
    silent=(
        "the state is detached, re-created, or made under `no_grad` on the way: `detach`, `detach_`, a "
        "helper that repackages it, `.data`",
        "one backward follows the whole unrolled sequence",
        "the graph is not retained: then PyTorch raises by itself",
        "a loop of a small literal number of iterations",
    ),
    grading=(
        "Always an error. Certain when the module that carries the state is made in view; likely when it "
        "is only taken for one."
    ),
    fix=(
        "Advice only: detach the state where the iteration ends (each tensor of a tuple) and drop "
        "`retain_graph=True`."
    ),
    references=(
        Reference(
            "Tensor.backward",
            "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",
        ),
        Reference(
            "yunjey/pytorch-tutorial#90: what does detach(states) do?",
            "https://github.com/yunjey/pytorch-tutorial/issues/90",
        ),
        Reference("dpressel/dliss-tutorial#1", "https://github.com/dpressel/dliss-tutorial/issues/1"),
    ),
    examples=(
        Example(
            "A pair of states that is carried on",
            """
import torch
from torch import nn

lstm, out = nn.LSTM(8, 16), nn.Linear(16, 4)
optimizer = torch.optim.SGD([*lstm.parameters(), *out.parameters()], lr=0.1)


def train(chunks):
    h, c = torch.zeros(1, 4, 16), torch.zeros(1, 4, 16)
    for x, y in chunks:
        hidden, (h, c) = lstm(x, (h, c))
                         ^^^^^^^^^^^^^^^ recurrent-state-not-detached
        loss = nn.functional.cross_entropy(out(hidden).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
""",
        ),
        Example(
            "State in an attribute of the model",
            """
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.out = nn.Linear(16, 4)
        self.state = None

    def forward(self, x):
        hidden, self.state = self.lstm(x, self.state)
        return self.out(hidden)


def train(loader):
    tagger = Tagger()
    optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.cross_entropy(tagger(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ recurrent-state-not-detached error certain
        optimizer.step()
""",
        ),
        Example(
            "A helper that repackages the state",
            """
import torch
from torch import nn

rnn, head = nn.LSTM(8, 16), nn.Linear(16, 4)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)


def repackage(state):
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage(v) for v in state)


def train(chunks, state):
    for x, y in chunks:
        state = repackage(state)
        out, state = rnn(x, state)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(out[-1]), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "One backward for the whole sequence",
            """
import torch
from torch import nn

cell, head = nn.GRUCell(8, 16), nn.Linear(16, 4)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)


def train(loader):
    for sequence, y in loader:
        state = torch.zeros(len(y), 16)
        for x in sequence:
            state = cell(x, state)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(state), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Several losses over one graph of this iteration",
            """
import torch
from torch import nn

trunk, heads = nn.Linear(12, 12), nn.ModuleList([nn.Linear(12, 4), nn.Linear(12, 4)])
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)


def train(loader):
    for x, first, second in loader:
        h = trunk(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(heads[0](h), first).backward(retain_graph=True)
        nn.functional.cross_entropy(heads[1](h), second).backward()
        optimizer.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    done: set[int] = set()
    for one in trace.backwards:
        if one.retain and one.retain_known and one.how != "autograd.grad" and not one.create_graph:
            found = _carried(trace, one, done)
            if found is not None:
                yield _hit(one, *found)
        done |= one.passes


def _carried(trace: Trace, one: Backward, done: set[int]) -> tuple[Loop, list[Forward], list[Forward]] | None:
    """A loop of whose iterations `one` reaches this one and an earlier one that had its backward."""
    for turn in reversed(one.loops):
        if turn.loop.count is not None and trace.is_bounded((turn.loop,)):
            continue
        forwards = [trace.forward_of(p) for p in sorted(one.passes)]
        old = [f for f in forwards if f.pass_ in done and _iteration(f, turn.loop) < turn.iteration]
        new = [f for f in forwards if _iteration(f, turn.loop) == turn.iteration]
        old = [f for f in old if _iteration(f, turn.loop) >= 0]
        if old and new:
            return turn.loop, old, new
    return None


def _iteration(forward: Forward, loop: Loop) -> int:
    return next((t.iteration for t in forward.loops if t.loop.place == loop.place), -1)


def _hit(one: Backward, loop: Loop, old: list[Forward], new: list[Forward]) -> Hit:
    passes = frozenset(forward.pass_ for forward in old)
    carrier = next((forward for forward in new if forward.inputs & passes), None)
    place = one.place if carrier is None else carrier.place
    return Hit(
        place,
        Severity.ERROR,
        _confidence(carrier or new[0]),
        "the state of earlier iterations comes in with its graph, so each backward runs through all of them: "
        "time and memory grow with every step. Detach it between iterations.",
        distinct(_chain(one, loop, old, place)),
        frozenset(("pass", p) for p in one.passes),
        one,
    )


def _confidence(forward: Forward) -> Confidence:
    return grade(int(forward.belief))


def _chain(one: Backward, loop: Loop, old: list[Forward], place: Place) -> Iterator[Evidence]:
    yield from step(old[0].place, "an earlier iteration makes this graph")
    yield Evidence(place, "it goes on here in the next one")
    yield from step(one.place, "this backward runs through both and keeps them")
    yield from step(loop.place, f"the {loop_words(loop)} repeats it")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - the signature of BuildFixes
    yield Fix("Detach the state between iterations and drop retain_graph", Safety.ADVICE, ())

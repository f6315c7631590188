"""redundant-transfer: the same values are carried to the device again in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Touched, Transfer
from torchwise_analysis.interp.abstract.loops import Loop, inside
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Tensor
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, happens_each_turn, loop_words, step, turn_tests
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        ramp = torch.linspace(0.5, 1.5, 4).to(device)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ redundant-transfer hint certain
        loss = nn.functional.cross_entropy(model(x) * ramp, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        ramp = torch.linspace(0.5, 1.5, 4, device=device)
        loss = nn.functional.cross_entropy(model(x) * ramp, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW805",
    name="redundant-transfer",
    category=Category.PERFORMANCE,
    severity=Severity.HINT,
    claim="A training step carries values to the device that it could have made there, or carried once.",
    cost=(
        "The host fills the tensor, copies it over the bus and, from memory that is not pinned, waits until "
        "the copy is done: the device stands still meanwhile. Small tensors cost tens of microseconds each, "
        "which is much where a step takes milliseconds."
    ),
    wrong=Example("Made on the host in every step", WRONG, fixed=RIGHT),
    right=Example("Made where it is used", RIGHT),
    silent=(
        "the batch itself, and whatever is computed from data of the step",
        "random tensors: the devices have random streams of their own, so the values would change",
        "a tensor that is written in place, or goes into code that may write it",
        "a second move to the same device, which does nothing",
        "code that trains nothing, and scripts that stay on the CPU",
    ),
    grading=(
        "A hint, and certain: the values are the same wherever they are made. What it costs depends on the "
        "length of the step."
    ),
    fix=(
        "Where a function of torch makes the tensor and only the result is used: give it `device=` and drop "
        "the move. Safe, the values are equal. Where a tensor is made before the loop: advice to move it "
        "there, or to register it as a buffer of the module."
    ),
    references=(
        Reference(
            "Performance Tuning Guide: avoid unnecessary CPU-GPU synchronization",
            "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
        Reference(
            "CUDA semantics: use pinned memory buffers",
            "https://docs.pytorch.org/docs/stable/notes/cuda.html",
        ),
    ),
    examples=(
        Example(
            "Made on the host in a loop of a forward",
            """
import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(12, 12) for _ in range(levels))

    def forward(self, x):
        offsets = torch.zeros(12).to(x.device)
        for level in self.levels:
            steps = torch.arange(12).to(x.device)
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ redundant-transfer hint certain
            x = level(x) + steps + offsets
        return x
""",
        ),
        Example(
            "Class weights, made once and carried in every step",
            """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.tensor([1.0, 2.0, 1.0, 4.0])


def train(loader):
    for x, y in loader:
        logits = model(x.to(device))
        balance = weights.to(device)
                  ^^^^^^^^^^^^^^^^^^ redundant-transfer hint certain
        loss = nn.functional.cross_entropy(logits, y.to(device), weight=balance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "The same written numbers in every step",
            """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        mean = torch.tensor([0.485, 0.456, 0.406]).to(device)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ redundant-transfer hint certain
        loss = nn.functional.cross_entropy(model(x.to(device)) - mean, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Positions in a forward",
            """
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 8), nn.Embedding(32, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        where = torch.arange(ids.shape[1]).to(ids.device)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ redundant-transfer hint certain
        return self.head(self.words(ids) + self.places(where))


def train(loader):
    model = Tagger().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, tags in loader:
        loss = nn.functional.cross_entropy(model(ids.cuda()).flatten(0, 1), tags.cuda().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            fixed="""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 8), nn.Embedding(32, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        where = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.words(ids) + self.places(where))


def train(loader):
    model = Tagger().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, tags in loader:
        loss = nn.functional.cross_entropy(model(ids.cuda()).flatten(0, 1), tags.cuda().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Random noise: another device draws other numbers",
            """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        noise = torch.randn(4).to(device)
        loss = nn.functional.cross_entropy(model(x.to(device)) + noise, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Written between two moves",
            """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = torch.zeros(4)


def train(loader):
    for x, y in loader:
        seen[0] += len(y)
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device), weight=seen.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A graph takes its tensors along",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(graph, epochs):
    graph.features["place"] = torch.ones(100, 12)
    graph = graph.to("cuda")
    for epoch in range(epochs):
        loss = model(graph.features["place"].to("cuda")).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Moved before the loop, and a type is no device",
            """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.tensor([1.0, 2.0, 1.0, 4.0]).to(device)


def train(loader):
    for x, y in loader:
        shift = torch.zeros(4, device=device).to(torch.float32)
        loss = nn.functional.cross_entropy(model(x.to(device)) + shift, y.to(device), weight=weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    factory: str
    device: str


def detect(trace: Trace) -> Iterator[Hit]:
    stepping = {id(turn.loop) for one in trace.updates for turn in one.loops if not turn.loop.is_call}
    touched = {id(event.value) for event in trace.of(Touched)}
    for move in trace.of(Transfer):
        value, depth = move.value, _depth(move, stepping)
        if depth is None and move.factory:
            depth = _inside_forward(trace, move)
        if depth is None or not _is_device(move.device) or not isinstance(value, Tensor):
            continue
        if value.device != "cpu" or not _is_regular(trace, move, depth):
            continue
        loop = move.loops[depth].loop
        if move.factory:
            yield _hit(move, loop, f"`{move.factory}` can make its result on the device: give it `device=`.")
        elif _is_constant(move, value, stepping, touched):
            yield _hit(
                move,
                loop,
                "the same values go to the device again in every step. Move them once, "
                "before the loop, or register them as a buffer.",
            )


def _is_regular(trace: Trace, move: Transfer, depth: int) -> bool:
    if move.scene.forward is not None and not any(one.loops for one in trace.updates):
        return not turn_tests(move, depth)
    return happens_each_turn(trace, move, depth)


_DEVICES = frozenset(["cuda", "mps", "xpu", "npu", "hpu", "xla", "rank", "local_rank", "gpu"])


def _is_device(written: str | None) -> bool:
    """`x.to(dtype)` is written like a move; only what is called so is taken for a device."""
    last = (written or "").rpartition(".")[2].lower()
    return last in _DEVICES or "dev" in last


def _depth(move: Transfer, stepping: set[int]) -> int | None:
    """Which of the loops around the move is the innermost one in which an optimizer steps."""
    return max((n for n, turn in enumerate(move.loops) if id(turn.loop) in stepping), default=None)


def _inside_forward(trace: Trace, move: Transfer) -> int | None:
    """Which of the loops is the innermost one in the forward of a module: it runs in every step."""
    forward = trace.passes[move.scene.forward].forward if move.scene.forward is not None else None
    if forward is None or True not in forward.grad or not move.loops:
        return None
    turn = move.loops[-1]
    is_inside = len(move.loops) > len(forward.loops) and not turn.loop.is_call and turn.loop.count is None
    return len(move.loops) - 1 if is_inside else None


def _is_constant(move: Transfer, value: Tensor, stepping: set[int], touched: set[int]) -> bool:
    """Made before the loop by a call in view, and nobody has written it since."""
    if move.birth is None or id(value) in touched or value.passes:
        return False
    outlived = {id(turn.loop) for turn in inside(move.loops, move.birth)}
    # in the second turn the value is still on the host: nobody kept what the first turn moved
    is_repeated = any(turn.iteration > 0 and id(turn.loop) in outlived for turn in move.loops)
    return is_repeated and bool(outlived & stepping)


def _role(move: Transfer) -> str:
    return "trains" if move.scene.forward is None else "is part of a forward"


def _hit(move: Transfer, loop: Loop, message: str) -> Hit:
    return Hit(
        move.place,
        Severity.HINT,
        Confidence.CERTAIN,
        message,
        distinct(
            (
                *step(move.made, "made in the memory of the host"),
                Evidence(loop.place, f"the {loop_words(loop)} {_role(move)}"),
                Evidence(move.place, "and carries it to the device every time"),
            )
        ),
        frozenset({("move", move.place)}),
        _Found(move.factory, move.device or ""),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    if not hit.facts.factory:
        yield Fix("Move it once, before the loop", Safety.ADVICE, ())
        return
    edits = _edits(file, hit.place)
    yield Fix("Make it on the device", Safety.SAFE if edits else Safety.ADVICE, edits)


def _edits(file: SourceFile, place: Place) -> tuple[Edit, ...]:
    """`torch.arange(n).to(d)` -> `torch.arange(n, device=d)`; nothing when more than the device is given."""
    call = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(call, nodes.Call) or not isinstance(call.func, nodes.Attribute):
        return ()
    made = call.func.value
    if not isinstance(made, nodes.Call) or not (made.args or made.keywords):
        return ()
    device = _device(file, call, place.span.line - call.span.line)
    if device is None:
        return ()
    shift = place.span.line - call.span.line
    end = made.span.shifted(shift)
    close = nodes.Span(end.end_line, end.end_column - 1, place.span.end_line, place.span.end_column)
    inner = nodes.Span(end.line, end.column, end.end_line, end.end_column - 1)
    comma = "" if file.slice(inner).rstrip().endswith(",") else ","
    return (Edit(Place(file.path, close), f"{comma} device={device})"),)


def _device(file: SourceFile, call: nodes.Call, shift: int) -> str | None:
    assert isinstance(call.func, nodes.Attribute)  # the caller looked
    if call.func.attr == "cuda":
        return '"cuda"' if not (call.args or call.keywords) else None
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], nodes.Starred):
        return None
    text = file.slice(call.args[0].span.shifted(shift))
    is_named = (
        isinstance(call.args[0], nodes.Name | nodes.Attribute) and "dev" in text.rpartition(".")[2].lower()
    )
    is_text = isinstance(call.args[0], nodes.Constant) and isinstance(call.args[0].value, str)
    return text if is_named or is_text else None

"""sync-in-hot-loop: the host asks the device for one element at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import HostSync, LoopLeft
from torchwise_analysis.interp.abstract.loops import LoopKind, Turn
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import OF_GRADIENTS
from torchwise_analysis.rules._accelerators import first_transfer, is_made_by_model
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, loop_words, turn_tests

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    right = 0
    for x, y in loader:
        scores = model(x.cuda())
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y.cuda()).backward()
        optimizer.step()
        for row in scores.argmax(1):
            right += row.item() == 3
                     ^^^^^^^^^^ sync-in-hot-loop warning certain
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    right = torch.zeros((), dtype=torch.long, device="cuda")
    for x, y in loader:
        scores = model(x.cuda())
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y.cuda()).backward()
        optimizer.step()
        right += (scores.argmax(1) == 3).sum()
"""

RULE = Rule(
    code="TW802",
    name="sync-in-hot-loop",
    category=Category.PERFORMANCE,
    severity=Severity.WARNING,
    claim="Inside a training step, a loop over elements reads values from the device one by one.",
    cost=(
        "Each read waits until the device has finished everything before it, copies four bytes, and leaves "
        "the device without work until the host has caught up. With hundreds of reads in a step the GPU "
        "mostly idles. One project's step became about twice as fast without them."
    ),
    wrong=Example("One read for each row", WRONG),
    right=Example("Counted on the device", RIGHT),
    silent=(
        "nothing in the script moves to an accelerator, or the value lies on the host (`.cpu()`, NumPy)",
        "behind a test of a counter, such as logging every hundredth step",
        "a short literal loop, or a loop that runs a forward in each turn",
        "a forward that reads whether to go on: what a decoder stops by is not known before",
        "loops that do not train",
    ),
    grading="Always a warning. Certain: a model's output is read and data is seen to move to a device.",
    fix="Advice: reduce on the device and read once, or move the whole tensor with one `.tolist()`.",
    references=(
        Reference(
            "Performance tuning guide: avoid unnecessary CPU-GPU synchronization",
            "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
        Reference(
            "CUDA semantics: asynchronous execution",
            "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
        ),
    ),
    examples=(
        Example(
            "Norms of single parameters",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, found):
    for x, y in loader:
        scores = model(x.cuda())
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y.cuda()).backward()
        optimizer.step()
        for score in scores:
            found.append(score.max().item())
                         ^^^^^^^^^^^^^^^^^^ sync-in-hot-loop
""",
        ),
        Example(
            "Gradients that are looked at one by one, in a helper",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def is_broken(module):
    for p in module.parameters():
        if p.grad is not None and torch.isnan(p.grad).any().item():
                                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ sync-in-hot-loop warning certain
            return True
    return False


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        if not is_broken(model):
            optimizer.step()
""",
        ),
        Example(
            "Gradients that are looked at together, and norms of some",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        broken = torch.stack([torch.isnan(p.grad).any() for p in model.parameters()]).any()
        optimizer.step()
        if step % 100 == 0 and broken:
            print([p.grad.norm().item() for p in model.parameters()])
""",
        ),
        Example(
            "Counted by index",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, names):
    for x, y in loader:
        scores = model(x.cuda())
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y.cuda()).backward()
        optimizer.step()
        for i in range(len(scores)):
            names.append(scores[i].argmax().item())
                         ^^^^^^^^^^^^^^^^^^^^^^^^^ sync-in-hot-loop warning certain
""",
        ),
        Example(
            "Moved once, read on the host",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    right = 0
    for i, (x, y) in enumerate(loader):
        scores = model(x.cuda())
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y.cuda()).backward()
        optimizer.step()
        if i % 100 == 0:
            for row in scores.argmax(1).cpu():
                right += row.item() == 3
""",
        ),
        Example(
            "A script for the CPU",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    right = 0
    for x, y in loader:
        scores = model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y).backward()
        optimizer.step()
        for row in scores.argmax(1):
            right += row.item() == 3
""",
        ),
        Example(
            "Three heads, in a literal",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        scores = model(x.cuda())
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y.cuda()).backward()
        optimizer.step()
        if i % 10 == 0:
            for column in (0, 1, 2):
                print(scores[:, column].mean().item())
""",
        ),
    ),
)

_READS = ("item", "tolist", "float()", "int()", "bool()", "numpy", "if")
_ELEMENTS = (LoopKind.TENSOR, LoopKind.RANGE)
_PARAMETERS = (LoopKind.PARAMETERS, LoopKind.LIST, LoopKind.COMPREHENSION)


def detect(trace: Trace) -> Iterator[Hit]:
    move = first_transfer(trace)
    if move is None:
        return
    stepping = {s.loops[-1].loop.place for s in trace.updates if s.loops}
    running = {turn.loop.place for forward in trace.forwards for turn in forward.loops}
    for read in trace.of(HostSync):
        turns = [turn for turn in read.loops if not turn.loop.is_call]
        if read.how not in _READS or not is_made_by_model(read.value) or _is_rare(read, stepping):
            continue
        if read.scene.forward is not None and _ends_loop(trace, read):
            continue
        of_gradients = read.value is not None and OF_GRADIENTS in read.value.taint and not read.summed
        kinds = (*_ELEMENTS, *_PARAMETERS) if of_gradients else _ELEMENTS
        if len(turns) > 1 and _is_per_element(trace, turns, kinds, stepping, running):
            yield _hit(read, turns[-1], move.place, of_gradients)


def _is_rare(read: HostSync, stepping: set[Place]) -> bool:
    """Does a test inside the loop that steps choose some of its turns?"""
    depth = max((n for n, turn in enumerate(read.loops) if turn.loop.place in stepping), default=0)
    return any(guard.kind in ("periodic", "flag", "rank", "handler") for guard in turn_tests(read, depth))


def _ends_loop(trace: Trace, read: HostSync) -> bool:
    """Is the loop left by what is read?"""
    places = {
        guard.place
        for one in trace.of(LoopLeft)
        if one.loops and one.loops[-1].loop.place == read.loops[-1].loop.place
        for guard in one.scene.guards
    }
    at = read.place.span
    return any(
        place.path == read.place.path
        and (place.span.line, place.span.column) <= (at.line, at.column)
        and (at.end_line, at.end_column) <= (place.span.end_line, place.span.end_column)
        for place in places
    )


def _is_per_element(
    trace: Trace, turns: list[Turn], kinds: Collection[LoopKind], stepping: set[Place], running: set[Place]
) -> bool:
    """Is the innermost loop one over elements, inside a loop that steps?"""
    inner = turns[-1].loop
    if inner.kind not in kinds or inner.place in running or trace.is_bounded([inner]):
        return False
    return any(turn.loop.place in stepping for turn in turns[:-1])


def _hit(read: HostSync, turn: Turn, moved: Place, of_gradients: bool) -> Hit:
    words = loop_words(turn.loop)
    if of_gradients:
        message = "waits for the device to read the gradient of one parameter. Combine them on the device"
    else:
        message = "waits for the device to read one element. Reduce on the device"
    return Hit(
        read.place,
        Severity.WARNING,
        Confidence.CERTAIN,
        f"every turn of the {words} {message}, or read all at once with `.tolist()`.",
        distinct(
            (
                Evidence(moved, "data moves to a device here"),
                Evidence(turn.loop.place, "this loop runs in each training step"),
                Evidence(read.place, "and waits here, once for each element"),
            )
        ),
        frozenset({("sync", read.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Reduce on the device and read once", Safety.ADVICE, ())

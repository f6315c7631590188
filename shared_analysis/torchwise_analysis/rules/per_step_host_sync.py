"""per-step-host-sync: each training step waits to log a number."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, HostSync
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._accelerators import first_transfer, is_made_by_model
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, happens_each_turn

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        print(step, loss.item())
                    ^^^^^^^^^^^ per-step-host-sync hint certain
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, loss.item())
"""

RULE = Rule(
    code="TW803",
    name="per-step-host-sync",
    category=Category.PERFORMANCE,
    severity=Severity.HINT,
    claim="Every training step reads a number from the device, mostly to log it.",
    cost=(
        "The host waits for the step to finish and can prepare the next one only then, so that short steps "
        "leave the device idle in between. Reports differ: 5 to 10 % of the time in one project, 40 ms a "
        "step in another, next to nothing in a third. Measure before changing code."
    ),
    wrong=Example("Printed in each step", WRONG),
    right=Example("Every hundredth step", RIGHT),
    silent=(
        "behind any test in the loop, such as one of a counter (tests around it, or that leave it, are none)",
        "nothing in the script moves to an accelerator, or the value lies on the host",
        "one finding for each loop; loops that do not train",
    ),
    grading=(
        "Always a hint: the code is right. Certain: a model's output is read in the loop that steps. "
        "Possible where the number is only added up (`total += loss.item()`): nearly every script does so, "
        "and what it costs depends on how short the steps are."
    ),
    fix="Advice: add the detached value up on the device and read it every k steps.",
    references=(
        Reference(
            "Performance tuning guide: avoid unnecessary CPU-GPU synchronization",
            "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
        Reference(
            "pytorch/torchtune#522: logging and synchronisation in each step",
            "https://github.com/pytorch/torchtune/issues/522",
        ),
    ),
    examples=(
        Example(
            "Shown beside a progress bar",
            """
import torch
from torch import nn
from tqdm import tqdm

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    bar = tqdm(loader)
    for x, y in bar:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item())
                             ^^^^^^^^^^^ per-step-host-sync
""",
        ),
        Example(
            "Added up in each step; only the first wait is reported",
            """
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    total = right = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
                 ^^^^^^^^^^^ per-step-host-sync hint possible
        right += (scores.argmax(1) == y).sum().item()
    return total, right
""",
        ),
        Example(
            "Kept on the device, read once",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    total = torch.zeros((), device="cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item()
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
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())
""",
        ),
        Example(
            "Evaluation may wait",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()


def evaluate(loader):
    model.eval()
    with torch.no_grad():
        return sum(nn.functional.cross_entropy(model(x.cuda()), y.cuda()).item() for x, y in loader)
""",
        ),
    ),
)

_READS = ("item", "tolist", "float()", "int()", "numpy", "print", "cpu", "format")


def detect(trace: Trace) -> Iterator[Hit]:
    move = first_transfer(trace)
    if move is None:
        return
    stepping = {s.loops[-1].loop.place for s in trace.updates if s.loops}
    stepping |= {b.loops[-1].loop.place for b in trace.backwards if _is_micro(b, stepping)}
    turns: dict[Place, set[int]] = {}
    for read in trace.of(HostSync):
        if read.loops:
            turns.setdefault(read.place, set()).add(read.loops[_depth(read)].iteration)
    seen: set[Place] = set()
    for read in sorted(trace.of(HostSync), key=lambda read: read.summed):
        turn = read.loops[_depth(read)] if read.loops else None
        if turn is None or not turn.loop.takes_batches or turn.loop.place not in stepping:
            continue
        if read.how not in _READS or not is_made_by_model(read.value):
            continue
        if trace.is_bounded(t.loop for t in read.loops if not t.loop.is_call):
            continue
        if turn.loop.place in seen or len(turns[read.place]) < 2:
            continue  # a counter that is known lets it through once
        if not happens_each_turn(trace, read, _depth(read)):
            continue
        seen.add(turn.loop.place)
        yield Hit(
            read.place,
            Severity.HINT,
            Confidence.POSSIBLE if read.summed else Confidence.CERTAIN,
            "this waits for the device in every training step. Reading every k steps, or adding up on the "
            "device, lets the host run ahead.",
            distinct(
                (Evidence(move.place, "data moves to a device here"), Evidence(read.place, "read back here"))
            ),
            frozenset({("sync", read.place)}),
        )


def _depth(read: HostSync) -> int:
    """Of the innermost loop, those over a few named things aside: losses, meters, parts of an output."""
    inner = 0
    for turn in reversed(read.loops):
        if turn.loop.kind not in (LoopKind.LIST, LoopKind.LITERAL):
            break
        inner += 1
    return max(len(read.loops) - 1 - inner, 0)


def _is_micro(backward: Backward, stepping: set[Place]) -> bool:
    """Does it run in a loop of micro-batches, around which the step happens?"""
    around = [turn.loop for turn in backward.loops[-2:]]
    return len(around) == 2 and around[1].takes_batches and around[0].place in stepping


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Read every k steps, or add the detached value up on the device", Safety.ADVICE, ())

"""empty-cache-in-loop: the allocator's cache is thrown away in every step."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._moving import removed
from torchwise_analysis.rules._processes import in_file
from torchwise_analysis.rules._reading import distinct, happens_each_turn, loop_words

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        torch.cuda.empty_cache()
        ^^^^^^^^^^^^^^^^^^^^^^^^ empty-cache-in-loop warning certain
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW804",
    name="empty-cache-in-loop",
    category=Category.PERFORMANCE,
    severity=Severity.WARNING,
    claim="The memory cache is emptied, or the garbage collector run, in every step of the training loop.",
    cost=(
        "`empty_cache` gives every free block back to the driver, and the next step asks for all of them "
        "again with `cudaMalloc`, which waits for the device. It does not lower the peak: what a step needs "
        "at once, it needs. A full `gc.collect` walks every Python object. Both cost time on every batch "
        "for nothing."
    ),
    wrong=Example("After every batch", WRONG, fixed=RIGHT),
    right=Example("The cache is kept", RIGHT),
    silent=(
        "once per epoch, between phases, or behind any test in the loop",
        "in the handler of an out-of-memory error",
        "loops that do not train, or a short literal number of times",
    ),
    grading="Always a warning. Certain: the call and a step stand in one loop.",
    fix="Remove the call. Unsafe: less memory may be free for other processes on the GPU.",
    references=(
        Reference(
            "CUDA semantics: memory management",
            "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        ),
        Reference(
            "torch.cuda.empty_cache",
            "https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html",
        ),
    ),
    examples=(
        Example(
            "In a helper of the step",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def learn(x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
    torch.cuda.empty_cache()
    ^^^^^^^^^^^^^^^^^^^^^^^^ empty-cache-in-loop


def train(loader):
    for x, y in loader:
        learn(x, y)
""",
        ),
        Example(
            "The collector, in a helper of the step",
            """
import gc

import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        gc.collect()
        ^^^^^^^^^^^^ empty-cache-in-loop warning certain
""",
        ),
        Example(
            "Once per epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.cuda.empty_cache()
""",
        ),
        Example(
            "Every hundredth batch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if i % 100 == 0:
            torch.cuda.empty_cache()
""",
        ),
        Example(
            "After running out of memory",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        try:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for call in trace.api("torch.cuda.empty_cache", "gc.collect"):
        if not call.loops or not happens_each_turn(trace, call):
            continue
        turn = call.loops[-1]
        if not _is_of_steps(turn.loop) or trace.is_bounded([turn.loop]):
            continue
        step = next((s for s in trace.updates if s.loops[: len(call.loops)] == call.loops), None)
        if step is None or len(step.loops) != len(call.loops):
            continue
        name = call.name.rpartition(".")[2]
        yield Hit(
            in_file(trace, call),
            Severity.WARNING,
            Confidence.CERTAIN,
            f"`{name}` runs in every turn of the {loop_words(turn.loop)}: memory is given back and fetched "
            "again, which waits for the device and lowers no peak. Leave it out, or run it once per epoch.",
            distinct(
                (
                    Evidence(turn.loop.place, "this loop trains"),
                    Evidence(call.place, "and does this each time"),
                )
            ),
            frozenset({("call", call.place)}),
        )


def _is_of_steps(loop: Loop) -> bool:
    return loop.takes_batches or loop.kind is LoopKind.UNBOUNDED


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    edit = removed(file, hit.place)
    title = "Leave the call out (the process keeps its memory)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))

"""accumulation-syncs-every-microbatch: gradients are averaged more often than they are used."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, Collective, NoSync, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt

WRONG = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, k):
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / k).backward()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ accumulation-syncs-every-microbatch
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

RIGHT = """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, k):
    for i, (x, y) in enumerate(loader):
        is_last = (i + 1) % k == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / k).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
"""

RULE = Rule(
    code="TW609",
    name="accumulation-syncs-every-microbatch",
    category=Category.DISTRIBUTED,
    severity=Severity.HINT,
    claim="A window of micro-batches under DistributedDataParallel averages its gradients in each of them.",
    cost=(
        "One average at the end of a window gives the same gradients. All others send every gradient of the "
        "model over the network for nothing, N - 1 times out of N. On slow links this is most of the step."
    ),
    wrong=Example("Averaged in each micro-batch", WRONG),
    right=Example("Averaged once for each step", RIGHT),
    silent=(
        "`no_sync` or `require_backward_grad_sync` is used anywhere for the model",
        "Accelerate's `accumulate`, Lightning, an engine",
        "FSDP, where skipping the reduction keeps whole gradients in memory",
        "one backward for each step",
        "Accelerate or Fabric in a program that never speaks of other processes",
    ),
    grading=(
        "Always a hint: the result is right. Certain: the window is counted exactly. Likely under Accelerate "
        "and Fabric, which may start one process only."
    ),
    fix="Advice: run all micro-batches but the last inside `no_sync()`, of the model or the accelerator.",
    references=(
        Reference(
            "DistributedDataParallel.no_sync",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
        Reference(
            "pytorch/pytorch#43201: acceleration for gradient accumulation in DDP mode",
            "https://github.com/pytorch/pytorch/issues/43201",
        ),
    ),
    examples=(
        Example(
            "A counter decides when to step",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(x), y) / 8
        loss.backward()
        ^^^^^^^^^^^^^^^ accumulation-syncs-every-microbatch
        if i % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A window in a loop of its own",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(batches, window):
    for _ in range(100):
        optimizer.zero_grad()
        for _ in range(window):
            x, y = next(batches)
            loss = nn.functional.cross_entropy(model(x), y) / window
            loss.backward()
            ^^^^^^^^^^^^^^^ accumulation-syncs-every-microbatch hint certain
        optimizer.step()
""",
        ),
        Example(
            "One backward, one step",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "No ranks to average over",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, k):
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / k).backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "The flag of the wrapper",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(batches, window):
    for _ in range(100):
        optimizer.zero_grad()
        for micro in range(window):
            x, y = next(batches)
            model.require_backward_grad_sync = micro == window - 1
            (nn.functional.cross_entropy(model(x), y) / window).backward()
        optimizer.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.of(NoSync) or trace.api("require_backward_grad_sync"):
        return
    for one in trace.of(Step):
        for atom in one.before:
            many = {place for place, count in atom.sites if count > 1}
            found = trace.at(Backward, many, one.order)
            if not atom.applied and found and all(_is_averaged(trace, b) for b in found):
                yield _hit(one, found[-1])


_NO_SYNC = {"accelerator": "accelerator.no_sync", "fabric": "fabric.no_backward_sync"}
_OWNERS = {"accelerator": "Accelerate", "fabric": "Fabric"}


def _is_averaged(trace: Trace, backward: Backward) -> bool:
    forwards = [trace.passes[p].forward for p in backward.passes if p in trace.passes]
    if backward.how in _OWNERS and backward.scene.no_sync is None:
        is_prepared = any(forward.wrapped == "prepared" for forward in forwards)
        return is_prepared and (
            _starts_several(backward.owner) or trace.once("speaks of ranks", lambda: _speaks_of_ranks(trace))
        )
    return backward.how == "tensor" and any(forward.wrapped == "ddp" for forward in forwards)


def _starts_several(owner: Obj | None) -> bool:
    """`Fabric(devices=8)`, or more than one node"""
    given = [owner.arguments.get(name) for name in ("devices", "num_nodes")] if owner is not None else []
    counts = [value.value for value in given if isinstance(value, Const)]
    return any(isinstance(count, int) and count > 1 for count in counts)


def _speaks_of_ranks(trace: Trace) -> bool:
    """Does the program wait for other processes, or ask which one it is?"""
    return bool(trace.of(Collective)) or any(
        guard.kind == "rank" for event in trace.events for guard in event.scene.guards
    )


def _hit(one: Step, backward: Backward) -> Hit:
    owner = _OWNERS.get(backward.how)
    return Hit(
        backward.place,
        Severity.HINT,
        Confidence.CERTAIN if owner is None else Confidence.LIKELY,
        "gradients are averaged over the ranks in each micro-batch; one average at the end of a window gives "
        f"the same. Run the other micro-batches inside `{_NO_SYNC.get(backward.how, 'no_sync')}()`."
        + doubt((owner is not None, f"how many processes {owner} starts is not seen")),
        distinct(
            (
                Evidence(
                    backward.place,
                    "this backward runs several times before each step, and averages each time",
                ),
                Evidence(one.place, "the step of the window"),
            )
        ),
        frozenset({("window", backward.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Run all micro-batches but the last inside `no_sync()`", Safety.ADVICE, ())

"""save-on-every-rank: all ranks write one file."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile, indent_under, innermost_statement, name_for_module
from torchwise_analysis.interp.abstract.events import Event, Saved, Wrapped
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import UNREAD, Const, Obj, StateDict, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import can_meet, said_of_ranks, several_processes
from torchwise_analysis.rules._reading import distinct

WRONG = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(loader, path="last.pt"):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.module.state_dict(), "last.pt")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ save-on-every-rank warning certain
"""

RIGHT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(loader, path="last.pt"):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "last.pt")
"""

RULE = Rule(
    code="TW607",
    name="save-on-every-rank",
    category=Category.DISTRIBUTED,
    severity=Severity.WARNING,
    claim="Every rank saves the same weights to the same file.",
    cost=(
        "N processes write one path at the same time. On a shared file system the file can end up mixed or "
        "cut off, which shows only when the run has to be resumed; in any case N copies go over the network "
        "while all GPUs wait."
    ),
    wrong=Example("Saved by all", WRONG, fixed=RIGHT),
    right=Example("Saved by one", RIGHT),
    silent=(
        "a test of the rank around it, in its caller or behind an early return; any test that is not "
        "understood",
        "the rank is part of the path, or the path is not a constant of the script",
        "each rank saves its own part (FSDP, distributed checkpoints)",
        "a single process (a hint, where only the launch lines of the project say so)",
    ),
    grading="Always a warning. Certain: processes, weights and path are all seen.",
    fix="Save under `if dist.get_rank() == 0:`. Unsafe: fewer files are written.",
    references=(
        Reference(
            "Getting started with DDP: save and load checkpoints",
            "https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",
        ),
        Reference("torch.save", "https://docs.pytorch.org/docs/stable/generated/torch.save.html"),
    ),
    examples=(
        Example(
            "FSDP aside, a method saves",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self):
        dist.init_process_group("nccl")
        self.model = DistributedDataParallel(nn.Linear(12, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def save(self):
        torch.save(self.model.module.state_dict(), "model.pt")
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ save-on-every-rank

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        self.save()


def main(loader):
    Trainer().fit(loader)
""",
        ),
        Example(
            "Every epoch, inside a dictionary",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(loader):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, "checkpoint.pt")
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ save-on-every-rank
""",
        ),
        Example(
            "The rank is in the path",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(loader):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), f"part-{dist.get_rank()}.pt")
""",
        ),
        Example(
            "The other ranks have returned",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(loader):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    finish(model)


def finish(model):
    if dist.get_rank() != 0:
        return
    torch.save(model.state_dict(), "last.pt")
""",
        ),
        Example(
            "One process",
            """
import torch
from torch import nn


def train(loader):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "last.pt")
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    several = [(event, fact) for event, fact in several_processes(trace) if _starts_processes(event)]
    sharded = any(isinstance(event, Wrapped) and event.how == "fsdp" for event, _ in several)
    if sharded:
        return
    for saved in trace.of(Saved):
        if saved.how != "torch.save" or saved.place.path != trace.path or not _holds_weights(saved):
            continue
        if saved.path_value is None or not _is_shared(saved.path_value):
            continue
        if any(guard.kind != "periodic" for guard in saved.scene.guards) or saved.scene.world:
            continue
        group = next(
            (
                (event, fact)
                for event, fact in several
                if event.scene.entry.place == saved.scene.entry.place
                and event.order < saved.order
                and can_meet(event, saved)
            ),
            None,
        )
        if group is not None:
            yield Hit(
                saved.place,
                Severity.WARNING,
                Confidence.CERTAIN,
                "every rank writes this file at the same time: it can be cut off or mixed, and all wait. "
                "Save on rank 0 only.",
                distinct(
                    (
                        Evidence(group[0].place, group[1]),
                        Evidence(saved.place, "all of them save to one path"),
                    )
                ),
                frozenset({("save", saved.place)}),
            )


_NOT_SHARED = frozenset(["rank", "random", "time", UNREAD])


def _is_shared(path: Value) -> bool:
    """Is it one path for all ranks: a text, or a `Path` of one with nothing of the rank in it?"""
    if isinstance(path, Const):
        return isinstance(path.value, str)
    is_path = isinstance(path, Obj) and path.type_name.startswith("pathlib.") and path.place is not None
    return is_path and isinstance(path, Obj) and path.traits.isdisjoint(_NOT_SHARED)


def _starts_processes(event: Event) -> bool:
    """A group that is started for good, not one that a framework may run with a single process."""
    return getattr(event, "owner", None) is None and not event.scene.guards and not event.scene.world


def _holds_weights(saved: Saved) -> bool:
    values = [saved.value, *(value for _, value in saved.contents)]
    return any(isinstance(v, StateDict) for value in values if value is not None for v in alternatives(value))


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Save on rank 0 only (writes fewer files)"
    found = innermost_statement(file.module, hit.place.span)
    name, added = name_for_module(file, "torch.distributed")
    edits = (
        None
        if found is None or added is not None
        else indent_under(file, found[1], f"if {name}.get_rank() == 0:")
    )
    yield Fix(title, Safety.ADVICE if edits is None else Safety.UNSAFE, edits or ())

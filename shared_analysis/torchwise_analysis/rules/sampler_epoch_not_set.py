"""sampler-epoch-not-set: a DistributedSampler gives the same order in every epoch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, innermost_statement, insert_statement_before
from torchwise_analysis.interp.abstract.events import LoaderBuilt, LoopEntered, Prepared, SamplerEpochSet
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, LoopPath, inside
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, grade, step
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(dataset, rank):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4).to(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^ sampler-epoch-not-set warning certain
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""

RIGHT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(dataset, rank):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4).to(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""

RULE = Rule(
    code="TW602",
    name="sampler-epoch-not-set",
    category=Category.DISTRIBUTED,
    severity=Severity.WARNING,
    claim="A shuffling DistributedSampler is never told the epoch, so every epoch has the same order.",
    cost=(
        "The sampler shuffles by seed plus epoch. Without `set_epoch` the epoch stays 0: each rank sees the "
        "same part of the data in the same order with the same batches in every epoch, and never the other "
        "ranks' parts. Shuffling is lost, which costs accuracy and shows in no log."
    ),
    wrong=Example("The epoch is not set", WRONG, fixed=RIGHT),
    right=Example("Set at the head of each epoch", RIGHT),
    silent=(
        "`set_epoch` is called on the sampler or the loader anywhere in view, or on something unknown",
        "`shuffle=False`, or a single epoch",
        "loader or sampler are built anew in each epoch",
        "a framework prepared the loader (Accelerate, Fabric, a Trainer): it sets the epoch",
        "loader or sampler go into a call that cannot be seen",
        "evaluation loaders",
    ),
    grading="A warning, and certain: sampler, loader and the loop over epochs are all in view.",
    fix=(
        "Insert `loader.sampler.set_epoch(epoch)` at the head of the loop over epochs. Unsafe: the order of "
        "the data changes on purpose."
    ),
    references=(
        Reference(
            "DistributedSampler",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
        ),
        Reference(
            "huggingface/transformers#4398: Trainer is missing sampler.set_epoch",
            "https://github.com/huggingface/transformers/issues/4398",
        ),
        Reference("Snowdar/asv-subtools#8 (confirmed)", "https://github.com/Snowdar/asv-subtools/issues/8"),
        Reference(
            "mehta-lab/VisCy#408: sampler wiring and epoch advance",
            "https://github.com/mehta-lab/VisCy/pull/408",
        ),
    ),
    examples=(
        Example(
            "One function walks for training and for evaluation, and tells the epoch in training",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class Trainer:
    def __init__(self, train_data, test_data):
        dist.init_process_group("nccl")
        self.model = DistributedDataParallel(nn.Linear(8, 2).cuda())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.train_loader = self.loader_of(train_data)
        self.test_loader = self.loader_of(test_data)

    def loader_of(self, data):
        return DataLoader(data, batch_size=8, sampler=DistributedSampler(data))

    def walk(self, epoch, loader, train):
        if train:
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.set_grad_enabled(train):
                loss = nn.functional.cross_entropy(self.model(x), y)
            if train:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def train(self):
        for epoch in range(10):
            self.walk(epoch, self.train_loader, train=True)
            self.walk(epoch, self.test_loader, train=False)
""",
        ),
        Example(
            "Batches counted by enumerate, the epoch in a helper",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def run_epoch(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main(dataset):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset, shuffle=True)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ sampler-epoch-not-set warning certain
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        run_epoch(model, optimizer, loader)
""",
        ),
        Example(
            "One of two samplers, the other for a single process",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler


def main(dataset, local_rank):
    model = nn.Linear(12, 4)
    if local_rank == -1:
        sampler = RandomSampler(dataset)
    else:
        dist.init_process_group("nccl")
        sampler = DistributedSampler(dataset)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^ sampler-epoch-not-set warning certain
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Set on the sampler, in a helper",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def run_epoch(model, optimizer, loader, epoch):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main(dataset):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    for epoch in range(10):
        run_epoch(model, optimizer, loader, epoch)
""",
        ),
        Example(
            "No shuffling, and an evaluation loader",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(dataset, held_out):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset, shuffle=False))
    test = DataLoader(held_out, batch_size=32, sampler=DistributedSampler(held_out))
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in test:
                model(x)
""",
        ),
        Example(
            "A loader for each epoch",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(dataset):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        sampler = DistributedSampler(dataset, seed=epoch)
        for x, y in DataLoader(dataset, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The loop over epochs and the loop over the loader in it."""

    outer: Loop
    entered: LoopEntered


def detect(trace: Trace) -> Iterator[Hit]:
    told = trace.of(SamplerEpochSet)
    if any(event.sampler is None and event.loader is None for event in told):
        return  # set on something unknown, which may be any of them
    known = {obj.id for event in told for obj in (event.sampler, event.loader) if obj is not None}
    managed = {thing.id for event in trace.of(Prepared) for thing in event.objects}
    excused = known | managed | trace.escaped
    for built in trace.of(LoaderBuilt):
        sampler = _epoch_sampler(built)
        if sampler is None or {sampler.id, built.loader.id} & excused:
            continue
        walk = _repeated_walk(trace, built.loader)
        if walk is not None:
            yield _hit(built, sampler, *walk)


def _epoch_sampler(built: LoaderBuilt) -> Obj | None:
    """The sampler that shuffles by epoch, also as one of two (the other for a single process)."""
    given = built.loader.arguments.get("sampler", 3)
    for value in (*(alternatives(given) if given is not None else ()), built.sampler):
        found = _inner_sampler(value)
        if found is not None and _shuffles_by_epoch(found):
            return found
    return None


def _inner_sampler(value: Value | None) -> Obj | None:
    """A sampler, or the one whose indices a BatchSampler puts into batches."""
    if not isinstance(value, Obj) or value.kind is not Kind.SAMPLER:
        return None
    if value.type_name.rpartition(".")[2] != "BatchSampler" or value.cls is not None:
        return value
    given = value.arguments.get("sampler", 0)
    return next((_inner_sampler(one) for one in alternatives(given)), None) if given is not None else None


def _shuffles_by_epoch(sampler: Obj) -> bool:
    if sampler.type_name.rpartition(".")[2] != "DistributedSampler" or sampler.cls is not None:
        return False
    shuffle = sampler.arguments.get("shuffle", 3)
    return not (isinstance(shuffle, Const) and not shuffle.value) and not sampler.arguments.open


def _repeated_walk(trace: Trace, loader: Obj) -> tuple[LoopEntered, Loop] | None:
    """A training loop over the loader, and the loop around it that begins it anew."""
    for entered in _training_walks(trace):
        if not _walks_over(entered.over, loader):
            continue
        outer = _outer_loop(entered.loops, loader.birth)
        if outer is not None:
            return entered, outer
    return None


def _training_walks(trace: Trace) -> list[LoopEntered]:
    """The walks in which a backward ran: one loop may serve training and evaluation, in different runs."""
    walks: dict[Place, list[LoopEntered]] = {}
    for entered in trace.of(LoopEntered):
        walks.setdefault(entered.loop_place, []).append(entered)
    found: dict[int, LoopEntered] = {}
    for backward in trace.backwards:
        for turn in backward.loops:
            begun = walks.get(turn.loop.place, [])
            index = bisect_left(begun, backward.order, key=lambda entered: entered.order)
            if index:
                found[begun[index - 1].order] = begun[index - 1]
    return [found[order] for order in sorted(found)]


def _walks_over(value: Value, loader: Obj, depth: int = 0) -> bool:
    for member in alternatives(value):
        if not isinstance(member, Obj):
            continue
        if member.id == loader.id:
            return True
        if member.kind is Kind.ITERATOR and depth < 3:
            return any(_walks_over(inner, loader, depth + 1) for inner in member.over)
    return False


def _outer_loop(loops: LoopPath, birth: LoopPath) -> Loop | None:
    outside = [turn.loop for turn in inside(loops, birth) if turn.loop.kind is not LoopKind.CLOSURE]
    real = [loop for loop in outside if not loop.is_call and loop.count != 1]
    return real[-1] if real else None


def _hit(built: LoaderBuilt, sampler: Obj, entered: LoopEntered, outer: Loop) -> Hit:
    links = [*step(sampler.place, "this sampler shuffles by seed and epoch")]
    links += step(built.place, "the loader draws with it")
    links += [Evidence(entered.place, "each epoch walks over the loader here, and nothing calls set_epoch")]
    head = Evidence(_keyword(outer), "set_epoch belongs at the head of this loop")
    return Hit(
        sampler.place or head.place,
        Severity.WARNING,
        grade(0),
        "the DistributedSampler is never told the epoch: every epoch has the same order and the same batches "
        "on each rank. Call set_epoch at the head of the loop over epochs.",
        distinct(links),
        frozenset({("loader", built.loader.id)}),
        _Found(outer, entered),
        () if sampler.place is None else (head,),
    )


def _keyword(loop: Loop) -> Place:
    """The word `for` or `while` of the loop over epochs."""
    line, column = loop.place.span.line, loop.place.span.column
    length = len("while") if loop.kind is LoopKind.UNBOUNDED else len("for")
    return Place(loop.place.path, Span(line, column, line, column + length))


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    outer, entered = hit.facts
    statement = _telling(file, outer, entered)
    epoch = innermost_statement(file.module, _keyword(outer).span)
    edit = None
    if statement is not None and epoch is not None and isinstance(epoch[0], nodes.For):
        first = epoch[0].body[0].span.shifted(epoch[1].line - epoch[0].span.line)
        edit = insert_statement_before(file, first.line, first.column, statement)
    yield Fix(
        "Set the epoch at the head of the loop (changes the order of the data)",
        Safety.ADVICE if edit is None else Safety.UNSAFE,
        () if edit is None else (edit,),
    )


def _telling(file: SourceFile, outer: Loop, entered: LoopEntered) -> str | None:
    """`loader.sampler.set_epoch(epoch)` in the words of the two loops, if both stand in one function."""
    if outer.place.path != file.path or entered.place.path != file.path:
        return None
    epoch = innermost_statement(file.module, _keyword(outer).span)
    head = Span(
        entered.place.span.line, entered.place.span.column, entered.place.span.line, entered.place.span.column
    )
    walk = innermost_statement(file.module, head)
    if epoch is None or walk is None or not isinstance(epoch[0], nodes.For):
        return None
    if not isinstance(walk[0], nodes.For) or not isinstance(epoch[0].target, nodes.Name):
        return None
    if not (epoch[1].line < walk[1].line <= epoch[1].end_line):
        return None  # the batches are walked over in a helper
    over = walk[0].iter
    if isinstance(over, nodes.Call) and over.args and isinstance(over.func, nodes.Name):
        over = over.args[0]  # enumerate(loader), tqdm(loader)
    if not isinstance(over, nodes.Name | nodes.Attribute):
        return None
    text = file.slice(over.span.shifted(walk[1].line - walk[0].span.line))
    return f"{text}.sampler.set_epoch({epoch[0].target.id})"

"""load-without-map-location: every rank loads a checkpoint into the memory of the first card."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at
from torchwise_analysis.interp.abstract.events import Event, Guard, Loaded, Saved, WeightsLoaded
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Unknown, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import can_meet, said_of_ranks, several_processes
from torchwise_analysis.rules._reading import distinct, doubt
from torchwise_analysis.source import nodes

WRONG = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(path):
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    model = nn.Linear(12, 4).to(device)
    state = torch.load(path, weights_only=True)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ load-without-map-location warning likely
    model.load_state_dict(state)
    return DistributedDataParallel(model, device_ids=[device])
"""

RIGHT = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(path):
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    model = nn.Linear(12, 4).to(device)
    state = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(state)
    return DistributedDataParallel(model, device_ids=[device])
"""

RULE = Rule(
    code="TW612",
    name="load-without-map-location",
    category=Category.DISTRIBUTED,
    severity=Severity.WARNING,
    claim="All ranks load a checkpoint without saying where to, so it goes where it was saved from.",
    cost=(
        "`torch.load` puts each tensor on the device whose name is in the file, and a checkpoint of rank "
        "0 says `cuda:0`. Eight ranks then put eight copies, and eight CUDA contexts of some hundred MB, on "
        "the first card: it runs out of memory while the others have room."
    ),
    wrong=Example("Every rank loads to the first card", WRONG, fixed=RIGHT),
    right=Example("To the CPU, and from there to its own card", RIGHT),
    silent=(
        "`map_location` is given in any form, by name or by position",
        "a single process, or a load that only some ranks reach",
        "data sets and other files whose content goes into no `load_state_dict`",
        "safetensors and sharded checkpoints, which are read to the CPU",
        "a file of a fixed name that the script does not write: released weights, from whichever device",
        "a file that each rank has for itself: it came from the device of that rank",
    ),
    grading=(
        "A warning, and likely: which device the file was saved from is not seen."
        " A hint where the project's own launch lines all start one process."
    ),
    fix=(
        '`map_location="cpu"`; `load_state_dict` copies to the device of the model. Unsafe only in that what '
        "is used of the file by itself then lies on the CPU."
    ),
    references=(
        Reference("torch.load", "https://docs.pytorch.org/docs/stable/generated/torch.load.html"),
        Reference(
            "Getting Started with Distributed Data Parallel: save and load checkpoints",
            "https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html",
        ),
    ),
    examples=(
        Example(
            "An entry of a resumed run",
            """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def resume(path, rank):
    torch.distributed.init_process_group("nccl")
    net = nn.Linear(12, 4).cuda(rank)
    checkpoint = torch.load(path)
                 ^^^^^^^^^^^^^^^^ load-without-map-location warning likely
    net.load_state_dict(checkpoint["model"])
    net = DistributedDataParallel(net, [rank])
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.load_state_dict(checkpoint["optimizer"])
    return net, optimizer
""",
        ),
        Example(
            "A helper loads",
            """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


def fill(net, path):
    net.load_state_dict(torch.load(path))
                        ^^^^^^^^^^^^^^^^ load-without-map-location warning likely


def main(path):
    torch.distributed.init_process_group("nccl")
    net = nn.Linear(12, 4)
    fill(net, path)
    return FullyShardedDataParallel(net)
""",
        ),
        Example(
            "Given by position, and on rank 0 only",
            """
import torch
import torch.distributed as dist
from torch import nn


def main(path, other):
    dist.init_process_group("nccl")
    net, start = nn.Linear(12, 4), nn.Linear(12, 4)
    net.load_state_dict(torch.load(path, "cpu"))
    if dist.get_rank() == 0:
        start.load_state_dict(torch.load(other))
    return net, start
""",
        ),
        Example(
            "One process",
            """
import torch
from torch import nn


def main(path):
    net = nn.Linear(12, 4).cuda()
    net.load_state_dict(torch.load(path))
    return net
""",
        ),
        Example(
            "A data set is no checkpoint",
            """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def batches(path):
    dist.init_process_group("nccl")
    data = TensorDataset(torch.load(path))
    return DataLoader(data, 32, sampler=DistributedSampler(data))
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    several = several_processes(trace)
    loads = [event for event in trace.of(Loaded) if event.how == "torch.load"] if several else []
    filled_by = {tag: e for e in trace.of(WeightsLoaded) for tag in _tags(e)} if loads else {}
    for load in loads:
        if load.arguments.open or load.arguments.get("map_location", 1) is not None:
            continue
        if any(_chooses_ranks(guard) for guard in load.scene.guards) or _is_released(trace, load):
            continue
        if _is_of_this_rank(load):
            continue
        filled = filled_by.get(f"loaded#{load.order}")
        if filled is not None and filled.target.kind is Kind.SCHEDULER:
            continue  # numbers, which lie on no device
        group = next((pair for pair in several if _is_beside(pair[0], load)), None)
        if filled is not None and group is not None:
            yield _hit(load, filled, group)


def _is_released(trace: Trace, load: Loaded) -> bool:
    """A file of a fixed name that the script does not write: released weights, from whichever device."""
    path = load.arguments.get("f", 0)
    if not isinstance(path, Const) or not isinstance(path.value, str):
        return False
    saved = (one.path_value for one in trace.of(Saved))
    return not any(isinstance(one, Const) and one.value == path.value for one in saved)


def _is_of_this_rank(load: Loaded) -> bool:
    """Has each rank a file of its own, which came from the device of that rank?"""
    path = load.arguments.get("f", 0)
    members = alternatives(path) if path is not None else ()
    return any(
        (isinstance(one, Unknown) and "this rank" in one.taint)
        or (isinstance(one, Obj) and "rank" in one.traits)
        for one in members
    )


def _chooses_ranks(guard: Guard) -> bool:
    """A test of the rank, or of a device that may not be given (`args.gpu is None`)."""
    about_device = any(word in (guard.symbol or "") for word in ("gpu", "device", "rank"))
    return guard.kind in ("rank", "handler") or (guard.kind in ("none", "flag") and about_device)


def _tags(event: WeightsLoaded) -> Iterator[str]:
    """By which loads the weights came; they are told by the order of their events."""
    for value in alternatives(event.value) if event.value is not None else ():
        if isinstance(value, Unknown):
            yield from (one for one in value.taint if one.startswith("loaded#"))


def _is_beside(group: Event, load: Loaded) -> bool:
    owner = getattr(group, "owner", None)
    is_same_run = group.scene.entry.place == load.scene.entry.place or group.scene.entry.kind == "module"
    return owner is None and is_same_run and can_meet(group, load)


def _hit(load: Loaded, filled: WeightsLoaded, group: tuple[Event, str]) -> Hit:
    return Hit(
        load.place,
        Severity.WARNING,
        Confidence.LIKELY,
        "every rank loads this to the device that it was saved from: the first card, usually, then holds "
        'a copy for each rank. Use `map_location="cpu"`.'
        + doubt((True, "which device the file was saved from is not seen")),
        distinct(
            (
                Evidence(group[0].place, group[1]),
                Evidence(load.place, "all of them load, without `map_location`"),
                Evidence(filled.place, "and the weights go into the model here"),
            )
        ),
        frozenset({("load", load.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    edit = _edit(file, hit.place)
    title = "Load to the CPU (what is used of the file by itself lies there then)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _edit(file: SourceFile, place: Place) -> Edit | None:
    call = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(call, nodes.Call) or not (call.args or call.keywords):
        return None
    ends = [arg.span for arg in call.args] + [keyword.value.span for keyword in call.keywords]
    last = max(ends, key=lambda span: (span.end_line, span.end_column))
    last = last.shifted(place.span.line - call.span.line)
    return insert_at(file, last.end_line, last.end_column, ', map_location="cpu"')

"""ddp-without-sharding: every rank draws from the whole data set."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    ApiCall,
    Event,
    LoaderBuilt,
    LoopEntered,
    Prepared,
    Returned,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import OWN_SEED, Const, Obj, Value
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import can_meet, said_of_ranks, several_processes
from torchwise_analysis.rules._reading import called, distinct, doubt, step

WRONG = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def main(dataset):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ ddp-without-sharding error certain
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
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(dataset):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""

RULE = Rule(
    code="TW601",
    name="ddp-without-sharding",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim=(
        "A script that runs on several ranks builds its training loader without anything that divides "
        "the data."
    ),
    cost=(
        "Every rank walks through the whole data set. With different seeds the ranks draw "
        "independently, so an epoch is N times longer than it says; with equal seeds all ranks compute "
        "the same batch, and N GPUs do the work of one. The bill is N times too high, and the loss "
        "curve looks normal."
    ),
    wrong=Example("A plain loader under DistributedDataParallel", WRONG),
    right=Example("Each rank gets its part, reshuffled in each epoch", RIGHT),
    silent=(
        "a sampler or batch sampler that knows the rank, in any form, also through `**kwargs`",
        "a data set that is already this rank's part (subset or stride by rank, `split_dataset_by_node`, an "
        "iterable data set that shards itself)",
        "a framework shards this very loader (`prepare`, `setup_dataloaders`, a Trainer that is not told by "
        "`use_distributed_sampler=False` to leave that)",
        "the loader is used by one rank only, or only for evaluation; it is built and never used",
        "each process draws its own random data, or reads a file chosen by its rank",
        "the arguments of the loader are not all visible",
    ),
    grading=(
        "Error, and only said when all constructor arguments are visible. Certain when the loader is seen "
        "to feed a backward; likely when it is only built here, in random order as for training. A sampler "
        "that draws at random without knowing the rank (`RandomSampler`, `WeightedRandomSampler`) does not "
        "shard. A hint where all launch lines of the project (shell scripts, README) start one process."
    ),
    fix=(
        "Advice: a `DistributedSampler` for the loader in place of `shuffle=True`, and "
        "`sampler.set_epoch(epoch)` at the head of the epoch loop. Two places have to change together, "
        "and how often the data is seen changes."
    ),
    references=(
        Reference(
            "DistributedSampler",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
        ),
        Reference(
            "Getting Started with Distributed Data Parallel",
            "https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html",
        ),
        Reference(
            "NVlabs/LongLive#71: divergent DistributedSampler seeds",
            "https://github.com/NVlabs/LongLive/pull/71",
        ),
        Reference(
            "mehta-lab/VisCy#408: sampler wiring and epoch advance",
            "https://github.com/mehta-lab/VisCy/pull/408",
        ),
    ),
    examples=(
        Example(
            "FSDP, and a loader of a class",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, data):
        dist.init_process_group("nccl")
        self.model = FullyShardedDataParallel(nn.Linear(12, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(data, batch_size=16, shuffle=True)
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ ddp-without-sharding

    def fit(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()


def main(data):
    Trainer(data).fit()
""",
        ),
        Example(
            "A loader of a library that is distributed by itself",
            """
import dgl
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(graph, nodes, sampler):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = dgl.distributed.DistNodeDataLoader(graph, nodes, sampler, batch_size=16, shuffle=True)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A weighted sampler does not know the rank",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, WeightedRandomSampler


def main(dataset, weights):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = WeightedRandomSampler(weights, 1000)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ ddp-without-sharding error certain
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Each rank takes its own stride of the data",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset


def main(dataset):
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = Subset(dataset, range(rank, len(dataset), world))
    loader = DataLoader(mine, batch_size=16, shuffle=True)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The sampler follows the same switch as the wrapper",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler


def main(args, dataset):
    model = nn.Linear(12, 4)
    if args.distributed:
        dist.init_process_group("nccl")
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.distributed:
        sampler = DistributedSampler(dataset)
    else:
        sampler = RandomSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(10):
        if args.distributed:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "All launch lines of the project start one process",
            """
import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader


def main(args, dataset):
    model = nn.Linear(12, 4)
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for x, y in DataLoader(dataset, batch_size=16, shuffle=True):
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ ddp-without-sharding hint certain
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
""",
            files={"run.sh": "deepspeed --num_gpus 1 example.py --deepspeed_config config.json\n"},
        ),
        Example(
            "Of several launch lines one starts more",
            """
import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader


def main(args, dataset):
    model = nn.Linear(12, 4)
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for x, y in DataLoader(dataset, batch_size=16, shuffle=True):
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ ddp-without-sharding error certain
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
""",
            files={"run.sh": "deepspeed --num_gpus 1 example.py\ndeepspeed --num_gpus 8 example.py\n"},
        ),
        Example(
            "One process: nothing to shard",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader


def main(dataset):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(dataset, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Arguments that cannot be seen",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def main(dataset, options):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(dataset, batch_size=16, **options):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    managed = {obj.id for prepared in trace.of(Prepared) for obj in prepared.objects}
    several = (*several_processes(trace), *_trainers_that_shard_nothing(trace))
    for built in trace.of(LoaderBuilt) if several else ():
        if built.sharding is not None or built.loader.id in managed:
            continue
        if any(guard.kind == "rank" for guard in built.scene.guards):
            continue
        together = next((event for event, _ in several if _runs_beside(event, built)), None)
        role = _role_in_hook(built) if isinstance(together, ApiCall) else _training_role(trace, built)
        if together is None or role is None:
            continue
        call, name = _call_here(trace, built), called(built.loader, "this loader")
        if isinstance(built.sampler, Obj) and OWN_SEED in built.sampler.traits:
            yield _of_own_seeds(built, built.sampler, Evidence(together.place, dict(several)[together]))
            continue
        asked = () if call is None else (Evidence(call, "the loader is asked for here"),)
        yield Hit(
            built.place,
            Severity.ERROR,
            role,
            f"every rank trains on the whole data set: nothing shards {name}, so N "
            "GPUs repeat each other's work. Give it a DistributedSampler."
            + doubt((role is not Confidence.CERTAIN, _UNSEEN[isinstance(together, ApiCall)])),
            _chain(built, Evidence(together.place, dict(several)[together]), asked),
            frozenset({("loader", built.loader.id)}),
            built,
            asked,
        )


def _trainers_that_shard_nothing(trace: Trace) -> Iterator[tuple[Event, str]]:
    """Trainers of Lightning's for several devices that are told to leave the samplers to the script.

    [lightning `_DataConnector._requires_distributed_sampler`: use_distributed_sampler]
    """
    for trainer in trace.api("lightning.Trainer"):
        given = trainer.arguments
        told = given.get("use_distributed_sampler") or given.get("replace_sampler_ddp")
        counts = [given.get(name) for name in ("devices", "gpus", "num_nodes")]
        if isinstance(told, Const) and told.value is False and any(map(_is_several, counts)):
            yield trainer, "this Trainer runs several processes and is told to put in no sampler"


def _is_several(count: Value | None) -> bool:
    return isinstance(count, Const) and isinstance(count.value, int) and count.value > 1


def _runs_beside(several: Event, built: LoaderBuilt) -> bool:
    """Can one run hold both? A Trainer takes its loaders from a hook."""
    names = (built.scene.function, *(call.function for call in built.calls))
    is_asked = "train_dataloader" in names and built.scene.entry.kind == "hook"
    return can_meet(several, built) and (is_asked or not isinstance(several, ApiCall))


# Why it is not certain: of a loader that is only built, and of one that a Trainer asks for.
_UNSEEN = ("no training that uses it is seen here", "the data may be a part for this rank already")


def _role_in_hook(built: LoaderBuilt) -> Confidence | None:
    """One in random order: a stream, which may divide itself, has none."""
    is_random = built.shuffle is True or _draws_at_random(built.sampler)
    return Confidence.LIKELY if is_random else None


def _of_own_seeds(built: LoaderBuilt, sampler: Obj, several: Evidence) -> Hit:
    """[torch DistributedSampler: "This number should be identical across all processes in the group"]"""
    place = sampler.place or built.place
    return Hit(
        place,
        Severity.ERROR,
        Confidence.CERTAIN,
        "each rank shuffles with a seed of its own and then takes every N-th sample: the parts overlap, and "
        "some samples are seen by no rank. Give all ranks one seed.",
        distinct(
            (several, Evidence(place, "the seed depends on the rank"), *step(built.place, "and is used here"))
        ),
        frozenset({("loader", built.loader.id)}),
        built,
    )


def _training_role(trace: Trace, built: LoaderBuilt) -> Confidence | None:
    """How sure it is that this loader feeds training; None for an evaluation loader, or when nothing tells.

    A loader that is only built here (returned, given on) is one for training if its order is random.
    """
    if trace.is_training_source(built.loader.id):
        return Confidence.CERTAIN
    fed = [forward for forward in trace.forwards if built.loader.id in forward.sources]
    evaluates = any(
        {mode.name for mode in forward.modes} == {"eval"} or True not in forward.grad for forward in fed
    )
    is_random = built.shuffle is True or _draws_at_random(built.sampler)
    leaves = built.loader.id in trace.escaped  # whoever receives it may replace its sampler
    if not is_random or evaluates or leaves:
        return None
    return Confidence.LIKELY if _is_used(trace, built) else None


def _draws_at_random(sampler: Value | None) -> bool:
    """A sampler of a library that shuffles; one of the project's own may do anything."""
    if not isinstance(sampler, Obj):
        return False
    if sampler.type_name.endswith("BatchSampler"):
        inner = sampler.arguments.get("sampler", 0)
        return inner is not None and _draws_at_random(inner)
    return sampler.type_name.endswith("RandomSampler")


def _is_used(trace: Trace, built: LoaderBuilt) -> bool:
    """Somebody walks over it, gets it returned or finds it kept: it is not only built and replaced."""
    loader = built.loader.id
    if any(trace.holds(entered.over, loader) for entered in trace.of(LoopEntered)):
        return True
    if any(trace.holds(returned.value, loader) for returned in trace.of(Returned)):
        return True
    return any(trace.holds(value, loader) for value in trace.kept_values)


def _call_here(trace: Trace, built: LoaderBuilt) -> Place | None:
    """The call in the analysed file that leads to a construction in another one."""
    if built.place.path == trace.path:
        return None
    here = (caller.place for caller in reversed(built.calls) if caller.place.path == trace.path)
    return next(here, None)


def _chain(built: LoaderBuilt, several: Evidence, asked: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    links = [several]
    if isinstance(built.sampler, Obj):
        links += step(built.sampler.place, "this sampler draws without knowing the rank")
    return distinct([*links, *asked])


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    built = hit.facts
    instead = ""
    if isinstance(built, LoaderBuilt):
        instead = " in place of `shuffle=True`" if built.shuffle else instead
        instead = " in place of its sampler" if isinstance(built.sampler, Obj) else instead
    yield Fix(
        f"Use `sampler=DistributedSampler(dataset)`{instead}, and call `sampler.set_epoch(epoch)` in each "
        "epoch",
        Safety.ADVICE,
        (),
    )

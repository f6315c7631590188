"""Data loading: loaders, samplers, data sets, and what gives ranks different data."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics.registry import Call, fallback, function, int_of, method, truth_of
from torchwise_analysis.source import nodes as nd

# Libraries whose streams shard themselves, or are split by helpers that say so. [WebDataset, litdata,
# torchdata and datasets document per-rank and per-worker splitting of their iterable classes.]
_SHARDING_LIBRARIES = ("webdataset", "litdata", "torchdata", "streaming", "nvidia.dali", "ffcv")
_SHARDING_FUNCTIONS = frozenset(["split_dataset_by_node", "shard", "split_by_node", "split_by_worker"])


@function(
    "torch.utils.data.DataLoader",
    "torch_geometric.loader.DataLoader",
    "torch.utils.data.StatefulDataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torch_geometric.data.DataLoader",
    "monai.data.DataLoader",
)
def loader(m: Machine, call: Call) -> va.Value:
    obj = m.make(va.Kind.LOADER, call.node, call.name, arguments=call.arguments)
    return _built(m, obj, call)


@method(va.Kind.LOADER, "super().__init__")
def own_loader(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """A class of the project that derives from DataLoader gives this to it."""
    obj = m.objects[obj.id] = replace(obj, arguments=call.arguments)
    if obj.place is not None:
        _built(m, obj, call, obj.place)
    return va.NONE


def _built(m: Machine, obj: va.Obj, call: Call, place: Place | None = None) -> va.Obj:
    dataset = call.get("dataset", 0)
    sampler = call.get("batch_sampler", 4) or call.get("sampler", 3)
    shuffle = call.get("shuffle", 2)
    m.emit(
        ev.LoaderBuilt,
        call.node if place is None else place,
        loader=obj,
        dataset=first_known(dataset) if dataset is not None else None,
        sampler=first_known(sampler) if sampler is not None else None,
        # a class of the project may divide the data among the ranks before it gives them on
        sharding=_sharding(m, call, dataset, sampler) if place is None else ev.Sharding("unknown", None),
        shuffle=truth_of(shuffle, False),
        workers=int_of(call.get("num_workers", 5)) if call.get("num_workers", 5) is not None else 0,
        drop_last=truth_of(call.get("drop_last", 8), False),
    )
    return obj


def _sharding(
    m: Machine, call: Call, dataset: va.Value | None, sampler: va.Value | None
) -> ev.Sharding | None:
    if call.arguments.open:
        return ev.Sharding("unknown", None)
    for value in (sampler, call.get("sampler", 3), call.get("batch_sampler", 4)):
        for member in va.alternatives(value) if value is not None else ():
            found = _sampler_sharding(m, member)
            if found is not None:
                return found
    if dataset is None:
        return ev.Sharding("unknown", None)
    for member in va.alternatives(dataset):
        found = _dataset_sharding(m, member)
        if found is not None:
            return found
    workers = call.get("worker_init_fn", 10)
    if workers is not None and m.taint(workers) & {"rank"}:
        return ev.Sharding("worker_init_fn", None)
    return None


def _sampler_sharding(m: Machine, value: va.Value) -> ev.Sharding | None:
    if isinstance(value, va.Const) and value.value is None:
        return None
    if isinstance(value, va.Obj):
        if va.OWN_SEED in value.traits:
            return None
        if value.kind is va.Kind.SAMPLER and value.place is not None and "open" not in value.traits:
            if "sharding" in value.traits or "rank" in m.taint(*value.arguments, value, *_fields(m, value)):
                return ev.Sharding(value.type_name, value.place)
            if value.cls is not None and _strides(m, value.cls):
                return ev.Sharding(value.cls.name, value.place)
            for inner in value.arguments:
                found = _sampler_sharding(m, first_known(inner)) if _is_sampler(inner) else None
                if found is not None:
                    return found
            return None
        return ev.Sharding(value.name or value.type_name or "a sampler", value.place)
    return ev.Sharding("unknown", None)


def _strides(m: Machine, cls: va.Class) -> bool:
    m.note_read(cls.code)
    return m.static.strides(cls.node)


def _fields(m: Machine, obj: va.Obj) -> tuple[va.Value, ...]:
    """What an instance of the project holds."""
    names = cast("tuple[str, ...]", m.state.get(("names", obj.id), ())) if obj.cls is not None else ()
    return tuple(value for value in (m.attribute(obj, name) for name in names) if value is not None)


def _is_sampler(value: va.Value) -> bool:
    known = first_known(value)
    return isinstance(known, va.Obj) and known.kind is va.Kind.SAMPLER


def _dataset_sharding(m: Machine, value: va.Value) -> ev.Sharding | None:
    if "rank" in m.taint(value):
        return ev.Sharding("rank", value.evidence.place if value.evidence else None)
    if isinstance(value, va.Obj):
        if value.traits & {"sharding", "iterable"}:
            return ev.Sharding(
                "iterable data set" if "iterable" in value.traits else value.type_name, value.place
            )
        if value.type_name.startswith(_SHARDING_LIBRARIES):
            return ev.Sharding(value.type_name, value.place)
        if value.cls is not None and (value.cls.open_bases or value.cls.derives("IterableDataset")):
            return ev.Sharding("iterable data set", value.place)
        if "rank" in m.taint(*_fields(m, value)):
            return ev.Sharding("rank", value.place)
        if "drawn" in value.traits:
            return ev.Sharding("each process draws its own data", value.place)
        for inner in value.arguments:
            known = first_known(inner)
            if (
                isinstance(known, va.Obj)
                and known.id != value.id
                and known.kind in (va.Kind.DATASET, va.Kind.INSTANCE)
            ):
                found = _dataset_sharding(m, known)
                if found is not None:
                    return found
            elif "rank" in m.taint(inner):
                return ev.Sharding("rank", None)
        for inner in m.items(value):
            if "rank" in m.taint(inner):
                return ev.Sharding("rank", None)
    return None


# Methods that give a data set with the same kind of samples: fewer of them, or in another order.
_DERIVING = frozenset(["shuffle", "index_select", "select", "filter", "map", "to", "copy", "sort"])


def is_dataset(obj: va.Obj) -> bool:
    """Is it a map-style data set, also of a class of the project?"""
    if obj.cls is not None:
        return obj.cls.derives("Dataset", "VisionDataset") and not obj.cls.derives("IterableDataset")
    return obj.kind is va.Kind.DATASET


def part_of(m: Machine, obj: va.Obj, node: nd.Node) -> va.Obj:
    """Some samples of a data set."""
    return m.make(
        va.Kind.DATASET,
        node,
        "torch.utils.data.Subset",
        arguments=va.Arguments((obj,)),
        traits=obj.traits & {"rank", "sharding", "iterable", "drawn"},
    )


def sliced(m: Machine, obj: va.Obj, node: nd.Node) -> va.Obj | None:
    """`data[:100]`, where that gives a data set. [torch_geometric: slices of a Dataset are Datasets.]"""
    gives_sets = obj.cls is not None or obj.type_name.startswith(
        ("torch_geometric.", "torch.utils.data.Subset")
    )
    return part_of(m, obj, node) if is_dataset(obj) and gives_sets else None


def returned(m: Machine, obj: va.Obj, name: str, value: va.Value, node: nd.Node) -> va.Value:
    """What a method of an own class gave; one that was not followed gives a data set if its name says so."""
    is_lost = isinstance(value, va.Unknown) and name in _DERIVING
    return part_of(m, obj, node) if is_lost and is_dataset(obj) else value


@function("torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler")
def distributed_sampler(m: Machine, call: Call) -> va.Value:
    seed = call.get("seed", 4)
    mixes = call.get("shuffle", 3)
    has_own_order = seed is not None and "this rank" in m.taint(seed) and truth_of(mixes, True) is not False
    if has_own_order and call.get("num_replicas", 1) is None and not call.arguments.open:
        traits = frozenset([va.OWN_SEED])
    else:
        traits = frozenset(["sharding"])
    return m.make(va.Kind.SAMPLER, call.node, call.name, arguments=call.arguments, traits=traits)


def sampler(m: Machine, call: Call) -> va.Value:
    """Any other sampler of a library: shards when its name or arguments know the rank."""
    sharding = "Distributed" in call.last or "rank" in m.taint(*call.arguments)
    sharding = sharding or any(
        k in ("rank", "num_replicas", "world_size", "shard_id") for k, _ in call.arguments.keywords
    )
    traits = {"sharding"} if sharding else set[str]()
    if call.arguments.open:
        traits.add("open")
    return m.make(va.Kind.SAMPLER, call.node, call.name, arguments=call.arguments, traits=frozenset(traits))


def dataset(m: Machine, call: Call) -> va.Value:
    """Subset, random_split, TensorDataset, ConcatDataset and kin."""
    taint = m.taint(*call.arguments)
    for value in call.arguments:
        known = first_known(value)
        if isinstance(known, va.Obj):
            taint |= m.taint(*m.items(known))
    traits = frozenset(["rank"]) if "rank" in taint else frozenset[str]()
    if call.last == "TensorDataset" and "drawn" in taint and not _is_seeded(m):
        traits |= {"drawn"}
    obj = m.make(va.Kind.DATASET, call.node, call.name, arguments=call.arguments, traits=traits)
    if call.last == "random_split":
        lengths = first_known(call.get("lengths", 1) or va.UNKNOWN)
        count = len(m.items(lengths)) if isinstance(lengths, va.Obj) else 0
        parts = [
            m.make(va.Kind.DATASET, call.node, call.name, arguments=call.arguments, traits=traits)
            for _ in range(max(count, 2))
        ]
        return m.sequence(parts, call.node, va.Kind.TUPLE)
    return obj


def _is_seeded(m: Machine) -> bool:
    """Did anything so far fix the random numbers? Then every process may draw the same ones."""
    called = (e.name.rpartition(".")[2] for e in m.events if isinstance(e, ev.ApiCall))
    return any(name in ("manual_seed", "seed_everything", "set_seed") for name in called)


@function("torch.utils.data.get_worker_info")
def worker_info(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    return va.unknown("get_worker_info", taint=frozenset(["rank", "worker"]))


def library_dataset(m: Machine, call: Call) -> va.Value:
    """A data set of a library (torchvision.datasets, datasets.load_dataset, ...)."""
    traits = (
        {"sharding"}
        if call.last in _SHARDING_FUNCTIONS or call.name.startswith(_SHARDING_LIBRARIES)
        else set[str]()
    )
    if truth_of(call.get("streaming"), False) is not False:
        traits.add("iterable")
    if "rank" in m.taint(*call.arguments):
        traits.add("rank")
    return m.make(va.Kind.DATASET, call.node, call.name, arguments=call.arguments, traits=frozenset(traits))


@method(va.Kind.DATASET, "shard", "split_dataset_by_node")
def shard(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return m.make(
        va.Kind.DATASET, call.node, obj.type_name, arguments=obj.arguments, traits=obj.traits | {"sharding"}
    )


@fallback(va.Kind.DATASET)
def dataset_method(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if call.name in (
        "map",
        "filter",
        "shuffle",
        "with_format",
        "select",
        "batch",
        "take",
        "skip",
        "remove_columns",
        "repeat",
    ):
        traits = obj.traits | ({"rank"} if "rank" in m.taint(*call.arguments) else set[str]())
        return m.make(
            va.Kind.DATASET, call.node, obj.type_name, arguments=obj.arguments, traits=frozenset(traits)
        )
    return None


@method(va.Kind.SAMPLER, "set_epoch")
@method(va.Kind.OPAQUE, "set_epoch")
def set_epoch(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    known = obj if obj.kind is va.Kind.SAMPLER else None
    m.emit(ev.SamplerEpochSet, call.node, sampler=known, loader=_loader_of(m, obj))
    return va.NONE


def _loader_of(m: Machine, obj: va.Obj) -> va.Obj | None:
    for oid in m.lineage(obj.id):
        if m.objects[oid].kind is va.Kind.LOADER:
            return m.objects[oid]
    return None


@method(va.Kind.LOADER, "set_epoch")
def loader_epoch(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.emit(ev.SamplerEpochSet, call.node, sampler=None, loader=obj)
    return va.NONE


def loader_attribute(m: Machine, obj: va.Obj, name: str) -> va.Value | None:
    if name in ("sampler", "batch_sampler", "dataset"):
        position = {"dataset": 0, "sampler": 3, "batch_sampler": 4}[name]
        given = obj.arguments.get(name, position)
        if given is not None and not (isinstance(given, va.Const) and given.value is None):
            return given
        child = m.child(obj, name)
        if isinstance(child, va.Obj):
            m.adopt(child, obj)
        return child
    return None

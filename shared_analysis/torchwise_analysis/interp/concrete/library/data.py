"""Loaders: a batch is what data set, transforms and collation make of samples.

The data set's own `__getitem__` is interpreted for one sample; the default collation stacks it to the
batch size. How many batches there are is not known and does not matter.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Instance,
    Int,
    Iter,
    Keywords,
    Namespace,
    Opaque,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core.constants import MAX_ITEMS
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# More batches than any step loop asks for.
MANY = 1 << 20
# Batch sizes tried where none can be read; the first one is shown.
ASSUMED_BATCH_SIZES = (8, 1, 32)


def data_module(it: Interpreter) -> Namespace:
    """`torch.utils.data`."""
    dataset = Class("Dataset", (it.types.object,), module="torch.utils.data", tag="torch.utils.data.Dataset")
    dataset.mro = (dataset, it.types.object)
    members: dict[str, Value] = {"Dataset": dataset}
    for name in ("IterableDataset", "TensorDataset", "Subset", "ConcatDataset"):
        cls = Class(name, (dataset,), module="torch.utils.data", tag=f"torch.utils.data.{name}")
        cls.mro = (cls, *dataset.mro)
        members[name] = cls
    tensors = cast(Class, members["TensorDataset"])
    tensors.members["__init__"] = Builtin("__init__", _tensors_init)
    tensors.members["__getitem__"] = Builtin("__getitem__", _tensors_item)
    tensors.members["__len__"] = Builtin("__len__", lambda it, a, k: _tensors(a[0])[0].shape[0])
    subset = cast(Class, members["Subset"])
    subset.members["__init__"] = Builtin("__init__", _subset_init)
    subset.members["__getitem__"] = Builtin("__getitem__", lambda it, a, k: it.get_item(_inner(a[0]), a[1]))
    subset.members["__len__"] = Builtin(
        "__len__", lambda it, a, k: it.length(cast(Instance, a[0]).attributes["indices"])
    )
    joined = cast(Class, members["ConcatDataset"])
    joined.members["__init__"] = Builtin("__init__", _joined_init)
    joined.members["__getitem__"] = Builtin("__getitem__", lambda it, a, k: it.get_item(_inner(a[0]), a[1]))
    joined.members["__len__"] = Builtin("__len__", lambda it, a, k: Symbol("the length of the data"))
    loader = Class(
        "DataLoader", (it.types.object,), module="torch.utils.data", tag="torch.utils.data.DataLoader"
    )
    loader.mro = (loader, it.types.object)
    loader.members["__init__"] = Builtin("__init__", _loader_init)
    loader.members["__iter__"] = Builtin(
        "__iter__", lambda it, a, k: Iter(batches(it, cast(Instance, a[0])), "loader")
    )
    loader.members["__len__"] = Builtin("__len__", _loader_length)
    members["DataLoader"] = loader
    members["random_split"] = Builtin("random_split", _random_split)
    members["default_collate"] = Builtin(
        "default_collate", lambda it, a, k: collate(it, list(it.iterate(a[0])))
    )
    members |= _samplers(it)
    members["distributed"] = Namespace(
        "torch.utils.data.distributed", {"DistributedSampler": members["DistributedSampler"]}
    )
    members["get_worker_info"] = Builtin("get_worker_info", lambda it, a, k: None)
    members["dataset"] = members["dataloader"] = Namespace("torch.utils.data.dataset", members)
    return Namespace("torch.utils.data", members)


def _samplers(it: Interpreter) -> dict[str, Value]:
    """Samplers: which samples come when does not matter, how many make a batch does."""
    base = Class("Sampler", (it.types.object,), module="torch.utils.data", tag="torch.utils.data.Sampler")
    base.mro = (base, it.types.object)
    base.members["__init__"] = Builtin("__init__", lambda it, a, k: None)
    base.members["set_epoch"] = Builtin("set_epoch", lambda it, a, k: None)
    base.members["__len__"] = Builtin("__len__", lambda it, a, k: Symbol("the length of the data"))
    base.members["__iter__"] = Builtin(
        "__iter__", lambda it, a, k: Unknown("the order of the samples", it.origin())
    )
    made: dict[str, Value] = {"Sampler": base}
    for name in ("Random", "Sequential", "WeightedRandom", "SubsetRandom", "Distributed", "Batch"):
        name += "Sampler"
        cls = Class(name, (base,), module="torch.utils.data", tag=f"torch.utils.data.{name}")
        cls.mro = (cls, *base.mro)
        made[name] = cls
    cast(Class, made["BatchSampler"]).members["__init__"] = Builtin("__init__", _batch_sampler_init)
    return made


def _batch_sampler_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = {**dict(zip(("sampler", "batch_size", "drop_last"), args[1:], strict=False)), **keywords}
    cast(Instance, args[0]).attributes.update(given)
    return None


def _batch_of_sampler(it: Interpreter, sampler: Value) -> Value:
    """How many samples a batch sampler puts together."""
    size = it.find_attribute(sampler, "batch_size")
    if isinstance(size, (int, Unknown, Symbol)):
        return size
    return Unknown("the size of a batch sampler's batches", it.origin())


def _tensors_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    cast(Instance, args[0]).attributes["tensors"] = tuple(args[1:])
    return None


def _tensors(receiver: Value) -> tuple[Tensor, ...]:
    return cast("tuple[Tensor, ...]", cast(Instance, receiver).attributes["tensors"])


def _tensors_item(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return tuple(it.get_item(t, args[1]) for t in _tensors(args[0]))


def _subset_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    receiver.attributes["dataset"] = args[1] if len(args) > 1 else keywords["dataset"]
    receiver.attributes["indices"] = args[2] if len(args) > 2 else keywords.get("indices", Unknown("indices"))
    return None


def _joined_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    sources = list(it.iterate(args[1] if len(args) > 1 else keywords["datasets"]))
    cast(Instance, args[0]).attributes["dataset"] = sources[0]
    cast(Instance, args[0]).attributes["datasets"] = sources
    return None


def _inner(receiver: Value) -> Value:
    return cast(Instance, receiver).attributes["dataset"]


def _random_split(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    space = it.library.known_module("torch.utils.data")
    subset = cast(Namespace, space).members["Subset"]
    source = args[0] if args else keywords["dataset"]
    parts = list(it.iterate(args[1] if len(args) > 1 else keywords["lengths"]))
    indices: list[Value] = [range(p) if isinstance(p, int) else Unknown("indices of a part") for p in parts]
    return [it.call(subset, [source, one], {}) for one in indices]


_LOADER_PARAMS = [
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
]


def _loader_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    given: dict[str, Value] = {"batch_size": 1, "collate_fn": None, "drop_last": False}
    given.update(zip(_LOADER_PARAMS, args[1:], strict=False))
    given.update(keywords)
    if given.get("batch_sampler") is not None:
        given["batch_size"] = _batch_of_sampler(it, given["batch_sampler"])
    receiver.attributes.update(given)
    receiver.attributes["_origin"] = it.origin()
    mixes = given.get("shuffle") is True or given.get("sampler") is not None
    it.library.note_loader(given["batch_size"], mixes or given.get("batch_sampler") is not None)
    return None


def _loader_length(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    size, source = receiver.attributes["batch_size"], receiver.attributes.get("dataset")
    length = it.length(source) if not isinstance(source, Opaque) else Symbol("the length of the data")
    if isinstance(length, int) and isinstance(size, int) and size > 0:
        return length // size if receiver.attributes["drop_last"] else -(-length // size)
    return Symbol("the number of batches")


def batch_size_of(it: Interpreter, receiver: Instance) -> int | None:
    """The batch size of a loader, None where batching is off; unknown sizes become a choice."""
    size = receiver.attributes["batch_size"]
    if size is None:
        return None
    if isinstance(size, int):
        return size
    if isinstance(size, Instance) and isinstance(size.payload, int):
        return size.payload
    why = getattr(size, "why", "the batch size")
    return cast(int, it.choose("micro_batch", ASSUMED_BATCH_SIZES, f"{why} is taken as {{}}"))


def batches(it: Interpreter, receiver: Instance) -> Iterator[Value]:
    """As many batches as are asked for; an unknown data set stops the trace when a batch is needed."""
    size = batch_size_of(it, receiver)
    if size is not None and size < 1:
        raise it.error(
            "ValueError", f"batch_size should be a positive integer value, but got batch_size={size}"
        )
    attributes = receiver.attributes
    if isinstance(attributes["batch_size"], Int):
        it.library.met.setdefault("micro_batch", (attributes["batch_size"], attributes["batch_size"].origin))
    elif size is not None:
        it.library.met.setdefault("micro_batch", (size, cast("None", attributes.get("_origin"))))
    source = attributes.get("dataset")
    if isinstance(source, Instance) and source.cls.find("__getitem__") is MISSING:
        for sample in it.iterate(source):
            yield _batch_of(it, receiver, size, sample)
        return
    count = _loader_length(it, [receiver], {})
    for _ in range(count if isinstance(count, int) else MANY):
        yield _batch(it, receiver, size)


def _batch(it: Interpreter, receiver: Instance, size: int | None) -> Value:
    source = receiver.attributes.get("dataset")
    if isinstance(source, Unknown) or source is None:
        why = source.why if isinstance(source, Unknown) else "the data set"
        origin = source.origin if isinstance(source, Unknown) else None
        return Unknown(f"a batch of {why}", origin or it.origin())
    return _batch_of(it, receiver, size, sample_of(it, source))


def _batch_of(it: Interpreter, receiver: Instance, size: int | None, sample: Value) -> Value:
    if size is None:
        return sample
    # one sample stands for all: collation only looks at shapes
    samples = [sample] * min(size, 64)
    function = receiver.attributes.get("collate_fn")
    if function is not None and not isinstance(function, (Unknown, Opaque)):
        if size > MAX_ITEMS:
            raise Stopped("a batch is longer than is looked at", it.origin())
        if size > len(samples):
            samples = [sample] * size
        return it.call(function, [samples], {})
    return collate(it, samples, size)


def sample_of(it: Interpreter, source: Value) -> Value:
    """One element of a data set."""
    if isinstance(source, Opaque):
        maker = source.attributes.get("__sample__")
        if isinstance(maker, Builtin):
            return it.call(maker, [], {})
        return Unknown(f"a sample of {source.kind}", it.origin())
    if isinstance(source, Instance) and source.cls.find("__getitem__") is not MISSING:
        return it.get_item(source, 0)
    if isinstance(source, (list, tuple, Tensor)):
        return it.get_item(source, 0)
    for item in it.iterate(source):
        return item
    raise Stopped("the data set has no element", it.origin())


def collate(it: Interpreter, samples: list[Value], size: int | None = None) -> Value:
    """`default_collate`: tensors are stacked, numbers become tensors, containers go element by element."""
    count = len(samples) if size is None else size
    first = samples[0]
    if isinstance(first, Tensor):
        return it.library.call_function(it, "torch.empty", [(count, *first.shape)], {"dtype": first.dtype})
    if isinstance(first, Instance) and first.payload is not None:
        first = first.payload
    if isinstance(first, int) or (isinstance(first, Symbol) and first.is_int):
        return it.library.call_function(it, "torch.empty", [(count,)], {"dtype": DTYPES["int64"]})
    if isinstance(first, (float, Symbol)):
        return it.library.call_function(it, "torch.empty", [(count,)], {"dtype": DTYPES["float64"]})
    if isinstance(first, str):
        return [first] * min(count, 1 << 12)
    if isinstance(first, dict):
        return {k: collate(it, [v], count) for k, v in cast("dict[Value, Value]", first).items()}
    if isinstance(first, (list, tuple)):
        return [collate(it, [v], count) for v in cast("list[Value]", first)]
    if isinstance(first, Unknown):
        return Unknown(f"a batch of {first.why}", first.origin)
    return Unknown("a batch of objects that are not known", it.origin())


def tqdm_module(it: Interpreter) -> Namespace:
    """Progress bars: the iterable itself, with inert methods."""
    bar = Builtin("tqdm", _tqdm)
    return Namespace(
        "tqdm",
        {
            "tqdm": bar,
            "trange": Builtin("trange", _trange),
            "auto": Namespace("tqdm.auto", {"tqdm": bar}),
            "notebook": Namespace("tqdm.notebook", {"tqdm": bar}),
        },
    )


def _tqdm(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    source = args[0] if args else keywords.get("iterable")
    bar = Opaque("tqdm")
    for name in (
        "set_description",
        "set_postfix",
        "set_postfix_str",
        "update",
        "close",
        "write",
        "refresh",
        "set_description_str",
    ):
        bar.attributes[name] = Builtin(name, lambda it, a, k: None)
    bar.enter = lambda it: bar
    if source is not None:
        bar.attributes["__iter__"] = Builtin("__iter__", lambda it, a, k: Iter(it.iterate(source)))
        bar.attributes["__len__"] = Builtin("__len__", lambda it, a, k: it.length(source))
    return bar


def _trange(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return _tqdm(it, [it.call(it.types.by_name["range"], args, {})], {})


__all__ = ["batches", "collate", "data_module", "operators", "tqdm_module"]

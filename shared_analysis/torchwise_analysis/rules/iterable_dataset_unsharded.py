"""iterable-dataset-unsharded: every worker of a loader yields the whole stream."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import LoaderBuilt
from torchwise_analysis.interp.abstract.static import called_in, walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Class, Const, Kind, Obj
from torchwise_analysis.rules._datasets import header_of, method_of, plain_calls, words_of
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
    ^^^^^^^^^^^^^^^^^^^ iterable-dataset-unsharded error certain
        for path in self.paths:
            yield from open(path)


loader = DataLoader(Lines(["a.txt", "b.txt"]), batch_size=64, num_workers=8)
"""

RIGHT = """
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        mine = self.paths if info is None else self.paths[info.id :: info.num_workers]
        for path in mine:
            yield from open(path)


loader = DataLoader(Lines(["a.txt", "b.txt"]), batch_size=64, num_workers=8)
"""

RULE = Rule(
    code="TW606",
    name="iterable-dataset-unsharded",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim="A stream is read by several workers of one loader, and each of them yields all of it.",
    cost=(
        "A loader gives every worker a copy of an iterable data set and cannot divide it: with 8 workers "
        "each sample comes 8 times in an epoch. Epochs are 8 times longer than they say, batches hold near "
        "copies, validation counts every sample 8 times, and the model overfits early."
    ),
    wrong=Example("Eight workers read the same files", WRONG),
    right=Example("Each worker takes its share", RIGHT),
    silent=(
        "the class asks `get_worker_info`, its rank or number, or is given a share in any form",
        "the loader has a `worker_init_fn`, which may divide the data set",
        "no worker or a single one; the number cannot be read",
        "a stream of random samples, which has no end to repeat",
        "a class with a base or a helper function that is not seen",
        "streams of libraries that divide themselves (WebDataset, datasets, litdata, torchdata)",
    ),
    grading="Always an error. Certain: class, loader and number of workers are all seen.",
    fix="Advice: take every `num_workers`-th part from `get_worker_info().id` on.",
    references=(
        Reference(
            "torch.utils.data: iterable-style datasets and multi-process loading",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset",
        ),
        Reference(
            "huggingface/datasets#3423: data duplicate when setting num_workers > 1 with streaming data",
            "https://github.com/huggingface/datasets/issues/3423",
        ),
        Reference(
            "pytorch/pytorch#30599: IterableDataset and worker splitting",
            "https://github.com/pytorch/pytorch/issues/30599",
        ),
    ),
    examples=(
        Example(
            "Lines of a file",
            """
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
    ^^^^^^^^^^^^^^^^^^^ iterable-dataset-unsharded
        with open(self.path) as file:
            for line in file:
                yield line.strip()


for line in DataLoader(Lines("corpus.txt"), batch_size=8, num_workers=2):
    print(line)
""",
        ),
        Example(
            "A generator method behind `__iter__`",
            """
import torch
from torch.utils.data import DataLoader, IterableDataset


class Table(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def rows_as_tensors(self):
        for row in self.rows:
            yield torch.tensor(row)

    def __iter__(self):
    ^^^^^^^^^^^^^^^^^^^ iterable-dataset-unsharded error certain
        return self.rows_as_tensors()


def loader(rows):
    return DataLoader(Table(rows), batch_size=16, num_workers=4)
""",
        ),
        Example(
            "Files in another order in each epoch",
            """
import random

import torch
from torch.utils.data import DataLoader, IterableDataset


class Files(IterableDataset):
    def __init__(self, paths, shuffle=True):
        self.paths = list(paths)
        self.shuffle = shuffle

    def ordered(self):
        paths = list(self.paths)
        if self.shuffle:
            random.Random(0).shuffle(paths)
        return paths

    def __iter__(self):
    ^^^^^^^^^^^^^^^^^^^ iterable-dataset-unsharded error certain
        for path in self.ordered():
            yield from torch.load(path, weights_only=True)


loader = DataLoader(Files(["a.pt", "b.pt"]), batch_size=8, num_workers=4)
""",
        ),
        Example(
            "Without an end, and in an order of its own in each worker",
            """
import random

import torch
from torch.utils.data import DataLoader, IterableDataset


class Files(IterableDataset):
    def __init__(self, paths):
        self.paths = list(paths)

    def __iter__(self):
        while True:
            random.shuffle(self.paths)
            for path in self.paths:
                yield from torch.load(path, weights_only=True)


loader = DataLoader(Files(["a.pt", "b.pt"]), batch_size=8, num_workers=4)
""",
        ),
        Example(
            "One worker, or none, has nothing to divide",
            """
import torch
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __iter__(self):
        yield from open("a.txt")


first = DataLoader(Lines(), batch_size=64)
second = DataLoader(Lines(), batch_size=64, num_workers=1)
""",
        ),
        Example(
            "Divided by an initialiser of the workers",
            """
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Span(IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def divide(worker):
    info = get_worker_info()
    span, count = info.dataset, info.num_workers
    length = (span.end - span.start) // count
    span.start += worker * length
    span.end = span.start + length


loader = DataLoader(Span(0, 1000), batch_size=8, num_workers=4, worker_init_fn=divide)
""",
        ),
        Example(
            "An endless stream of random samples",
            """
import torch
from torch.utils.data import DataLoader, IterableDataset


class Noise(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(12)


loader = DataLoader(Noise(), batch_size=8, num_workers=4)
""",
        ),
        Example(
            "A share is handed in",
            """
import torch
from torch.utils.data import DataLoader, IterableDataset


class Part(IterableDataset):
    def __init__(self, paths, shard, shards):
        self.paths = paths[shard::shards]

    def __iter__(self):
        for path in self.paths:
            yield from open(path)


def loader(paths, shard):
    return DataLoader(Part(paths, shard, 8), batch_size=16, num_workers=2)
""",
        ),
    ),
)

# A class that speaks of any of these may divide its data, one that draws may have no data to divide.
_DIVIDING = (
    "worker",
    "rank",
    "world",
    "islice",
    "num_replicas",
    "partition",
    "stride",
    "by_node",
    "process_index",
)
# Names of a share as well as of files or words: they divide where the class counts with them.
_LIBRARIES = ("load_dataset", "webdataset", "wds", "litdata")  # their streams know the worker
_PARTS = ("shard", "split", "part")
_COUNTING = ("%", "//")
_ORDERING = frozenset(["shuffle", "randperm", "permutation"])
# Functions whose results are samples; `shuffle` only brings what is there into another order.
_DRAWING = frozenset(
    ["random", "rand", "randn", "randint", "randrange", "choice", "choices", "sample", "uniform", "normal"]
)


def detect(trace: Trace) -> Iterator[Hit]:
    for built in trace.of(LoaderBuilt):
        dataset = built.dataset
        if not isinstance(dataset, Obj) or dataset.cls is None or (built.workers or 0) < 2:
            continue
        if built.loader.arguments.open or _is_given(built, "worker_init_fn", 10):
            continue
        cls = dataset.cls
        found = method_of(cls, "__iter__")
        if found is None or not cls.derives("IterableDataset") or cls.open_bases or _may_divide(cls):
            continue
        if _holds_stream(trace, dataset):
            continue
        yield Hit(
            header_of(trace, found) if found.owner.path == trace.path else built.place,
            Severity.ERROR,
            Confidence.CERTAIN,
            f"each of the {built.workers} workers yields the whole of "
            f"{called(dataset, '`' + cls.name + '`')}: every sample comes {built.workers} times. Divide the "
            "stream with `get_worker_info()`.",
            distinct(
                (
                    Evidence(header_of(trace, found), "nothing here knows the worker"),
                    Evidence(built.place, f"this loader starts {built.workers} workers"),
                )
            ),
            frozenset({("loader", built.loader.id)}),
        )


def _is_given(built: LoaderBuilt, name: str, position: int) -> bool:
    value = built.loader.arguments.get(name, position)
    return value is not None and not (isinstance(value, Const) and value.value is None)


def _may_divide(cls: Class) -> bool:
    for owner in cls.mro:
        words = {word.lower() for word in words_of(owner.node)}
        if any(part in word for word in words for part in _DIVIDING) or words & {*_LIBRARIES}:
            return True
        called_here = called_in(owner.node)
        if called_here & _DRAWING or (called_here & _ORDERING and _is_endless(owner, called_here)):
            return True
        if any(part in word for word in words for part in _PARTS) and _counts(owner):
            return True
        if any(not hasattr(builtins, name) for name in plain_calls(owner.node) if name[:1].islower()):
            return True  # a helper that is not read here
    return False


def _is_endless(cls: Class, called_here: set[str]) -> bool:
    """A stream without an end, each worker in an order of its own, has no sample twice in an epoch."""
    loops = (node.test for node in walk(cls.node) if isinstance(node, nodes.While))
    is_forever = any(isinstance(test, nodes.Constant) and bool(test.value) for test in loops)
    return is_forever or bool(called_here & {"cycle", "count", "repeat"})


def _holds_stream(trace: Trace, dataset: Obj) -> bool:
    """Does it hold a data set of a library, which may divide itself?"""
    assert dataset.cls is not None
    own = (
        node.attr
        for owner in dataset.cls.mro
        for node in walk(owner.node)
        if isinstance(node, nodes.Attribute)
    )
    held = (trace.attribute(dataset.id, name) for name in sorted(set(own)))
    return any(isinstance(value, Obj) and value.kind is Kind.DATASET and value.cls is None for value in held)


def _counts(cls: Class) -> bool:
    """Does it take every nth of something, count remainders, or get the number of its share?"""
    for node in walk(cls.node):
        if isinstance(node, nodes.Slice) and node.step is not None:
            return True
        if isinstance(node, nodes.Binary) and node.op in _COUNTING:
            return True
        if isinstance(node, nodes.FunctionDef) and any(_is_share(param.name) for param in node.params):
            return True
    return False


def _is_share(name: str) -> bool:
    """`shard`, `shard_id`, `num_shards`; `shards` and `split` are files and names of subsets."""
    low = name.lower()
    is_part = any(part in low for part in _PARTS) and low not in ("split", "shards", "parts", "splits")
    return is_part and not low.endswith(("_paths", "_files", "_urls", "_dir", "_name", "_pattern"))


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Yield only this worker's share, by `get_worker_info()`", Safety.ADVICE, ())

"""worker-rng-duplicated: the workers of a loader all draw the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ApiCall, LoaderBuilt
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Function, Kind, Obj, Value
from torchwise_analysis.rules._datasets import Method, header_of, methods_behind, words_of
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct
from torchwise_analysis.source import nodes

WRONG = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, rows):
        self.rows = rows
        self.rng = np.random.default_rng()
                   ^^^^^^^^^^^^^^^^^^^^^^^ worker-rng-duplicated warning certain

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + self.rng.normal(size=12)


def loader(rows):
    return DataLoader(Noisy(rows), batch_size=16, shuffle=True, num_workers=4)
"""

RIGHT = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Noisy(Dataset):
    def __init__(self, rows):
        self.rows = rows
        self.rng = np.random.default_rng()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + self.rng.normal(size=12)


def reseed(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())


def loader(rows):
    return DataLoader(Noisy(rows), batch_size=16, shuffle=True, num_workers=4, worker_init_fn=reseed)
"""

RULE = Rule(
    code="TW702",
    name="worker-rng-duplicated",
    category=Category.DATA,
    severity=Severity.WARNING,
    claim="Random numbers of a data set come from a state that every worker starts with.",
    cost=(
        "Each worker gets a copy of the data set together with its generator. All of them draw the same "
        "crops, flips and noise, and draw them again in the next epoch, because new workers are made from "
        "the same copy: N workers give the variety of one. Four workers drew 0.637 four times in a "
        "measurement. Accuracy is lost without a trace."
    ),
    wrong=Example("A generator of the data set, copied into four workers", WRONG),
    right=Example("A generator for each worker", RIGHT),
    silent=(
        "a `worker_init_fn` gives each worker a seed of its own",
        "the generator is made from the index or in the worker",
        "no workers, or their number cannot be read",
        "the global generators of torch, random and, since torch 1.9, NumPy: the loader seeds them for each "
        "worker",
        "a seed that depends on the worker",
    ),
    grading="Always a warning. Certain: generator, use and loader are all seen.",
    fix="Advice: seed in `worker_init_fn` from `torch.initial_seed()`, which differs by worker and epoch.",
    references=(
        Reference(
            "torch.utils.data: randomness in multi-process data loading",
            "https://docs.pytorch.org/docs/stable/data.html#randomness-in-multi-process-data-loading",
        ),
        Reference(
            "xingyizhou/CenterNet#233: identical random numbers in workers",
            "https://github.com/xingyizhou/CenterNet/issues/233",
        ),
        Reference(
            "pytorch/pytorch#5059: identical NumPy states in workers",
            "https://github.com/pytorch/pytorch/issues/5059",
        ),
    ),
    examples=(
        Example(
            "A generator made once, of Python",
            """
import random

import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, rows):
        self.rows = rows
        self.dice = random.Random(0)
                    ^^^^^^^^^^^^^^^^ worker-rng-duplicated

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + self.dice.random()


def batches(rows):
    return DataLoader(Noisy(rows), batch_size=4, num_workers=4)
""",
        ),
        Example(
            "A constant seed for every worker",
            """
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        left = np.random.randint(0, 8)
        return torch.arange(left, left + 8)


def seed_worker(worker):
    np.random.seed(1234)
    ^^^^^^^^^^^^^^^^^^^^ worker-rng-duplicated warning certain


loader = DataLoader(Crops(), batch_size=4, num_workers=2, worker_init_fn=seed_worker)
""",
        ),
        Example(
            "The worker's own seed",
            """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        left = np.random.randint(0, 8)
        return torch.arange(left, left + 8)


def seed_worker(worker):
    np.random.seed(torch.initial_seed() % 2**32)


loader = DataLoader(Crops(), batch_size=4, num_workers=2, worker_init_fn=seed_worker)
""",
        ),
        Example(
            "A generator that only the constructor uses",
            """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Subsample(Dataset):
    def __init__(self, rows):
        rng = np.random.default_rng(0)
        self.rows = rng.permutation(rows)[:100]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def loader(rows):
    return DataLoader(Subsample(rows), batch_size=16, num_workers=4)
""",
        ),
        Example(
            "No workers, one generator",
            """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, rows):
        self.rows = rows
        self.rng = np.random.default_rng()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + self.rng.normal(size=12)


def loader(rows):
    return DataLoader(Noisy(rows), batch_size=16)
""",
        ),
        Example(
            "A generator for each index",
            """
import random

import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        rng = random.Random(index)
        return torch.tensor([rng.random() for _ in range(12)])


loader = DataLoader(Noisy(), batch_size=16, num_workers=4)
""",
        ),
    ),
)

_GENERATORS = (
    "numpy.random.default_rng",
    "numpy.random.RandomState",
    "random.Random",
    "numpy.random.Generator",
)
_SEEDS = {"numpy.random.seed": "numpy.random.", "random.seed": "random."}


def detect(trace: Trace) -> Iterator[Hit]:
    for built in trace.of(LoaderBuilt):
        dataset = built.dataset
        if not isinstance(dataset, Obj) or dataset.cls is None or not built.workers or built.workers < 2:
            continue
        init = built.loader.arguments.get("worker_init_fn", 10)
        if isinstance(init, Function):
            yield from _constant_seeds(trace, built, dataset, init)
        elif (init is None or (isinstance(init, Const) and init.value is None)) and (
            not built.loader.arguments.open
        ):
            yield from _copied_generators(trace, built, dataset)


def _constant_seeds(trace: Trace, built: LoaderBuilt, dataset: Obj, init: Function) -> Iterator[Hit]:
    """Seeds in the initialiser that are the same for every worker, of what the data set draws from."""
    seen = trace.api(*_SEEDS)
    inside = [call for call in seen if _holds(trace, init.path, init.node, init.line, call.place)]
    for call in inside:
        seed = call.arguments.get("seed", 0) or call.arguments.get("a")
        draws = _draws(trace, dataset, _SEEDS[call.name])
        if isinstance(seed, Const) and seed.value is not None and draws:
            yield _hit(
                call.place,
                f"every worker, in every epoch, starts from seed {seed.value}: they all draw the same "
                "numbers. Seed from `torch.initial_seed()`.",
                (
                    Evidence(built.place, f"this loader starts {built.workers} workers"),
                    Evidence(call.place, "each begins with this seed"),
                    Evidence(draws[0].place, "and draws here"),
                ),
                built,
            )


def _copied_generators(trace: Trace, built: LoaderBuilt, dataset: Obj) -> Iterator[Hit]:
    """`self.rng = default_rng()` in the constructor, `self.rng` in `__getitem__`; or so in a transform that
    the data set holds and runs."""
    items = _methods(dataset, "__getitem__")
    words = frozenset(word for method in items for word in words_of(method.node))
    if not items or not words.isdisjoint(("get_worker_info", "seed", "manual_seed", "initial_seed")):
        return
    yield from _kept_by(trace, built, dataset, items)
    for name in sorted(_kept(items)):
        for part in _transforms(trace, trace.attribute(dataset.id, name)):
            yield from _kept_by(trace, built, part, _methods(part, "__call__"))


def _methods(obj: Obj, name: str) -> tuple[Method, ...]:
    return () if obj.cls is None else methods_behind(obj.cls, name)


def _transforms(trace: Trace, value: Value | None) -> Iterator[Obj]:
    """Objects of the project, also in a list or in what composes them."""
    known = value if isinstance(value, Obj) else None
    if known is None:
        return
    if known.cls is not None and known.kind is Kind.INSTANCE:
        yield known
        return
    for inner in (*trace.items(known.id), *known.arguments):
        held = (inner, *trace.items(inner.id)) if isinstance(inner, Obj) else ()
        yield from (one for one in held if isinstance(one, Obj) and one.cls and one.kind is Kind.INSTANCE)


def _kept(methods: tuple[Method, ...]) -> frozenset[str]:
    """The attributes of the object itself that these methods speak of."""
    below = ((node, method) for method in methods for node in walk(method.node))
    return frozenset(
        node.attr for node, method in below if isinstance(node, nodes.Attribute) and _is_own(node, method)
    )


def _kept_by(trace: Trace, built: LoaderBuilt, owner: Obj, users: tuple[Method, ...]) -> Iterator[Hit]:
    """Generators that the constructor of `owner` makes and its methods `users` draw from."""
    kept = _kept(users)
    made = {(c.place.path, c.place.span) for c in trace.api(*_GENERATORS)}
    for init in _methods(owner, "__init__"):
        for node in walk(init.node):
            target = node.targets[0] if isinstance(node, nodes.Assign) and len(node.targets) == 1 else None
            target = node.target if isinstance(node, nodes.AnnAssign) else target
            value = node.value if isinstance(node, nodes.Assign | nodes.AnnAssign) else None
            if not isinstance(target, nodes.Attribute) or target.attr not in kept or value is None:
                continue
            place = trace.place(init.owner.path, value.span.shifted(init.line))
            if (place.path, place.span) in made:
                yield _hit(
                    place if place.path == trace.path else built.place,
                    f"each of the {built.workers} workers gets a copy of this generator and draws the same "
                    "numbers. Seed it in `worker_init_fn`.",
                    (
                        Evidence(place, "the generator is made once, with the data set"),
                        Evidence(header_of(trace, users[0]), "its samples draw from it"),
                        Evidence(built.place, f"this loader copies it into {built.workers} workers"),
                    ),
                    built,
                )


def _is_own(node: nodes.Attribute, method: Method) -> bool:
    """`self.rng`, not the attribute of something else nor a name that is alike."""
    params = method.node.params
    return isinstance(node.value, nodes.Name) and bool(params) and node.value.id == params[0].name


def _hit(place: Place, message: str, links: tuple[Evidence, ...], built: LoaderBuilt) -> Hit:
    subject = frozenset[object]({("loader", built.loader.id)})
    return Hit(place, Severity.WARNING, Confidence.CERTAIN, message, distinct(links), subject)


def _draws(trace: Trace, dataset: Obj, prefix: str) -> list[ApiCall]:
    """Draws from a global generator in the methods of the data set."""
    assert dataset.cls is not None
    cls = dataset.cls
    calls = (c for c in trace.api(prefix) if not c.name.endswith(("seed", "default_rng", "RandomState")))
    return [call for call in calls if any(_holds(trace, c.path, c.node, c.line, call.place) for c in cls.mro)]


def _holds(trace: Trace, path: str, node: nodes.Node, line: int, place: Place) -> bool:
    span = trace.place(path, node.span.shifted(line)).span
    return place.path == path and span.line <= place.span.line and place.span.end_line <= span.end_line


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Seed each worker in `worker_init_fn` from `torch.initial_seed()`", Safety.ADVICE, ())

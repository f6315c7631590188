"""train-loader-unshuffled: the training batches come in the same order in every epoch."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Forward, LoaderBuilt, LoopEntered, Prepared
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Origin, Unknown
from torchwise_analysis.rules._datasets import method_of, words_of
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(480, 12), torch.randint(0, 4, (480,)))
loader = DataLoader(data, batch_size=16)
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ train-loader-unshuffled warning likely
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(480, 12), torch.randint(0, 4, (480,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW703",
    name="train-loader-unshuffled",
    category=Category.DATA,
    severity=Severity.WARNING,
    claim="A training loader over indexed data neither shuffles nor samples, and is walked in every epoch.",
    cost=(
        "Every epoch shows the same batches in the same order. When the data is sorted by class or by "
        "source, a batch holds one class, the gradient swings with it, and batch normalisation learns "
        "statistics of classes instead of the data. Shuffling costs nothing."
    ),
    wrong=Example("A loader with its default order", WRONG, fixed=RIGHT),
    right=Example("Shuffled in each epoch", RIGHT),
    silent=(
        "a sampler or a batch sampler, arguments that are not all visible",
        "streams, data sets that choose their samples themselves",
        "a single epoch, or one batch that holds everything",
        "a model whose state is carried from batch to batch, or that has recurrent layers: the order may "
        "matter",
        "loaders that only evaluate; loaders that a framework shuffles or divides",
    ),
    grading=(
        "Always a warning and at most likely: data may be in random order already. When the data set is only "
        "known by its name, the message says so."
    ),
    fix="Add `shuffle=True`. Unsafe: the order of the batches changes.",
    references=(
        Reference(
            "torch.utils.data.DataLoader",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        ),
        Reference(
            "Deci-AI/super-gradients#581: training data was not shuffled",
            "https://github.com/Deci-AI/super-gradients/pull/581",
        ),
    ),
    examples=(
        Example(
            "Slices of a data set that was shuffled once",
            """
import torch
from torch import nn
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader

data = TUDataset("data", name="PROTEINS").shuffle()
held_out = DataLoader(data[:100], batch_size=20)
loader = DataLoader(data[100:], batch_size=20)
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ train-loader-unshuffled warning likely
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for batch in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Data sets of one's own, shuffled once by a method of theirs",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x):
        return self.layer(x)


def train(samples):
    loader = DataLoader(Molecules(samples)[100:], batch_size=20)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ train-loader-unshuffled warning likely
    model, teacher = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for x, _ in loader:
            y = model(x)
            optimizer.zero_grad()
            (teacher(y) - teacher(x)).pow(2).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    train(torch.load("samples.pt"))
""",
        ),
        Example(
            "Switched off for training",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(train_set, model, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(train_set, batch_size=16, shuffle=False)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ train-loader-unshuffled warning likely
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "A stream has no order to shuffle",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(12), torch.randint(0, 4, ())


model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Stream(), batch_size=16)
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "One pass over the data",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(480, 12), torch.randint(0, 4, (480,)))
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        ),
        Example(
            "The data set draws its samples itself",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 1000

    def __getitem__(self, _):
        return self.rows[torch.randint(0, len(self.rows), ())]


def train(rows):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Drawn(rows), batch_size=16)
    for epoch in range(10):
        for x in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
""",
        ),
        Example(
            "The validation loader keeps its order",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(480, 12), torch.randint(0, 4, (480,)))
held_out = TensorDataset(torch.randn(48, 12), torch.randint(0, 4, (48,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
check = DataLoader(held_out, batch_size=16)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(nn.functional.cross_entropy(model(x), y).item() for x, y in check))
""",
        ),
    ),
)

# Indexed data sets of torch; whoever made them may have shuffled before.
_INDEXED = ("TensorDataset", "Subset", "ConcatDataset")
_INDEXED_LIBRARIES = ("torchvision.datasets.", "torch_geometric.datasets.")


def detect(trace: Trace) -> Iterator[Hit]:
    managed = {obj.id for prepared in trace.of(Prepared) for obj in prepared.objects}
    for built in trace.of(LoaderBuilt):
        loader = built.loader
        if built.shuffle is not False or not _is_absent(built.sampler) or loader.arguments.open:
            continue
        if loader.id in managed | trace.escaped or not _is_in_small_batches(built):
            continue
        dataset = built.dataset
        epochs = _epochs(trace, loader)
        if epochs is None or not isinstance(dataset, Obj) or not _is_indexed(dataset):
            continue
        if _is_taught_from(trace, loader) and not _carries_state(trace, loader):
            yield _hit(trace, built, dataset, epochs)


def _is_taught_from(trace: Trace, loader: Obj) -> bool:
    """Do its batches give gradients to weights? An attack on test images gives them to the images."""
    return any(loader.id in trace.passes[p].forward.sources for p in trace.taught if p in trace.passes)


def _is_absent(value: object) -> bool:
    return value is None or (isinstance(value, Const) and value.value is None)


def _is_in_small_batches(built: LoaderBuilt) -> bool:
    """Neither without batches nor all in one."""
    size = built.loader.arguments.get("batch_size", 1)
    if isinstance(size, Const):
        return size.value is not None
    return not (isinstance(size, Unknown) and "len(" in (size.symbol or "len("))


def _is_indexed(dataset: Obj) -> bool:
    """Is every sample found by its index alone, as far as can be seen?"""
    if dataset.cls is not None:
        item = method_of(dataset.cls, "__getitem__")
        if item is None or method_of(dataset.cls, "__iter__") or dataset.cls.open_bases:
            return False
        index = item.node.params[-1].name
        words = words_of(item.node)
        is_drawn = words & {"random", "randint", "choice", "sample", "rand", "rng"}
        return index in words and not is_drawn
    last = dataset.type_name.rpartition(".")[2]
    if dataset.kind is Kind.DATASET:
        return last in _INDEXED or dataset.type_name.startswith(_INDEXED_LIBRARIES)
    return dataset.kind is Kind.OPAQUE and dataset.origin is Origin.UNSEEN


def _epochs(trace: Trace, loader: Obj) -> LoopEntered | None:
    """The loop over the batches, when it stands in a loop of epochs that the loader outlives."""
    for entered in trace.of(LoopEntered):
        over = entered.over
        if isinstance(over, Obj) and over.kind is Kind.ITERATOR and over.over:
            over = over.over[0]
        if not isinstance(over, Obj) or over.id != loader.id or not entered.loops:
            continue
        outer = [turn for turn in entered.loops[len(loader.birth) :] if not turn.loop.is_call]
        if any(turn.loop.kind in (LoopKind.RANGE, LoopKind.UNBOUNDED) for turn in outer):
            return entered
    return None


def _carries_state(trace: Trace, loader: Obj) -> bool:
    """Earlier passes flow into later ones, or recurrent layers may keep what they saw."""
    fed = [forward for forward in trace.forwards if loader.id in forward.sources]
    return any(
        trace.has_layer(f.module.id, "LSTM", "GRU", "RNN") or any(_is_earlier(trace, p, f) for p in f.inputs)
        for f in fed
    )


def _is_earlier(trace: Trace, pass_: int, forward: Forward) -> bool:
    """Was the pass made in an earlier turn of a loop that the forward runs in?"""
    if pass_ not in trace.passes:
        return True
    made = {turn.loop.place: turn.iteration for turn in trace.passes[pass_].loops}
    return any(made.get(turn.loop.place, turn.iteration) < turn.iteration for turn in forward.loops)


def _hit(trace: Trace, built: LoaderBuilt, dataset: Obj, epochs: LoopEntered) -> Hit:
    unseen = dataset.origin is Origin.UNSEEN and dataset.cls is None
    backward = next(
        (
            trace.trained[p]
            for p in sorted(trace.taught)
            if p in trace.passes and built.loader.id in trace.passes[p].forward.sources
        ),
        None,
    )
    links = [Evidence(built.place, "neither `shuffle` nor a sampler")]
    links.append(Evidence(epochs.loop_place, "walked again in each epoch"))
    if backward is not None:
        links.append(Evidence(backward.place, "and its batches train"))
    name = called(built.loader, "this loader")
    return Hit(
        built.place,
        Severity.WARNING,
        Confidence.LIKELY,
        f"{name} gives the training batches in the same order in every epoch. Add `shuffle=True`."
        + doubt(
            (unseen, f"what {called(dataset, 'the data set')} is, is not seen"),
            (not unseen, "the data may be in random order already"),
        ),
        distinct(links),
        frozenset({("loader", built.loader.id)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Shuffle the training data (changes the order of batches)"
    call = expression_at(file.module, hit.place.span)
    if not isinstance(call, nodes.Call) or not (call.args or call.keywords):
        yield Fix(title, Safety.ADVICE, ())
        return
    shift = hit.place.span.line - call.span.line
    given = next((k for k in call.keywords if k.name == "shuffle"), None)
    if given is not None:
        place = Place(file.path, given.value.span.shifted(shift))
        yield Fix(title, Safety.UNSAFE, (Edit(place, "True"),))
        return
    if len(call.args) > 2:
        yield Fix(title, Safety.ADVICE, ())
        return
    ends = [a.span for a in call.args] + [k.value.span for k in call.keywords]
    last = max(ends, key=lambda span: (span.end_line, span.end_column)).shifted(shift)
    place = Place(file.path, nodes.Span(last.end_line, last.end_column, last.end_line, last.end_column))
    yield Fix(title, Safety.UNSAFE, (Edit(place, ", shuffle=True"),))

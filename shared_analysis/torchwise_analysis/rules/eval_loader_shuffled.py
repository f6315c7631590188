"""eval-loader-shuffled: an evaluation leaves out other samples every time."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Configured, Forward, HostSync, LoaderBuilt
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import UNRECORDED, Obj, Tensor
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn
from torch.utils.data import DataLoader


def evaluate(model, data):
    batches = DataLoader(data, 64, shuffle=True, drop_last=True)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-loader-shuffled warning certain
    model.eval()
    right, seen = 0, 0
    with torch.no_grad():
        for x, y in batches:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    return right / seen
"""

RIGHT = """
import torch
from torch import nn
from torch.utils.data import DataLoader


def evaluate(model, data):
    loader = DataLoader(data, batch_size=64, shuffle=False)
    model.eval()
    right, seen = 0, 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    return right / seen
"""

RULE = Rule(
    code="TW710",
    name="eval-loader-shuffled",
    category=Category.DATA,
    severity=Severity.WARNING,
    claim="An evaluation drops its last batch, so that what it reports rests on a part of the samples.",
    cost=(
        "`drop_last=True` leaves out up to a batch less one sample. Shuffled, it is another part each "
        "time: the same weights score differently, the best checkpoint is chosen by luck, and two runs "
        "cannot be compared. On a small test set that is whole percents."
    ),
    wrong=Example("A random subset is scored", WRONG),
    right=Example("All samples, in their order", RIGHT),
    silent=(
        "loaders whose batches train, and those from which no number is read (pictures, examples)",
        "a shuffled evaluation of all samples: its mean does not depend on the order",
        "flags that are not known, `**options`",
        "every sample is in a batch by itself",
    ),
    grading=(
        "A warning, and certain, when shuffling chooses the samples; a hint when the same last samples are "
        "left out each time."
    ),
    fix="`drop_last=False`. Unsafe: more samples are scored, which is the point.",
    references=(
        Reference("torch.utils.data", "https://docs.pytorch.org/docs/stable/data.html"),
        Reference("Reproducibility", "https://docs.pytorch.org/docs/stable/notes/randomness.html"),
    ),
    examples=(
        Example(
            "A validation loader beside the one that trains",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def main(train_set, val_set):
    train = DataLoader(train_set, 32, shuffle=True, drop_last=True)
    val = DataLoader(val_set, 32, shuffle=True, drop_last=True)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-loader-shuffled warning certain
    for epoch in range(10):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        total = 0.0
        with torch.no_grad():
            for x, y in val:
                total += nn.functional.cross_entropy(model(x), y).item()
        print(total / len(val))
""",
            fixed="""
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def main(train_set, val_set):
    train = DataLoader(train_set, 32, shuffle=True, drop_last=True)
    val = DataLoader(val_set, 32, shuffle=True, drop_last=False)
    for epoch in range(10):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        total = 0.0
        with torch.no_grad():
            for x, y in val:
                total += nn.functional.cross_entropy(model(x), y).item()
        print(total / len(val))
""",
        ),
        Example(
            "The same last samples are left out",
            """
import torch
from torch.utils.data import DataLoader


@torch.inference_mode()
def evaluate(model, data):
    model.eval()
    hits = 0
    for x, y in DataLoader(data, 64, drop_last=True):
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-loader-shuffled hint certain
        hits += (model(x).argmax(1) == y).sum().item()
    return hits / len(data)
""",
        ),
        Example(
            "Given to Lightning's Trainer",
            """
import lightning as L
from torch.utils.data import DataLoader


class Data(L.LightningDataModule):
    def __init__(self, train, val):
        super().__init__()
        self.train_set, self.val_set = train, val

    def train_dataloader(self):
        return DataLoader(self.train_set, 32, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 32, shuffle=True, drop_last=True)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-loader-shuffled warning certain
""",
        ),
        Example(
            "Shuffled, and all of them",
            """
import torch
from torch.utils.data import DataLoader


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    hits = 0
    for x, y in DataLoader(data, 64, shuffle=True):
        hits += (model(x).argmax(1) == y).sum().item()
    return hits / len(data)
""",
        ),
        Example(
            "Pictures to look at",
            """
import torch
from torch.utils.data import DataLoader
from torchvision.utils import save_image


@torch.no_grad()
def show(model, data):
    model.eval()
    for x in DataLoader(data, 8, shuffle=True, drop_last=True):
        save_image(model(x), "out.png")
        break
""",
        ),
        Example(
            "A flag that is not known",
            """
import torch
from torch.utils.data import DataLoader


@torch.no_grad()
def evaluate(model, data, args):
    model.eval()
    hits = 0
    for x, y in DataLoader(data, 64, shuffle=True, drop_last=args.even):
        hits += (model(x).argmax(1) == y).sum().item()
    return hits / len(data)
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for built in trace.of(LoaderBuilt):
        loader = built.loader
        if built.drop_last is not True or loader.arguments.open or trace.is_training_source(loader.id):
            continue
        if built.shuffle is None or built.sampler is not None:
            continue
        hook = _hook(trace, loader)
        run = _evaluation(trace, loader)
        read = _reading(trace, loader, run) if run is not None else None
        if hook is not None:
            yield _hit(built, [Evidence(hook.place, f"and it is what `{hook.hook}` gives to the Trainer")])
        elif run is not None and read is not None:
            links = [Evidence(run.place, "its batches are evaluated")]
            yield _hit(built, [*links, Evidence(read.place, "and the result is read")])


def _hook(trace: Trace, loader: Obj) -> Configured | None:
    """The hook of Lightning that returns it for an evaluation."""
    given = (e for e in trace.of(Configured) if e.hook in ("val_dataloader", "test_dataloader"))
    return next((event for event in given if trace.holds(event.value, loader.id)), None)


def _evaluation(trace: Trace, loader: Obj) -> Forward | None:
    """The first of its forwards, when all of them record nothing."""
    runs = [forward for forward in trace.forwards if loader.id in forward.sources]
    if not runs or any(forward.grad != frozenset([False]) for forward in runs):
        return None
    return runs[0]


def _reading(trace: Trace, loader: Obj, run: Forward) -> HostSync | None:
    """The first number read of its batches, in the loop over them."""
    loops = {turn.loop.place for turn in run.loops}
    own = {forward.pass_ for forward in trace.forwards if loader.id in forward.sources}
    for read in trace.of(HostSync):
        value = read.value
        if value is None or loader.id not in value.sources or _had_graph(value):
            continue
        if value.cut is not None and value.cut.passes.isdisjoint(own):
            continue  # of an evaluation of others, which something made of these batches goes into
        is_read = read.how in ("item", "float()", "tolist", "numpy", "cpu")
        if is_read and any(turn.loop.place in loops for turn in read.loops):
            return read
    return None


def _had_graph(value: Tensor) -> bool:
    """Is it the number of a training step, into which something made of these batches went?"""
    return bool(value.passes) or (value.cut is not None and value.cut.how != UNRECORDED)


def _hit(built: LoaderBuilt, links: list[Evidence]) -> Hit:
    name = called(built.loader, "this loader")
    if built.shuffle:
        message = (
            f"{name} shuffles and drops the last batch: each evaluation leaves out other samples, so the "
            "same weights score differently. Use `drop_last=False`."
        )
    else:
        message = (
            f"{name} drops the last batch: what is reported leaves out the last samples. "
            "Use `drop_last=False`."
        )
    return Hit(
        built.place,
        Severity.WARNING if built.shuffle else Severity.HINT,
        Confidence.CERTAIN,
        message,
        distinct((Evidence(built.place, "the last batch is dropped"), *links)),
        frozenset({("loader", built.loader.id)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Score all samples: `drop_last=False` (changes what is reported)"
    call = expression_at(file.module, hit.place.span) if hit.place.path == file.path else None
    given = [k for k in call.keywords if k.name == "drop_last"] if isinstance(call, nodes.Call) else []
    if call is None or not given:
        yield Fix(title, Safety.ADVICE, ())
        return
    place = Place(file.path, given[0].value.span.shifted(hit.place.span.line - call.span.line))
    yield Fix(title, Safety.UNSAFE, (Edit(place, "False"),))

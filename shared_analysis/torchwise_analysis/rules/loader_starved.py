"""loader-starved: the process that trains decodes every file itself."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import LoaderBuilt, Transfer
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Obj
from torchwise_analysis.rules._accelerators import first_transfer
from torchwise_analysis.rules._datasets import header_of, method_of, words_behind
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct

WRONG = """
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_tensor


class Photos(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        path, label = self.rows[index]
        return to_tensor(Image.open(path)), label


def train(rows, model):
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Photos(rows), batch_size=64, shuffle=True)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ loader-starved hint certain
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
"""

RIGHT = """
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_tensor


class Photos(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        path, label = self.rows[index]
        return to_tensor(Image.open(path)), label


def train(rows, model):
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Photos(rows), batch_size=64, shuffle=True, num_workers=8, pin_memory=True)
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
"""

RULE = Rule(
    code="TW708",
    name="loader-starved",
    category=Category.DATA,
    severity=Severity.HINT,
    claim="A training loader reads and decodes files in the process that trains, without workers.",
    cost=(
        "With `num_workers=0` the device waits while the next batch is read, decoded and put together, and "
        "reading waits while the device computes. For images and sound it often takes longer than the step: "
        "the card is paid for and stands still for most of the time."
    ),
    wrong=Example("Images opened between two steps", WRONG),
    right=Example("Workers read ahead", RIGHT),
    silent=(
        "data that is in memory, or a data set of which is not seen that it opens files for each sample",
        "workers that are given in any form, a number that is not known, `**options`",
        "scripts that stay on the CPU, and loaders whose batches train nothing",
        "samples that are kept after the first reading",
    ),
    grading=(
        "A hint, and certain as far as it goes: there are no workers and files are opened. How long that "
        "takes beside the step is not known. One finding for each loader."
    ),
    fix=(
        "Advice, never an edit: how many workers help depends on the machine, and `pin_memory` fails on data "
        "that is on a device already."
    ),
    references=(
        Reference("torch.utils.data", "https://docs.pytorch.org/docs/stable/data.html"),
        Reference(
            "Performance Tuning Guide: enable asynchronous data loading",
            "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
    ),
    examples=(
        Example(
            "A folder of images",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = torch.device("cuda")


def train(model, folder):
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = datasets.ImageFolder(folder, transform=transforms.ToTensor())
    loader = DataLoader(images, 64, shuffle=True, num_workers=0)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ loader-starved hint certain
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
""",
        ),
        Example(
            "Sound read for each sample",
            """
import torch
import torchaudio
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        wave, rate = torchaudio.load(self.rows[index])
        return wave, index % 4


def train(model, rows):
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Clips(rows), shuffle=True):
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ loader-starved hint certain
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
""",
        ),
        Example(
            "Tensors in memory, and workers by position",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets


def train(model, x, y, folder):
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small = DataLoader(TensorDataset(x, y), 64, shuffle=True)
    large = DataLoader(datasets.ImageFolder(folder), 64, True, None, None, 8)
    for loader in (small, large):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a.cuda()), b.cuda()).backward()
            optimizer.step()
""",
        ),
        Example(
            "On the CPU the same cores would work",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def train(model, folder):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = datasets.ImageFolder(folder, transform=transforms.ToTensor())
    for x, y in DataLoader(images, 64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A number of workers that is not known",
            """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def train(model, args):
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = datasets.ImageFolder(args.folder, transform=transforms.ToTensor())
    for x, y in DataLoader(images, 64, shuffle=True, num_workers=args.workers):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
""",
        ),
    ),
)

# Data sets of torchvision that open a file for each sample.
_FOLDERS = frozenset(
    ["ImageFolder", "DatasetFolder", "ImageNet", "CocoDetection", "CocoCaptions", "VOCDetection", "CelebA",
     "VOCSegmentation", "Cityscapes", "Places365", "Kinetics", "INaturalist", "OxfordIIITPet", "Food101"]
)  # fmt: skip
_DECODING = frozenset(
    ["imread", "imdecode", "read_image", "decode_jpeg", "decode_image", "VideoReader", "librosa",
     "torchaudio", "soundfile", "h5py", "nibabel", "pydicom", "rasterio", "tifffile"]
)  # fmt: skip


def detect(trace: Trace) -> Iterator[Hit]:
    move = first_transfer(trace)
    if move is None:
        return
    for built in trace.of(LoaderBuilt):
        loader, dataset = built.loader, built.dataset
        if built.workers != 0 or loader.arguments.open or not isinstance(dataset, Obj):
            continue
        if not loader.type_name.startswith("torch.utils.data.") or not trace.is_training_source(loader.id):
            continue
        if loader.id in trace.escaped or _is_given(built, "pin_memory_device"):
            continue
        reading = _reading(trace, dataset)
        if reading is not None:
            yield _hit(built, move, reading)


def _is_given(built: LoaderBuilt, name: str) -> bool:
    value = built.loader.arguments.get(name)
    return value is not None and not (isinstance(value, Const) and not value.value)


def _reading(trace: Trace, dataset: Obj) -> tuple[Place | None, str] | None:
    """Where it opens a file for each sample, in words."""
    if dataset.cls is None:
        name = dataset.type_name.rpartition(".")[2]
        is_known = dataset.type_name.startswith("torchvision.datasets.") and name in _FOLDERS
        return (dataset.place, f"`{name}` opens a file for each sample") if is_known else None
    found = method_of(dataset.cls, "__getitem__")
    if found is None or dataset.cls.open_bases:
        return None
    words = words_behind(dataset.cls, found.node.name)
    opens = {"Image", "open"} <= words or ("load" in words and words & {"np", "numpy", "torch"})
    if not (opens or words & _DECODING) or any("cache" in word.lower() for word in words):
        return None
    return header_of(trace, found), "a file is opened for each sample here"


def _hit(built: LoaderBuilt, move: Transfer, reading: tuple[Place | None, str]) -> Hit:
    place, words = reading
    links = [Evidence(place, words)] if place is not None else []
    return Hit(
        built.place,
        Severity.HINT,
        Confidence.CERTAIN,
        f"{called(built.loader, 'this loader')} opens its files in the process that trains: the device waits "
        "while the next batch is read. Give it `num_workers`, and `pin_memory=True`.",
        distinct(
            (
                *links,
                Evidence(built.place, "no workers"),
                Evidence(move.place, "and the batches go to a device"),
            )
        ),
        frozenset({("loader", built.loader.id)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Give it workers: as many as there are cores for this process", Safety.ADVICE, ())

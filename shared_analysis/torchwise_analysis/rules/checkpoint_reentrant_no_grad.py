"""checkpoint-reentrant-no-grad: a checkpointed part whose parameters get no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at
from torchwise_analysis.interp.abstract.events import Checkpointed
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Tensor, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = checkpoint(self.stem, x, use_reentrant=True)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-reentrant-no-grad error certain
        return self.head(h.relu())


def train(data):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = checkpoint(self.stem, x, use_reentrant=False)
        return self.head(h.relu())


def train(data):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW107",
    name="checkpoint-reentrant-no-grad",
    category=Category.AUTOGRAD,
    severity=Severity.ERROR,
    claim="A part of the model is checkpointed in the reentrant way on inputs that need no gradient.",
    cost=(
        "Reentrant checkpointing hangs the part into the graph through its inputs. When none of them "
        "requires grad, the output does not either, and the parameters inside keep `grad = None`: that part "
        "stays as it was initialised for the whole run. One warning is printed, nothing is raised."
    ),
    wrong=Example("The first layer, on the batch itself", WRONG, fixed=RIGHT),
    right=Example("The other implementation follows the parameters", RIGHT),
    silent=(
        "an input carries a graph: the output of an embedding or of an earlier layer that trains",
        "`requires_grad_()` is called on a tensor, as `enable_input_require_grads` does",
        "`use_reentrant=False`, a flag that is not known, or gradients are off",
        "the part has no parameters that train",
        "inputs of which nothing is known: whoever calls may have computed them",
    ),
    grading=(
        "Always an error. Certain when the inputs come from a loader or are made in view; likely when the "
        "forward is called elsewhere and an input is taken for data by its name. Without `use_reentrant` "
        "PyTorch takes True (up to 2.13, with a warning)."
    ),
    fix=(
        "Set `use_reentrant=False`. Unsafe: the part begins to learn, which is the point, and what runs in "
        "the backward differs in rare cases."
    ),
    references=(
        Reference("torch.utils.checkpoint", "https://docs.pytorch.org/docs/stable/checkpoint.html"),
        Reference(
            "Autograd mechanics: setting requires_grad",
            "https://docs.pytorch.org/docs/stable/notes/autograd.html",
        ),
    ),
    examples=(
        Example(
            "The default is the reentrant way",
            """
import torch
from torch import nn
from torch.utils import checkpoint


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)])
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        x = checkpoint.checkpoint(self.blocks[0], x)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-reentrant-no-grad error certain
        for block in self.blocks[1:]:
            x = block(x)
        return self.head(x)


def train():
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        loss = model(torch.randn(8, 12)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            fixed="""
import torch
from torch import nn
from torch.utils import checkpoint


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)])
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        x = checkpoint.checkpoint(self.blocks[0], x, use_reentrant=False)
        for block in self.blocks[1:]:
            x = block(x)
        return self.head(x)


def train():
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        loss = model(torch.randn(8, 12)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A model that others call, on images",
            """
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image):
        h = checkpoint(self.blocks[0], image, use_reentrant=True)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ checkpoint-reentrant-no-grad error likely
        for block in self.blocks[1:]:
            h = block(h)
        return h
""",
        ),
        Example(
            "Behind an embedding that trains",
            """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(100, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, ids):
        h = checkpoint(self.body, self.words(ids), use_reentrant=True)
        return self.head(h.mean(1))


def train(data):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for ids, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(ids), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The batch is made to require grad",
            """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(checkpoint(self.stem, x.float().requires_grad_(), use_reentrant=True))


def train(data):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A block of a larger model gets what came before",
            """
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, use_checkpoint):
        super().__init__()
        self.body, self.use_checkpoint = nn.Linear(12, 12), use_checkpoint

    def forward(self, x):
        if self.use_checkpoint and self.training:
            return checkpoint(self.body, x, use_reentrant=True)
        return self.body(x)
""",
        ),
    ),
)

# Names of forward arguments that hold data of a set, never a result of another layer.
_DATA = frozenset(
    ["image", "images", "img", "imgs", "pixels", "pixel_values", "input_ids", "token_ids", "tokens", "audio",
     "waveform", "video", "videos", "frames", "pixel_values_videos", "input_values"]
)  # fmt: skip


class _Found(NamedTuple):
    given: bool


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.api("torch.Tensor.requires_grad="):
        return
    for event in trace.of(Checkpointed):
        if event.reentrant is False or (event.given and event.reentrant is None):
            continue
        if event.grad != frozenset([True]) or not event.learns:
            continue
        kinds = {_kind(trace, member) for value in event.inputs for member in alternatives(value)} - {"none"}
        is_named = len(event.names) == len(event.inputs) and _DATA.issuperset(event.names)
        if kinds == {"data"} or is_named:
            yield _hit(event, is_named)


def _kind(trace: Trace, value: Value) -> str:
    """Whether an input needs no gradient ("data"), may need one ("unknown") or is no tensor ("none")."""
    if isinstance(value, Const):
        return "none"
    if isinstance(value, Tensor):
        return "unknown" if value.passes or not (value.sources or value.evidence) else "data"
    if isinstance(value, Obj) and value.kind is Kind.OPAQUE:
        of = (trace.objects[oid] for oid in trace.lineage(value.id) if oid in trace.objects)
        return "data" if any(whole.kind is Kind.LOADER for whole in of) else "unknown"
    return "unknown"


def _hit(event: Checkpointed, is_named: bool) -> Hit:
    how = "asks for the reentrant way" if event.given else "leaves `use_reentrant` out: PyTorch takes True"
    links = [Evidence(event.place, f"this {how}")]
    for value in event.inputs:
        for member in alternatives(value):
            if member.evidence is not None:
                links += step(member.evidence.place, "its input comes from here and requires no grad")
    return Hit(
        event.place,
        Severity.ERROR,
        grade(int(is_named)),
        "no input of this checkpoint requires grad, so its result does not either: the parameters inside get "
        "no gradient and never train. Set `use_reentrant=False`."
        + doubt((is_named, "who calls this forward is not seen, its argument is taken for data by its name")),
        distinct(links),
        frozenset({("checkpoint", event.place)}),
        _Found(event.given),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    edit = _edit(file, hit.place)
    title = "Set `use_reentrant=False` (the part begins to train)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _edit(file: SourceFile, place: Place) -> Edit | None:
    call = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(call, nodes.Call):
        return None
    shift = place.span.line - call.span.line
    for keyword in call.keywords:
        if keyword.name == "use_reentrant":
            return Edit(Place(file.path, keyword.value.span.shifted(shift)), "False")
    ends = [arg.span for arg in call.args] + [keyword.value.span for keyword in call.keywords]
    if not ends:
        return None
    last = max(ends, key=lambda span: (span.end_line, span.end_column)).shifted(shift)
    return insert_at(file, last.end_line, last.end_column, ", use_reentrant=False")

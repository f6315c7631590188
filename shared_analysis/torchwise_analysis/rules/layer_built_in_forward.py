"""layer-built-in-forward: a layer with weights is made anew in every forward."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ModuleBuilt, PartSet, WeightsLoaded
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import in_file
from torchwise_analysis.rules._reading import distinct

WRONG = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 16)

    def forward(self, x):
        h = self.body(x).relu()
        return nn.Linear(16, 4)(h)
               ^^^^^^^^^^^^^^^^ layer-built-in-forward error certain


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        h = self.body(x).relu()
        return self.head(h)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW207",
    name="layer-built-in-forward",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="A layer with weights is constructed inside a forward, so every call uses fresh ones.",
    cost=(
        "The layer's weights are drawn at random in each call and thrown away after it: no optimizer has "
        "them, no checkpoint holds them, and the rest of the network trains against noise. The loss still "
        "falls a little, because the layers before it learn what survives a random projection, so the fault "
        "is taken for a hard data set."
    ),
    wrong=Example("The head is made in the forward", WRONG),
    right=Example("The head is made once", RIGHT),
    silent=(
        "layers without weights (`nn.ReLU()`, pooling, `nn.Flatten()`), losses",
        "made once and kept (`if self.head is None`)",
        "its weights are given to it or loaded before use",
        "the forward runs without gradients",
        "normalisation without its own scale (`affine=False`, `elementwise_affine=False`)",
    ),
    grading=(
        "Error for weights that are drawn at random, warning for normalisation, whose fresh scale is 1 and "
        "only never trains. Certain: construction and call are both seen."
    ),
    fix="Advice: make the layer in `__init__` and keep it on the module.",
    references=(
        Reference("nn.Module", "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html"),
        Reference(
            "Building models with PyTorch",
            "https://docs.pytorch.org/tutorials/beginner/introyt/modelsyt_tutorial.html",
        ),
    ),
    examples=(
        Example(
            "A normalisation in a helper of the forward",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 16)

    def normalised(self, h):
        return nn.LayerNorm(16)(h)
               ^^^^^^^^^^^^^^^^ layer-built-in-forward warning certain

    def forward(self, x):
        return self.normalised(self.body(x))
""",
        ),
        Example(
            "Kept on the module, but made again in every call",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        h = self.body(x).flatten(1)
        self.head = nn.Linear(h.shape[1], 4)
                    ^^^^^^^^^^^^^^^^^^^^^^^^ layer-built-in-forward error certain
        return self.head(h)
""",
        ),
        Example(
            "Layers without weights",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x):
        h = nn.ReLU()(self.body(x))
        h = nn.LayerNorm(4, elementwise_affine=False)(h)
        return nn.Flatten()(h)
""",
        ),
        Example(
            "Made when the size is known, once",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
        self.head = None

    def forward(self, x):
        h = self.body(x).flatten(1)
        if self.head is None:
            self.head = nn.Linear(h.shape[1], 4)
        return self.head(h)
""",
        ),
        Example(
            "A fixed filter built from stored numbers",
            """
import torch
from torch import nn


class Blur(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        conv = nn.Conv2d(1, 1, 3, bias=False)
        conv.weight = nn.Parameter(self.kernel)
        return conv(x)
""",
        ),
        Example(
            "A builder of layers that runs in the constructor",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([self.block() for _ in range(depth)])

    def block(self):
        return nn.Linear(12, 12)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
        ),
    ),
)

_DRAWN = (
    "Linear",
    "Bilinear",
    "Embedding",
    "EmbeddingBag",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "LSTM",
    "GRU",
    "RNN",
    "LSTMCell",
    "GRUCell",
    "RNNCell",
    "MultiheadAttention",
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "Transformer",
)
# Their scale begins at 1 and their shift at 0, unless there is none.
_NORMS = {
    "LayerNorm": "elementwise_affine",
    "RMSNorm": "elementwise_affine",
    "BatchNorm1d": "affine",
    "BatchNorm2d": "affine",
    "BatchNorm3d": "affine",
    "GroupNorm": "affine",
}


def detect(trace: Trace) -> Iterator[Hit]:
    given = {e.module.id for e in trace.of(PartSet) if e.module.cls is None}
    given |= {e.target.id for e in trace.of(WeightsLoaded)}
    once = _made_once(trace)
    told: set[int] = set()
    for built in trace.of(ModuleBuilt):
        severity = _severity(built.module)
        pass_ = None if built.scene.forward is None else trace.passes.get(built.scene.forward)
        if severity is None or pass_ is None or built.cached or built.module.id in given:
            continue
        if True not in pass_.forward.grad or built.scene.function == "__init__":
            continue
        if built.module.id not in pass_.modules or built.module.id in trace.escaped:
            continue
        whole = _whole(trace, built, pass_.forward.module)
        if whole in once or whole in told:
            continue
        told.add(whole)
        yield Hit(
            in_file(trace, built),
            severity,
            Confidence.CERTAIN,
            f"this {_last(built.module)} is made anew in every forward: its weights are never trained"
            + (" and change at random from call to call" if severity is Severity.ERROR else "")
            + ". Make it once, in `__init__`.",
            distinct(
                (
                    Evidence(pass_.forward.place, "this forward"),
                    Evidence(built.place, "makes the layer each time it runs"),
                )
            ),
            frozenset({("module", built.module.id)}),
        )


def _whole(trace: Trace, built: ModuleBuilt, runner: Obj) -> int:
    """The outermost module that was made in the same forward and has this one as a part."""
    made = trace.once("modules by forward", lambda: _by_forward(trace))[built.scene.forward]
    wholes = [oid for oid in trace.lineage(built.module.id) if oid in made and oid != runner.id]
    return wholes[-1] if wholes else built.module.id


def _by_forward(trace: Trace) -> dict[int | None, set[int]]:
    found: dict[int | None, set[int]] = {}
    for built in trace.of(ModuleBuilt):
        found.setdefault(built.scene.forward, set()).add(built.module.id)
    return found


def _made_once(trace: Trace) -> frozenset[int]:
    """Layers that are kept as attributes and were not made again by another forward."""
    kept = {
        value.id
        for key, value in trace.facts.items()
        if key[0] == "a" and isinstance(value, Obj) and value.kind is Kind.MODULE
    }
    runs: dict[Place, set[int | None]] = {}
    for built in trace.of(ModuleBuilt):
        runs.setdefault(built.place, set()).add(built.scene.forward)
    return frozenset(
        built.module.id
        for built in trace.of(ModuleBuilt)
        if built.module.id in kept and len(runs[built.place]) == 1
    )


def _severity(module: Obj) -> Severity | None:
    """None for what has no weights."""
    if module.cls is not None or not module.type_name.startswith("torch.nn."):
        return None
    last = _last(module)
    if last in _DRAWN:
        return Severity.ERROR
    switch = module.arguments.get(_NORMS[last]) if last in _NORMS else None
    if last not in _NORMS or (isinstance(switch, Const) and switch.value is False):
        return None
    return Severity.WARNING


def _last(module: Obj) -> str:
    return module.type_name.rpartition(".")[2]


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Make the layer in `__init__` and keep it on the module", Safety.ADVICE, ())

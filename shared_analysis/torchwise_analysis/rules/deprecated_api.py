"""deprecated-api: a name or argument that PyTorch has given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at, name_for_module
from torchwise_analysis.interp.abstract.events import (
    ActivationCall,
    ApiCall,
    Checkpointed,
    Clip,
    Event,
    LossCall,
    SchedulerStep,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import doubt
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

RULE = Rule(
    code="TW901",
    name="deprecated-api",
    category=Category.API,
    severity=Severity.HINT,
    claim="A name or an argument is used that PyTorch or torchvision warns about and will take away.",
    cost=(
        "Today a warning, which hides others among hundreds of lines; after the release that takes it away a "
        "run that does not start. Some have done nothing for years: `volatile=True` no longer switches "
        "autograd off, and a softmax without `dim` chooses an axis by the number of axes."
    ),
    wrong=Example("Mixed precision by its old names", WRONG, fixed=RIGHT),
    right=Example("One name for all devices", RIGHT),
    silent=(
        "the project pins a release that does not warn, or one that has no other name yet",
        "names of the project or of another library that are spelled the same",
        "uses that were reported for the file already, where no edit can be exact",
    ),
    grading=(
        "A hint. Certain when the installed or the declared release warns, or when every release of the last "
        "years does; likely when nothing says which release runs. Each use with an exact rename is one "
        "finding; of the others the first in a file speaks for all."
    ),
    fix=(
        "The new name where the rename is exact (`torch.amp`, `reduction=`, `clip_grad_norm_`, initialisers "
        "with an underscore): safe, the values are equal. `weights=` for torchvision's `pretrained`: unsafe, "
        "for it is not executed in our tests. Else advice."
    ),
    references=(
        Reference("torch.amp", "https://docs.pytorch.org/docs/stable/amp.html"),
        Reference(
            "torch.nn.functional.softmax",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html",
        ),
        Reference(
            "TorchFix: rules for deprecated and removed names", "https://github.com/pytorch-labs/torchfix"
        ),
    ),
    examples=(
        Example(
            "`enabled` comes first in the old name",
            """
import torch
from torch import nn
from torch.cuda.amp import autocast

model = nn.Linear(12, 4).cuda()


@torch.no_grad()
def predict(batches, on):
    model.eval()
    with autocast(on):
         ^^^^^^^^^^^^ deprecated-api hint
        return [model(x.cuda()) for x in batches]
""",
            fixed="""
import torch
from torch import nn
from torch.cuda.amp import autocast

model = nn.Linear(12, 4).cuda()


@torch.no_grad()
def predict(batches, on):
    model.eval()
    with torch.amp.autocast("cuda", enabled=on):
        return [model(x.cuda()) for x in batches]
""",
        ),
        Example(
            "A sum by its old argument",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss(size_average=False)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint certain


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss(reduction="sum")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Old initialisers and clipping",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
nn.init.xavier_normal(model.weight)
^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint certain
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm(model.parameters(), 1.0)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint certain
        optimizer.step()
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
nn.init.xavier_normal_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
""",
        ),
        Example(
            "Weights of torchvision by their name",
            """
import torch
from torch import nn
from torchvision import models

net = models.resnet18(pretrained=True)
      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint likely
net.fc = nn.Linear(512, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
            fixed="""
import torch
from torch import nn
from torchvision import models

net = models.resnet18(weights="IMAGENET1K_V1")
net.fc = nn.Linear(512, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Variables: the first of a file speaks for all",
            """
import torch
from torch import nn
from torch.autograd import Variable

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x, y = Variable(x), Variable(y)
               ^^^^^^^^^^^ deprecated-api hint certain
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The release that runs knows no other name",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()


@torch.no_grad()
def predict(batches):
    model.eval()
    with torch.cuda.amp.autocast():
        return [model(x.cuda()) for x in batches]
""",
            files={"pyproject.toml": '[project]\ndependencies = ["torch==1.13.1"]\n'},
        ),
        Example(
            "Every release that may run warns",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()


@torch.no_grad()
def predict(batches):
    model.eval()
    with torch.cuda.amp.autocast():
         ^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint certain
        return [model(x.cuda()) for x in batches]
""",
            files={"requirements.txt": "numpy\ntorch>=2.5\n"},
        ),
        Example(
            "The new names, and a class of the project",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()


class Variable:
    def __init__(self, value):
        self.value = value


@torch.no_grad()
def predict(batches):
    model.eval()
    with torch.amp.autocast("cuda"):
        return [Variable(torch.softmax(model(x.cuda()), dim=1)).value for x in batches]
""",
        ),
    ),
)

_LONG_AGO = (0, 4)
_AMP = (2, 4)  # warns from here on; the new names are there since 2.3
_RENAMED = {
    "torch.cuda.amp.autocast": ("torch.amp.autocast", "cuda"),
    "torch.cuda.amp.GradScaler": ("torch.amp.GradScaler", "cuda"),
    "torch.cpu.amp.autocast": ("torch.amp.autocast", "cpu"),
}
_INITIALISERS = frozenset(
    ["xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "normal", "uniform", "constant",
     "orthogonal", "eye", "dirac", "sparse"]
)  # fmt: skip
# Whose `step` takes something by design.
_WITH_ARGUMENT = frozenset(["ReduceLROnPlateau", "CosineAnnealingWarmRestarts"])


class _Use(NamedTuple):
    """A use: what it is, since when it warns, what to use; `once`: the first in a file speaks for all."""

    event: Event
    place: Place
    what: str
    since: tuple[int, ...]
    instead: str
    kind: str
    once: bool = False
    detail: str = ""
    library: str = "torch"


def detect(trace: Trace) -> Iterator[Hit]:
    spoken: dict[tuple[str, str], Place] = {}
    for use in _uses(trace):
        confidence = _confidence(trace, use)
        if confidence is None:
            continue
        if use.once and spoken.setdefault((use.kind, use.place.path), use.place) != use.place:
            continue
        is_unsure = confidence is Confidence.LIKELY
        yield Hit(
            use.place,
            Severity.HINT,
            confidence,
            f"{use.what} is deprecated: {use.instead}."
            + doubt((is_unsure, f"which release of {use.library} runs is not known")),
            (Evidence(use.place, f"{use.library} warns about it since {'.'.join(map(str, use.since))}"),),
            frozenset({("softmax", use.place), ("checkpoint", use.place)}),
            use,
        )


def _confidence(trace: Trace, use: _Use) -> Confidence | None:
    """How sure it is that this warns; None where it does not, or where a release may lack what is new."""
    if use.since <= _LONG_AGO:
        return Confidence.CERTAIN
    known = trace.releases(use.library)
    if known is None or (known.low is None and known.high is None):
        return Confidence.LIKELY
    if known.surely_from(use.since):
        return Confidence.CERTAIN
    return None


def _uses(trace: Trace) -> Iterator[_Use]:
    for call in trace.of(ApiCall):
        yield from _of_name(call)
    for clip in trace.of(Clip):
        if clip.how == "torch.nn.utils.clip_grad_norm":
            what, instead = "`clip_grad_norm`", "its name is `clip_grad_norm_`"
            yield _Use(clip, clip.place, what, _LONG_AGO, instead, "underscore")
    for loss in trace.of(LossCall):
        yield from _of_reduction(loss)
    for activation in trace.of(ActivationCall):
        if activation.name in ("softmax", "log_softmax") and not activation.dim_given:
            name = activation.name.replace("_", "-")
            instead = (
                "the axis is chosen by the number of axes (the first of 1 or 3, else the second); say `dim=`"
            )
            yield _Use(activation, activation.place, f"{name} without `dim`", _LONG_AGO, instead, name, True)
    for event in trace.of(Checkpointed):
        if not event.given:
            instead = "say `use_reentrant=False`, which is recommended, or True"
            yield _Use(
                event, event.place, "checkpoint without `use_reentrant`", (2, 1), instead, "reentrant", True
            )
    for move in trace.of(SchedulerStep):
        name = move.scheduler.type_name
        is_torchs = name.startswith("torch.optim.lr_scheduler.")
        if is_torchs and tuple(move.arguments) and name.rpartition(".")[2] not in _WITH_ARGUMENT:
            instead = "call it without, the scheduler counts by itself"
            yield _Use(move, move.place, "the `epoch` argument of `step`", (1, 4), instead, "epoch", True)


def _of_name(call: ApiCall) -> Iterator[_Use]:
    name = call.name
    if name in _RENAMED:
        new, device = _RENAMED[name]
        yield _Use(
            call, call.place, f"`{name}`", _AMP, f'its name is `{new}("{device}", ...)`', "amp", detail=name
        )
    elif name.startswith("torch.nn.init.") and name.rpartition(".")[2] in _INITIALISERS:
        last = name.rpartition(".")[2]
        yield _Use(call, call.place, f"`nn.init.{last}`", _LONG_AGO, f"its name is `{last}_`", "underscore")
    elif name == "torch.autograd.Variable":
        volatile = call.arguments.get("volatile")
        if isinstance(volatile, Const) and volatile.value:
            what, instead = "`volatile=True`", "it does nothing any more, use `torch.no_grad()`"
            yield _Use(call, call.place, what, _LONG_AGO, instead, "volatile", True)
        else:
            instead = "tensors do all that it did, it can be left out"
            yield _Use(call, call.place, "`Variable`", _LONG_AGO, instead, "variable", True)
    elif name == "torch.set_default_tensor_type":
        instead = "use `torch.set_default_dtype` and `torch.set_default_device`"
        yield _Use(call, call.place, f"`{name}`", (2, 1), instead, "default type", True)
    elif name.startswith("torchvision.models.") and call.arguments.get("pretrained") is not None:
        flag = call.arguments.get("pretrained")
        weights = _weights(name.rpartition(".")[2], flag.value if isinstance(flag, Const) else None)
        instead = f"say `weights={weights}`" if weights else "say `weights=`, which names them"
        yield _Use(
            call,
            call.place,
            "`pretrained`",
            (0, 13),
            instead,
            "weights",
            detail=weights or "",
            library="torchvision",
        )
    elif name.startswith("functorch."):
        instead = f"it is in `torch.func` as `{name.rpartition('.')[2]}`"
        yield _Use(call, call.place, f"`{name}`", (2, 0), instead, "functorch", True)


# Builders whose old weights were IMAGENET1K_V1. [torchvision `handle_legacy_interface`]
_FIRST_WEIGHTS = (
    "resnet",
    "vgg",
    "densenet",
    "alexnet",
    "wide_resnet",
    "resnext",
    "mobilenet_v2",
    "squeezenet",
)


def _weights(builder: str, flag: object) -> str | None:
    """What `pretrained=flag` is called now, where it is exactly that."""
    if flag is False:
        return "None"
    return '"IMAGENET1K_V1"' if flag is True and builder.startswith(_FIRST_WEIGHTS) else None


def _of_reduction(loss: LossCall) -> Iterator[_Use]:
    for name in ("size_average", "reduce"):
        given = loss.options.get(name)
        if given is None or (isinstance(given, Const) and given.value is None):
            continue
        place = loss.loss.place if loss.loss is not None else loss.place
        value = given.value if isinstance(given, Const) else None
        both = loss.options.get("size_average") is not None and loss.options.get("reduce") is not None
        wanted = _reduction(name, value) if not both else None
        if place is not None:
            instead = f'say `reduction="{wanted}"`' if wanted else "say `reduction=`"
            yield _Use(
                loss, place, f"`{name}`", _LONG_AGO, instead, "reduction", detail=f"{name}:{wanted or ''}"
            )


def _reduction(name: str, value: object) -> str | None:
    if name == "size_average":
        return {True: "mean", False: "sum"}.get(value) if isinstance(value, bool) else None
    return "none" if value is False else None


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    use = hit.facts
    if not isinstance(use, _Use):
        return
    call = expression_at(file.module, use.place.span) if use.place.path == file.path else None
    edits = _edits(file, use, call) if isinstance(call, nodes.Call) else ()
    title = "Use the new name" if edits else f"{use.instead[0].upper()}{use.instead[1:]}"
    exact = Safety.UNSAFE if use.kind == "weights" else Safety.SAFE  # torchvision's are not run in the tests
    yield Fix(title, exact if edits else Safety.ADVICE, edits)


def _edits(file: SourceFile, use: _Use, call: nodes.Call) -> tuple[Edit, ...]:
    shift = use.place.span.line - call.span.line
    if use.kind == "underscore":
        end = call.func.span.shifted(shift)
        is_name = isinstance(call.func, nodes.Attribute)  # another name would have to be imported
        return (insert_at(file, end.end_line, end.end_column, "_"),) if is_name else ()
    if use.kind == "amp":
        return _renamed(file, use, call, shift)
    if use.kind == "reduction":
        name, _, wanted = use.detail.partition(":")
        return _reworded(file, call, shift, name, f'reduction="{wanted}"') if wanted else ()
    if use.kind == "weights" and use.detail:
        return _reworded(file, call, shift, "pretrained", f"weights={use.detail}")
    return ()


def _renamed(file: SourceFile, use: _Use, call: nodes.Call, shift: int) -> tuple[Edit, ...]:
    new, device = _RENAMED[use.detail]
    package, new_import = name_for_module(file, "torch")
    is_scaler = new.endswith("GradScaler")
    if any(isinstance(arg, nodes.Starred) for arg in call.args) or any(k.name is None for k in call.keywords):
        return ()
    if not is_scaler and len(call.args) > 1:
        return ()  # the order of the others differs
    func = call.func.span.shifted(shift)
    opening = file.slice(
        nodes.Span(func.end_line, func.end_column, use.place.span.end_line, use.place.span.end_column)
    )
    if not opening.startswith("("):
        return ()
    has_arguments = bool(call.args or call.keywords)
    end = nodes.Span(func.line, func.column, func.end_line, func.end_column + 1)
    text = f'{package}{new.removeprefix("torch")}("{device}"' + (", " if has_arguments else "")
    edits = [Edit(Place(file.path, end), text)]
    if not is_scaler and call.args:
        first = call.args[0].span.shifted(shift)
        edits.append(insert_at(file, first.line, first.column, "enabled="))
    return tuple(edits) if new_import is None else (new_import, *edits)


def _reworded(file: SourceFile, call: nodes.Call, shift: int, name: str, new: str) -> tuple[Edit, ...]:
    """The keyword argument `name` in other words."""
    given = next((k for k in call.keywords if k.name == name), None)
    if given is None or any(k.name == new.partition("=")[0] for k in call.keywords):
        return ()
    span = given.value.span.shifted(shift)
    before = file.line(span.line)[: span.column]
    start = before.rfind(name)
    if start < 0 or before[start + len(name) :].strip() != "=":
        return ()
    whole = nodes.Span(span.line, start, span.end_line, span.end_column)
    return (Edit(Place(file.path, whole), new),)

"""unsafe-load: a file of somebody else's is unpickled, which runs what is in it."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at
from torchwise_analysis.interp.abstract.events import ApiCall, Loaded, Saved
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Unknown, Value
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import doubt
from torchwise_analysis.source import nodes

WRONG = """
import torch
from huggingface_hub import hf_hub_download
from torch import nn

model = nn.Linear(12, 4)
path = hf_hub_download("somebody/linear", "weights.pt")
model.load_state_dict(torch.load(path, map_location="cpu", weights_only=False))
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unsafe-load warning certain
"""

RIGHT = """
import torch
from huggingface_hub import hf_hub_download
from torch import nn

model = nn.Linear(12, 4)
path = hf_hub_download("somebody/linear", "weights.pt")
model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
"""

RULE = Rule(
    code="TW902",
    name="unsafe-load",
    category=Category.API,
    severity=Severity.WARNING,
    claim="A file from elsewhere is loaded in a way that runs code out of it.",
    cost=(
        "`torch.load` without `weights_only` unpickles, and a pickle may call anything: who made the file "
        "gets the machine with its keys and data. Weights need none of that: with `weights_only=True`, the "
        "default since PyTorch 2.6, tensors are read and nothing else. `trust_remote_code=True` runs the "
        "Python files of a repository that may change tomorrow."
    ),
    wrong=Example("Downloaded, then unpickled", WRONG, fixed=RIGHT),
    right=Example("Weights only", RIGHT),
    silent=(
        "`weights_only=True`, safetensors, or a release of PyTorch whose default it is",
        "a path written in the code, one that the script has saved to, or a checkpoint to resume from",
        "`trust_remote_code=True` together with a `revision`",
        "which release runs is not known, and the argument is left out",
    ),
    grading=(
        "A warning, certain, for what the script downloads; a hint, likely, for a path of the command line: "
        "who made the file is not known, and most are one's own checkpoints. Where the argument is left out "
        "and the project also allows for releases whose default is safe: possible, of a download only. "
        "`trust_remote_code=True` is a hint, once in a file."
    ),
    fix=(
        "`weights_only=True`. Unsafe: a file that holds more than tensors no longer loads. "
        "`torch.serialization.safe_globals` allows for single classes."
    ),
    references=(
        Reference("torch.load", "https://docs.pytorch.org/docs/stable/generated/torch.load.html"),
        Reference("Serialization semantics", "https://docs.pytorch.org/docs/stable/notes/serialization.html"),
        Reference(
            "pytorch/pytorch#31875: arbitrary code execution in torch.load",
            "https://github.com/pytorch/pytorch/issues/31875",
        ),
    ),
    examples=(
        Example(
            "A path from the command line",
            """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--weights")
args = parser.parse_args()
model = nn.Linear(12, 4)
model.load_state_dict(torch.load(args.weights, weights_only=False))
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unsafe-load hint likely
""",
        ),
        Example(
            "The declared release unpickles by default",
            """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--weights")
args = parser.parse_args()
model = nn.Linear(12, 4)
model.load_state_dict(torch.load(args.weights, map_location="cpu"))
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unsafe-load hint likely
""",
            files={"requirements.txt": "torch==2.3.1\n"},
            fixed="""
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--weights")
args = parser.parse_args()
model = nn.Linear(12, 4)
model.load_state_dict(torch.load(args.weights, map_location="cpu", weights_only=True))
""",
        ),
        Example(
            "Code of a repository",
            """
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("some/model", trust_remote_code=True)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unsafe-load hint certain
""",
        ),
        Example(
            "Its own file, a resumed run, a literal path",
            """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--output")
args = parser.parse_args()
model = nn.Linear(12, 4)
if args.resume:
    model.load_state_dict(torch.load(args.resume, weights_only=False)["model"])
torch.save({"model": model}, args.output)
again = torch.load(args.output, weights_only=False)
other = torch.load("start.pt", weights_only=False)
""",
        ),
        Example(
            "The default of the declared release, and of an unknown one",
            """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--weights")
args = parser.parse_args()
model = nn.Linear(12, 4)
model.load_state_dict(torch.load(args.weights))
""",
            files={"pyproject.toml": '[project]\ndependencies = ["torch>=2.6"]\n'},
        ),
        Example(
            "A revision is read before it is trusted",
            """
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("somebody/model", trust_remote_code=True, revision="0a1b2c3d")
""",
        ),
    ),
)

_SAFE_DEFAULT = (2, 6)
# How command lines and settings are called; what comes out of them, somebody gives.
_GIVEN = ("args.", "opt.", "opts.", "options.", "flags.", "FLAGS.", "cfg.", "config.", "hparams.", "conf.")
_OWN = ("resume", "last", "output", "save")


def detect(trace: Trace) -> Iterator[Hit]:
    saved = {_symbol(event.path_value) for event in trace.of(Saved)} - {None}
    fetched = _fetched(trace)
    for load in trace.of(Loaded):
        path = load.arguments.get("f", 0) or load.arguments.get("file", 0)
        if path is None or load.arguments.open or _symbol(path) in saved:
            continue
        source = Confidence.CERTAIN if _symbol(path) in fetched else _source(path)
        how = _unpickles(trace, load) if source is not None else None
        # a file that somebody names, under a release that may be an old one: a choice, twice over
        is_vague = how is not None and how[0] is Confidence.POSSIBLE and source is not Confidence.CERTAIN
        if source is not None and how is not None and not is_vague:
            yield _hit(load, source, how)
    yield from _remote(trace)


# Functions that download to a path that they are given, with its name and position.
_DOWNLOADS = {
    "urllib.request.urlretrieve": ("filename", 1),
    "torch.hub.download_url_to_file": ("dst", 1),
    "wget.download": ("out", 1),
    "gdown.download": ("output", 1),
}


def _fetched(trace: Trace) -> set[object]:
    """The paths that something is downloaded to."""
    calls = ((call, _DOWNLOADS[call.name]) for call in trace.api(*_DOWNLOADS) if call.name in _DOWNLOADS)
    return {_symbol(call.arguments.get(*target)) for call, target in calls} - {None}


def _symbol(path: Value | None) -> object:
    if isinstance(path, Const):
        return path.value
    return path.symbol if isinstance(path, Unknown) else None


def _source(path: Value) -> Confidence | None:
    """How sure it is that somebody else made the file; None for one that nothing is known of."""
    if not isinstance(path, Unknown):
        return None
    if "downloaded" in path.taint:
        return Confidence.CERTAIN
    symbol = path.symbol or ""
    is_given = symbol.startswith(_GIVEN) and symbol.replace(".", "").replace("_", "").isalnum()
    return Confidence.LIKELY if is_given and not any(word in symbol for word in _OWN) else None


def _unpickles(trace: Trace, load: Loaded) -> tuple[Confidence, str] | None:
    """Does this call run what is in the file, and why?"""
    if load.how in ("pickle.load", "joblib.load"):
        return Confidence.CERTAIN, f"`{load.how}` runs what is in the file"
    if load.how != "torch.load":
        return None
    flag = load.arguments.get("weights_only")
    if flag is not None:
        is_off = isinstance(flag, Const) and flag.value is False
        return (Confidence.CERTAIN, "`weights_only=False` runs what is in the file") if is_off else None
    known = trace.releases("torch")
    if known is None or not known.may_be_before(_SAFE_DEFAULT):
        return None
    sure = known.surely_before(_SAFE_DEFAULT)
    return (
        Confidence.CERTAIN if sure else Confidence.POSSIBLE,
        f"{known.where}: the default runs what is in the file",
    )


def _hit(load: Loaded, source: Confidence, how: tuple[Confidence, str]) -> Hit:
    is_given = source is Confidence.LIKELY
    return Hit(
        load.place,
        Severity.HINT if is_given else Severity.WARNING,
        weaker(source, how[0]),
        f"whoever made this file can run code here: {how[1]}. Use `weights_only=True`."
        + doubt((is_given, "who made the file is not known")),
        (
            Evidence(
                load.place, "the path comes from outside" if is_given else "the script downloads the file"
            ),
            Evidence(load.place, how[1]),
        ),
        frozenset({("load", load.place)}),
        load.how,
    )


def _remote(trace: Trace) -> Iterator[Hit]:
    spoken: dict[str, ApiCall] = {}
    for call in trace.of(ApiCall):
        flag = call.arguments.get("trust_remote_code")
        if (
            not isinstance(flag, Const)
            or flag.value is not True
            or call.arguments.get("revision") is not None
        ):
            continue
        if spoken.setdefault(call.place.path, call).place != call.place:
            continue
        yield Hit(
            call.place,
            Severity.HINT,
            Confidence.CERTAIN,
            "`trust_remote_code=True` runs Python files of a repository, as they are on that day. Pin a "
            "`revision` that you have read.",
            (Evidence(call.place, "code of the repository runs here"),),
            frozenset({("load", call.place)}),
        )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if hit.facts is None:
        yield Fix("Pin a `revision`", Safety.ADVICE, ())
        return
    edit = _edit(file, hit.place) if hit.facts == "torch.load" else None
    title = "Load weights only (a file with other objects no longer loads)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _edit(file: SourceFile, place: Place) -> Edit | None:
    call = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(call, nodes.Call):
        return None
    shift = place.span.line - call.span.line
    for keyword in call.keywords:
        if keyword.name == "weights_only":
            return Edit(Place(file.path, keyword.value.span.shifted(shift)), "True")
    ends = [arg.span for arg in call.args] + [keyword.value.span for keyword in call.keywords]
    if not ends:
        return None
    last = max(ends, key=lambda span: (span.end_line, span.end_column)).shifted(shift)
    return insert_at(file, last.end_line, last.end_column, ", weights_only=True")

"""load-not-strict: weights are loaded leniently and nobody looks at what was missing."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile, innermost_statement, insert_at
from torchwise_analysis.interp.abstract.events import Loaded, WeightsLoaded
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Unknown, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt
from torchwise_analysis.source import nodes

WRONG = """
import torch


def build(net, path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    net.load_state_dict(state, strict=False)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ load-not-strict hint likely
    return net
"""

RIGHT = """
import torch


def build(net, path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return net
"""

RULE = Rule(
    code="TW314",
    name="load-not-strict",
    category=Category.MODE,
    severity=Severity.HINT,
    claim="`load_state_dict(strict=False)` is called and the lists of keys that did not fit are dropped.",
    cost=(
        "Keys that do not fit are skipped without a word. A prefix such as `module.` is enough for all of "
        "them: the model keeps its random weights, and fine-tuning, evaluation or a long run starts from "
        "nothing while the log says that a checkpoint was loaded."
    ),
    wrong=Example("The result is dropped", WRONG),
    right=Example("The result is looked at", RIGHT),
    silent=(
        "the result is bound, printed or tested",
        "a strict load, or a flag that cannot be read",
        "the dictionary was filtered, renamed or merged on purpose before",
        "weights that do not come from a file",
    ),
    grading=(
        "Always a hint, and likely: a lenient load is mostly meant, for a new head or an older checkpoint, "
        "and only the lists tell when it went wrong."
    ),
    fix="Bind the two lists and print them. Unsafe by the letter, it only adds a line to the log.",
    references=(
        Reference(
            "Module.load_state_dict",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",
        ),
        Reference(
            "pytorch/examples#1029: strict=False can silently load a corrupted model",
            "https://github.com/pytorch/examples/issues/1029",
        ),
        Reference(
            "pytorch/pytorch#141256: silent mismatches", "https://github.com/pytorch/pytorch/issues/141256"
        ),
    ),
    examples=(
        Example(
            "By keyword, in a helper",
            """
import torch
from torch import nn


def resume(model, path):
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"], strict=False)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ load-not-strict
    return model


net = resume(nn.Linear(12, 4), "last.pt")
""",
        ),
        Example(
            "Loaded and used in one line",
            """
import torch
from torch import nn

net = nn.Linear(12, 4)
net.load_state_dict(torch.load("net.pt", map_location="cpu"), False)
^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ load-not-strict hint likely
""",
        ),
        Example(
            "A strict load",
            """
import torch


def build(net, path):
    net.load_state_dict(torch.load(path, map_location="cpu"))
    return net
""",
        ),
        Example(
            "Keys are chosen on purpose",
            """
import torch


def build(net, path):
    state = torch.load(path, map_location="cpu")
    body = {k: v for k, v in state.items() if not k.startswith("head.")}
    net.load_state_dict(body, strict=False)
    return net
""",
        ),
        Example(
            "Filtered in place on purpose",
            """
import torch


def build(net, path, classes):
    state = torch.load(path, map_location="cpu")["model"]
    for key in ["head.weight", "head.bias"]:
        if key in state and state[key].shape[0] != classes:
            del state[key]
    net.load_state_dict(state, strict=False)
    return net


def without_head(net, path):
    state = torch.load(path, map_location="cpu")
    state.pop("head.weight", None)
    net.load_state_dict(state, strict=False)
    return net


def renamed(net, path):
    state = torch.load(path, map_location="cpu")
    state["model"]["head.weight"] = state["model"]["fc.weight"]
    net.load_state_dict(state["model"], strict=False)
    return net
""",
        ),
        Example(
            "Printed",
            """
import torch


def build(net, path):
    print(net.load_state_dict(torch.load(path, map_location="cpu"), strict=False))
    return net
""",
        ),
        Example(
            "A choice of the caller",
            """
import torch


def build(net, path, strict):
    net.load_state_dict(torch.load(path, map_location="cpu"), strict=strict)
    return net
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for load in trace.of(WeightsLoaded):
        if load.strict is not False or load.result_used or load.target.kind not in (Kind.MODULE, Kind.OPAQUE):
            continue
        if load.value is None or not all(_is_as_read(value) for value in alternatives(load.value)):
            continue
        files = [e for e in trace.of(Loaded) if e.order < load.order]
        links = [Evidence(files[-1].place, "read from a file here")] if files else []
        yield Hit(
            load.place,
            Severity.HINT,
            Confidence.LIKELY,
            f"keys that do not fit {called(load.target, 'the model')} are skipped, and the lists of them "
            "that this returns are dropped: it may keep its random weights. Look at the lists."
            + doubt((True, "some keys may be missing on purpose")),
            distinct([*links, Evidence(load.place, "loaded leniently, the result is not used")]),
            frozenset({("load", load.place)}),
        )


def _is_as_read(value: Value) -> bool:
    """Is it (an entry of) what a file held, with no key replaced or taken out?"""
    return isinstance(value, Unknown) and "loaded" in value.taint and "edited" not in value.taint


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Print the keys that did not fit (adds to the log)"
    found = innermost_statement(file.module, hit.place.span)
    if found is None or not isinstance(found[0], nodes.ExprStmt) or found[1] != hit.place.span:
        yield Fix(title, Safety.ADVICE, ())
        return
    span = found[1]
    edits = (
        insert_at(file, span.line, span.column, "print("),
        insert_at(file, span.end_line, span.end_column, ")"),
    )
    yield Fix(title, Safety.UNSAFE, edits)

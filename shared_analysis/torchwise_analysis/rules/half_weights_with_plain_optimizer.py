"""half-weights-with-plain-optimizer: float16 weights are stepped by an optimizer without float32 copies."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    ApiCall,
    OptimizerBuilt,
    Prepared,
    RequiresGrad,
    Step,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Library, Obj, Origin, Value
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, known_by

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda().half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ half-weights-with-plain-optimizer error certain


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda().half()), y.cuda()).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW507",
    name="half-weights-with-plain-optimizer",
    category=Category.ACCUMULATION,
    severity=Severity.ERROR,
    claim="Weights in float16 are stepped by an optimizer that keeps no float32 copies of them.",
    cost=(
        "Adam's epsilon of 1e-8 is zero in float16: the first step with a gradient of 1e-5 gives infinity, "
        "with a gradient of 0 it gives nan. Where the run survives, updates smaller than a thousandth of a "
        "weight are rounded away and the model stops learning early. Every GPU hour after that is lost."
    ),
    wrong=Example("Adam on float16 weights", WRONG),
    right=Example("float32 weights, low precision in the forward", RIGHT),
    silent=(
        "the weights go back to float32 before the optimizer gets them",
        "a frozen half-precision base with float32 parts that train",
        "an engine or a framework keeps float32 copies (DeepSpeed, apex, FSDP's mixed precision, prepared "
        "models)",
        "the model is never trained",
        "bfloat16 weights: they lose small updates too, and large runs choose that on purpose",
    ),
    grading="Always an error. Certain when cast and optimizer are seen; likely when the model is only "
    "known by its name.",
    fix=(
        "Advice: keep float32 weights and let `torch.autocast` choose the precision of the forward, with a "
        "GradScaler for float16."
    ),
    references=(
        Reference("Automatic mixed precision", "https://docs.pytorch.org/docs/stable/amp.html"),
        Reference(
            "warner-benjamin/optimi#15: low precision training without float32 copies",
            "https://github.com/warner-benjamin/optimi/issues/15",
        ),
    ),
    examples=(
        Example(
            "A class of the project, cast as a whole",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x):
        return self.body(x)


def train(loader):
    net = Net().cuda().half()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ half-weights-with-plain-optimizer
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x.cuda().half()), y.cuda()).backward()
        optimizer.step()
""",
        ),
        Example(
            "Loaded in float16 and fine-tuned as a whole",
            """
import torch
from transformers import AutoModelForCausalLM


def main(loader):
    model = AutoModelForCausalLM.from_pretrained("facebook/opt-1.3b", torch_dtype=torch.float16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ half-weights-with-plain-optimizer error certain
    for batch in loader:
        ids = batch["input_ids"].cuda()
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Loaded in float16 by name, cast to float32 before it learns",
            """
import torch
from transformers import AutoModelForCausalLM


def main(loader):
    model = AutoModelForCausalLM.from_pretrained("facebook/opt-1.3b", dtype="float16")
    model = model.to("cuda").float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for batch in loader:
        ids = batch["input_ids"].cuda()
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Loaded in float16 and frozen; adapters learn in float32",
            """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM


def main(loader):
    base = AutoModelForCausalLM.from_pretrained("facebook/opt-1.3b", torch_dtype=torch.float16)
    model = get_peft_model(base, LoraConfig(r=8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in loader:
        ids = batch["input_ids"].cuda()
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Cast with `to`, a model that is handed in",
            """
import torch
from torch import nn


def train(model, loader):
    model = model.to(torch.float16)
    optimizer = torch.optim.Adam(model.parameters())
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ half-weights-with-plain-optimizer error likely
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Half precision for inference",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.AdamW(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def export(path):
    torch.save(model.half().state_dict(), path)
""",
        ),
        Example(
            "A frozen base in float16, a head in float32",
            """
import torch
from torch import nn

base = nn.Linear(12, 12).half().requires_grad_(False)
head = nn.Linear(12, 4)
optimizer = torch.optim.AdamW(head.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(base(x.half()).float()), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Back to float32 before training",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).half()
model.float()
optimizer = torch.optim.AdamW(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "bfloat16 has the range of float32",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.bfloat16()), y).backward()
        optimizer.step()
""",
        ),
    ),
)

# Of torch itself: their state and their update are in the type of the weights.
_PLAIN = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "SGD")


def detect(trace: Trace) -> Iterator[Hit]:
    managed = {obj.id for prepared in trace.of(Prepared) for obj in prepared.objects}
    for built in trace.of(OptimizerBuilt):
        optimizer = built.optimizer
        is_plain = optimizer.type_name.startswith("torch.optim.") and _last(optimizer) in _PLAIN
        if not is_plain or built.filtered or optimizer.id in managed or len(built.owns or ()) != 1:
            continue
        model = trace.objects.get(next(iter(built.owns or ())))
        cast = None if model is None else _half(trace, model, built)
        if model is None or cast is None or model.id in managed | trace.escaped:
            continue
        step = next((s for s in trace.of(Step) if s.optimizer.id == optimizer.id), None)
        if step is not None and any(atom.sites for atom in step.before):
            yield _hit(built, model, cast, step)


def _half(trace: Trace, model: Obj, built: OptimizerBuilt) -> Place | None:
    """Where the whole model became float16, as it still is when the optimizer gets it."""
    found = _loaded_as_half(trace, model)
    for call in trace.api("torch.nn.Module."):
        if call.receiver is None or call.receiver.id != model.id or call.order > built.order:
            continue
        if call.name.endswith(".half") or (call.name.endswith(".to") and _is_float16(call)):
            found = None if call.scene.guards else call.place
        elif not call.name.endswith(".to") or _has_type(call):
            found = None
    return found


def _loaded_as_half(trace: Trace, model: Obj) -> Place | None:
    """A model of transformers or diffusers that was asked for in float16, and of which nothing is frozen."""
    if not model.type_name.endswith((".from_pretrained", ".from_config")) or "copy" in model.traits:
        return None
    dtype = model.arguments.get("torch_dtype") or model.arguments.get("dtype")
    if dtype is None or not _is_half(dtype) or model.arguments.open:
        return None
    own = {model.id} | {part.id for part in trace.parts(model.id)}
    return None if any(event.roots & own for event in trace.of(RequiresGrad)) else model.place


def _is_half(value: Value) -> bool:
    if isinstance(value, Const):
        return value.value in ("float16", "half", "fp16")
    return isinstance(value, Library) and value.path in ("torch.float16", "torch.half")


def _is_float16(call: ApiCall) -> bool:
    return any(_is_half(value) for value in call.arguments)


def _has_type(call: ApiCall) -> bool:
    return any(isinstance(v, Library) for v in call.arguments)


def _last(obj: Obj) -> str:
    return obj.type_name.rpartition(".")[2]


def _hit(built: OptimizerBuilt, model: Obj, cast: Place, step: Step) -> Hit:
    believed = model.origin in (Origin.USED, Origin.NAMED, Origin.UNSEEN)
    return Hit(
        built.place,
        Severity.ERROR,
        grade(int(believed)),
        f"{called(model, 'the model')} has float16 weights and {_last(built.optimizer)} keeps no float32 "
        "copies: updates round to nothing, or become infinite. Keep float32 weights and use autocast."
        + doubt((believed, known_by(model))),
        distinct(
            (
                Evidence(cast, "the weights become float16 here"),
                Evidence(built.place, "this optimizer works in the type of the weights"),
                Evidence(step.place, "and steps them here"),
            )
        ),
        frozenset({("optimizer", built.optimizer.id)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Keep float32 weights and run the forward under `torch.autocast`", Safety.ADVICE, ())

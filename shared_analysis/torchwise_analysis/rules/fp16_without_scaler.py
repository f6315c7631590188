"""fp16-without-scaler: float16 autocast trains without scaling the loss."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ApiCall, Backward, Forward, ScalerUpdate
from torchwise_analysis.interp.abstract.trace import Pass, Trace
from torchwise_analysis.interp.abstract.values import Const, Kind
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, grade

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ fp16-without-scaler error certain
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

RULE = Rule(
    code="TW505",
    name="fp16-without-scaler",
    category=Category.ACCUMULATION,
    severity=Severity.ERROR,
    claim="The training forward runs under float16 autocast and its loss is not scaled before the backward.",
    cost=(
        "Below about 6e-8 a float16 gradient is zero. Without a scaled loss the small gradients of early "
        "layers vanish and those layers stop learning; the loss falls more slowly or stalls, and nothing "
        "raises. The speed of float16 is paid for with a worse model."
    ),
    wrong=Example("float16 autocast, plain backward", WRONG),
    right=Example("With a gradient scaler", RIGHT),
    silent=(
        "bfloat16, which has the range of float32, or autocast on the CPU",
        "the loss is scaled by a GradScaler or by hand",
        "evaluation",
        "a framework owns the precision (Accelerate, Fabric, Lightning, an engine, a Trainer)",
        "the type, the device or the switch (`enabled=`) of the autocast cannot be read",
    ),
    grading=(
        "Always an error. Certain with a literal float16; likely when the type is left out on cuda, where "
        "float16 is the default."
    ),
    fix=(
        "Advice, two ways: `dtype=torch.bfloat16` on Ampere and later, or the whole protocol of a GradScaler "
        "(`scale`, `step`, `update`, `unscale_` before clipping)."
    ),
    references=(
        Reference(
            "AMP examples: typical mixed precision training",
            "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training",
        ),
        Reference(
            "torch.amp: gradient scaling", "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling"
        ),
    ),
    examples=(
        Example(
            "Half precision by its literal type",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(x, y):
    with torch.autocast("cuda", torch.float16):
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ fp16-without-scaler
        return nn.functional.cross_entropy(model(x.cuda()), y.cuda())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The default type on cuda",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device_type="cuda"):
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ fp16-without-scaler error likely
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "bfloat16 needs no scaler",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "float16 for the evaluation only",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train(loader, held_out):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        for x, y in held_out:
            print(nn.functional.cross_entropy(model(x), y).item())
    model.train()
""",
        ),
        Example(
            "The loss is scaled by hand",
            """
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        (loss * 1024).backward()
        for p in model.parameters():
            p.grad /= 1024
        optimizer.step()
""",
        ),
        Example(
            "Autocast on the CPU is bfloat16",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters())


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.of(ScalerUpdate) or any(o.kind is Kind.SCALER for o in trace.objects.values()):
        return
    autocasts = trace.api("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
    if not all(_is_on(call) for call in autocasts):
        return  # a switch may turn both off together
    on_cuda = any(_is_on_cuda(call) for call in trace.api("torch.autocast", "torch.amp.autocast")) or bool(
        trace.api("torch.cuda.amp.autocast")
    )
    for backward in trace.backwards:
        if backward.how != "tensor" or backward.loss is None or not backward.before:
            continue
        if backward.loss.scaled or any(f.op == "*" for f in backward.loss.factors):
            continue
        low = [f for f in _forwards(trace, backward) if _is_float16(trace.passes[f.pass_], on_cuda)]
        if low:
            yield _hit(backward, low[0], _autocast_around(low[0], autocasts))


def _forwards(trace: Trace, backward: Backward) -> Iterator[Forward]:
    for p in sorted(backward.passes):
        if p in trace.passes:
            yield trace.passes[p].forward


def _is_float16(pass_: Pass, on_cuda: bool) -> bool:
    """Does some part of it run in float16? A forward may switch autocast on by itself."""
    kinds = {pass_.forward.scene.autocast, *pass_.autocasts}
    return bool(kinds & {"float16", "half"}) or ("default" in kinds and on_cuda)


def _is_on(call: ApiCall) -> bool:
    enabled = call.arguments.get("enabled")
    return not call.arguments.open and (
        enabled is None or (isinstance(enabled, Const) and bool(enabled.value))
    )


def _is_on_cuda(call: ApiCall) -> bool:
    device = call.arguments.get("device_type", 0)
    return isinstance(device, Const) and str(device.value).startswith("cuda")


def _autocast_around(forward: Forward, autocasts: tuple[ApiCall, ...]) -> Place | None:
    """The call that put the forward under autocast: the last one before it in its frame or a caller's."""
    before = [
        call
        for call in autocasts
        if call.order < forward.order and forward.calls[: len(call.calls)] == call.calls
    ]
    return before[-1].place if before else None


def _hit(backward: Backward, forward: Forward, autocast: Place | None) -> Hit:
    by_default = forward.scene.autocast == "default"
    return Hit(
        autocast or backward.place,
        Severity.ERROR,
        grade(int(by_default)),
        "the forward runs in float16 and this loss is not scaled: small gradients become zero. Use bfloat16 "
        "or "
        "a GradScaler." + doubt((by_default, "the type is left to the default, which is float16 on cuda")),
        distinct(
            (
                Evidence(forward.place, "this forward runs under float16 autocast"),
                Evidence(backward.place, "this backward begins with an unscaled loss"),
            )
        ),
        frozenset({("backward", backward.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Use `dtype=torch.bfloat16` (Ampere and later)", Safety.ADVICE, ())
    yield Fix("Scale the loss with a GradScaler: `scale`, `step`, `update`", Safety.ADVICE, ())

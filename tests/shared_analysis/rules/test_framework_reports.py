"""Faults that a framework hides, as public reports tell of them, in several spellings, and their twins.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.findings import Confidence
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def check(rule: str, text: str) -> None:
    program = textwrap.dedent(text)
    file = SourceFile("/nowhere/program.py", program)
    trace = run(file.module, Project([]))
    assert trace.silence.failed == ()
    findings = [f for f in judge(trace, file, Settings()).findings if f.confidence is not Confidence.POSSIBLE]
    found = sorted({finding.place.span.line + 1 for finding in findings if finding.rule == rule})
    assert found == [n for n, line in enumerate(program.splitlines(), start=1) if line.endswith("# here")]


# --------------------------------------------------------------------------- the scaler and two optimizers

SCALED = """
import torch
from torch import nn

one = nn.Linear(8, 8).cuda()
two = nn.Linear(8, 8).cuda()
first = torch.optim.Adam(one.parameters())
second = torch.optim.Adam(two.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            a = nn.functional.mse_loss(one(x), y)
            b = nn.functional.mse_loss(two(x), y)
{body}
"""


@pytest.mark.parametrize(
    "body",
    [
        """
        scaler.scale(a).backward()
        scaler.scale(b).backward()
        scaler.step(first)
        first.step()  # here
        scaler.step(second)
        second.step()  # here
        scaler.update()
        """,
        """
        scaler.scale(a + b).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        second.step()  # here
        """,
        """
        scaler.scale(a).backward()
        scaler.scale(b).backward()
        scaler.step(first)
        scaler.update()  # here
        scaler.step(second)
        scaler.update()
        """,
        """
        scaler.scale(a).backward()
        scaler.scale(b).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        """,
        """
        scaler.scale(a).backward()
        scaler.step(first)
        scaler.update()
        scaler.scale(b).backward()
        scaler.step(second)
        scaler.update()
        """,
        """
        scaler.scale(a).backward()
        scaler.scale(b).backward()
        scaler.unscale_(second)
        scaler.step(first)
        scaler.update()
        second.step()
        """,
    ],
)
def test_one_scaler_and_two_optimizers(body: str) -> None:
    lines = textwrap.indent(textwrap.dedent(body), " " * 8)
    check("scaler-protocol", SCALED.format(body=lines))


# --------------------------------------------------------------------------- schedules of Lightning

CONFIGURED = """
{imports}
import torch
from torch import nn


class Net(pl.LightningModule):
    def __init__(self, batches, max_epochs):
        super().__init__()
        self.batches, self.max_epochs = batches, max_epochs
        self.net = nn.Linear(8, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.{schedule}{here}
        {result}
"""

_ONE_CYCLE = "OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=self.batches)"
_COSINE = "CosineAnnealingLR(optimizer, T_max={})"
_IN_STEPS = '{"scheduler": schedule, "interval": "step"}'
_IN_EPOCHS = '{"scheduler": schedule, "interval": "epoch"}'


@pytest.mark.parametrize("imports", ["import lightning.pytorch as pl", "import pytorch_lightning as pl"])
@pytest.mark.parametrize(
    ("schedule", "result", "is_faulty"),
    [
        (_ONE_CYCLE, 'return {"optimizer": optimizer, "lr_scheduler": schedule, "interval": "step"}', True),
        (_ONE_CYCLE, f'return {{"optimizer": optimizer, "lr_scheduler": {_IN_STEPS}}}', False),
        (_ONE_CYCLE, f"return [optimizer], [{_IN_EPOCHS}]", True),
        (_ONE_CYCLE, f"return [optimizer], [{_IN_STEPS}]", False),
        (_COSINE.format("self.max_epochs"), f"return [optimizer], [{_IN_STEPS}]", True),
        (_COSINE.format("self.trainer.max_epochs"), f"return [optimizer], [{_IN_STEPS}]", True),
        (_COSINE.format("self.max_epochs"), f"return [optimizer], [{_IN_EPOCHS}]", False),
        (_COSINE.format("self.max_epochs * self.batches"), f"return [optimizer], [{_IN_STEPS}]", False),
        (_COSINE.format("self.batches"), f"return [optimizer], [{_IN_STEPS}]", False),
        ("StepLR(optimizer, 30, 0.1)", f"return [optimizer], [{_IN_STEPS}]", True),
        ("StepLR(optimizer, 30_000, 0.1)", f"return [optimizer], [{_IN_STEPS}]", False),
        (
            "StepLR(optimizer, 1, 0.1)",
            'return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 5000}]',
            False,
        ),
    ],
)
def test_the_interval_of_a_schedule(imports: str, schedule: str, result: str, is_faulty: bool) -> None:
    here = "  # here" if is_faulty else ""
    text = CONFIGURED.format(imports=imports, schedule=schedule, here=here, result=result)
    check("scheduler-wrong-cadence", text)


# --------------------------------------------------------------------------- schedules of Accelerate

ACCELERATED = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader


def main(data, epochs=90):
    accelerator = Accelerator({options})
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, 16, shuffle=True)
{before}
{after}
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
{inside}
{outside}
"""
_ALL = "    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)"
_WITHOUT = "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
_BY_EPOCHS = "    schedule = lr_scheduler.StepLR(optimizer, 30)"
_BY_BATCHES = "    schedule = lr_scheduler.LinearLR(optimizer, total_iters=len(loader) * epochs)"
_BY_LENGTH = "    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader) * epochs)"
_INSIDE, _OUTSIDE = "            schedule.step()", "        schedule.step()"


@pytest.mark.parametrize(
    ("options", "before", "after", "inside", "outside"),
    [
        ("", _BY_EPOCHS, _ALL, "", f"{_OUTSIDE}  # here"),
        ("", _BY_EPOCHS, _WITHOUT, "", _OUTSIDE),
        ("split_batches=True", _BY_EPOCHS, _ALL, "", _OUTSIDE),
        ("step_scheduler_with_optimizer=False", _BY_EPOCHS, _ALL, "", _OUTSIDE),
        ("", _BY_LENGTH, _WITHOUT, f"{_INSIDE}  # here", ""),
        ("", _WITHOUT, _BY_LENGTH, _INSIDE, ""),
        ("", _BY_LENGTH, _ALL, _INSIDE, ""),
        ("", _BY_LENGTH.replace("epochs)", "epochs // accelerator.num_processes)"), _WITHOUT, _INSIDE, ""),
        ("", _BY_BATCHES, _ALL, _INSIDE, ""),
    ],
)
def test_a_schedule_beside_prepare(options: str, before: str, after: str, inside: str, outside: str) -> None:
    text = ACCELERATED.format(options=options, before=before, after=after, inside=inside, outside=outside)
    check("scheduler-wrong-cadence", text)


# --------------------------------------------------------------------------- the scale that an owner keeps

CLIPPED = """
import torch
{imports}
from torch import nn


def main(loader):
    owner = {owner}
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = owner.{prepare}(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        owner.backward(nn.functional.cross_entropy(model(x), y))
        {clip}
        optimizer.step()
"""
_PLAIN = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("owner", "clip"),
    [
        ('Accelerator(mixed_precision="fp16")', f"{_PLAIN}  # here"),
        (
            'Accelerator(mixed_precision="fp16")',
            "torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)  # here",
        ),
        ('Accelerator(mixed_precision="bf16")', _PLAIN),
        ("Accelerator()", _PLAIN),
        ('Accelerator(mixed_precision="fp16")', "owner.clip_grad_norm_(model.parameters(), 1.0)"),
        ('Accelerator(mixed_precision="fp16")', f"owner.unscale_gradients(optimizer); {_PLAIN}"),
        ('Fabric(precision="16-mixed")', f"{_PLAIN}  # here"),
        ('Fabric(precision="bf16-mixed")', _PLAIN),
        ('Fabric(precision="16-mixed")', "owner.clip_gradients(model, optimizer, max_norm=1.0)"),
    ],
)
def test_clipping_beside_the_owner_of_the_scale(owner: str, clip: str) -> None:
    is_fabric = owner.startswith("Fabric")
    imports = "from lightning.fabric import Fabric" if is_fabric else "from accelerate import Accelerator"
    prepare = "setup" if is_fabric else "prepare"
    check("clip-before-unscale", CLIPPED.format(imports=imports, owner=owner, prepare=prepare, clip=clip))


# --------------------------------------------------------------------------- windows of Fabric

WINDOWED = """
import torch
from lightning.fabric import Fabric
from torch import nn


def main(loader, window=4):
    fabric = Fabric({options})
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    batches = iter(fabric.setup_dataloaders(loader))
    for _ in range(100):
        for micro in range(window):
            x, y = next(batches)
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss / window){here}
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("options", "here"),
    [("devices=8", "  # here"), ("devices=1, num_nodes=2", "  # here"), ("devices=1", ""), ("", "")],
)
def test_a_window_on_several_devices(options: str, here: str) -> None:
    check("accumulation-syncs-every-microbatch", WINDOWED.format(options=options, here=here))


# --------------------------------------------------------------------------- weights that are swapped

SWAPPED = """
import copy
import torch
from torch import nn


class Swap:
    def __init__(self, model):
        self.model, self.average, self.backup = model, copy.deepcopy(model), None

    def begin(self):
        {keep}
        {load}

    def end(self):
        self.model.load_state_dict(self.backup)


def train(loader, epochs):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swap = Swap(model)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        swap.begin()
        torch.save(model.state_dict(), "average.pt")
        swap.end()
"""
_AVERAGE = "self.model.load_state_dict(self.average.state_dict())"


@pytest.mark.parametrize(
    ("keep", "load"),
    [
        ("self.backup = self.model.state_dict()  # here", _AVERAGE),
        ("self.backup = self.model.state_dict()  # here", 'self.model.load_state_dict(torch.load("a.pt"))'),
        ("self.backup = copy.deepcopy(self.model.state_dict())", _AVERAGE),
        ("self.backup = {k: v.clone() for k, v in self.model.state_dict().items()}", _AVERAGE),
        ("self.backup = self.model.state_dict()", "print(len(self.backup))"),
    ],
)
def test_weights_set_aside_while_others_are_loaded(keep: str, load: str) -> None:
    check("best-state-aliased", SWAPPED.format(keep=keep, load=load))


# --------------------------------------------------------------------------- closures

CLOSED = """
import lightning as L
import torch
from torch import nn


class Curve(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt = self.optimizers()
        {outside}

        def closure():
            {inside}
            loss = nn.functional.mse_loss(self.net(x), y)
            self.manual_backward(loss){here}
            return loss

        opt.step({given})

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), max_iter=20)
"""


@pytest.mark.parametrize("given", ["closure", "closure=closure"])
@pytest.mark.parametrize(
    ("outside", "inside", "here"),
    [
        ("opt.zero_grad()", "pass", "  # here"),
        ("pass", "opt.zero_grad()", ""),
        ("pass", "self.zero_grad()", ""),
    ],
)
def test_a_closure_of_manual_optimization(given: str, outside: str, inside: str, here: str) -> None:
    check("missing-zero-grad", CLOSED.format(given=given, outside=outside, inside=inside, here=here))

"""Faults that a framework hides, as public reports tell of them, in several spellings, and their twins.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import textwrap

import pytest
from tests.shared_analysis.rules.programs import check_marks as check

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


# --------------------------------------------------------------------------- modes that hooks leave behind

SAMPLED = """
import lightning as L
import torch
from torch import nn


class Sampler(L.Callback):
    @torch.no_grad()
    def {hook}(self, trainer, pl_module, *rest):
        {first}
        images = pl_module.decode(torch.randn(16, 8, device=pl_module.device))
        trainer.logger.experiment.add_images("samples", images, trainer.global_step)
        {last}
"""


@pytest.mark.parametrize(
    ("hook", "first", "last"),
    [
        ("on_train_batch_end", "pl_module.eval()  # here", ""),
        ("on_train_batch_start", "pl_module.eval()  # here", ""),
        ("on_train_epoch_end", "pl_module.eval()  # here", ""),
        ("on_train_batch_end", "pl_module.eval()", "pl_module.train()"),
        ("on_train_batch_end", "was = pl_module.training; pl_module.eval()", "pl_module.train(was)"),
        ("on_validation_epoch_end", "pl_module.eval()", ""),
        ("on_train_epoch_end", "pl_module.backbone.eval()", ""),
        ("on_train_epoch_start", "pass", "pl_module.eval()"),
    ],
)
def test_a_callback_that_evaluates(hook: str, first: str, last: str) -> None:
    check("stuck-eval-mode", SAMPLED.format(hook=hook, first=first, last=last))


PREVIEWED = """
import pytorch_lightning as pl
import torch
from torch import nn


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.probe = torch.randn(4, 8)

    def preview(self):
        self.eval(){here}
        with torch.no_grad():
            scores = self.net(self.probe)
        {after}
        return scores

    def training_step(self, batch, batch_idx):
        x, y = batch
        if batch_idx % 100 == 0:
            self.log("preview", self.preview().mean())
        return nn.functional.cross_entropy(self.net(x), y)
"""


@pytest.mark.parametrize(("after", "here"), [("pass", "  # here"), ("self.train()", "")])
def test_a_module_that_evaluates_itself(after: str, here: str) -> None:
    check("stuck-eval-mode", PREVIEWED.format(after=after, here=here))


FROZEN = """
import lightning as L
import torch
from torch import nn


class Tuned(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        {freeze}
        self.head = nn.Linear(8, 2)

    {hook}

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.body(x)), y)
"""
_FREEZE = "self.body.eval().requires_grad_(False)"
_WAKE = "def on_train_epoch_start(self):\n        self.train(){}"


@pytest.mark.parametrize(
    ("freeze", "hook"),
    [
        (_FREEZE, _WAKE.format("  # here")),
        (_FREEZE, _WAKE.format("\n        self.body.eval()")),
        (_FREEZE, "def on_train_start(self):\n        self.train()  # here"),
        (_FREEZE, "def on_validation_start(self):\n        self.train()"),
        (_FREEZE, "def train(self, mode=True):\n        super().train(mode)\n        self.body.eval()"),
        ("pass", _WAKE.format("")),
        (_FREEZE.replace("body", "body[0]"), _WAKE.format("")),
        (_FREEZE, "def on_train_epoch_start(self):\n        self.head.train()"),
    ],
)
def test_a_hook_that_wakes_a_frozen_part(freeze: str, hook: str) -> None:
    check("frozen-norm-reactivated", FROZEN.format(freeze=freeze, hook=hook))


UNFROZEN = """
import pytorch_lightning as pl
import torch
from torch import nn


class Tuned(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.body.requires_grad_(False)

    def {hook}(self):
        if self.current_epoch == 3:
            self.body.requires_grad_(True){here}
            {more}

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.body(x)), y)

    def configure_optimizers(self):
        return torch.optim.Adam({given}, lr=1e-3)
"""
_FILTERED = "[p for p in self.parameters() if p.requires_grad]"
_LAZILY = "filter(lambda p: p.requires_grad, self.parameters())"


@pytest.mark.parametrize(
    ("hook", "given", "more", "here"),
    [
        ("on_train_epoch_start", _FILTERED, "pass", "  # here"),
        ("on_train_batch_start", _LAZILY, "pass", "  # here"),
        ("on_train_epoch_start", "self.parameters()", "pass", ""),
        (
            "on_train_epoch_start",
            _FILTERED,
            'self.optimizers().add_param_group({"params": self.body.parameters()})',
            "",
        ),
        ("setup", _FILTERED, "pass", ""),
    ],
)
def test_a_hook_that_unfreezes(hook: str, given: str, more: str, here: str) -> None:
    check("optimizer-misses-parameters", UNFROZEN.format(hook=hook, given=given, more=more, here=here))


# --------------------------------------------------------------------------- metrics and engines

MEASURED = """
import lightning as L
import torch
from torch import nn
{imports}


class Mine({base}):
    def __init__(self):
        super().__init__()
        self.rows = []

    def {method}(self, scores, target):
        self.rows.append({kept}){here}


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.metric = Mine()

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        self.metric.{method}(scores, y)
        return nn.functional.cross_entropy(scores, y)
"""


@pytest.mark.parametrize(
    ("base", "method", "kept", "here"),
    [
        ("torchmetrics.Metric", "update", "(scores.softmax(1) - target).square().sum()", ""),
        ("torchmetrics.Metric", "update", "scores", "  # here"),
        ("torchmetrics.Metric", "collect", "(scores.softmax(1) - target).square().sum()", "  # here"),
        ("nn.Module", "update", "(scores.softmax(1) - target).square().sum()", "  # here"),
    ],
)
def test_a_metric_keeps_what_it_computes(base: str, method: str, kept: str, here: str) -> None:
    imports = "import torchmetrics" if base.startswith("torchmetrics") else ""
    text = MEASURED.format(base=base, method=method, kept=kept, here=here, imports=imports)
    check("retained-graph", text)


ENGINE = """
import torch
from ignite.engine import Engine, Events
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = {window}
seen = []


def update(engine, batch):
    x, y = batch
    {before}
    loss = nn.functional.mse_loss(model(x), y) / window
    loss.backward()
    {after}
    return {result}


trainer = Engine(update)


@trainer.on(Events.ITERATION_COMPLETED)
def keep(engine):
    seen.append(engine.state.output){kept}


def main(loader):
    trainer.run(loader, max_epochs=5)
"""
_EACH = "optimizer.step(); optimizer.zero_grad()"
_IN_WINDOWS = "if engine.state.iteration % window == 0: "


@pytest.mark.parametrize(
    ("result", "kept"), [("loss", "  # here"), ("loss.detach()", ""), ("loss.item()", "")]
)
def test_what_an_update_returns_is_its_output(result: str, kept: str) -> None:
    text = ENGINE.format(window=1, before="pass", after=_EACH, result=result, kept=kept)
    check("retained-graph", text)


@pytest.mark.parametrize("window", ["4", "8", "int(input())"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{_IN_WINDOWS}optimizer.zero_grad()  # here", f"{_IN_WINDOWS}optimizer.step()"),
        ("pass", f"{_IN_WINDOWS}optimizer.step(), optimizer.zero_grad()"),
    ],
)
def test_a_window_counted_by_an_engine(window: str, before: str, after: str) -> None:
    text = ENGINE.format(window=window, before=before, after=after, result="loss.item()", kept="")
    check("grads-cleared-before-step", text)


# --------------------------------------------------------------------------- what callbacks evaluate

PROBING = """
import torch
from lightning.pytorch.callbacks import Callback


class Probe(Callback):
    def __init__(self, loader):
        self.loader = loader

    def features(self, module):
        out = []
        {guard}
            for x, _ in self.loader:{here}
                out.append({call})
        return torch.cat(out)

    def {hook}(self, trainer, pl_module):
        {before}
        pl_module.log("norm", self.features(pl_module).norm())
        {after}
"""


@pytest.mark.parametrize(
    ("hook", "guard", "call", "before", "after", "here"),
    [
        ("on_train_epoch_end", "with torch.no_grad():", "module.backbone(x)", "pass", "pass", "  # here"),
        (
            "on_train_epoch_start",
            "with torch.inference_mode():",
            "module.encoder(x)",
            "pass",
            "pass",
            "  # here",
        ),
        (
            "on_train_epoch_end",
            "with torch.no_grad():",
            "module.backbone(x)",
            "pl_module.eval()",
            "pl_module.train()",
            "",
        ),
        ("on_validation_epoch_end", "with torch.no_grad():", "module.backbone(x)", "pass", "pass", ""),
        ("on_train_epoch_end", "with torch.no_grad():", "module.prepare(x)", "pass", "pass", ""),
    ],
)
def test_a_callback_that_runs_over_a_loader(
    hook: str, guard: str, call: str, before: str, after: str, here: str
) -> None:
    text = PROBING.format(hook=hook, guard=guard, call=call, before=before, after=after, here=here)
    check("eval-in-train-mode", text)


# --------------------------------------------------------------------------- hooks that a class fills in

FILLED = """
import pytorch_lightning as pl
import torch
from torch import nn


class Base(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.rows = []

    def training_step(self, batch, batch_idx):
        loss = self.shared_step(batch)
        self.rows.append({kept}){here}
        return loss

    def shared_step(self, batch):
        raise NotImplementedError

    def on_train_epoch_end(self):
        print(torch.stack(self.rows).mean())


class Net(Base):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)

    def shared_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)
"""


@pytest.mark.parametrize(("kept", "here"), [("loss", "  # here"), ("loss.detach()", ""), ("loss.item()", "")])
def test_a_hook_that_a_subclass_fills_in(kept: str, here: str) -> None:
    check("retained-graph", FILLED.format(kept=kept, here=here))


# --------------------------------------------------------------------------- windows of engines

DEEP = """
import deepspeed
from torch import nn

WINDOW = 8
CONFIG = {{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {steps}}}


def main(data):
    net = nn.Linear(8, 4)
    engine, _, loader, _ = deepspeed.initialize(model=net, training_data=data, config=CONFIG)
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward({loss})
        engine.step()
"""


@pytest.mark.parametrize(
    ("steps", "loss"),
    [
        ("WINDOW", "loss / WINDOW)  # here"),
        ("8", "loss / 8)  # here"),
        ("8", "loss)"),
        ("1", "loss / 8)"),
        ("8", "loss / 8, scale_wrt_gas=False)"),
    ],
)
def test_a_division_that_the_engine_makes(steps: str, loss: str) -> None:
    text = DEEP.format(steps=steps, loss=loss).replace("))\n", ")\n").replace("# here)", "# here")
    check("accumulation-scaled-twice", text)


ENTERED = """
import torch
from accelerate import Accelerator
from torch import nn


def main(loader, epochs):
    accelerator = Accelerator({options})
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        {outer}{here}
            {inner}
                x, y = batch
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
"""
_SCOPE, _BATCHES = "with accelerator.accumulate(model):", "for batch in loader:"


@pytest.mark.parametrize(
    ("options", "outer", "inner", "here"),
    [
        ("gradient_accumulation_steps=4", _SCOPE, _BATCHES, "  # here"),
        ("gradient_accumulation_steps=epochs", _SCOPE, _BATCHES, "  # here"),
        ("gradient_accumulation_steps=4", _BATCHES, _SCOPE, ""),
        ("gradient_accumulation_steps=1", _SCOPE, _BATCHES, ""),
        ("", _SCOPE, _BATCHES, ""),
    ],
)
def test_accumulate_is_entered_for_each_batch(options: str, outer: str, inner: str, here: str) -> None:
    check("unscaled-accumulation", ENTERED.format(options=options, outer=outer, inner=inner, here=here))


# --------------------------------------------------------------------------- what Fabric saves and loads

RESUMED = """
import torch
from lightning.fabric import Fabric
from torch import nn


def main(loader, path, resume):
    fabric = Fabric()
    model = nn.Linear(8, 4)
    optimizer = torch.optim.{optimizer}
    model, optimizer = fabric.setup(model, optimizer)
    state = {{"model": model, {more}"step": 0}}
    if resume:
        fabric.load(path, {loaded})
    step = state["step"]
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        step += 1
        fabric.save(path, {{"model": model, {more}"step": step}}){here}
"""


@pytest.mark.parametrize(
    ("optimizer", "more", "loaded", "here"),
    [
        ("AdamW(model.parameters())", "", "state", "  # here"),
        ("SGD(model.parameters(), lr=0.1, momentum=0.9)", "", "state", "  # here"),
        ("SGD(model.parameters(), lr=0.1)", "", "state", ""),
        ("AdamW(model.parameters())", '"optimizer": optimizer, ', "state", ""),
        ("AdamW(model.parameters())", "", '{"model": model}, strict=False', "  # here"),
    ],
)
def test_a_checkpoint_of_fabric(optimizer: str, more: str, loaded: str, here: str) -> None:
    check("checkpoint-incomplete", RESUMED.format(optimizer=optimizer, more=more, loaded=loaded, here=here))


# --------------------------------------------------------------------------- gathered values in a loss

GATHERED = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(train, held):
    accelerator = Accelerator()
    model = nn.Linear(8, 4)
    train, held = DataLoader(train, 16, shuffle=True), DataLoader(held, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, train, held = accelerator.prepare(model, optimizer, train, held)
    for x, y in train:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    model.eval()
    total, seen = 0.0, 0
    with torch.no_grad():
        for x, y in held:
            scores = model(x)
            {gather}
            total += nn.functional.cross_entropy(scores, y, reduction="sum").item()
            seen += len(y)
    accelerator.print(total / seen){here}
"""


@pytest.mark.parametrize(
    ("gather", "here"),
    [
        ("scores, y = accelerator.gather_for_metrics((scores, y))", ""),
        ("pass", "  # here"),
    ],
)
def test_a_loss_of_gathered_scores(gather: str, here: str) -> None:
    check("metric-on-local-shard", GATHERED.format(gather=gather, here=here))


# --------------------------------------------------------------------------- dictionaries that are kept

OUTPUTS = """
import torch
from torch import nn

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def compute(x, y):
    scores = model(x)
    return {{"loss": nn.functional.cross_entropy(scores, y), "scores": scores}}


def train(loader):
    history = []
    for x, y in loader:
        out = compute(x, y)
        history.append({kept}){here}
        optimizer.zero_grad()
        {loss}.backward()
        optimizer.step()
        {end}
    return history
"""


@pytest.mark.parametrize(
    ("kept", "loss", "end", "here"),
    [
        ("out", 'out["loss"]', "pass", "  # here"),
        ("{k: v.detach() for k, v in out.items()}", 'out["loss"]', "pass", ""),
        ("out", 'history[-1]["loss"]', "history.clear()", ""),
        ("out", 'sum(one["loss"] for one in history)', "history.clear()", ""),
    ],
)
def test_a_dictionary_that_is_kept(kept: str, loss: str, end: str, here: str) -> None:
    check("retained-graph", OUTPUTS.format(kept=kept, loss=loss, end=end, here=here))

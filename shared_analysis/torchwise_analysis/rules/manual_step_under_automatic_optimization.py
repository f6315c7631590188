"""manual-step-under-automatic-optimization: a hook does what its framework does as well."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Event, ManualUnderAutomatic
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import in_file
from torchwise_analysis.rules._reading import distinct

WRONG = """
import lightning
import torch
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^ manual-step-under-automatic-optimization
        optimizer.step()
        ^^^^^^^^^^^^^^^^ manual-step-under-automatic-optimization error certain
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""

RIGHT = """
import lightning
import torch
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""

RULE = Rule(
    code="TW209",
    name="manual-step-under-automatic-optimization",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="A hook runs a backward or a step that its framework runs as well.",
    cost=(
        "With automatic optimization Lightning clears, runs the backward on what `training_step` returns, "
        "clips and steps. Done by hand as well, the graph is gone for the second backward, or each batch is "
        "stepped twice with gradients that were cleared in between: the effective learning rate and the "
        "logged step count are not those of the settings."
    ),
    wrong=Example("Both optimise", WRONG),
    right=Example("Only the hook optimises", RIGHT),
    silent=(
        "`automatic_optimization = False`",
        "hooks that are made for it: `optimizer_step`, `configure_gradient_clipping`, `backward`",
        "a class that only looks like a hook's: decided by the base class",
        "gradients of something else, taken with `autograd.grad`",
    ),
    grading="Always an error. Certain: the class is the framework's and leaves optimization automatic.",
    fix="Advice: leave it to the framework, or set `automatic_optimization = False` and do all of it.",
    references=(
        Reference(
            "Lightning: manual optimization",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/47e2f152751fe271d5245d8eb88c8fd8b3e7765f/docs/source-pytorch/model/manual_optimization.rst",
        ),
        Reference(
            "LightningModule: configure_gradient_clipping",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/b7d6aaa33a8c9936a2bb1ed50efc604fba19839b/docs/source-pytorch/common/lightning_module.rst",
        ),
    ),
    examples=(
        Example(
            "A helper of the step steps",
            """
import lightning as L
import torch
from torch import nn


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def update(self):
        self.optimizers().step()
        ^^^^^^^^^^^^^^^^^^^^^^^^ manual-step-under-automatic-optimization

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.update()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
""",
        ),
        Example(
            "The loss runs its own backward",
            """
import lightning
import torch
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ manual-step-under-automatic-optimization error certain
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
""",
        ),
        Example(
            "The hook that is made for clipping",
            """
import lightning
import torch
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
""",
        ),
        Example(
            "A trainer of one's own with the same method name",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.net = nn.Linear(12, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
""",
        ),
        Example(
            "Automatic, and left alone",
            """
import lightning
import torch
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.of(ManualUnderAutomatic):
        if event.what in ("backward", "step"):
            yield _hit(trace, event, event.what, "the framework does this as well", event.scene.entry.place)


def _hit(trace: Trace, event: Event, what: str, fact: str, hook: Place) -> Hit:
    cure = "Leave it to the framework, or set `automatic_optimization = False`."
    return Hit(
        in_file(trace, event),
        Severity.ERROR,
        Confidence.CERTAIN,
        f"this {what} stands in a hook under automatic optimization: {fact}. {cure}",
        distinct((Evidence(hook, "the framework calls this hook"), Evidence(event.place, fact))),
        frozenset({("hook", event.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Leave this to the framework, or set `automatic_optimization = False`", Safety.ADVICE, ())

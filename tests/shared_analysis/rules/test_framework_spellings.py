"""Faults that a framework hides, in several spellings, each with its correct twin."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.rules.programs import loud_rules as shown

# --------------------------------------------------------------------------- a forward that is remembered

GAN = """
import lightning as L
import torch

from nets import Critic, Generator


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = Generator(16)
        self.critic = Critic()

    def forward(self, z):
        return self.generator(z)

    def update(self, optimizer, loss):
        CLEAR
        self.manual_backward(loss)
        optimizer.step()

    def training_step(self, batch, batch_idx):
        opt_g, opt_c = self.optimizers()
        z = torch.randn(batch.size(0), 16)
        self.update(opt_c, self.critic(self(z).detach()).mean() - self.critic(batch).mean())
        if batch_idx % 5 == 0:
            self.update(opt_g, -self.critic(self(z)).mean())

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=1e-4)
        return opt_g, torch.optim.Adam(self.critic.parameters(), lr=1e-4)
"""


def test_a_remembered_forward_runs_what_it_ran(tmp_path: Path) -> None:
    assert shown(tmp_path, GAN.replace("CLEAR", "optimizer.zero_grad()")) == set()
    assert shown(tmp_path, GAN.replace("CLEAR", "pass")) == {"missing-zero-grad"}


# --------------------------------------------------------------------------- samplers in samplers

BATCHED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler


def main(data, rank):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(8, 2).to(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data)
    batches = BatchSampler(SAMPLER, 8, drop_last=True)
    loader = DataLoader(data, batch_sampler=batches)
    for epoch in range(10):
        TELL
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""


@pytest.mark.parametrize("given", ["sampler", "sampler=sampler"])
@pytest.mark.parametrize("told", ["sampler", "batches.sampler", "loader.batch_sampler.sampler"])
def test_a_sampler_in_a_batch_sampler_is_told_the_epoch(given: str, told: str, tmp_path: Path) -> None:
    text = BATCHED.replace("BatchSampler(SAMPLER, 8,", f"BatchSampler({given}, batch_size=8,")
    assert shown(tmp_path, text.replace("TELL", "pass")) == {"sampler-epoch-not-set"}
    assert shown(tmp_path, text.replace("TELL", f"{told}.set_epoch(epoch)")) == set()


# --------------------------------------------------------------------------- averaged models

AVERAGED = """
import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader


def accuracy(model, loader):
    EVAL
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right


def main(train, held_out):
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader, val_loader = DataLoader(train, shuffle=True), DataLoader(held_out)
    best, kept = 0.0, None
    for epoch in range(30):
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            ema.update_parameters(net)
        score = accuracy(ema, val_loader)
        if score > best:
            best, kept = score, KEPT
    torch.save(kept, "best.pt")
"""


@pytest.mark.parametrize("state", ["ema.state_dict()", "ema.module.state_dict()"])
def test_weights_of_an_average_change_with_its_updates(state: str, tmp_path: Path) -> None:
    text = AVERAGED.replace("EVAL", "model.eval()")
    assert shown(tmp_path, text.replace("KEPT", state)) == {"best-state-aliased"}
    assert shown(tmp_path, text.replace("KEPT", f"copy.deepcopy({state})")) == set()


@pytest.mark.parametrize("switch", ["model.eval()", "model.train(False)"])
def test_an_average_has_the_layers_and_the_mode_of_its_model(switch: str, tmp_path: Path) -> None:
    text = AVERAGED.replace("KEPT", "copy.deepcopy(ema.state_dict())")
    assert shown(tmp_path, text.replace("EVAL", "pass")) == {"eval-in-train-mode"}
    assert shown(tmp_path, text.replace("EVAL", switch)) == set()
    plain = text.replace("nn.Dropout(0.2)", "nn.ReLU()").replace("EVAL", "pass")
    assert shown(tmp_path, plain) == set()


# --------------------------------------------------------------------------- tables that do not learn

TABLE = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        FREEZE
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=WAY)
        return x


def main(data):
    model = Encoder()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for ids, y in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("frozen", ["self.embed", "self.embed.weight"])
def test_what_a_frozen_table_gives_needs_no_gradient(frozen: str, tmp_path: Path) -> None:
    text = TABLE.replace("FREEZE", f"{frozen}.requires_grad_(False)")
    assert shown(tmp_path, text.replace("WAY", "True")) == {"checkpoint-reentrant-no-grad"}
    assert shown(tmp_path, text.replace("WAY", "False")) == set()


def test_what_a_table_that_learns_gives_does(tmp_path: Path) -> None:
    assert shown(tmp_path, TABLE.replace("FREEZE", "pass").replace("WAY", "True")) == set()


# --------------------------------------------------------------------------- callbacks of transformers'

CALLBACK = """
import torch
from transformers import TrainerCallback


class Probe(TrainerCallback):
    def __init__(self, batches):
        self.batches = batches
        self.history = []

    def HOOK(self, args, state, control, model=None, **kwargs):
        for batch in self.batches:
            KEEP
"""


@pytest.mark.parametrize("hook", ["on_step_end", "on_log", "on_epoch_end"])
@pytest.mark.parametrize("what", ["model(**batch).loss", "model(**batch).logits", "model(**batch)[0]"])
def test_a_callback_that_keeps_results_keeps_graphs(hook: str, what: str, tmp_path: Path) -> None:
    text = CALLBACK.replace("HOOK", hook)
    assert shown(tmp_path, text.replace("KEEP", f"self.history.append({what})")) == {"retained-graph"}
    guarded = f"with torch.no_grad():\n                self.history.append({what})"
    assert shown(tmp_path, text.replace("KEEP", guarded)) == set()
    assert shown(tmp_path, text.replace("KEEP", f"self.history.append({what}.detach())")) == set()


def test_a_class_that_is_no_callback_may_do_anything(tmp_path: Path) -> None:
    text = CALLBACK.replace("(TrainerCallback)", "").replace("HOOK", "on_step_end")
    assert shown(tmp_path, text.replace("KEEP", "self.history.append(model(**batch).loss)")) == set()


# --------------------------------------------------------------------------- prepared schedules

PREPARED = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup, get_scheduler


def main(data, epochs=3):
    accelerator = Accelerator(OPTIONS)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    schedule = SCHEDULE
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(epochs):
        for x, y in loader:
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            IN_BATCH
            optimizer.zero_grad()
        IN_EPOCH
"""


@pytest.mark.parametrize("options", ["", "split_batches=True", "step_scheduler_with_optimizer=False"])
@pytest.mark.parametrize(
    "made",
    [
        'get_scheduler("linear", optimizer, num_warmup_steps=9, num_training_steps=epochs * len(loader))',
        "get_linear_schedule_with_warmup(optimizer, 9, len(loader) * epochs)",
        "torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, epochs=epochs, steps_per_epoch=len(loader))",
    ],
)
def test_a_prepared_schedule_of_batches_moves_with_them(made: str, options: str, tmp_path: Path) -> None:
    text = PREPARED.replace("SCHEDULE", made).replace("OPTIONS", options)
    rare = text.replace("IN_BATCH", "pass").replace("IN_EPOCH", "schedule.step()")
    assert shown(tmp_path, rare) == {"scheduler-wrong-cadence"}
    assert shown(tmp_path, text.replace("IN_BATCH", "schedule.step()").replace("IN_EPOCH", "pass")) == set()


# --------------------------------------------------------------------------- losses of the Trainer

WEIGHED = """
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


class Weighed(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = cross_entropy(outputs.logits, labels)DIVIDED
        return (loss, outputs) if return_outputs else loss


def main(data):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    args = TrainingArguments("out", gradient_accumulation_steps=16)
    Weighed(model=model, args=args, train_dataset=data).train()
"""


def test_a_loss_that_divides_by_the_window_itself_is_divided(tmp_path: Path) -> None:
    assert shown(tmp_path, WEIGHED.replace("DIVIDED", "")) == {"unscaled-accumulation"}
    divided = WEIGHED.replace("DIVIDED", " / self.args.gradient_accumulation_steps")
    assert shown(tmp_path, divided) == set()


# --------------------------------------------------------------------------- samplers of Lightning's

LEFT = """
import torch
from PACKAGE import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Data(LightningDataModule):
    def __init__(self, data):
        super().__init__()
        self.data = data

    def loader(self):
        return DataLoader(self.data, batch_size=8, HOW)

    def train_dataloader(self):
        return self.loader()


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(data):
    Trainer(OPTIONS).fit(Net(), datamodule=Data(data))
"""


@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("lightning", "devices=4, use_distributed_sampler=False"),
        ("pytorch_lightning", 'devices=2, strategy="ddp", use_distributed_sampler=False'),
        ("pytorch_lightning", "gpus=4, replace_sampler_ddp=False"),
        ("lightning.pytorch", "devices=1, num_nodes=2, use_distributed_sampler=False"),
    ],
)
def test_a_trainer_that_puts_in_no_sampler_leaves_it_to_the_script(
    package: str, options: str, tmp_path: Path
) -> None:
    text = LEFT.replace("PACKAGE", package).replace("OPTIONS", options)
    assert shown(tmp_path, text.replace("HOW", "shuffle=True")) == {"ddp-without-sharding"}
    assert shown(tmp_path, text.replace("HOW", "sampler=DistributedSampler(self.data)")) == set()


@pytest.mark.parametrize("options", ["devices=4", "devices=1, use_distributed_sampler=False"])
def test_a_trainer_that_does_or_that_runs_alone_does_not(options: str, tmp_path: Path) -> None:
    text = LEFT.replace("PACKAGE", "lightning").replace("OPTIONS", options)
    assert shown(tmp_path, text.replace("HOW", "shuffle=True")) == set()

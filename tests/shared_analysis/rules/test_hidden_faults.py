"""Faults hidden behind helpers, attributes and frameworks, in several spellings, and their correct twins.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import pytest
from tests.shared_analysis.rules.programs import check_marks as check

# --------------------------------------------------------------------------- what the last turn shows

PROBED = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())


@torch.no_grad()
def score(loader):
    model.eval(){here}
    hits = sum((model(x).argmax(1) == y).sum() for x, y in loader)
{after}
    return hits


def train(loader, probe):
    model.train()
    seen = 0
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen += 1
        if {test}:
            print(probe())


def main(train_loader, test_loader, every):
    for epoch in range(10):
        train(train_loader, lambda: score(test_loader))
"""


@pytest.mark.parametrize("test", ["(i + 1) % 50 == 0", "seen % 50 == 0", "i % 50 == 49", "i % 50 == 0"])
@pytest.mark.parametrize(("here", "after"), [("  # here", ""), ("", "    model.train()")])
def test_an_evaluation_at_the_end_of_a_period_leaves_its_mode(test: str, here: str, after: str) -> None:
    check("stuck-eval-mode", PROBED.format(test=test, here=here, after=after))


WINDOW = """
import torch
from torch import nn


class Trainer:
    def __init__(self, model, accumulate):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.accumulate = accumulate
        self.micro = 0

    def maybe_step(self):
        self.micro += 1
        if self.micro % self.accumulate == 0:
            self.optimizer.step()
{clear}

    def fit(self, loader):
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y) / self.accumulate
            loss.backward(){here}
            self.maybe_step()


def main(loader):
    Trainer(nn.Linear(8, 2), 4).fit(loader)
"""


@pytest.mark.parametrize(
    ("here", "clear"), [("  # here", ""), ("", "            self.optimizer.zero_grad()")]
)
def test_a_window_that_a_callee_counts(here: str, clear: str) -> None:
    check("missing-zero-grad", WINDOW.format(here=here, clear=clear))


# --------------------------------------------------------------------------- one of several callees

CHOSEN = """
import torch
from torch import nn

TABLE = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def train(model, loader, args):
    optimizer = {made}
    for x, y in loader:
        {clear}
        nn.functional.cross_entropy(model(x), y).backward(){here}
        optimizer.step()
"""


@pytest.mark.parametrize(
    "made",
    [
        "TABLE[args.name](model.parameters(), lr=0.1)",
        "TABLE.get(args.name, torch.optim.Adam)(model.parameters(), lr=0.1)",
        "(torch.optim.SGD if args.plain else torch.optim.AdamW)(model.parameters(), lr=0.1)",
    ],
)
@pytest.mark.parametrize(("here", "clear"), [("  # here", "pass"), ("", "optimizer.zero_grad()")])
def test_an_optimizer_of_one_of_several_classes(made: str, here: str, clear: str) -> None:
    text = CHOSEN.replace("{made}", made).replace("{clear}", clear).replace("{here}", here)
    check("missing-zero-grad", text)


# --------------------------------------------------------------------------- lightning

MANUAL = """
import lightning.pytorch as pl
import torch
from torch import nn


class Model(pl.LightningModule):
    def __init__(self, accumulate):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 1)

    @property
    def window(self):
        return self.hparams.accumulate

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt = self.optimizers()
        loss = nn.functional.mse_loss(self.net(x), y)
        {backward}
        if (batch_idx + 1) % {window} == 0:
            opt.step()
            opt.zero_grad()

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 9)]
"""


@pytest.mark.parametrize("window", ["8", "self.window", "self.hparams.accumulate"])
@pytest.mark.parametrize("is_divided", [False, True])
def test_a_window_beside_other_hooks(window: str, is_divided: bool) -> None:
    plain, divided = "self.manual_backward(loss)  # here", f"self.manual_backward(loss / {window})"
    backward = divided if is_divided else plain
    check("unscaled-accumulation", MANUAL.format(backward=backward, window=window))


CALLBACK = """
import {package} as pl


class Keep(pl.{callback}):
    def on_train_epoch_end(self, {trainer}, module):
        if {test}:
            print("saving")
{inside}
{outside}
"""


@pytest.mark.parametrize(
    ("package", "callback"), [("pytorch_lightning", "Callback"), ("lightning.pytorch", "callbacks.Callback")]
)
@pytest.mark.parametrize("trainer", ["trainer", "trainer: pl.Trainer", 'trainer: "pl.Trainer"'])
@pytest.mark.parametrize("test", ["trainer.is_global_zero", "trainer.global_rank == 0"])
@pytest.mark.parametrize("is_divergent", [True, False])
def test_a_callback_that_saves_on_one_rank(
    package: str, callback: str, trainer: str, test: str, is_divergent: bool
) -> None:
    save = 'trainer.save_checkpoint("last.ckpt")'
    text = CALLBACK.format(
        package=package,
        callback=callback,
        trainer=trainer,
        test=test,
        inside=f"            {save}  # here" if is_divergent else "",
        outside="" if is_divergent else f"        {save}",
    )
    check("rank-divergent-collective", text)


@pytest.mark.parametrize("test", ["self.trainer.is_global_zero", "self.global_rank == 0"])
@pytest.mark.parametrize("is_divergent", [True, False])
def test_a_module_that_gathers_on_one_rank(test: str, is_divergent: bool) -> None:
    first, then = f"if {test}:", "scores = self.all_gather(torch.stack(self.scores)).mean()"
    body = (
        [first, f"    {then}  # here", "    print(scores)"]
        if is_divergent
        else [then, first, "    print(scores)"]
    )
    lines = "\n".join(f"        {line}" for line in body)
    check(
        "rank-divergent-collective",
        f"""
import lightning as L
import torch


class Model(L.LightningModule):
    def on_validation_epoch_end(self):
{lines}
""",
    )


# --------------------------------------------------------------------------- ignite

IGNITE = """
import torch
from ignite.engine import Engine, Events
from torch import nn


def main(loader, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9){here}

    def update(engine, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    trainer = Engine(update)
{handler}
    trainer.run(loader, max_epochs=10)
"""


@pytest.mark.parametrize(
    ("here", "handler"),
    [
        ("  # here", "    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: print(engine))"),
        ("", "    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: scheduler.step())"),
        ("", "    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), lambda: scheduler.step())"),
        ("", "    @trainer.on(Events.EPOCH_COMPLETED)\n    def decay(engine):\n        scheduler.step()"),
        ("", "    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e, s: s.step(), scheduler)"),
        ("", "    trainer.add_event_handler(Events.EPOCH_STARTED, scheduler)"),
    ],
)
def test_schedulers_in_handlers_of_events(here: str, handler: str) -> None:
    check("scheduler-never-stepped", IGNITE.format(here=here, handler=handler))


# --------------------------------------------------------------------------- checkpoints

RESUMED = """
import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.epoch = 0

    def save(self):
        state = {"epoch": self.epoch, "model": self.model.state_dict()}
{saved}
        torch.save(state, "last.pt"){here}

    def resume(self, path):
        if path is None:
            return
        state = torch.load(path, map_location="cpu")
        self.model.load_state_dict(state["model"])
{loaded}
        self.epoch = state["epoch"] + 1

    def fit(self, loader, path):
        self.resume(path)
        while self.epoch < 10:
            for x, y in loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            self.save()
            self.epoch += 1


def main(loader, path):
    Trainer(nn.Linear(8, 2)).fit(loader, path)
"""


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_resumed_counter(is_whole: bool) -> None:
    text = RESUMED.replace("{here}", "" if is_whole else "  # here")
    saved = '        state["optimizer"] = self.optimizer.state_dict()'
    loaded = '        self.optimizer.load_state_dict(state["optimizer"])'
    text = text.replace("{saved}", saved if is_whole else "").replace("{loaded}", loaded if is_whole else "")
    check("checkpoint-incomplete", text)


# --------------------------------------------------------------------------- data sets

IN_A_MIXIN = """
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Random:
    def start(self, seed):
        self.rng = np.random.default_rng(seed){here}

    def draw(self):
        return self.rng.normal(size=12)


class Rows(Random, Dataset):
    def __init__(self, rows, seed=0):
        self.rows = rows
        self.start(seed)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + self.draw()


def loader(rows):
    return DataLoader(Rows(rows), batch_size=16, shuffle=True, num_workers={workers})
"""

IN_A_BASE = """
import random
from torch.utils.data import DataLoader, Dataset


class Base(Dataset):
    def __init__(self, rows):
        self.rows = rows
        self.random = random.Random(7){here}

    def __len__(self):
        return len(self.rows)


class Rows(Base):
    def __init__(self, rows):
        super().__init__(rows)
        self.scale = 2

    def __getitem__(self, index):
        return self.rows[index] * self.scale + self.random.random()


def loader(rows):
    return DataLoader(Rows(rows), batch_size=16, shuffle=True, num_workers={workers})
"""

IN_A_TRANSFORM = """
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Jitter:
    def __init__(self, scale):
        self.scale = scale
        self.rng = np.random.RandomState(0){here}

    def __call__(self, row):
        return row + self.scale * self.rng.randn(12)


class Rows(Dataset):
    def __init__(self, rows, transforms):
        self.rows, self.transforms = rows, transforms

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        for transform in self.transforms:
            row = transform(row)
        return row


def loader(rows):
    return DataLoader(Rows(rows, [Jitter(0.1)]), batch_size=16, shuffle=True, num_workers={workers})
"""


@pytest.mark.parametrize("text", [IN_A_MIXIN, IN_A_BASE, IN_A_TRANSFORM])
@pytest.mark.parametrize(("workers", "here"), [(4, "  # here"), (0, "")])
def test_generators_that_workers_copy(text: str, workers: int, here: str) -> None:
    check("worker-rng-duplicated", text.format(workers=workers, here=here))


STREAM = """
import gzip
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, folder):
        self.shards = sorted(Path(folder).glob("*.gz"))

    def lines(self):
        for shard in {shards}:
            with gzip.open(shard, "rt") as file:
                for line in file:
                    yield line.split("\\t")

    def __iter__(self):{there}
        for text, label in self.lines():
            yield torch.tensor([len(text)]), int(label)


loader = DataLoader(Lines("data"), batch_size=8, num_workers=4)
"""


@pytest.mark.parametrize(
    ("shards", "there"),
    [
        ("self.shards", "  # here"),
        ("self.shards[get_worker_info().id :: get_worker_info().num_workers]", ""),
    ],
)
def test_files_called_shards(shards: str, there: str) -> None:
    text = STREAM.format(shards=shards, there=there)
    if there:
        text = text.replace(", get_worker_info", "")
    check("iterable-dataset-unsharded", text)


# --------------------------------------------------------------------------- values

METERS = """
from collections import defaultdict

import torch
from torch import nn


class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append({kept}){here}


class Bank:
    def __init__(self):
        self.meters = {meters}

    def log(self, **values):
        for name, value in values.items():
            self.meters[name].add(value)


def train(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    bank = Bank()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank.log(loss=loss)
"""


@pytest.mark.parametrize("meters", ["defaultdict(Meter)", "defaultdict(lambda: Meter())"])
@pytest.mark.parametrize(("kept", "here"), [("value", "  # here"), ("value.item()", "")])
def test_objects_that_a_dictionary_makes(meters: str, kept: str, here: str) -> None:
    check("retained-graph", METERS.format(meters=meters, kept=kept, here=here))


TARGET = """
import torch
from torch import nn


def learn(loader, gamma):
    q = nn.Linear(8, 2)
    optimizer = torch.optim.Adam(q.parameters())
    for x, action, reward, ahead, done in loader:
        value = q(x).gather(1, action)
        {target}
        loss = nn.functional.mse_loss(value, target){here}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "product", ["gamma * (1 - done) * q(ahead).max(1)[0]", "0.99 * q(ahead).max(1)[0] * (1 - done.float())"]
)
@pytest.mark.parametrize("is_detached", [True, False])
def test_a_discount_of_a_whole_batch(product: str, is_detached: bool) -> None:
    target = f"target = (reward + {product}){'.detach()' if is_detached else ''}"
    here = "" if is_detached else "  # here"
    check("target-not-detached", TARGET.format(target=target, here=here))


@pytest.mark.parametrize(
    ("weights", "here"),
    [
        ('blob["model"] if "model" in blob else blob', "  # here"),
        ('blob.get("state_dict", blob)', "  # here"),
        ('{k: v for k, v in blob.items() if not k.startswith("head.")}', ""),
    ],
)
def test_weights_from_one_of_two_layouts(weights: str, here: str) -> None:
    check(
        "load-not-strict",
        f"""
import torch


def warm_start(net, path):
    blob = torch.load(path, map_location="cpu", weights_only=True)
    weights = {weights}
    net.load_state_dict(weights, strict=False){here}
""",
    )


# --------------------------------------------------------------------------- settings that a library fills

SEEDED = """
from dataclasses import dataclass

import torch
from torch import nn
{imports}


@dataclass
class Config:
    seed: int = 1
    epochs: int = 10


def set_seed(seed):
    torch.manual_seed(seed){here}


def epoch_of(model, loader, optimizer, cfg, epoch):
    {call}
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main(loader):
    cfg = {filled}
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(cfg.epochs):
        epoch_of(model, loader, optimizer, cfg, epoch)
"""


@pytest.mark.parametrize(
    ("imports", "filled"),
    [
        ("import tyro", "tyro.cli(Config)"),
        ("import pyrallis", "pyrallis.parse(config_class=Config)"),
        ("from simple_parsing import parse", "parse(Config)"),
        (
            "from transformers import HfArgumentParser",
            "HfArgumentParser(Config).parse_args_into_dataclasses()[0]",
        ),
    ],
)
@pytest.mark.parametrize(
    ("call", "here"), [("set_seed(cfg.seed)", "  # here"), ("set_seed(cfg.seed + epoch)", "")]
)
def test_a_helper_that_seeds_each_epoch(imports: str, filled: str, call: str, here: str) -> None:
    check("reseed-in-loop", SEEDED.format(imports=imports, filled=filled, call=call, here=here))


# --------------------------------------------------------------------------- weights

COMPREHENDED = """
import copy

import torch
from torch import nn


class Keeper:
    def __init__(self):
        self.best, self.weights = 0.0, None

    def offer(self, score, model):
        if score > self.best:
            self.best = score
            self.weights = {kept}{here}


def fit(model, loader, score):
    optimizer = torch.optim.Adam(model.parameters())
    keeper = Keeper()
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        keeper.offer(score(model), model)
    model.load_state_dict(keeper.weights)
"""


@pytest.mark.parametrize(
    ("kept", "here"),
    [
        ("{k: v for k, v in model.state_dict().items()}", "  # here"),
        ("{k: v.detach() for k, v in model.state_dict().items()}", "  # here"),
        ("{k: v.data for k, v in model.state_dict().items()}", "  # here"),
        ("{k: v.clone() for k, v in model.state_dict().items()}", ""),
        ("{k: v.detach().clone() for k, v in model.state_dict().items()}", ""),
        ("copy.deepcopy(model.state_dict())", ""),
    ],
)
def test_entries_of_a_state_dict(kept: str, here: str) -> None:
    check("best-state-aliased", COMPREHENDED.replace("{kept}", kept).replace("{here}", here))


def test_averages_that_begin_as_the_weights() -> None:
    check(
        "best-state-aliased",
        """
import torch
from torch import nn


class Ema:
    def __init__(self, model):
        self.shadow = {k: v for k, v in model.state_dict().items()}

    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k] = 0.99 * self.shadow[k] + 0.01 * v


def fit(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    ema = Ema(model)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ema.update(model)
    model.load_state_dict(ema.shadow)
""",
    )


# --------------------------------------------------------------------------- optimizers and schedules

REBUILT = """
import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr):
        self.model, self.lr = model, lr
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def start(self, epoch):
        {start}

    def update(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, loader):
        for epoch in range(10):
            self.start(epoch)
            print(sum(self.update(x, y) for x, y in loader))


def main(loader):
    Trainer(nn.Linear(8, 2), 0.1).fit(loader)
"""


@pytest.mark.parametrize(
    "start",
    [
        "self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr * 0.9**epoch)  # here",
        'self.optimizer.param_groups[0]["lr"] = self.lr * 0.9**epoch',
    ],
)
def test_an_optimizer_that_a_hook_replaces(start: str) -> None:
    check("optimizer-rebuilt-in-loop", REBUILT.format(start=start))


def test_clients_have_optimizers_of_their_own() -> None:
    check(
        "optimizer-rebuilt-in-loop",
        """
import torch
from torch import nn


class Client:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def round(self, loader):
        self.optimizer = torch.optim.Adam(self.model.parameters())
        for x, y in loader:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()


def main(loader, rounds):
    client = Client(nn.Linear(8, 2))
    for _ in range(rounds):
        client.round(loader)
""",
    )


PLANNED = """
import torch
from torch import nn
from transformers import get_cosine_schedule_with_warmup, get_scheduler


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.AdamW(model.parameters())
        total = 4 * len(loader)
        self.schedule = {schedule}

    def update(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        {each}
        return loss.item()

    def fit(self):
        for epoch in range(4):
            losses = [self.update(x, y) for x, y in self.loader]
            {last}


def main(data):
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    Trainer(nn.Linear(8, 2), loader).fit()
"""


@pytest.mark.parametrize(
    "schedule",
    [
        "get_cosine_schedule_with_warmup(self.optimizer, total // 10, total)",
        'get_scheduler("linear", self.optimizer, 0, total)',
        "torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=total)",
    ],
)
@pytest.mark.parametrize("is_rare", [True, False])
def test_a_schedule_of_batches(schedule: str, is_rare: bool) -> None:
    moved = "self.schedule.step()"
    each, last = ("pass", f"{moved}  # here") if is_rare else (moved, "pass")
    check("scheduler-wrong-cadence", PLANNED.format(schedule=schedule, each=each, last=last))


CLIPPED = """
import torch
from torch import nn


class Clip:
    def __init__(self, model):
        self.model = model

    def before_step(self):
        {before}

    def after_step(self):
        {after}


def fit(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callbacks = [Clip(model)]
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for callback in callbacks:
            callback.before_step()
        optimizer.step()
        for callback in callbacks:
            callback.after_step()
"""


@pytest.mark.parametrize("is_late", [True, False])
def test_callbacks_that_clip(is_late: bool) -> None:
    clip = "nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)"
    before, after = ("pass", f"{clip}  # here") if is_late else (clip, "pass")
    check("clip-order", CLIPPED.format(before=before, after=after))


SHARDED = """
import torch
from torch import nn
{imports}


def train(loader):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).cuda()
    {first}
    {then}
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("imports", "shard"),
    [
        ("from torch.distributed.fsdp import fully_shard", "fully_shard(model)"),
        ("from torch.distributed._composable.fsdp import fully_shard", "fully_shard(model)"),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", "model = FSDP(model)"),
    ],
)
@pytest.mark.parametrize("is_late", [True, False])
def test_parameters_that_are_sharded_later(imports: str, shard: str, is_late: bool) -> None:
    built = "optimizer = torch.optim.AdamW(model.parameters())"
    first, then = (built, f"{shard}  # here") if is_late else (shard, built)
    check("optimizer-misses-parameters", SHARDED.format(imports=imports, first=first, then=then))


# --------------------------------------------------------------------------- files

FETCHED = """
import os
import urllib.request

import torch


def fetch(name):
    path = os.path.join("cache", name)
    if not os.path.exists(path):
        {fetch}
    return path


def weights(name):
    return torch.load(fetch(name), map_location="cpu", weights_only={flag}){here}
"""


@pytest.mark.parametrize(
    "fetch",
    [
        'urllib.request.urlretrieve(f"https://example.org/{name}", path)',
        'torch.hub.download_url_to_file("https://example.org/" + name, path)',
    ],
)
@pytest.mark.parametrize(("flag", "here"), [("False", "  # here"), ("True", "")])
def test_a_path_that_something_is_downloaded_to(fetch: str, flag: str, here: str) -> None:
    check("unsafe-load", FETCHED.replace("{fetch}", fetch).replace("{flag}", flag).replace("{here}", here))


SAVED = """
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(loader):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(8, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = Path("runs"{name})
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save(model.module.state_dict(), {path}){here}
"""


@pytest.mark.parametrize(
    ("name", "path", "here"),
    [
        ("", 'out / f"{epoch}.pt"', "  # here"),
        ("", 'out / "weights" / "last.pt"', "  # here"),
        ("", 'out / f"{epoch}_{rank}.pt"', ""),
        (', f"rank{rank}"', 'out / "last.pt"', ""),
        (', os.environ["NODE"]', 'out / "last.pt"', ""),
    ],
)
def test_one_path_of_all_ranks(name: str, path: str, here: str) -> None:
    check("save-on-every-rank", SAVED.replace("{name}", name).replace("{path}", path).replace("{here}", here))


# --------------------------------------------------------------------------- scores and losses

SCORED = """
import torch
import torchvision
from torch import nn


def train(loader):
    model = torchvision.models.resnet18(num_classes=4)
    {head}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, teacher in loader:
        scores = model(x)
        loss = nn.functional.kl_div({given}, teacher.softmax(1), reduction="batchmean"){here}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("head", "given", "here"),
    [
        ("pass", "scores / 4.0", "  # here"),
        ("model.fc = nn.Linear(512, 4)", "0.5 * scores - 1", "  # here"),
        ("pass", "(scores / 4.0).log_softmax(1)", ""),
        ("model.fc = nn.Sequential(nn.Linear(512, 4), nn.LogSoftmax(1))", "scores", ""),
        ("model.fc = make_head()", "scores", ""),
    ],
)
def test_scaled_scores_of_a_classifier(head: str, given: str, here: str) -> None:
    check("kl-div-inputs", SCORED.format(head=head, given=given, here=here))


KEPT = """
from {package} import {base}


class Mine({base}):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        {loss}
        self.seen.append({kept}){here}
        return loss
"""


@pytest.mark.parametrize(("package", "base"), [("transformers", "Trainer"), ("trl", "SFTTrainer")])
@pytest.mark.parametrize(
    "loss",
    [
        "loss, outputs = super().compute_loss(model, inputs, return_outputs=True)",
        "loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)",
    ],
)
@pytest.mark.parametrize(("kept", "here"), [("loss", "  # here"), ("loss.detach()", ""), ("loss.item()", "")])
def test_the_loss_of_the_trainer_itself(package: str, base: str, loss: str, kept: str, here: str) -> None:
    check("retained-graph", KEPT.format(package=package, base=base, loss=loss, kept=kept, here=here))


# --------------------------------------------------------------------------- objects that step

SCALED = """
import torch
from torch import nn


class Amp:
    def __init__(self, optimizer, every):
        self.optimizer, self.every, self.count = optimizer, every, 0
        self.scaler = torch.amp.GradScaler("cuda")

    def backward(self, loss):
        self.scaler.scale(loss / self.every).backward()
        self.count += 1
        if self.count % self.every == 0:
            self.scaler.step(self.optimizer)
{inside}
            self.optimizer.zero_grad()
{outside}


def fit(model, loader, every):
    amp = Amp(torch.optim.SGD(model.parameters(), lr=0.1), every)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        amp.backward(loss)
"""


@pytest.mark.parametrize("is_early", [True, False])
def test_an_update_of_the_scale_in_each_turn_of_a_window(is_early: bool) -> None:
    update = "self.scaler.update()"
    inside = "" if is_early else f"            {update}"
    outside = f"        {update}  # here" if is_early else ""
    check("scaler-protocol", SCALED.format(inside=inside, outside=outside))


SHARPNESS = """
import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, **kwargs):
        super().__init__(params, kwargs)
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def first(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second(self):
        {before}
        self.base.step(){here}
        {after}


def fit(model, loader):
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.first()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.second()
"""


@pytest.mark.parametrize("rule", ["grads-cleared-before-step", "missing-zero-grad"])
@pytest.mark.parametrize("is_early", [True, False])
def test_an_optimizer_inside_of_an_optimizer(rule: str, is_early: bool) -> None:
    text = SHARPNESS.replace("{before}", "self.zero_grad(){here}" if is_early else "pass")
    text = text.replace("self.base.step(){here}", "self.base.step()")
    text = text.replace("{after}", "pass" if is_early else "self.zero_grad()")
    is_found = is_early and rule == "grads-cleared-before-step"
    check(rule, text.replace("{here}", "  # here" if is_found else ""))


HEADED = """
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoModelForSequenceClassification


def adapt(model):
    {adapt}
    model.classifier = torch.nn.Linear(768, 3){here}
    return model


def fit(loader):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    {first}
    {then}
    for batch in loader:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("adapt", ["pass", "model = inject_adapter_in_model(LoraConfig(r=8), model)"])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_head_of_a_library_model(adapt: str, is_late: bool) -> None:
    built, adapted = "optimizer = torch.optim.AdamW(model.parameters())", "model = adapt(model)"
    first, then = (built, adapted) if is_late else (adapted, built)
    here = "  # here" if is_late else ""
    check("optimizer-misses-parameters", HEADED.format(adapt=adapt, first=first, then=then, here=here))

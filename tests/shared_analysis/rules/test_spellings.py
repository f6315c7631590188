"""One fault in several spellings, each with its correct twin: the fact counts and not the form."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from tests.shared_analysis.rules.programs import loud_rules

from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def shown(folder: Path, text: str, requirements: str = "") -> set[str]:
    """Rules of what is shown as an error or a warning, beside these requirements."""
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    return loud_rules(folder, text)


def check(folder: Path, rule: str, faulty: str, correct: str) -> None:
    assert rule in shown(folder, faulty)
    assert shown(folder, correct) == set()


# --------------------------------------------------------------------------- values by name

REPLAY = """
import random
from collections import deque, namedtuple
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

{step}

def main(env):
    net = nn.Linear(8, 1)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    kept = []
    for _ in range(1000):
        for _ in range(64):
            obs = torch.as_tensor(env.observe())
            value = net(obs)
            kept.append({made})
        batch = random.sample(kept, 32)
        target = torch.tensor([env.reward(b.obs) for b in batch])
        seen = torch.stack([b.value for b in batch]).detach()
        loss = (net(torch.stack([b.obs for b in batch])) - target - 0.1 * seen).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""

STEPS = [
    'Step = namedtuple("Step", "obs value")',
    'Step = namedtuple("Step", ["obs", "value"])',
    'Step = namedtuple("Step", "obs, value", defaults=(None,))',
    'Step = NamedTuple("Step", [("obs", torch.Tensor), ("value", torch.Tensor)])',
    "class Step(NamedTuple):\n    obs: torch.Tensor\n    value: torch.Tensor",
    "@dataclass\nclass Step:\n    obs: torch.Tensor\n    value: torch.Tensor",
]
MADE = ["Step(obs, {})", "Step(obs=obs, value={})", "Step(*(obs, {}))"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("made", MADE)
def test_graphs_are_kept_in_tuples_with_names(step: str, made: str, tmp_path: Path) -> None:
    faulty, correct = (
        REPLAY.format(step=step, made=made.format(value)) for value in ("value", "value.detach()")
    )
    check(tmp_path, "retained-graph", faulty, correct)


@pytest.mark.parametrize("step", STEPS[:5])
def test_values_of_a_named_tuple_are_changed_and_read_as_a_dictionary(step: str, tmp_path: Path) -> None:
    made = 'dict(Step(obs, None)._replace(value={})._asdict())["value"]'
    faulty, correct = (
        REPLAY.format(step=step, made=made.format(value)) for value in ("value", "value.detach()")
    )
    check(tmp_path, "retained-graph", faulty, correct)


def test_what_a_policy_kept_is_consumed_by_name(tmp_path: Path) -> None:
    text = """
        from collections import namedtuple

        import torch
        from torch import nn
        from torch.distributions import Categorical

        Saved = namedtuple("Saved", "log_prob reward")


        def main(env, policy: nn.Module):
            opt = torch.optim.Adam(policy.parameters())
            for _ in range(1000):
                saved = []
                obs = env.reset()
                for _ in range(200):
                    chosen = Categorical(logits=policy(obs))
                    action = chosen.sample()
                    obs, reward = env.step(action.item())
                    saved.append(Saved(chosen.log_prob(action), reward))
                loss = -sum(one.log_prob * one.reward for one in saved)
                opt.zero_grad()
                loss.backward()
                opt.step()
    """
    assert shown(tmp_path, dedent(text)) == set()


# --------------------------------------------------------------------------- losses without a graph

CUT = """
import numpy as np
import torch
from torch import nn


def main(loader):
    net = nn.Linear(8, 4).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        first = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        {loss}
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "loss = torch.tensor(first.item(), requires_grad=True)",
        "loss = torch.tensor(float(first) + 0.1, requires_grad=True)",
        "number = first.item()\n        loss = torch.as_tensor(0.5 * number).requires_grad_()",
        "loss = torch.tensor(np.mean([first.item()]), requires_grad=True)",
        "loss = torch.FloatTensor([first.tolist()]).requires_grad_(True)",
    ],
)
def test_a_loss_is_made_anew_from_numbers(loss: str, tmp_path: Path) -> None:
    check(tmp_path, "loss-cut-from-graph", CUT.format(loss=loss), CUT.format(loss="loss = 0.5 * first"))


RECORDED = """
import torch
from torch import nn

net = nn.Linear(8, 4).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)

{scores}

def main(loader):
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(scores(x.cuda()), y.cuda())
        {told}
        loss.backward()
        opt.step()
"""
UNRECORDED = [
    "@torch.no_grad()\ndef scores(x):\n    return net(x)\n",
    "def scores(x):\n    with torch.no_grad():\n        return net(x)\n",
    "@torch.set_grad_enabled(False)\ndef scores(x):\n    return net(x).float()\n",
]


@pytest.mark.parametrize("scores", UNRECORDED)
@pytest.mark.parametrize(
    "told", ["loss.requires_grad_(True)", "loss.requires_grad = True", "loss = loss.requires_grad_()"]
)
def test_a_loss_without_a_graph_is_told_to_require_gradients(scores: str, told: str, tmp_path: Path) -> None:
    correct = RECORDED.format(scores="def scores(x):\n    return net(x)\n", told="pass")
    check(tmp_path, "loss-cut-from-graph", RECORDED.format(scores=scores, told=told), correct)


# --------------------------------------------------------------------------- shapes

TABLE = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

df = pd.read_csv("houses.csv").dropna()
X = torch.tensor(df.drop(columns="price").to_numpy(), dtype=torch.float32)
y = {y}
data = TensorDataset(X, y)
{split}
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(100):
    for xb, yb in DataLoader(data, batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(model(xb), yb{after})
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
COLUMNS = [
    'torch.tensor(df["price"].values, dtype=torch.float32)',
    'torch.from_numpy(df["price"].to_numpy().astype(np.float32))',
    "torch.as_tensor(df.price.values).float()",
    'torch.tensor(np.log1p(df["price"].fillna(0).values))',
]


@pytest.mark.parametrize("y", COLUMNS)
@pytest.mark.parametrize("split", ["", "data, rest = random_split(data, [800, 200])"])
def test_a_column_of_a_table_meets_a_prediction(y: str, split: str, tmp_path: Path) -> None:
    faulty = TABLE.format(y=y, split=split, after="")
    for after in (".unsqueeze(1)", ".view(-1, 1)", ".reshape(-1, 1)", "[:, None]"):
        check(tmp_path, "loss-shape-broadcast", faulty, TABLE.format(y=y, split=split, after=after))


@pytest.mark.parametrize(
    "y",
    [
        'torch.tensor(df[["price"]].values)',
        'torch.tensor(df["price"].values).unsqueeze(1)',
        'torch.tensor(df["price"].values.reshape(-1, 1))',
        'torch.tensor(df["price"].values[:, None])',
        "torch.tensor(df.iloc[:, -1:].values)",
    ],
)
def test_a_table_with_one_column_has_two_axes(y: str, tmp_path: Path) -> None:
    assert shown(tmp_path, TABLE.format(y=y, split="", after="")) == set()


SAMPLES = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Houses(Dataset):
    def __init__(self, x, y, table):
        self.x = torch.tensor(x, dtype=torch.float32)
        self.y = y
        self.t = torch.tensor(y, dtype=torch.float32)
        self.table = table

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        row = self.x[i]
        {given}


def main():
    houses = Houses(np.random.randn(1000, 8), np.zeros((1000,)), pd.read_csv("houses.csv"))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters())
    for batch in DataLoader(houses, batch_size=32, shuffle=True):
        loss = nn.functional.mse_loss(model(batch[{first}]), batch[{second}])
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
TARGETS = [
    "self.t[i]",
    "torch.tensor(self.y[i], dtype=torch.float32)",
    'torch.tensor(self.table["price"].values[i]).float()',
    'torch.as_tensor(self.table["price"][i])',
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("given", "first", "second"),
    [
        ("return row, {}", 0, 1),
        ("target = {}\n        return row, target", 0, 1),
        ('return {{"x": row, "y": {}}}', '"x"', '"y"'),
    ],
)
def test_samples_of_a_class_have_a_number_each(
    given: str, first: object, second: object, target: str, tmp_path: Path
) -> None:
    faulty = SAMPLES.format(given=given.format(target), first=first, second=second)
    assert "loss-shape-broadcast" in shown(tmp_path, faulty)
    for mended in (f"{target}.unsqueeze(0)", f"torch.stack([{target}])", f"{target}.view(1)"):
        text = SAMPLES.format(given=given.format(mended), first=first, second=second)
        assert shown(tmp_path, text) == set()


LEARNT = """
import random

import torch
import torch.nn.functional as F
from torch import nn


def net():
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))


def main(memory, gamma=0.99):
    online, frozen = net(), net()
    opt = torch.optim.Adam(online.parameters(), lr=1e-3)
    for _ in range(10_000):
        batch = random.sample(memory, 64)
        s, s2 = (torch.stack([b[i] for b in batch]) for i in (0, 3))
        a, r, done = (torch.tensor([b[i] for b in batch]) for i in (1, 2, 4))
        q = {q}
        with torch.no_grad():
            best = {best}
            y = r + gamma * best * (1 - done)
        loss = F.mse_loss(q, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
PICKED = [
    "online(s).gather(1, a.unsqueeze(1))",
    "torch.gather(online(s), 1, a.unsqueeze(-1))",
    "online(s).gather(dim=1, index=a.view(-1, 1))",
    "online(s).gather(1, a.long().unsqueeze(1))",
]
BEST = ["frozen(s2).max(1).values", "frozen(s2).max(dim=1)[0]", "torch.max(frozen(s2), 1)[0].detach()"]


@pytest.mark.parametrize("best", BEST)
@pytest.mark.parametrize("q", PICKED)
def test_values_that_were_picked_meet_the_best_of_each_row(q: str, best: str, tmp_path: Path) -> None:
    correct = LEARNT.format(q=f"{q}.squeeze(1)", best=best)
    check(tmp_path, "loss-shape-broadcast", LEARNT.format(q=q, best=best), correct)
    assert shown(tmp_path, LEARNT.format(q=q, best=f"({best}).unsqueeze(1)")) == set()


def test_the_best_of_each_row_may_stay_a_column(tmp_path: Path) -> None:
    text = LEARNT.format(q=PICKED[0], best="frozen(s2).max(1, keepdim=True)[0]")
    assert shown(tmp_path, text) == set()


# --------------------------------------------------------------------------- gradients that are read

SCALED = """
import torch
from torch import nn

{helper}

def train(model: nn.Module, loader, steps):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        {unscale}
        read(model)
        scaler.step(opt)
        scaler.update()
"""
READERS = [
    "norms = torch.stack([p.grad.norm() for p in model.parameters()])\n    if norms.norm() > 10:\n"
    "        print('large')",
    "total = sum(p.grad.detach().pow(2).sum() for p in model.parameters()) ** 0.5\n"
    "    factor = (1.0 / (total + 1e-6)).clamp(max=1.0)\n"
    "    for p in model.parameters():\n        p.grad.mul_(factor)",
    "grads = [p.grad for p in model.parameters() if p.grad is not None]\n"
    "    total = torch.nn.utils.get_total_norm(grads)\n    if total.item() > 10:\n        print('large')",
    "largest = max(p.grad.abs().max() for p in model.parameters()).item()\n    if largest > 1e3:\n"
    "        print('large')",
    "total = 0.0\n    for p in model.parameters():\n        total += torch.linalg.vector_norm(p.grad) ** 2\n"
    "    print('norm', total.sqrt())",
]


@pytest.mark.parametrize("body", READERS)
def test_scaled_gradients_are_read_in_a_helper(body: str, tmp_path: Path) -> None:
    helper = f"def read(model):\n    {body}\n"
    faulty = SCALED.format(helper=helper, unscale="pass")
    check(
        tmp_path, "clip-before-unscale", faulty, SCALED.format(helper=helper, unscale="scaler.unscale_(opt)")
    )


@pytest.mark.parametrize(
    "body",
    [
        "if not all(torch.isfinite(p.grad).all() for p in model.parameters()):\n        print('overflow')",
        "first, *rest = [p.grad.norm() for p in model.parameters()]\n    if first / rest[-1] > 10:\n"
        "        print('uneven')",
        "return sum(p.grad.numel() for p in model.parameters())",
    ],
)
def test_the_scale_of_gradients_does_not_matter(body: str, tmp_path: Path) -> None:
    text = SCALED.format(helper=f"def read(model):\n    {body}\n", unscale="pass")
    assert "clip-before-unscale" not in shown(tmp_path, text)


# --------------------------------------------------------------------------- which release runs

ENGINE = """
import deepspeed
from torch import nn


def train(loader):
    engine, _, _, _ = deepspeed.initialize(model=nn.Linear(8, 4), config="config.json")
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        loss.backward()
        engine.step()
"""


@pytest.mark.parametrize(
    ("requirements", "is_shown"),
    [
        ("deepspeed==0.14.2\n", True),
        ("torch\ndeepspeed<0.18\n", True),
        ("deepspeed>=0.18.3\n", False),
        ("deepspeed\n", False),
        ("", False),
    ],
)
def test_a_release_that_takes_the_backward_over(requirements: str, is_shown: bool, tmp_path: Path) -> None:
    assert ("engine-bypassed" in shown(tmp_path, ENGINE, requirements)) is is_shown


# --------------------------------------------------------------------------- losses that are modules

CRITERION = """
import numpy as np
import torch
from torch import nn


class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("parents", torch.arange(12) // 3)

    def forward(self, scores, y):
        {loss}
        return loss


net, criterion = nn.Linear(8, 12), Criterion()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(900):
    x, y = torch.rand(16, 8), torch.randint(0, 12, (16,))
    loss = criterion(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "low = scores.argmax(1)\n        loss = torch.where(self.parents[low] == y, 0.0, 1.0).mean()",
        "loss = (y != torch.argmax(scores, dim=1)).float().mean()",
        "up = self.parents[scores.argmax(1)]\n"
        "        loss = torch.pow(3.0, (up != scores.argmax(1)).float()).mean()",
    ],
)
def test_a_loss_of_the_project_has_no_gradient(loss: str, tmp_path: Path) -> None:
    told = f"{loss}\n        loss.requires_grad_(True)"
    correct = CRITERION.format(loss="loss = -scores.log_softmax(1).gather(1, y[:, None]).mean()")
    check(tmp_path, "nondifferentiable-loss", CRITERION.format(loss=told), correct)


@pytest.mark.parametrize(
    "loss",
    [
        "rows = scores.detach().numpy()\n        loss = torch.from_numpy(np.sqrt((rows**2).sum(-1))).mean()",
        "loss = torch.tensor(np.abs(scores.detach().numpy() - 1).mean())",
        "gap = np.square(scores.detach().cpu().numpy())\n        loss = torch.as_tensor(np.log1p(gap)).sum()",
    ],
)
def test_what_numpy_computes_has_left_the_graph(loss: str, tmp_path: Path) -> None:
    told = f"{loss}\n        loss.requires_grad = True"
    correct = CRITERION.format(loss="loss = scores.square().sum(-1).sqrt().mean()")
    check(tmp_path, "loss-cut-from-graph", CRITERION.format(loss=told), correct)


# --------------------------------------------------------------------------- wrappers that are no modules

WRAPPER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pair:
    def __init__(self):
        self.{part} = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2))
        self.opt = torch.optim.Adam(self.{part}.parameters(), lr=2e-4)
        self.steps = 0

    def begin(self):
        self.{part}.train()

    def rest(self):
        self.{part}.eval()

    def embed(self, a, b):
        return self.{part}(a), self.{part}(b)

    def learn(self, a, b):
        self.steps += 1
        left, right = self.embed(a, b)
        scores = left @ right.t()
        loss = (0.2 + scores - scores.diag()[:, None]).clamp(min=0).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


@torch.no_grad()
def score(pair, loader):
    pair.rest()
    hits = 0
    for a, b in loader:
        left, right = pair.embed(a, b)
        hits += ((left @ right.t()).argmax(1) == torch.arange(len(left))).sum().item()
    return hits


def fit(pair, loader, held_out, every=10):
    pair.begin()
    for a, b in loader:
        pair.learn(a, b)
        if pair.steps % every == 0:
            print(pair.steps, score(pair, held_out))
            {after}


data = TensorDataset(torch.rand(400, 8), torch.rand(400, 8))
pair = Pair()
for epoch in range(3):
    fit(pair, DataLoader(data, 16, shuffle=True), DataLoader(data, 50))
"""


@pytest.mark.parametrize("part", ["encoder", "img_enc", "tower"])
def test_a_wrapper_switches_its_parts(part: str, tmp_path: Path) -> None:
    check(
        tmp_path,
        "stuck-eval-mode",
        WRAPPER.format(part=part, after="pass"),
        WRAPPER.format(part=part, after="pair.begin()"),
    )


# --------------------------------------------------------------------------- batches in a list

LISTED = """
import torch
from torch import nn

net = nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def fit(batches, limit):
    for x, y in batches:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
{body}


{call}
"""
LISTED_BATCHES = "fit([(torch.rand(4, 8), torch.randint(0, 4, (4,))) for _ in range(9)], 1.0)"
PAIR = "pair = (torch.rand(4, 8), torch.randint(0, 4, (4,)))\nfor _ in range(9):\n    fit([pair, pair], 1.0)"


@pytest.mark.parametrize("call", [LISTED_BATCHES, PAIR])
@pytest.mark.parametrize(
    "clip",
    [
        "nn.utils.clip_grad_norm_(net.parameters(), limit)",
        "if limit:\n            nn.utils.clip_grad_value_(net.parameters(), limit)",
        "for one in (net,):\n            nn.utils.clip_grad_norm_(one.parameters(), limit)",
    ],
)
def test_clipping_behind_the_step_over_a_list_of_batches(call: str, clip: str, tmp_path: Path) -> None:
    late = LISTED.format(body=f"        opt.step()\n        {clip}", call=call)
    check(tmp_path, "clip-order", late, LISTED.format(body=f"        {clip}\n        opt.step()", call=call))


# --------------------------------------------------------------------------- second names

SECOND = """
import copy

import torch
from torch import nn


class Run:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        self.average = copy.deepcopy(self.net)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.best_net, self.lowest, self.kept = None, 1e9, {{}}

    def turn(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.opt.step()

    def fit(self, loader, score):
        net, best = self.net, None
        for epoch in range(30):
            self.turn(loader)
            now = score(self.net)
            if now < self.lowest:
                self.lowest = now
                {keep}
        {after}
"""


@pytest.mark.parametrize(
    ("keep", "after", "copied"),
    [
        ("self.best_net = self.net", "return self.best_net", "self.best_net = copy.deepcopy(self.net)"),
        ("best = net", "torch.save(best, 'best.pt')", "best = copy.deepcopy(net)"),
        ("self.kept['best'] = self.net", "return self.kept", "self.kept['best'] = copy.deepcopy(self.net)"),
        ("best, self.step = self.net, epoch", "return best", "best = copy.deepcopy(self.net)"),
    ],
)
def test_the_best_model_is_a_second_name(keep: str, after: str, copied: str, tmp_path: Path) -> None:
    faulty = SECOND.format(keep=keep, after=after)
    check(tmp_path, "best-state-aliased", faulty, SECOND.format(keep=copied, after=after))


@pytest.mark.parametrize(
    ("keep", "after"),
    [
        ("self.best_net = self.average", "return self.best_net"),
        ("best = net\n                torch.save(best.state_dict(), 'best.pt')", "return best"),
        ("best = net", "net.load_state_dict(torch.load('best.pt', map_location='cpu'))"),
        ("current = net", "return current"),
    ],
)
def test_a_second_name_that_loses_nothing(keep: str, after: str, tmp_path: Path) -> None:
    assert shown(tmp_path, SECOND.format(keep=keep, after=after)) == set()


# --------------------------------------------------------------------------- lengths of schedules

PLANNED = """
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, PolynomialLR

EPOCHS = 15
net = nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
schedule = {schedule}


def train(loader):
    for epoch in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
        schedule.step()
"""


@pytest.mark.parametrize(
    ("far", "near"),
    [
        ("CosineAnnealingLR(opt, int(1e10))", "CosineAnnealingLR(opt, EPOCHS)"),
        ("CosineAnnealingLR(opt, T_max=100 * EPOCHS)", "CosineAnnealingLR(opt, T_max=2 * EPOCHS)"),
        ("PolynomialLR(opt, total_iters=40_000, power=0.9)", "PolynomialLR(opt, total_iters=15, power=0.9)"),
        ("OneCycleLR(opt, 0.1, total_steps=10_000)", "OneCycleLR(opt, 0.1, total_steps=EPOCHS)"),
    ],
)
def test_a_schedule_far_beyond_the_run(far: str, near: str, tmp_path: Path) -> None:
    check(tmp_path, "scheduler-wrong-cadence", PLANNED.format(schedule=far), PLANNED.format(schedule=near))


def test_a_run_of_unknown_length_may_be_as_long_as_its_schedule(tmp_path: Path) -> None:
    text = PLANNED.format(schedule="CosineAnnealingLR(opt, 10_000)")
    text = text.replace("def train(loader):", "def train(loader, EPOCHS):")
    assert shown(tmp_path, text) == set()


# --------------------------------------------------------------------------- parts one by one

PARTS = """
import copy
import itertools

import torch
from torch import nn


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.left = nn.Linear(8, 8)
        self.right = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.fuse = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
        {more}

    def forward(self, x):
        h = self.body(x)
        {fused}

    def learner(self):
        return torch.optim.Adam({given}, lr=1e-3)


net = Matcher()
opt = net.learner()
for _ in range(500):
    x, y = torch.rand(16, 8), torch.randint(0, 2, (16,))
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
"""
FUSED = "return self.fuse(torch.cat([self.left(h), self.right(h)], dim=1))"
SOME = (
    '[{"params": self.body.parameters(), "lr": 1e-4}, {"params": self.left.parameters()}, '
    '{"params": self.right.parameters()}]',
    "list(self.body.parameters()) + list(self.left.parameters()) + list(self.right.parameters())",
    "itertools.chain(self.body.parameters(), self.left.parameters(), self.right.parameters())",
    "[*self.body.parameters(), *self.left.parameters(), *self.right.parameters()]",
)


@pytest.mark.parametrize("given", SOME)
def test_one_part_is_given_to_no_optimizer(given: str, tmp_path: Path) -> None:
    faulty = PARTS.format(more="pass", fused=FUSED, given=given)
    check(tmp_path, "optimizer-misses-parameters", faulty, faulty.replace(given, "self.parameters()"))


@pytest.mark.parametrize(
    ("more", "fused"),
    [
        ("self.fuse.requires_grad_(False)", FUSED),
        ("for p in self.fuse.parameters():\n            p.requires_grad = False", FUSED),
        ("self.fuse.load_state_dict(torch.load('fuse.pt'))", FUSED),
        (
            "pass",
            "with torch.no_grad():\n            h = h + self.fuse(torch.cat([h, h], dim=1))[:, :1]\n"
            "        return self.right(self.left(h))[:, :2]",
        ),
        (
            "pass",
            "h = h + self.fuse(torch.cat([h, h], dim=1))[:, :1].detach()\n"
            "        return self.right(self.left(h))[:, :2]",
        ),
        ("self.extra = nn.Linear(8, 8)", "return self.fuse(torch.cat([self.left(h), self.extra(h)], dim=1))"),
    ],
)
def test_parts_that_are_left_out_on_purpose(more: str, fused: str, tmp_path: Path) -> None:
    text = PARTS.format(more=more, fused=fused, given=SOME[1])
    assert "optimizer-misses-parameters" not in shown(tmp_path, text)


# --------------------------------------------------------------------------- ranks

RANKS = """
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(x)

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


def main(data):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = DDP(Net().cuda())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data, {sampler})
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            opt.zero_grad()
            {loss}.backward()
            opt.step()
"""
WHOLE = "nn.functional.cross_entropy(model(x.cuda()), y.cuda())"


@pytest.mark.parametrize(
    "seed", ["seed=rank", "seed=42 + rank", "seed=int(time.time()) * rank", "seed=int(os.environ['RANK'])"]
)
def test_ranks_that_shuffle_with_seeds_of_their_own(seed: str, tmp_path: Path) -> None:
    faulty = RANKS.format(sampler=seed, loss=WHOLE)
    check(tmp_path, "ddp-without-sharding", faulty, RANKS.format(sampler="seed=42", loss=WHOLE))


@pytest.mark.parametrize(
    "sampler", ["num_replicas=1, rank=0, seed=rank", "shuffle=False, seed=rank", "seed=dist.get_world_size()"]
)
def test_seeds_that_lose_no_samples(sampler: str, tmp_path: Path) -> None:
    assert "ddp-without-sharding" not in shown(tmp_path, RANKS.format(sampler=sampler, loss=WHOLE))


def test_a_method_of_the_module_goes_past_the_wrapper(tmp_path: Path) -> None:
    past = RANKS.format(sampler="seed=1", loss="model.module.loss(x.cuda(), y.cuda())")
    path = tmp_path / "train.py"
    path.write_text(past, encoding="utf-8")
    trace = run(SourceFile(str(path), past).module, Project([str(tmp_path)]))
    found = judge(trace, SourceFile(str(path), past), Settings()).findings
    lines = [one.place.span.line for one in found if one.rule == "ddp-forward-bypassed"]
    assert [past.splitlines()[line].strip() for line in lines] == [
        "model.module.loss(x.cuda(), y.cuda()).backward()"
    ]
    assert shown(tmp_path, RANKS.format(sampler="seed=1", loss=WHOLE)) == set()


# --------------------------------------------------------------------------- layers kept asleep

ASLEEP = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Conv2d(8, 2, 1)
        self.keep = keep
        self.freeze()

    def freeze(self):
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()

    def forward(self, x):
        {again}
        return self.head(self.body(x)).mean(dim=(2, 3))


net = Net(True)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(9):
    net.train()
    for _ in range(100):
        opt.zero_grad()
        nn.functional.cross_entropy(net(torch.rand(4, 3, 9, 9)), torch.randint(0, 2, (4,))).backward()
        opt.step()
"""


@pytest.mark.parametrize(
    "again",
    ["self.freeze()", "if self.keep:\n            self.freeze()", "self.body[1].eval()"],
)
def test_a_forward_that_puts_its_layers_to_sleep(again: str, tmp_path: Path) -> None:
    check(tmp_path, "frozen-norm-reactivated", ASLEEP.format(again="pass"), ASLEEP.format(again=again))


# --------------------------------------------------------------------------- ranks that may not be there

SYNCED = """
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total, self.count = self.total + value, self.count + 1

    def synchronize(self):
        {test}
        t = torch.tensor([self.total, self.count], device="cuda")
        dist.all_reduce(t)
        self.total, self.count = t.tolist()


def main(data, model: nn.Module):
    dist.init_process_group("nccl")
    loader = DataLoader(data, 32, sampler=DistributedSampler(data, shuffle=False), shuffle=False)
    meters = defaultdict(Meter)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            meters["loss"].update(nn.functional.cross_entropy(model(x), y).item())
    {call}
    print(meters["loss"].total / meters["loss"].count)
"""


@pytest.mark.parametrize("test", ["pass", "if not dist.is_initialized():\n            return"])
def test_meters_are_synchronised_where_there_are_ranks(test: str, tmp_path: Path) -> None:
    correct = SYNCED.format(test=test, call="for meter in meters.values():\n        meter.synchronize()")
    check(tmp_path, "metric-on-local-shard", SYNCED.format(test=test, call="pass"), correct)


# --------------------------------------------------------------------------- schedulers in attributes

HELD = """
import torch
import callbacks
from torch import nn


class Run:
    def __init__(self, net, epochwise=True):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.98)
        self.epochwise, self.moved = epochwise, False

    def turn(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.opt.step()
            {inside}

    def fit(self, loader):
        for epoch in range(30):
            self.turn(loader)
            {behind}


run = Run(nn.Linear(8, 2))
data = torch.utils.data.TensorDataset(torch.rand(640, 8), torch.randint(0, 2, (640,)))
run.fit(torch.utils.data.DataLoader(data, 32, shuffle=True))
{after}
"""


@pytest.mark.parametrize(
    ("inside", "behind"),
    [
        ("pass", "pass"),
        ("pass", "if self.epochwise and self.moved:\n                self.schedule.step()"),
        ("self.lr = self.schedule.get_last_lr()[0]", "print(epoch, self.lr)"),
    ],
)
def test_a_scheduler_in_an_attribute_is_never_stepped(inside: str, behind: str, tmp_path: Path) -> None:
    check(
        tmp_path,
        "scheduler-never-stepped",
        HELD.format(inside=inside, behind=behind, after=""),
        HELD.format(inside=inside, behind="self.schedule.step()", after=""),
    )


@pytest.mark.parametrize(
    ("behind", "after"),
    [
        ("callbacks.after(self)", ""),
        ("pass", "for _ in range(3):\n    run.fit([])\n    run.schedule.step()"),
        ("pass", "callbacks.register(run)"),
        ("callbacks.move(self.schedule)", ""),
    ],
)
def test_a_scheduler_in_an_attribute_that_others_may_step(behind: str, after: str, tmp_path: Path) -> None:
    text = HELD.format(inside="pass", behind=behind, after=after)
    assert "scheduler-never-stepped" not in shown(tmp_path, text)


# --------------------------------------------------------------------------- layers added by name

ADDED = """
import torch
from torch import nn


def build(depth=2):
    net = nn.Sequential()
    {body}
    return net


net = build()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(900):
    x, y = torch.rand(16, 8), torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
LAYERS = 'net.add_module("a", nn.Linear(8, 8))\n    net.add_module("b", nn.ReLU())\n    '
LOOPED = 'for i in range(depth):\n        net.add_module(f"l{i}", nn.Linear(8, 8))\n    '


@pytest.mark.parametrize("first", [LAYERS, LOOPED])
@pytest.mark.parametrize("how", ["add_module", "register_module"])
def test_the_last_layer_is_added_by_its_name(first: str, how: str, tmp_path: Path) -> None:
    head = f'{first}net.{how}("head", nn.Linear(8, 4))'
    faulty = ADDED.format(body=f'{head}\n    net.{how}("out", nn.Softmax(dim=1))')
    check(tmp_path, "double-softmax", faulty, ADDED.format(body=head))

"""Facts about programs that correct code of many idioms showed to be missing, each from both sides."""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.findings import Confidence, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings

HEAD = """
import contextlib
import os
from dataclasses import dataclass, field
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

"""


def said(text: str) -> list[str]:
    """Rules of the errors and warnings."""
    file = SourceFile("/nowhere/program.py", HEAD + textwrap.dedent(text))
    assert file.module.problems == ()
    trace = run(file.module, Project([]))
    assert trace.silence.failed == ()
    found = judge(trace, file, Settings()).findings
    return [
        f.rule for f in found if f.severity is not Severity.HINT and f.confidence is not Confidence.POSSIBLE
    ]


# --------------------------------------------------------------------------- step hooks

HOOKED = """
def clear(optimizer, args, kwargs):
    optimizer.zero_grad()


def train(loader):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    HOOK
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "hook",
    [
        "optimizer.register_step_post_hook(clear)",
        "optimizer.register_step_post_hook(lambda o, args, kwargs: o.zero_grad())",
    ],
)
def test_a_step_hook_clears(hook: str) -> None:
    assert said(HOOKED.replace("HOOK", hook)) == []


def test_a_step_hook_that_does_something_else_clears_nothing() -> None:
    hook = "optimizer.register_step_post_hook(lambda o, a, k: None)"
    assert said(HOOKED.replace("HOOK", hook)) == ["missing-zero-grad"]


# --------------------------------------------------------------------------- what ranks agree upon

AGREED = """
def train(loader, stopper):
    rank = dist.get_rank()
    VALUE
    if value > 1:
        dist.barrier()
"""


@pytest.mark.parametrize(
    "value",
    [
        "value = torch.zeros(1, device=rank)",
        "value = torch.tensor(float(rank)); dist.all_reduce(value)",
        "value = torch.full((1,), rank); dist.broadcast(value, src=0)",
        "value = torch.zeros(1).to(rank).item()",
    ],
)
def test_a_value_that_all_ranks_have_parts_none(value: str) -> None:
    assert said(AGREED.replace("VALUE", value)) == []


@pytest.mark.parametrize(
    "value",
    ["value = torch.full((1,), rank).item()", "value = torch.tensor(float(rank)); dist.reduce(value, dst=0)"],
)
def test_a_value_of_the_rank_parts_them(value: str) -> None:
    assert said(AGREED.replace("VALUE", value)) == ["rank-divergent-collective"]


# --------------------------------------------------------------------------- grad modes entered by hand

GUARDED = """
class Guard:
    def __init__(self):
        self.inner = torch.no_grad()
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        ENTER
        return self

    def __exit__(self, *exc):
        LEAVE


def train(loader, held):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        WITH
            print(torch.stack([F.mse_loss(model(x), y) for x, y in held]).mean().item())
"""

MANAGED = [
    ("self.inner.__enter__()", "self.inner.__exit__(*exc)", "with Guard():"),
    ("self.stack.enter_context(torch.no_grad())", "self.stack.close()", "with Guard():"),
    (
        "pass",
        "pass",
        "with contextlib.ExitStack() as stack:\n            stack.enter_context(torch.no_grad())",
    ),
]


@pytest.mark.parametrize(("enter", "leave", "block"), MANAGED)
def test_a_grad_mode_entered_by_hand_holds(enter: str, leave: str, block: str) -> None:
    text = GUARDED.replace("ENTER", enter).replace("LEAVE", leave).replace("WITH", block)
    assert said(text) == []


def test_it_holds_no_longer_than_to_its_exit() -> None:
    text = GUARDED.replace("ENTER", "self.inner.__enter__()\n        self.inner.__exit__(None, None, None)")
    assert said(text.replace("LEAVE", "pass").replace("WITH", "with Guard():")) == ["retained-graph"]


# --------------------------------------------------------------------------- windows of whole batches

WINDOWS = {
    "islice": """
def windows(loader, size):
    batches = iter(loader)
    while group := list(islice(batches, size)):
        yield group
""",
    "append": """
def windows(loader, size):
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
""",
    "next": """
def windows(loader, size):
    batches = iter(loader)
    for _ in range(100):
        yield [next(batches) for _ in range(size)]
""",
}

ACCUMULATED = """
def train(data, size):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for group in windows(DataLoader(data, 8, shuffle=True), size):
        optimizer.zero_grad()
        for x, y in group:
            loss = F.cross_entropy(model(x), y)SCALE
            loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("how", WINDOWS)
def test_a_list_of_batches_is_a_window(how: str) -> None:
    text = WINDOWS[how] + ACCUMULATED
    assert said(text.replace("SCALE", "")) == ["unscaled-accumulation"]
    assert said(text.replace("SCALE", " / len(group)")) == []


# --------------------------------------------------------------------------- turns that are not run

UNFROZEN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.body(x))


def train(loader):
    model = Net()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    for epoch in range(12):
        if epoch TEST:
            model.body.requires_grad_(True)
            ALSO
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize("test", ["== 3", "== 7", ">= 3", "> 8"])
def test_a_part_switched_on_late_is_in_no_optimizer(test: str) -> None:
    text = UNFROZEN.replace("TEST", test)
    assert said(text.replace("ALSO", "pass")) == ["optimizer-misses-parameters"]
    assert said(text.replace("ALSO", "optimizer.add_param_group({'params': model.body.parameters()})")) == []


# --------------------------------------------------------------------------- dataclasses

KEPT = """
@dataclass
class Trainer:
    model: nn.Module
    lr: float = 0.1
    history: list = field(default_factory=list)

    def __post_init__(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr)

    def fit(self, loader):
        for x, y in loader:
            loss = F.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.history.append(lossREAD)


def main(loader):
    Trainer(nn.Linear(3, 3)).fit(loader)
"""


def test_fields_with_factories_keep_what_they_are_given() -> None:
    assert said(KEPT.replace("READ", "")) == ["retained-graph"]
    assert said(KEPT.replace("READ", ".item()")) == []


def test_what_is_made_after_the_fields_is_there() -> None:
    cleared = "            self.optimizer.zero_grad()\n"
    assert said(KEPT.replace("READ", ".item()").replace(cleared, "")) == ["missing-zero-grad"]


# --------------------------------------------------------------------------- callbacks, measured gradients

CALLED = """
class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, loader):
        for x, y in loader:
            for callback in self.callbacks:
                callback.before_batch(GIVEN)
            F.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
"""


def test_a_callback_that_gets_the_trainer_may_clear() -> None:
    assert said(CALLED.replace("GIVEN", "self")) == []
    assert said(CALLED.replace("GIVEN", "x.size(0)")) == ["missing-zero-grad"]


MEASURED = """
def fisher(model, loader):
    model.eval()
    total = 0.0
    for x, y in loader:
        model.zero_grad()
        F.nll_loss(model(x), y).backward()
        total += sum(p.grad.pow(2).sum().item() for p in model.parameters())
    model.zero_grad()
    BACK
    return total


def train(loader):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1), nn.LogSoftmax(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for task in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.nll_loss(model(x), y).backward()
            optimizer.step()
        print(fisher(model, loader))
"""


def test_gradients_that_are_only_measured_are_no_training() -> None:
    assert said(MEASURED.replace("BACK", "model.train()")) == []
    assert said(MEASURED.replace("BACK", "pass")) == ["stuck-eval-mode"]


# --------------------------------------------------------------------------- steps in nearly every turn

SKIPPED = """
def train(loader):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i, (x, y) in enumerate(loader):
        F.mse_loss(model(x), y).backward()
        if i % 500 TEST:
            optimizer.step()
        optimizer.zero_grad()
"""


def test_a_round_may_be_left_out_now_and_then() -> None:
    assert said(SKIPPED.replace("TEST", "!= 499")) == []
    assert said(SKIPPED.replace("TEST", "== 499")) == ["grads-cleared-before-step"]


# --------------------------------------------------------------------------- checkpoints of things by name

RESUMED = """
class Checkpointer:
    def __init__(self, path, **things):
        self.path, self.things = path, things

    def save(self, **extra):
        state = {key: thing.state_dict() for key, thing in self.things.items()}
        torch.save({**state, **extra}, self.path)

    def load(self):
        if not os.path.exists(self.path):
            return {}
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        for key, thing in self.things.items():
            thing.load_state_dict(state.pop(key))
        return state


def train(loader, path="state.pt"):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    keeper = Checkpointer(path, model=model, optimizer=optimizerALSO)
    state = keeper.load()
    for epoch in range(state.get("epoch", -1) + 1, 10):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        keeper.save(epoch=epoch)
"""


def test_states_of_things_by_name_are_kept_apart() -> None:
    assert said(RESUMED.replace("ALSO", "")) == ["checkpoint-incomplete"]
    assert said(RESUMED.replace("ALSO", ", schedule=schedule")) == []

"""Condition 6 of docs/policy.md: each kind of edit is executed, old and new code side by side.

A safe edit must leave losses and weights equal; an unsafe one must change training exactly as intended: to
what a hand-written reference computes.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from torchwise_analysis.findings import Safety
from torchwise_analysis.fixes import SourceFile, apply_edits
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import all_rules, judge
from torchwise_analysis.settings import Settings

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the models are tiny, and sums must come in one order

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 12), torch.randint(0, 4, (48,)))
loader = DataLoader(data, batch_size=8)
"""

RETAINED = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
total = 0.0
for epoch in range(30):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        {store}
"""
)

NO_GRAD = (
    HEAD
    + """\
model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(30):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    for x, y in loader:
        losses.append(nn.functional.cross_entropy(model(x), y).item())
"""
)

ZERO_GRAD = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(30):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        {clear}loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
)

WINDOW_CLEAR = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(30):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / 3).backward()
        losses.append(loss.item())
        if (i + 1) % 3 == 0:
            optimizer.step()
{clear}"""
)

EVAL_MODE = (
    HEAD
    + """\
model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
model.train()
for epoch in range(30):
    for x, y in loader:
        optimizer.zero_grad()
        {train}loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            losses.append(nn.functional.cross_entropy(model(x), y).item())
"""
)

SOFTMAX = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(30):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy({scores}, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
)

BEST_STATE = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
losses = []
best_loss, best_state, best_bias = float("inf"), None, None
for epoch in range(30):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        score = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in loader)
    if score < best_loss:
        best_loss, best_bias = score, model.bias.tolist()
        best_state = {state}
    losses.append(score)
model.load_state_dict(best_state)
"""
)

WINDOW_SCALE = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = 3
losses = []
for epoch in range(30):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        {backward}
        losses.append(loss.item())
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
)


def fixed(text: str, rule: str, title: str = "") -> tuple[str, Safety]:
    """The text after the first fix of the only finding of `rule` whose title contains `title`."""
    file = SourceFile("/nowhere/twin.py", text)
    result = judge(run(file.module, Project([])), file, Settings())
    (finding,) = [found for found in result.findings if found.rule == rule]
    fix = next(fix for fix in finding.fixes if title in fix.title)
    assert fix.edits
    return apply_edits(file, fix.edits), fix.safety


def execute(text: str) -> dict[str, Any]:
    """The names of the program after it ran."""
    names: dict[str, Any] = {}
    exec(compile(text, "twin.py", "exec"), names)
    return names


def weights(names: dict[str, Any]) -> list[Any]:
    return [parameter.detach().clone() for parameter in names["model"].parameters()]


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Bitwise equal losses and weights."""
    losses = [[float(each) for each in names["losses"]] for names in (first, second)]
    pairs = zip(weights(first), weights(second), strict=True)
    return losses[0] == losses[1] and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "store", ["losses.append(loss)", "total += loss * 2", "losses.append((epoch, loss)[1])"]
)
def test_a_detached_value_changes_nothing_but_memory(store: str) -> None:
    old = RETAINED.format(store=store)
    new, safety = fixed(old, "retained-graph", "detach")
    assert safety is Safety.SAFE
    before, after = execute(old), execute(new)
    assert same(before, after)
    assert float(before["total"]) == float(after["total"])
    kept = [*after["losses"], after["total"]]
    assert not any(getattr(value, "requires_grad", False) for value in kept)
    assert any(getattr(value, "requires_grad", False) for value in [*before["losses"], before["total"]])


def test_a_number_changes_nothing_but_memory_and_type() -> None:
    old = RETAINED.format(store="losses.append(loss)")
    new, safety = fixed(old, "retained-graph", "item")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(before, after)
    assert all(isinstance(value, float) for value in after["losses"])


def test_no_grad_around_an_evaluation_changes_nothing_but_memory() -> None:
    new, safety = fixed(NO_GRAD, "unguarded-eval")
    assert safety is Safety.SAFE
    assert same(execute(NO_GRAD), execute(new))


def test_a_clear_before_backward_gives_plain_gradient_descent() -> None:
    old = ZERO_GRAD.format(clear="")
    reference = ZERO_GRAD.format(clear="optimizer.zero_grad()\n        ")
    new, safety = fixed(old, "missing-zero-grad")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


def test_a_clear_behind_the_step_of_a_window_gives_accumulation() -> None:
    old = WINDOW_CLEAR.format(clear="")
    reference = WINDOW_CLEAR.format(clear="            optimizer.zero_grad()\n")
    new, safety = fixed(old, "missing-zero-grad")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


def test_train_before_the_forward_gives_training_with_dropout() -> None:
    old = EVAL_MODE.format(train="")
    head = "    for x, y in loader:\n        optimizer"
    reference = EVAL_MODE.replace(head, "    model.train()\n" + head)
    new, safety = fixed(old, "stuck-eval-mode")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference.format(train="")))
    assert not same(execute(new), execute(old))


@pytest.mark.parametrize(
    "scores",
    ["nn.functional.softmax(model(x), dim=1)", "model(x).softmax(dim=1)", "nn.Softmax(dim=1)(model(x))"],
)
def test_without_the_softmax_cross_entropy_gets_the_scores(scores: str) -> None:
    old, reference = SOFTMAX.format(scores=scores), SOFTMAX.format(scores="model(x)")
    new, safety = fixed(old, "double-softmax")
    assert safety is Safety.UNSAFE
    after, before = execute(new), execute(old)
    assert same(after, execute(reference))
    assert after["losses"][-1] < before["losses"][-1]


@pytest.mark.parametrize("state", ["model.state_dict()", "model.state_dict().copy()"])
def test_a_deep_copy_keeps_the_best_weights(state: str) -> None:
    old = BEST_STATE.format(state=state)
    new, safety = fixed(old, "best-state-aliased")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert before["losses"] == after["losses"]
    assert before["losses"][-1] > min(before["losses"]), "the last epoch must not be the best here"
    assert before["model"].bias.tolist() != before["best_bias"]
    assert after["model"].bias.tolist() == after["best_bias"]


def test_division_by_the_window_gives_the_mean() -> None:
    old = WINDOW_SCALE.format(backward="loss.backward()")
    reference = WINDOW_SCALE.format(backward="(loss / window).backward()")
    new, safety = fixed(old, "unscaled-accumulation")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


BYPASSED = (
    HEAD
    + """\
import tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
model = DistributedDataParallel(nn.Linear(12, 4))
prepared = []
model.register_forward_hook(lambda module, inputs, output: prepared.append(module))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model.module(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dist.destroy_process_group()
"""
)


def test_a_call_of_the_wrapper_lets_it_prepare_each_backward() -> None:
    new, safety = fixed(BYPASSED, "ddp-forward-bypassed")
    assert safety is Safety.UNSAFE
    before, after = execute(BYPASSED), execute(new)
    assert same(before, after), "with one process averaging changes nothing"
    assert before["prepared"] == []
    assert len(after["prepared"]) == len(after["losses"])


SCALED_TWICE = (
    HEAD
    + """\
class Accelerator:
    def __init__(self, gradient_accumulation_steps):
        self.steps = gradient_accumulation_steps

    def backward(self, loss):  # as in Accelerate: the loss is divided by the window
        (loss / self.steps).backward()

accelerator = Accelerator(gradient_accumulation_steps=3)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y){division}
    accelerator.backward(loss)
    losses.append(float(nn.functional.cross_entropy(model(x), y).detach()))
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
)


def test_without_its_division_the_window_is_a_mean() -> None:
    imported = "from accelerate import Accelerator\n"
    own = SCALED_TWICE[SCALED_TWICE.index("class Accelerator") : SCALED_TWICE.index("accelerator = ")]
    seen = SCALED_TWICE.replace(own, imported).format(division=" / 3")
    new, safety = fixed(seen, "accumulation-scaled-twice")
    assert safety is Safety.UNSAFE
    reference = SCALED_TWICE.format(division="")
    assert new.replace(imported, own) == reference
    assert not same(execute(SCALED_TWICE.format(division=" / 3")), execute(reference))


ORDERED = (
    HEAD.replace("DataLoader(data, batch_size=8)", "DataLoader(data, batch_size=8{shuffle})")
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
losses = []
for epoch in range(5):
    for x, y in loader:
        {early}optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(){late}
        losses.append(loss.item())
"""
)


def test_a_loader_that_shuffles_gives_another_order_in_each_epoch() -> None:
    late = "\n        scheduler.step()"
    old = ORDERED.format(shuffle="", early="", late=late)
    new, safety = fixed(old, "train-loader-unshuffled")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(ORDERED.format(shuffle=", shuffle=True", early="", late=late)))
    orders = [[y.tolist() for _, y in execute(text)["loader"]] for text in (old, new)]
    assert orders[0] == [y.tolist() for _, y in execute(old)["loader"]]
    assert orders[0] != orders[1]


def test_a_scheduler_behind_the_optimizer_uses_its_first_rate() -> None:
    shuffled = ", shuffle=True"
    old = ORDERED.format(shuffle=shuffled, early="scheduler.step()\n        ", late="")
    new, safety = fixed(old, "scheduler-order")
    assert safety is Safety.UNSAFE
    reference = ORDERED.format(shuffle=shuffled, early="", late="\n        scheduler.step()")
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


BROADCAST = """\
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(100, 2), torch.randn(100)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x){squeezed}, y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_squeezed_prediction_meets_its_own_target() -> None:
    old, reference = BROADCAST.format(squeezed=""), BROADCAST.format(squeezed=".squeeze(-1)")
    new, safety = fixed(old, "loss-shape-broadcast")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


SLOWED = (
    HEAD
    + """\
import gc
{switch}model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        {collect}losses.append(loss.item())
"""
)


@pytest.mark.parametrize(
    ("rule", "switch", "collect"),
    [
        ("debug-mode-left-on", "torch.autograd.set_detect_anomaly(True)\n", ""),
        ("empty-cache-in-loop", "", "gc.collect()\n        "),
    ],
)
def test_without_what_slows_it_down_training_is_the_same(rule: str, switch: str, collect: str) -> None:
    old, reference = SLOWED.format(switch=switch, collect=collect), SLOWED.format(switch="", collect="")
    new, safety = fixed(old, rule)
    assert safety is Safety.UNSAFE
    assert new == reference
    try:
        assert same(execute(old), execute(new))
    finally:
        torch.autograd.set_detect_anomaly(False)


LOADED = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.save({{"module." + k: v for k, v in nn.Linear(12, 4).state_dict().items()}}, {path!r})
model = nn.Linear(12, 4)
losses = []
model.load_state_dict(torch.load({path!r}, map_location="cpu"), strict=False)
"""


def test_printed_keys_tell_what_a_lenient_load_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = LOADED.format(path=str(tmp_path / "net.pt"))
    new, safety = fixed(old, "load-not-strict")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(before, after)
    assert "module.weight" in capsys.readouterr().out


SAVED = (
    HEAD
    + """\
import os
import tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.chdir(tempfile.mkdtemp())
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch.save(model.state_dict(), "last.pt")
written = os.path.exists("last.pt")
dist.destroy_process_group()
"""
)


def test_rank_0_still_saves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    new, safety = fixed(SAVED, "save-on-every-rank")
    assert safety is Safety.UNSAFE
    assert "if dist.get_rank() == 0:\n    torch.save" in new
    before, after = execute(SAVED), execute(new)
    assert same(before, after)
    assert before["written"] and after["written"]


CALLED = (
    HEAD
    + """\
model = nn.Linear(12, 4)
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(module))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model.forward(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
)


def test_a_called_module_runs_its_hooks() -> None:
    new, safety = fixed(CALLED, "module-forward-called-directly")
    assert safety is Safety.UNSAFE
    before, after = execute(CALLED), execute(new)
    assert same(before, after)
    assert before["seen"] == []
    assert len(after["seen"]) == len(after["losses"])


BOOTSTRAPPED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []


def update(s, a, r, s2):
    now = model(s).gather(1, a).squeeze(1)
    target = r + 0.95 * model(s2).max(1)[0]
    loss = nn.functional.mse_loss(now, target{detached})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


for _ in range(20):
    update(torch.randn(16, 4), torch.randint(0, 2, (16, 1)), torch.rand(16), torch.randn(16, 4))
"""


def test_a_detached_target_stands_still() -> None:
    old, reference = BOOTSTRAPPED.format(detached=""), BOOTSTRAPPED.format(detached=".detach()")
    new, safety = fixed(old, "target-not-detached")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


def looped(body: str, model: str = "nn.Linear(12, 4)", before: str = "") -> str:
    """A program that trains `model` with `body` for each batch; `before` stands above the loops."""
    return (
        HEAD
        + f"import torch.nn.functional as F\n\nmodel = {model}\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nlosses = []\n"
        + before
        + "for epoch in range(5):\n    for x, y in loader:\n"
        + indent(body, " " * 8)
    )


def stepped(loss: str, model: str = "nn.Linear(12, 4)", before: str = "") -> str:
    """`looped` with a step on `loss`."""
    body = "optimizer.zero_grad()\nloss = {}\nloss.backward()\noptimizer.step()\nlosses.append(loss.item())\n"
    return looped(body.format(loss), model, before)


LOSS = "loss = F.cross_entropy(model(x), y)\nlosses.append(loss.item())\n"
SCALER = 'scaler = torch.amp.GradScaler("cpu")\n'
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.01)\n"
BINARY = "F.binary_cross_entropy_with_logits({}, (y > 1).float().unsqueeze(1))"
DISTILLED = 'F.kl_div({}, target, reduction="batchmean")'
TEACHER = "teacher = nn.Linear(12, 4)\ntarget = F.softmax(teacher(torch.randn(8, 12)), dim=1).detach()\n"

# rule, the program as it was, and what it is meant to be
CORRECTED = (
    (
        "grads-cleared-before-step",
        looped(LOSS + "loss.backward()\noptimizer.zero_grad()\noptimizer.step()\n"),
        looped(LOSS + "optimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"),
    ),
    (
        "clip-order",
        looped(LOSS + "optimizer.zero_grad()\nloss.backward()\noptimizer.step()\n" + CLIP),
        looped(LOSS + "optimizer.zero_grad()\nloss.backward()\n" + CLIP + "optimizer.step()\n"),
    ),
    (
        "missing-step",
        looped(LOSS + "optimizer.zero_grad()\nloss.backward()\n"),
        looped(LOSS + "optimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"),
    ),
    (
        "bce-activation-mismatch",
        stepped(BINARY.format("torch.sigmoid(model(x))"), "nn.Linear(12, 1)"),
        stepped(BINARY.format("model(x)"), "nn.Linear(12, 1)"),
    ),
    (
        "nll-without-log-softmax",
        stepped("F.nll_loss(F.softmax(model(x), dim=1), y)"),
        stepped("F.cross_entropy(model(x), y)"),
    ),
    (
        "kl-div-inputs",
        stepped(DISTILLED.format("F.softmax(model(x), dim=1)"), before=TEACHER),
        stepped(DISTILLED.format("F.log_softmax(model(x), dim=1)"), before=TEACHER),
    ),
    (
        "clip-before-unscale",
        looped(
            "optimizer.zero_grad()\n"
            + LOSS
            + "scaler.scale(loss).backward()\n"
            + CLIP
            + "scaler.step(optimizer)\n"
            "scaler.update()\n",
            before=SCALER,
        ),
        looped("optimizer.zero_grad()\n" + LOSS + "loss.backward()\n" + CLIP + "optimizer.step()\n"),
    ),
    (
        "scaler-protocol",
        looped(
            "optimizer.zero_grad()\n" + LOSS + "scaler.scale(loss).backward()\noptimizer.step()\n",
            before=SCALER,
        ),
        looped("optimizer.zero_grad()\n" + LOSS + "loss.backward()\noptimizer.step()\n"),
    ),
)


@pytest.mark.parametrize(("rule", "old", "reference"), CORRECTED, ids=[rule for rule, _, _ in CORRECTED])
def test_a_corrected_step_trains_as_the_reference_does(rule: str, old: str, reference: str) -> None:
    new, safety = fixed(old, rule)
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


STACKED = (
    HEAD
    + """\
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = {layers}
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)

model = Stack()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
)


def test_registered_layers_are_trained() -> None:
    layers = "[nn.Linear(12, 12) for _ in range(3)]"
    old, reference = STACKED.format(layers=layers), STACKED.format(layers=f"nn.ModuleList({layers})")
    new, safety = fixed(old, "unregistered-submodules")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(after, execute(reference))
    assert before["losses"] != after["losses"]
    assert len(weights(before)) == 2
    assert len(weights(after)) == 8


HEADED = (
    HEAD
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 1000)

    def forward(self, x):
        return self.head(self.body(x))

model = Net()
{early}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{late}losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
)


def test_an_optimizer_built_behind_the_new_head_trains_it() -> None:
    head = "model.head = nn.Linear(32, 4)\n"
    old, reference = HEADED.format(early="", late=head), HEADED.format(early=head, late="")
    new, safety = fixed(old, "optimizer-misses-parameters")
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


VALIDATED = (
    HEAD
    + """\
import torch.nn.functional as F

held_out = DataLoader(TensorDataset(torch.randn(16, 12), torch.randint(0, 4, (16,))), batch_size=8)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head({dropout})

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(5):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        {evaluate}for x, y in held_out:
            losses.append(F.cross_entropy(model(x), y).item())
"""
)
LAYER = "self.dropout(self.body(x))"
EVALUATE = "model.eval()\n        "


@pytest.mark.parametrize(
    ("rule", "dropout", "evaluate"),
    [
        ("eval-in-train-mode", LAYER, ""),
        ("dropout-always-on", "F.dropout(self.body(x), 0.5)", EVALUATE),
    ],
)
def test_a_corrected_evaluation_is_one_without_dropout(rule: str, dropout: str, evaluate: str) -> None:
    old = VALIDATED.format(dropout=dropout, evaluate=evaluate)
    reference = VALIDATED.format(dropout=LAYER, evaluate=EVALUATE)
    new, safety = fixed(old, rule)
    assert safety is Safety.UNSAFE
    assert same(execute(new), execute(reference))
    assert not same(execute(old), execute(reference))


def test_a_graph_kept_for_nothing_may_go() -> None:
    body = "optimizer.zero_grad()\n" + LOSS + "loss.backward({})\noptimizer.step()\n"
    old, reference = looped(body.format("retain_graph=True")), looped(body.format(""))
    new, safety = fixed(old, "retain-graph-in-loop")
    assert safety is Safety.UNSAFE
    assert new == reference
    before, after = execute(old), execute(new)
    assert same(before, after)
    before["loss"].backward()  # the graph is still there
    with pytest.raises(RuntimeError, match="second time"):
        after["loss"].backward()


ADVERSARIAL = (
    HEAD
    + """\
import torch.nn.functional as F

model, judge = nn.Linear(8, 12), nn.Linear(12, 1)
made = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
opt_d = torch.optim.SGD(judge.parameters(), lr=0.1)
losses = []
for real, _ in loader:
    fake = model(torch.randn(8, 8))
    loss_d = F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    made.append(model.weight.grad is not None)
    loss_g = F.softplus(-judge(model(torch.randn(8, 8)))).mean()
    optimizer.zero_grad()
    loss_g.backward()
    optimizer.step()
    losses += [loss_d.item(), loss_g.item()]
    optimizer.zero_grad()
"""
)


def test_a_detached_fake_saves_the_generators_gradients_alone() -> None:
    new, safety = fixed(ADVERSARIAL, "gan-generator-not-detached")
    assert safety is Safety.UNSAFE
    assert "judge(fake.detach())" in new
    before, after = execute(ADVERSARIAL), execute(new)
    assert same(before, after)
    assert all(before["made"])
    assert not any(after["made"])


SAMPLED = (
    HEAD
    + """\
from torch.utils.data import DistributedSampler

loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=1, rank=0))
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
orders = []
for epoch in range(3):
    {tell}orders.append([])
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        orders[-1] += x[:, 0].tolist()
"""
)


def test_a_sampler_that_knows_the_epoch_gives_another_order_in_each() -> None:
    old = SAMPLED.format(tell="")
    reference = SAMPLED.format(tell="loader.sampler.set_epoch(epoch)\n    ")
    new, safety = fixed(old, "sampler-epoch-not-set")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(after, execute(reference))
    assert before["orders"][0] == before["orders"][1]
    assert after["orders"][0] != after["orders"][1]


MOVED = (
    HEAD
    + """\
device = torch.device("cuda")
model = nn.Linear(12, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)) * {factory}, y.to(device))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
)


@pytest.mark.parametrize(
    ("moved", "made"),
    [
        ("torch.arange(4).to(device)", "torch.arange(4, device=device)"),
        ("torch.linspace(1, 2, steps=4).to(device)", "torch.linspace(1, 2, steps=4, device=device)"),
        ("torch.full((4,), 0.5).cuda()", 'torch.full((4,), 0.5, device="cuda")'),
    ],
)
def test_a_tensor_made_on_the_device_has_the_same_values(moved: str, made: str) -> None:
    old, reference = MOVED.format(factory=moved), MOVED.format(factory=made)
    new, safety = fixed(old, "redundant-transfer")
    assert safety is Safety.SAFE
    assert new == reference
    here = [text.replace('"cuda"', '"cpu"').replace(".cuda()", ".cpu()") for text in (old, new)]
    assert same(execute(here[0]), execute(here[1]))


CHECKPOINTED = (
    HEAD
    + """\
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(checkpoint(self.stem, x, use_reentrant={flag}).relu())

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
learned = model.stem.weight.grad is not None
"""
)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_part_checkpointed_in_the_other_way_learns() -> None:
    old, reference = CHECKPOINTED.format(flag="True"), CHECKPOINTED.format(flag="False")
    new, safety = fixed(old, "checkpoint-reentrant-no-grad")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(after, execute(reference))
    assert not before["learned"]
    assert after["learned"]


PLATEAU = (
    HEAD
    + """\
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="{mode}", patience=1)
losses = []
for epoch in range(8):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        quality = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in loader)
    plateau.step(quality)
    losses.append(quality)
rate = optimizer.param_groups[0]["lr"]
"""
)


def test_in_the_other_mode_a_falling_loss_keeps_its_rate() -> None:
    old, reference = PLATEAU.format(mode="max"), PLATEAU.format(mode="min")
    new, safety = fixed(old, "scheduler-misused")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(after, execute(reference))
    assert before["rate"] < after["rate"] == 0.1


LIBRARIES = """\
from accelerate import Accelerator
from transformers import get_scheduler
"""
STAND_INS = """\
class Prepared:
    def __init__(self, inner, times):
        self.inner, self.times = inner, times

    def step(self):  # as in Accelerate: once for each process
        for _ in range(self.times):
            self.inner.step()

class Accelerator:
    num_processes = 2

    def prepare(self, *things):
        return [self.one(thing) for thing in things]

    def one(self, thing):
        if isinstance(thing, DataLoader):
            return list(thing)[:: self.num_processes]
        is_schedule = isinstance(thing, torch.optim.lr_scheduler.LRScheduler)
        return Prepared(thing, self.num_processes) if is_schedule else thing

    def backward(self, loss):
        loss.backward()

def get_scheduler(name, optimizer, num_warmup_steps=0, num_training_steps=None):
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, num_training_steps)
"""
PREPARED = (
    LIBRARIES
    + HEAD
    + """\
accelerator = Accelerator()

def main(args, data):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8)
    {schedule}model, {targets} = accelerator.prepare({things})
    done, rates = 0, []
    while done < args.max_steps:
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            {move}rates.append(optimizer.param_groups[0]["lr"])
            done += 1
    return rates, len(list(loader))
"""
)
RUN = """
class Options:
    max_steps = 12

rates, batches = main(Options, data)
"""


def accelerated(text: str) -> dict[str, Any]:
    """The names after a run with stand-ins for the libraries."""
    text = text.replace(LIBRARIES, "").replace("accelerator = ", STAND_INS + "\naccelerator = ", 1)
    return execute(text + RUN)


def test_lengths_times_the_processes_last_for_the_run() -> None:
    schedule = 'schedule = get_scheduler("linear", optimizer, num_training_steps=args.max_steps{times})\n    '
    names = "optimizer, loader, schedule"
    old = PREPARED.format(
        schedule=schedule.format(times=""),
        targets=names,
        things="model, " + names,
        move="schedule.step()\n            ",
    )
    new, safety = fixed(old, "scheduler-wrong-cadence")
    assert safety is Safety.UNSAFE
    assert "num_training_steps=args.max_steps * accelerator.num_processes" in new
    before, after = accelerated(old), accelerated(new)
    assert before["rates"][5] == before["rates"][-1], "at its end after half of the run"
    assert after["rates"][5] > after["rates"][-1]


def test_a_prepared_loader_gives_each_process_its_part() -> None:
    old = PREPARED.format(schedule="", targets="optimizer", things="model, optimizer", move="")
    old = old.replace("batch_size=8)\n    model", "batch_size=8, shuffle=True)\n    model")
    new, safety = fixed(old, "not-prepared")
    assert safety is Safety.UNSAFE
    assert "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)" in new
    assert accelerated(old)["batches"] == 2 * accelerated(new)["batches"]


OLD_NAMES = (
    HEAD
    + """\
model = nn.Linear(12, 4)
{init}
criterion = nn.CrossEntropyLoss({reduction})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = {scaler}
losses = []
for x, y in loader:
    optimizer.zero_grad()
    with {autocast}:
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    {clip}
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
"""
)
NEW = {
    "init": "nn.init.xavier_normal_(model.weight)",
    "reduction": 'reduction="sum"',
    "scaler": 'torch.amp.GradScaler("cuda", init_scale=2.0)',
    "autocast": 'torch.amp.autocast("cuda", enabled=False)',
    "clip": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("part", "old_name"),
    [
        ("init", "nn.init.xavier_normal(model.weight)"),
        ("reduction", "size_average=False"),
        ("scaler", "torch.cuda.amp.GradScaler(init_scale=2.0)"),
        ("autocast", "torch.cuda.amp.autocast(False)"),
        ("clip", "nn.utils.clip_grad_norm(model.parameters(), 1.0)"),
    ],
)
def test_a_new_name_does_what_the_old_one_did(part: str, old_name: str) -> None:
    old, reference = OLD_NAMES.format(**{**NEW, part: old_name}), OLD_NAMES.format(**NEW)
    new, _ = fixed(old, "deprecated-api")
    assert new == reference
    assert same(execute(old), execute(new))


READ = """\
import argparse
import torch
from torch import nn

torch.manual_seed(0)
args = argparse.ArgumentParser().parse_args()
args.weights = {path!r}
model = nn.Linear(12, 4)
losses = []
model.load_state_dict(torch.load(args.weights, weights_only=False))
"""


def test_weights_only_reads_the_same_weights_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["twin.py"])
    torch.save(nn_weights := torch.nn.Linear(12, 4).state_dict(), tmp_path / "net.pt")
    old = READ.format(path=str(tmp_path / "net.pt")).replace("args.weights = ", "path = ")
    new, safety = fixed(old, "unsafe-load")
    assert safety is Safety.UNSAFE
    given = [text.replace("args.weights", "path") for text in (old, new)]
    before, after = execute(given[0]), execute(given[1])
    assert same(before, after)
    assert torch.equal(after["model"].weight, nn_weights["weight"])
    torch.save(print, tmp_path / "net.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        execute(given[1])


SCORED = (
    HEAD
    + """\
model = nn.Linear(12, 4)
losses = []
scored = DataLoader(data, batch_size=10, shuffle=True, drop_last={dropped})
model.eval()
seen = 0
with torch.no_grad():
    for x, y in scored:
        losses.append(nn.functional.cross_entropy(model(x), y, reduction="sum").item())
        seen += len(y)
"""
)


def test_an_evaluation_that_drops_nothing_scores_all_samples() -> None:
    old, reference = SCORED.format(dropped="True"), SCORED.format(dropped="False")
    new, safety = fixed(old, "eval-loader-shuffled")
    assert safety is Safety.UNSAFE
    before, after = execute(old), execute(new)
    assert same(after, execute(reference))
    assert (before["seen"], after["seen"]) == (40, 48)


RESUMED = """\
import os
import tempfile
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
path = os.environ["TWIN_CHECKPOINT"]
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
model = nn.Linear(12, 4)
losses = []
model.load_state_dict(torch.load(path))
model = DistributedDataParallel(model)
dist.destroy_process_group()
"""


def test_weights_loaded_to_the_host_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.nn.Linear(12, 4).state_dict(), tmp_path / "net.pt")
    monkeypatch.setenv("TWIN_CHECKPOINT", str(tmp_path / "net.pt"))
    new, safety = fixed(RESUMED, "load-without-map-location")
    assert safety is Safety.UNSAFE
    assert 'torch.load(path, map_location="cpu")' in new
    assert same(execute(RESUMED), execute(new))


EVALUATED = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def main(held_out, metric):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", per_device_eval_batch_size=2)
    trainer = Trainer(model, args, eval_dataset=held_out, compute_metrics=metric)
    return trainer.evaluate()
"""
COLLECTING = """\
import torch

class AutoModelForCausalLM:
    from_pretrained = staticmethod(lambda name: (lambda ids: torch.nn.functional.one_hot(ids, 50).float()))

class TrainingArguments:
    def __init__(self, out, per_device_eval_batch_size, eval_accumulation_steps=None):
        self.steps = eval_accumulation_steps

class Trainer:  # as in Transformers: on the device until `steps` are together, then on the host
    def __init__(self, model, args, eval_dataset, compute_metrics):
        self.model, self.args, self.data, self.metric = model, args, eval_dataset, compute_metrics

    def evaluate(self):
        device, host, most = [], [], 0
        for ids in self.data:
            device.append(self.model(ids))
            most = max(most, len(device))
            if self.args.steps is not None and len(device) == self.args.steps:
                host, device = host + device, []
        return self.metric(torch.stack(host + device)), most
"""


def test_logits_on_the_host_give_the_same_metric() -> None:
    new, safety = fixed(EVALUATED, "eval-logits-on-device")
    assert safety is Safety.UNSAFE
    asked = "\nsamples = [torch.tensor([i, i + 1]) for i in range(40)]\n"
    asked += "result = main(samples, lambda logits: logits.argmax(-1).sum())\n"
    head = EVALUATED.splitlines(keepends=True)[0]
    before, after = (execute(text.replace(head, COLLECTING) + asked) for text in (EVALUATED, new))
    assert before["result"][0] == after["result"][0]
    assert (before["result"][1], after["result"][1]) == (40, 16)


def test_every_edit_that_an_example_shows_has_a_twin_here() -> None:
    """A rule whose edits are not executed above must not offer any."""
    tested = Path(__file__).read_text(encoding="utf-8")
    with_edits = [e.rule.name for e in all_rules() if any(x.fixed is not None for x in e.rule.all_examples)]
    assert [name for name in with_edits if f'"{name}"' not in tested] == []

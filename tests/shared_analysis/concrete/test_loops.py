"""Which loop is measured, by what happens in it."""

from __future__ import annotations

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateReport, EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Kind, Source

HEAD = """
import torch
from torch import nn
model = nn.Linear(64, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64, device="cuda")
def step():
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def estimate(body: str, head: str = HEAD) -> EstimateReport:
    module = lower_text("train.py", head + body)
    return estimate_module(module, Project([]), EstimateRequest(with_remedies=False))


def line_of(body: str, text: str, head: str = HEAD) -> int:
    lines = (head + body).splitlines()
    return next(i + 1 for i, line in enumerate(lines) if text in line)


BODIES = {
    "plain": "for i in range(10):  # here\n    step()\n",
    "epochs around": "for epoch in range(3):\n    for i in range(10):  # here\n        step()\n",
    "endless": "while True:  # here\n    step()\n    if False:\n        break\n",
    "in a function": "def main():\n    for i in range(10):  # here\n        step()\nmain()\n",
    "accumulating inside": (
        "for i in range(100):  # here\n    model(x).sum().backward()\n"
        "    if (i + 1) % 4 == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n"
    ),
    "micro-steps inside": (
        "for i in range(10):  # here\n    for micro in range(64):\n        model(x).sum().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    ),
    "evaluation before": (
        "with torch.no_grad():\n    for i in range(5):\n        model(x)\n"
        "for i in range(10):  # here\n    step()\n"
    ),
    "evaluation inside": (
        "def evaluate():\n    out = {}\n    for split in ('train', 'val'):\n"
        "        for k in range(5):\n            with torch.no_grad():\n                model(x)\n"
        "        out[split] = 1\n    return out['val']\n"
        "for i in range(10):  # here\n    evaluate()\n    step()\n"
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_step_loop_is_found(name: str) -> None:
    body = BODIES[name]
    report = estimate(body)
    assert report.unanswered == ()
    (found,) = report.estimates
    assert found.kind is Kind.TRAINING
    assert found.origin.line == line_of(body, "# here")


def test_two_training_loops_give_two_answers() -> None:
    body = "for i in range(3):\n    step()\nfor j in range(3):\n    step()\n"
    assert len(estimate(body).estimates) == 2


def test_a_loop_that_only_calls_a_model_is_inference() -> None:
    body = "for i in range(3):\n    with torch.no_grad():\n        y = model(x)\n"
    (found,) = estimate(body).estimates
    assert found.kind is Kind.INFERENCE


@pytest.mark.parametrize("name", ["accumulating inside", "micro-steps inside"])
def test_accumulation_is_counted(name: str) -> None:
    (found,) = estimate(BODIES[name]).estimates
    assert found.plan["accumulation"].value == (4 if name == "accumulating inside" else 64)


def test_an_unknown_in_a_model_stops_loudly() -> None:
    body = (
        "from somewhere import mystery\nclass Net(nn.Module):\n"
        "    def forward(self, x):\n        return mystery(x)\nNet()(x)\n"
    )
    report = estimate(body)
    assert report.estimates == ()
    assert "mystery" in report.unanswered[0].message
    assert report.unanswered[0].origin.line == line_of(body, "return mystery")


def test_nothing_to_estimate_is_said() -> None:
    report = estimate("", head="print('hello')\n")
    assert report.estimates == ()
    assert "trains or runs a model" in report.unanswered[0].message


def test_plan_fields_have_places() -> None:
    head = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=256)
args = parser.parse_args()
data = TensorDataset(torch.randn(1000, 3, 8, 8), torch.randint(0, 10, (1000,)))
loader = DataLoader(data, batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(192, args.width), nn.Linear(args.width, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
"""
    body = """
for images, labels in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    (found,) = estimate(body, head).estimates
    plan = found.plan
    assert plan["micro_batch"].value == 32
    assert plan["micro_batch"].source is Source.READ
    assert plan["micro_batch"].origin is not None
    assert plan["micro_batch"].origin.line == line_of("", "BATCH = 32", head)
    assert plan["image_size"].value == (8, 8)
    assert plan["precision"].value == "bfloat16 autocast"
    assert plan["optimizer"].value == "AdamW"
    assert any("default values" in sentence for sentence in found.assumptions)


def test_an_unread_batch_size_widens_the_interval() -> None:
    head = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import settings
loader = DataLoader(TensorDataset(torch.randn(1000, 4096)), batch_size=settings.load().batch)
model = nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    body = "for (x,) in loader:\n    model(x.cuda()).sum().backward()\n    optimizer.step()\n"
    (found,) = estimate(body, head).estimates
    assert found.plan["micro_batch"].source is Source.ASSUMED
    allocated = found.peak.allocated
    assert allocated is not None
    assert allocated.high > allocated.point * 1.016


def test_remedies_are_measured_by_running_again() -> None:
    head = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(8192, 512, device="cuda")
y = torch.randn(8192, 512, device="cuda")
"""
    body = """
for i in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
"""
    module = lower_text("train.py", head + body)
    (found,) = estimate_module(module, Project([]), EstimateRequest()).estimates
    allocated = found.peak.allocated
    assert allocated is not None
    remedies = {remedy.change: remedy for remedy in found.remedies}
    assert all(r.peak_bytes + r.saves_bytes == allocated.point for r in found.remedies)
    half = next(r for change, r in remedies.items() if "micro-batch 4096" in change)
    assert [edit.text for edit in half.edits] == ["4096", "4096"]
    lines = {line_of("", "x = torch", head), line_of("", "y = torch", head)}
    assert {edit.line + 1 for edit in half.edits} == lines
    assert "zero_grad(set_to_none=True)" in remedies
    assert any("autocast" in change for change in remedies)

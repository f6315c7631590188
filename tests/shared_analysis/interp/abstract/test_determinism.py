"""Equal results under every hash seed and order of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project

SCRIPT = """
import torch
from torch import nn
from helpers import evaluate, Meter

class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(widths)])
        self.drop = nn.Dropout()
    def forward(self, x):
        for layer in self.layers:
            x = self.drop(layer(x).relu())
        return x.softmax(1)

def train(loader, amp, scaler, optimizer=None, schedule=None):
    model = Net(3)
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    meter, kept = Meter(), {}
    for epoch in range(10):
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cuda", enabled=amp):
                loss = nn.functional.cross_entropy(model(x), y)
            if amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
            else:
                loss.backward()
                optimizer.step()
            kept.setdefault("loss", []).append(loss)
            meter.update(loss)
            if schedule is not None:
                schedule.step()
        evaluate(model, loader)
"""

HELPERS = """
import torch

class Meter:
    def __init__(self):
        self.sum = 0
    def update(self, value):
        self.sum += value

def evaluate(model, loader):
    model.eval()
    return [model(x) for x, _ in loader]

def unused(model, optimizer, loader):
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
"""


def summary(trace: Trace) -> str:
    lines = []
    for e in trace.events:
        facts = [type(e).__name__, Path(e.place.path).name, str(tuple(e.place.span))]
        facts += [f"{t.loop.place.span.line}.{t.iteration}" for t in e.loops]
        for name in ("passes", "before", "modes", "how", "to", "inputs"):
            value = getattr(e, name, None)
            if isinstance(value, dict):
                facts.append(str({k: sorted(map(str, v)) for k, v in value.items()}))
            elif isinstance(value, frozenset):
                facts.append(str(sorted(map(str, value))))
            elif isinstance(value, str):
                facts.append(value)
        lines.append(" ".join(facts))
    return "\n".join(lines)


def analysed(folder: Path, order: tuple[str, ...]) -> dict[str, str]:
    project = Project((str(folder),))
    out: dict[str, str] = {}
    for name in order:
        module = project.load(str(folder / name))
        assert module is not None
        out[name] = summary(run(module, project))
    return out


def written(folder: Path) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helpers.py").write_text(HELPERS)
    return folder


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    folder = written(tmp_path)
    forwards = analysed(folder, ("train.py", "helpers.py"))
    assert forwards == analysed(folder, ("helpers.py", "train.py"))
    assert forwards["train.py"] == analysed(folder, ("train.py",))["train.py"]


def test_hash_seeds_do_not_matter(tmp_path: Path) -> None:
    folder = written(tmp_path)
    results = set()
    for seed in ("0", "1", "7", "42"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run_ = subprocess.run(
            [sys.executable, __file__, str(folder)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        results.add(run_.stdout)
    assert len(results) == 1
    assert "Store" in results.pop()


if __name__ == "__main__":
    sys.stdout.write(str(analysed(Path(sys.argv[1]), ("train.py", "helpers.py"))))

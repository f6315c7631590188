"""Real functions before and after a fix, run on CPU PyTorch with tiny inputs.

python benchmarks/executed_fixes.py CHECKOUTS

CHECKOUTS holds the repositories of `benchmarks/data/field_report/repositories.json`. Each trial fixes a copy
of one file (`torchwise fix --unsafe`), takes the definitions of the old and of the new text without running
the rest of the script, and measures what the fix is meant to change and what it must keep. Needs PyTorch;
libraries that are not there are replaced by what a trial gives. Only what these trials name can be executed
so: most fixes of real repositories stand in scripts that want data sets, cards and libraries of their own.
"""

# pyright: reportMissingImports=false
# PyTorch is not installed where types are checked.

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Names = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A file, the rule whose fix is tried, and what is measured of its definitions.

    given: names that the definitions need and that the script would have made. measure: facts in words.
    callers: files that have to be seen, too, for the finding.
    """

    repository: str
    path: str
    rule: str
    given: Callable[[], Names]
    measure: Callable[[Names], dict[str, object]]
    callers: tuple[str, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path)
    checkouts = parser.parse_args().checkouts
    print("| file | fix | before | after |\n| --- | --- | --- | --- |")
    for trial in TRIALS:
        folder = checkouts / trial.repository
        old, new = (folder / trial.path).read_text(encoding="utf-8"), fixed(trial, folder)
        cells = ["changed nothing"] if old == new else [measured(trial, text) for text in (old, new)]
        print(f"| {trial.path} | {trial.rule} | {' | '.join(cells)} |")
    return 0


def fixed(trial: Trial, folder: Path) -> str:
    """The text after the fixes of one rule, made in a copy of the repository."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / folder.name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
        command = [sys.executable, "-m", "torchwise_server", "fix", "--unsafe", "--select", trial.rule]
        subprocess.run([*command, trial.path, *trial.callers], cwd=copy, check=False, capture_output=True)
        return (copy / trial.path).read_text(encoding="utf-8")


def measured(trial: Trial, text: str) -> str:
    torch.manual_seed(0)
    names = definitions(text, trial.given())
    return "; ".join(f"{what}: {value}" for what, value in trial.measure(names).items())


def definitions(text: str, given: Names) -> Names:
    """What a script defines: its classes, functions and those imports that are there. Its code is not run."""
    names: Names = {"__name__": "trial"}
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            try:
                run(statement, names)
            except ImportError:
                continue
        elif isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            names.update({name: value for name, value in given.items() if name not in names})
            run(statement, names)
    return names | given


def run(statement: ast.stmt, names: Names) -> None:
    exec(compile(ast.Module([statement], []), "trial", "exec"), names)


# ---- the trials


def graph_names() -> Names:
    def mean(values: torch.Tensor, index: torch.Tensor, dim: int, dim_size: int) -> torch.Tensor:
        added = torch.zeros(dim_size, values.shape[1]).index_add(dim, index, values)
        return added / torch.bincount(index, minlength=dim_size).clamp(min=1).unsqueeze(1)

    return {
        "scatter_mean": mean,
        "remove_self_loops": lambda edges: (edges, None),
        "add_self_loops": lambda edges, num_nodes: torch.cat(
            [edges, torch.arange(num_nodes).repeat(2, 1)], dim=1
        ),
    }


def measure_gru(names: Names) -> dict[str, object]:
    torch.manual_seed(1)
    model = names["graph_gru_sage"](4, 4, 1)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    x, h = torch.ones(3, 4), torch.ones(1, 3, 4)
    before = model(x, edges, h)[0]
    parameters = list(model.parameters())
    before.sum().backward()
    if parameters:
        torch.optim.SGD(parameters, lr=0.1).step()
    after = model(x, edges, h)[0]
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "first output": f"{before.sum().item():.4f}",
        "a step of the optimizer changes it": bool((before != after).any()),
    }


class Scores:
    """A model of two arguments, as those of graphs are, whose gradients are large."""

    def __init__(self) -> None:
        self.linear = nn.Linear(4, 3)
        self.parameters, self.train = self.linear.parameters, self.linear.train

    def forward(self, x: torch.Tensor, edges: object = None) -> torch.Tensor:
        assert edges is None
        return self.linear(100 * x)

    __call__ = forward

    def loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores, labels)


class Data:
    """Nodes of a graph with their classes."""

    x, y, edge_index = torch.arange(24.0).reshape(6, 4) / 24, torch.tensor([0, 1, 2, 0, 1, 2]), None


def explainer_names() -> Names:
    model = Scores()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return {"model": model, "optimizer": optimizer, "data": Data(), "train_idx": torch.arange(6)}


def measure_clipped(names: Names) -> dict[str, object]:
    model = names["model"]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    names["train"]()
    moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    norm = sum(float(one.pow(2).sum()) for one in moved) ** 0.5
    return {"norm of an update at rate 1, with clipping at 2": f"{norm:.2f}"}


def window_names() -> Names:
    return {"accuracy": lambda *given: len(given)}


def measure_window(names: Names) -> dict[str, object]:
    torch.manual_seed(1)
    model = Scores()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    batches = [(Data.x[i : i + 1] / 100, Data.y[i : i + 1]) for i in (0, 1, 2)]
    names["train_epoch_dense"](model, optimizer, torch.device("cpu"), batches, 0, 2)
    moved = [old - new.detach() for old, new in zip(first, model.parameters(), strict=True)]
    return {"norm of the updates, window 2": f"{sum(float(m.pow(2).sum()) for m in moved) ** 0.5:.3f}"}


TRIALS = (
    Trial("VGraphRNN_VGRNN", "VGRNN_prediction.py", "unregistered-submodules", graph_names, measure_gru),
    Trial(
        "pyg-team_pytorch_geometric",
        "examples/explain/gnn_explainer_ba_shapes.py",
        "clip-order",
        explainer_names,
        measure_clipped,
    ),
    Trial(
        "graphdeeplearning_benchmarking-gnns",
        "train/train_CSL_graph_classification.py",
        "unscaled-accumulation",
        window_names,
        measure_window,
        callers=("main_CSL_graph_classification.py",),
    ),
)


if __name__ == "__main__":
    raise SystemExit(main())

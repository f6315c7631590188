"""What a name alone makes one believe."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.abstract.beliefs import by_name
from torchwise_analysis.interp.abstract.values import Kind


@pytest.mark.parametrize(
    "name",
    [
        "opt", "optim", "optimizer", "optimiser", "optimizers", "_optimizer", "OPTIMIZER", "opt_g", "optG",
        "optD", "optg", "optim_d", "optimG", "optimizerD", "optimizer_dis", "Optimizer", "opt1",
        "actor_opt", "sgd",
    ],
)  # fmt: skip
def test_names_of_optimizers(name: str) -> None:
    assert by_name(name) is Kind.OPTIMIZER


@pytest.mark.parametrize(
    "name",
    [
        "opts", "option", "options", "optional", "optional_lr", "opt_level", "optimal_lr", "optimum",
        "optimize", "optimize_steps", "optimization_hint", "optimistic", "optree", "optuna",
        "optical_flow", "adopted",
    ],
)  # fmt: skip
def test_names_that_only_begin_like_theirs(name: str) -> None:
    assert by_name(name) is not Kind.OPTIMIZER

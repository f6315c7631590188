"""What unseen calls gave is taken for what it is used as, or for what its conventional name says."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.beliefs import by_name
from torchwise_analysis.interp.abstract.events import Forward, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Origin
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

RECIPE = """
import torch
from unseen import instantiate


class Recipe:
    def setup(self, cfg):
        self._model = {model}
        self._optimizer = self._build(cfg)
        self._loss_fn = instantiate(cfg.loss)

    def _build(self, cfg):
        optimizer = instantiate(cfg.optimizer, self._model.parameters())
        if cfg.state:
            optimizer.load_state_dict(cfg.state)
        return optimizer

    def train(self, loader):
        for x, y in loader:
            loss = self._loss_fn(self._model(x), y)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
"""

SCRIPT = """
from unseen import build

model = build("model")
optimizer = build("optimizer", model.parameters())
model.train()
for x, y in build("data"):
    optimizer.zero_grad()
    model(x, y).backward()
    optimizer.step()
"""


def traced(text: str) -> Trace:
    trace = run(lower_text("train.py", text), Project(()))
    assert trace.silence.failed == ()
    return trace


def test_attributes_by_their_names() -> None:
    trace = traced(RECIPE.format(model="instantiate(cfg.model)"))
    assert {(f.module.kind, f.module.origin) for f in trace.of(Forward)} == {(Kind.MODULE, Origin.NAMED)}
    steps = trace.of(Step)
    assert steps
    assert {step.optimizer.origin for step in steps} == {Origin.NAMED}
    assert all(any(atom.sites for atom in step.before) for step in steps)


@pytest.mark.parametrize("model", ["cfg.model", "cfg['model']", "'resnet'", "len(cfg)"])
def test_settings_and_numbers_are_no_models(model: str) -> None:
    trace = traced(RECIPE.format(model=model))
    assert not any(f.module.kind is Kind.MODULE and f.module.name == "_model" for f in trace.of(Forward))


def test_variables_by_their_use() -> None:
    trace = traced(SCRIPT)
    assert {f.module.origin for f in trace.of(Forward)} == {Origin.USED}
    assert {step.optimizer.origin for step in trace.of(Step)} == {Origin.USED}
    assert all(any(atom.sites for atom in step.before) for step in trace.of(Step))


def test_an_optimizer_is_no_module_because_its_state_is_loaded() -> None:
    text = "from unseen import build\noptimizer = build()\noptimizer.load_state_dict(build())\n"
    kinds = {obj.kind for obj in traced(text).objects.values() if obj.name == "optimizer"}
    assert kinds == {Kind.OPTIMIZER}


CHAIN = """
from unseen import build

model = build("model"){chain}.to("cuda")
model.load_state_dict(build("weights"))
model.parameters()
for x in build("data"):
    y = model(x)
"""


@pytest.mark.parametrize(
    ("chain", "modes", "grads"),
    [
        ("", {"unknown"}, {True}),
        (".eval()", {"eval"}, {True}),
        (".train().requires_grad_(False)", {"train"}, {False}),
        (".requires_grad_(False).requires_grad_(True)", {"unknown"}, {True}),
    ],
)
def test_what_was_done_before_the_name_was_given(chain: str, modes: set[str], grads: set[bool]) -> None:
    forwards = traced(CHAIN.format(chain=chain)).of(Forward)
    assert {mode.name for forward in forwards for mode in forward.modes} == modes
    assert {flag for forward in forwards for flag in forward.grad} == grads


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

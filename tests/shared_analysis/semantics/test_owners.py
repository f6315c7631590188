"""Who owns what, decided by the object: wrappers, engines, accelerators, trainers."""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.events import (
    Collective,
    DropoutCall,
    EngineBypassed,
    GraphCut,
    ProcessGroup,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.semantics.registry import canonical
from torchwise_analysis.source import lower_text

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
"""


def traced(code: str) -> Trace:
    trace = run(lower_text("train.py", HEAD + textwrap.dedent(code)), Project(()))
    assert not trace.silence.failed, trace.silence.failed
    return trace


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("torch.nn.modules.loss.NLLLoss", "torch.nn.NLLLoss"),
        ("torch.nn.functional.cross_entropy", "torch.nn.functional.cross_entropy"),
        ("torch.optim.adam.Adam", "torch.optim.Adam"),
        ("torch.optim.lr_scheduler.StepLR", "torch.optim.lr_scheduler.StepLR"),
        ("torch.utils.data.dataloader.DataLoader", "torch.utils.data.DataLoader"),
        ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler"),
        ("torch.cuda.amp.grad_scaler.GradScaler", "torch.cuda.amp.GradScaler"),
        ("pytorch_lightning.LightningModule", "lightning.LightningModule"),
        ("lightning.pytorch.Trainer", "lightning.Trainer"),
        ("transformers.trainer.Trainer", "transformers.Trainer"),
    ],
)
def test_names_are_those_of_the_package(name: str, wanted: str) -> None:
    assert canonical(name) == wanted


def test_a_forward_past_its_wrapper_is_seen() -> None:
    trace = traced("""
        from torch.nn.parallel import DistributedDataParallel as DDP
        inner = nn.Linear(4, 2)
        model = DDP(inner)
        def train(x):
            model(x)
            model.module(x)
            inner(x)
    """)
    assert [(f.wrapped, f.bypassed) for f in trace.forwards] == [("ddp", ""), ("", "ddp"), ("", "ddp")]


def test_an_optimizer_of_the_wrapper_owns_the_parts() -> None:
    trace = traced("""
        inner = nn.Linear(4, 2)
        model = nn.DataParallel(inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(x):
            inner(x).sum().backward()
            optimizer.step()
    """)
    assert trace.steps[0].before != frozenset() and any(atom.sites for atom in trace.steps[0].before)


def test_an_engine_owns_backward_and_step() -> None:
    trace = traced("""
        import deepspeed
        net = nn.Linear(4, 2)
        engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters())
        def train(x):
            loss = engine(x).sum()
            engine.backward(loss)
            engine.step()
            loss.backward()
            optimizer.step()
    """)
    assert [event.what for event in trace.of(EngineBypassed)] == ["backward", "step"]
    assert [(b.how, b.divides) for b in trace.backwards] == [("engine", True), ("tensor", False)]


def test_fabric_leaves_the_division_to_the_user() -> None:
    trace = traced("""
        import lightning as L
        fabric = L.Fabric()
        net = nn.Linear(4, 2)
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        def train(loader):
            for x in loader:
                fabric.backward(model(x).mean())
                optimizer.step()
    """)
    assert {(b.how, b.divides) for b in trace.backwards} == {("fabric", False)}
    assert any(atom.applied and atom.sites for step in trace.steps for atom in step.before)


def test_a_trainer_divides_unless_compute_loss_drops_the_item_count() -> None:
    template = """
        from transformers import Trainer
        class Mine(Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss = model(**inputs).loss{0}
                return loss
    """
    for scale, divides in (("", False), (" / num_items_in_batch", True)):
        trace = traced(template.format(scale))
        assert {(b.how, b.divides) for b in trace.backwards} == {("managed", divides)}


def test_frozen_modules_record_nothing_and_losses_without_parameters_neither() -> None:
    trace = traced("""
        teacher = nn.Linear(4, 2)
        for p in teacher.parameters():
            p.requires_grad = False
        class Penalty(nn.Module):
            def forward(self, a, b):
                return (a - b).pow(2).mean()
        penalty = Penalty()
        def main(x, y):
            teacher(x)
            penalty(x, y)
    """)
    assert [forward.grad for forward in trace.forwards] == [frozenset([False])] * 2


def test_a_partly_frozen_module_still_trains() -> None:
    trace = traced("""
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        for name, p in model.named_parameters():
            if "0" in name:
                p.requires_grad = False
        def main(x):
            model(x)
    """)
    assert trace.forwards[0].grad == {True}


def test_dropout_that_knows_no_mode() -> None:
    trace = traced("""
        class Net(nn.Module):
            def forward(self, x):
                a = F.dropout(x, 0.5)
                b = F.dropout(x, 0.5, training=self.training)
                c = F.dropout(x, 0.5, self.training)
                d = nn.Dropout(0.5)(x)
                return a + b + c + d
        Net()(torch.zeros(1, 4))
    """)
    assert [event.how for event in trace.of(DropoutCall)] == ["functional", "built"]


def test_collectives_know_the_rank_guard() -> None:
    trace = traced("""
        import torch.distributed as dist
        def main():
            dist.init_process_group("nccl")
            if dist.get_rank() == 0:
                dist.barrier()
            if dist.get_rank() != 0:
                return
            dist.all_reduce(torch.zeros(1))
    """)
    assert len(trace.of(ProcessGroup)) == 1
    guards = [[(g.kind, g.taken) for g in event.scene.guards] for event in trace.of(Collective)]
    assert guards == [[("rank", True)], [("rank", False)]]


def test_where_a_graph_is_lost_is_remembered() -> None:
    trace = traced("""
        model = nn.Linear(4, 2)
        def main(x, y):
            picked = model(x).argmax(1).float()
            F.mse_loss(picked, y).backward()
    """)
    assert [cut.how for cut in trace.of(GraphCut)] == ["argmax"]
    loss = trace.backwards[0].loss
    assert loss is not None and loss.cut is not None and loss.cut.how == "argmax" and not loss.passes


OWN_STEP = """
import torch
from torch import nn


class Careful(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {{}})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-0.1)


model = nn.Linear(12, 4)
optimizer = Careful(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step({argument})
"""


@pytest.mark.parametrize("argument", ["", "lambda: model(x).sum()"])
def test_an_optimizer_of_the_project_steps(argument: str) -> None:
    trace = run(lower_text("train.py", OWN_STEP.format(argument=argument)), Project(()))
    assert trace.silence.failed == ()
    assert {s.optimizer.name for s in trace.steps} == {"optimizer"}
    assert any(atom.sites for s in trace.steps for atom in s.before)

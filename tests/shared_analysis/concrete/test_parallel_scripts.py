"""Scripts that divide layers, sequences and parameters over a mesh of processes."""

from __future__ import annotations

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

SCRIPT = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
)
from torch.distributed.tensor.experimental import context_parallel

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.size = width // heads
        self.norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        h = self.norm(x)
        heads = []
        for layer in (self.wq, self.wk, self.wv):
            y = layer(h)
            heads.append(y.view(y.shape[0], y.shape[1], -1, self.size).transpose(1, 2))
        h = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.wo(h)
        return x + self.ffn(self.ffn_norm(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList([Block(256, 8) for _ in range(4)])
        self.head = nn.Linear(256, 1000, bias=False)
    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = Model().to(torch.bfloat16).cuda()
{divide}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    ids = torch.randint(0, 1000, (8, 512), device="cuda")
{step}
    optimizer.step()
    optimizer.zero_grad()
"""
STEP = """
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
"""
MESH = "mesh = init_device_mesh('cuda', (2, {ways}), mesh_dim_names=('dp', 'tp'))"
PLAN = """
for block in model.blocks:
    parallelize_module(block, mesh["tp"], {
        "wq": ColwiseParallel(), "wk": ColwiseParallel(), "wv": ColwiseParallel(), "wo": RowwiseParallel(),
        "ffn.0": ColwiseParallel(), "ffn.2": RowwiseParallel(),
    })
"""
SEQUENCES = """
parallelize_module(model, mesh["tp"], {
    "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
})
for block in model.blocks:
    parallelize_module(block, mesh["tp"], {
        "norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
        "wq": ColwiseParallel(input_layouts=Shard(1)), "wk": ColwiseParallel(input_layouts=Shard(1)),
        "wv": ColwiseParallel(input_layouts=Shard(1)), "wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "ffn.0": ColwiseParallel(), "ffn.2": RowwiseParallel(output_layouts=Shard(1)),
    })
"""
FSDP = """
for block in model.blocks:
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
"""
CONTEXT = """
    with context_parallel(mesh["tp"], buffers=[ids], buffer_seq_dims=[1]):
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
"""


def estimate(divide: str = "", step: str = STEP) -> Estimate:
    text = SCRIPT.replace("{divide}", divide).replace("{step}", step)
    report = estimate_module(
        lower_text("train.py", text), Project([], []), EstimateRequest(with_remedies=False)
    )
    assert not report.unanswered, report.unanswered
    return report.estimates[0]


def live(found: Estimate) -> int:
    assert found.peak.allocated is not None
    return found.peak.allocated.point


def test_divided_layers_hold_their_part() -> None:
    whole = estimate()
    halves = estimate(MESH.format(ways=2) + PLAN)
    eighths = estimate(MESH.format(ways=8) + PLAN)
    assert live(eighths) < live(halves) < live(whole)
    assert halves.breakdown["weights"] < whole.breakdown["weights"]
    # the model is the same, of whatever part a process holds
    assert whole.parameters == halves.parameters == eighths.parameters


def test_a_divided_sequence_is_gathered_for_its_products() -> None:
    whole, sequences = estimate(), estimate(MESH.format(ways=4) + SEQUENCES)
    assert live(sequences) < live(whole)
    assert sequences.parameters == whole.parameters
    assert any("all gather" in alive.what for alive in sequences.alive)


def test_parameters_are_sharded_over_the_other_dimension() -> None:
    one, both = estimate(MESH.format(ways=4) + PLAN), estimate(MESH.format(ways=4) + PLAN + FSDP)
    assert both.breakdown["optimizer"] < 0.6 * one.breakdown["optimizer"]
    assert both.parameters == one.parameters


def test_a_mesh_of_one_process_changes_nothing() -> None:
    assert live(estimate(MESH.format(ways=1) + PLAN)) == live(estimate())


def test_context_parallelism_divides_the_step() -> None:
    mesh = MESH.format(ways=4)
    whole, divided = estimate(mesh), estimate(mesh, CONTEXT)
    assert live(divided) < 0.6 * live(whole)
    assert any("context parallelism" in sentence for sentence in divided.assumptions)


@pytest.mark.parametrize("shape", ["(4, unknown_here)", "None"])
def test_a_mesh_of_unknown_size_stops_by_name(shape: str) -> None:
    divide = f"from elsewhere import unknown_here\nmesh = init_device_mesh('cuda', {shape})"
    text = SCRIPT.replace("{divide}", divide + PLAN).replace("{step}", STEP)
    report = estimate_module(
        lower_text("train.py", text), Project([], []), EstimateRequest(with_remedies=False)
    )
    assert not report.estimates
    assert report.unanswered

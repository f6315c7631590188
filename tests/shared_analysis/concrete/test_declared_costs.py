"""Kernels, optimizers and averages of other packages by declared cost; the rest stops by name."""

from __future__ import annotations

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateReport, EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
{imports}

class Block(nn.Module):
    def __init__(self, d=256, h=4):
        super().__init__()
        self.h = h
        self.norm = {norm}
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm(x)).view(b, t, 3, self.h, d // self.h)
        q, k, v = qkv.unbind(2)
        o = {attention}
        return x + self.out(o.reshape(b, t, d))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4000, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(256, 4000, bias=False)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = {call}
        return {head}

model = Model().cuda().bfloat16()
{before}
optimizer = {optimizer}
ids = torch.randint(0, 4000, (16, 512), device="cuda")
for step in range(3):
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    optimizer.step()
    {after}
"""
PLAIN = {
    "imports": "",
    "norm": "nn.LayerNorm(d)",
    "attention": "F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),"
    " is_causal=True).transpose(1, 2)",
    "call": "block(x)",
    "head": "self.head(x)",
    "before": "",
    "optimizer": "torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)",
    "loss": "F.cross_entropy(model(ids).view(-1, 4000), ids.view(-1))",
    "after": "",
}


def report(**changes: str) -> EstimateReport:
    text = TEXT.format(**{**PLAIN, **changes})
    request = EstimateRequest(with_remedies=False, with_alternatives=False)
    return estimate_module(lower_text("train.py", text), Project([], []), request)


def estimate(**changes: str) -> Estimate:
    found = report(**changes)
    assert not found.unanswered, found.unanswered
    return found.estimates[0]


def peak(**changes: str) -> int:
    allocated = estimate(**changes).peak.allocated
    assert allocated is not None
    return allocated.point


@pytest.mark.parametrize(
    ("imports", "attention"),
    [
        ("from flash_attn import flash_attn_func", "flash_attn_func(q, k, v, causal=True)"),
        ("from flash_attn import flash_attn_qkvpacked_func as f", "f(qkv, causal=True)"),
        (
            "from flash_attn import flash_attn_varlen_func as f",
            "f(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), causal=True)",
        ),
        (
            "import xformers.ops as xops",
            "xops.memory_efficient_attention(q, k, v, attn_bias=xops.LowerTriangularMask())",
        ),
        (
            "from torch.nn.attention.flex_attention import flex_attention",
            "flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)",
        ),
    ],
)
def test_fused_attention_of_other_packages_keeps_what_sdpa_keeps(imports: str, attention: str) -> None:
    assert peak(imports=imports, attention=attention) == pytest.approx(peak(), rel=0.02)


@pytest.mark.parametrize(
    ("imports", "norm"),
    [
        ("from apex.normalization import FusedLayerNorm", "FusedLayerNorm(d)"),
        ("from apex.normalization import MixedFusedRMSNorm", "MixedFusedRMSNorm(d)"),
        ("from liger_kernel.transformers import LigerRMSNorm", "LigerRMSNorm(d)"),
    ],
)
def test_fused_norms_keep_their_input(imports: str, norm: str) -> None:
    assert peak(imports=imports, norm=norm) == pytest.approx(peak(), rel=0.02)


LOGITS_BYTES = 16 * 512 * 4000 * 2


def test_losses_that_write_over_the_logits_take_less() -> None:
    in_place = peak(
        imports="from liger_kernel.transformers import LigerCrossEntropyLoss",
        loss="LigerCrossEntropyLoss()(model(ids).view(-1, 4000), ids.view(-1))",
    )
    kept = peak(
        imports="from flash_attn.losses.cross_entropy import CrossEntropyLoss",
        loss="CrossEntropyLoss()(model(ids).view(-1, 4000), ids.view(-1))",
    )
    fused = peak(
        imports="from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Loss",
        head="x",
        loss="Loss()(model.head.weight, model(ids).view(-1, 256), ids.view(-1))",
    )
    assert fused < in_place < kept < peak()
    assert kept - in_place == pytest.approx(LOGITS_BYTES, rel=0.1)


@pytest.mark.parametrize(
    ("imports", "made", "share"),
    [
        ("from torchao.optim import AdamW8bit as Made", "Made(model.parameters(), lr=1e-4)", 0.5),
        ("from torchao.optim import AdamWFp8 as Made", "Made(model.parameters(), lr=1e-4)", 0.5),
        (
            "from torchao.prototype.low_bit_optim import AdamW4bit as Made",
            "Made(model.parameters(), lr=1e-4)",
            0.27,
        ),
        ("from schedulefree import AdamWScheduleFree as Made", "Made(model.parameters(), lr=1e-4)", 1.0),
        ("from prodigyopt import Prodigy as Made", "Made(model.parameters())", 2.0),
        (
            "from galore_torch import GaLoreAdamW as Made",
            "Made([{'params': [p for p in model.parameters() if p.ndim == 1]}, {'params': [p for p in"
            " model.parameters() if p.ndim == 2], 'rank': 64, 'update_proj_gap': 200}], lr=1e-4)",
            0.27,
        ),
    ],
)
def test_states_of_other_optimizers(imports: str, made: str, share: float) -> None:
    adam = estimate().breakdown["optimizer"]
    assert estimate(imports=imports, optimizer=made).breakdown["optimizer"] / adam == pytest.approx(
        share, abs=0.06
    )


@pytest.mark.parametrize(
    ("imports", "before", "after"),
    [
        ("from timm.utils import ModelEmaV2", "ema = ModelEmaV2(model)", "ema.update(model)"),
        ("from timm.utils import ModelEmaV3, AverageMeter", "ema = ModelEmaV3(model)", "ema.update(model)"),
        (
            "from torch_ema import ExponentialMovingAverage as Ema",
            "ema = Ema(model.parameters(), decay=0.99)",
            "ema.update()",
        ),
        ("from ema_pytorch import EMA", "ema = EMA(model)", "ema.update()"),
    ],
)
def test_averages_of_weights_are_another_copy(imports: str, before: str, after: str) -> None:
    plain, averaged = estimate(), estimate(imports=imports, before=before, after=after)
    assert averaged.peak.allocated is not None and plain.peak.allocated is not None
    more = averaged.peak.allocated.point - plain.peak.allocated.point
    assert plain.parameters is not None
    assert more == pytest.approx(2 * plain.parameters, rel=0.3)


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'",
        "os.environ.setdefault('PYTORCH_ALLOC_CONF', 'expandable_segments:True')",
        "os.environ.update({'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True'})",
    ],
)
def test_options_of_the_allocator_are_read_from_the_script(line: str) -> None:
    plain, expandable = estimate(), estimate(imports=f"import os\n{line}")
    assert plain.peak.reserved is not None and expandable.peak.reserved is not None
    assert expandable.peak.reserved.point < plain.peak.reserved.point
    late = estimate(imports="import os", before=line)
    assert late.peak.reserved is not None
    assert late.peak.reserved.point == plain.peak.reserved.point


SELECTIVE = "checkpoint(block, x, use_reentrant=False, context_fn={})"
CONTEXTS = (
    "from functools import partial\n"
    "from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts\n"
)


def test_selective_checkpointing_lies_between_all_and_nothing() -> None:
    full = peak(imports=CONTEXTS, call="checkpoint(block, x, use_reentrant=False)")
    products = SELECTIVE.format("partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])")
    attention = SELECTIVE.format(
        "lambda: create_selective_checkpoint_contexts(lambda c, op, *a, **k: CheckpointPolicy.MUST_SAVE"
        " if op == torch.ops.aten._scaled_dot_product_flash_attention.default"
        " else CheckpointPolicy.PREFER_RECOMPUTE)"
    )
    assert full < peak(imports=CONTEXTS, call=attention) < peak(imports=CONTEXTS, call=products) < peak()


def test_compiling_reaches_down() -> None:
    compiled, plain = estimate(before="model = torch.compile(model)"), estimate()
    assert compiled.peak.allocated is not None and plain.peak.allocated is not None
    assert compiled.peak.allocated.point == plain.peak.allocated.point
    assert compiled.peak.allocated.low < plain.peak.allocated.low
    assert any("torch.compile" in sentence for sentence in compiled.assumptions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"imports": "from somewhere import magic", "loss": "magic(model(ids))"}, "the loss is not known"),
        (
            {
                "imports": "from torch.distributed.tensor.parallel import parallelize_module",
                "before": "parallelize_module(model, None, {})",
            },
            "over how many processes",
        ),
        (
            {
                "imports": "from liger_kernel.transformers import apply_liger_kernel_to_llama as patch",
                "before": "patch()",
            },
            "its text",
        ),
        ({"imports": CONTEXTS + "import other", "call": SELECTIVE.format("other.contexts")}, "not known"),
    ],
)
def test_what_is_not_followed_stops_by_name(changes: dict[str, str], words: str) -> None:
    found = report(**changes)
    assert not found.estimates
    assert words in found.unanswered[0].message

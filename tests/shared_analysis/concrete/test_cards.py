"""Cards that run other kernels than the first one are judged with their own."""

from __future__ import annotations

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

ATTENTION = """
import torch
from torch import nn
import torch.nn.functional as F

q = nn.Linear(512, 1536).cuda()
optimizer = torch.optim.AdamW(q.parameters(), foreach=True)
x = torch.randn(16, 2048, 512, device="cuda")
for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        a, b, c = (y.view(16, 2048, 8, 64).transpose(1, 2) for y in q(x).chunk(3, -1))
        loss = F.scaled_dot_product_attention(a, b, c, is_causal=True).float().square().mean()
    loss.backward()
    optimizer.step()
"""
PLAIN = ATTENTION.replace("F.scaled_dot_product_attention(a, b, c, is_causal=True)", "(a * b * c)")


def answer(text: str, *cards: str) -> Estimate:
    request = EstimateRequest(gpus=cards, with_remedies=False)
    (estimate,) = estimate_module(lower_text("train.py", text), Project([], []), request).estimates
    return estimate


@pytest.mark.parametrize("cards", [("t4", "a100-40gb", "v100-32gb"), ("a100-40gb", "v100-32gb", "t4")])
def test_the_order_of_cards_decides_no_verdict(cards: tuple[str, ...]) -> None:
    together = answer(ATTENTION, *cards)
    for gpu in together.gpus:
        alone = answer(ATTENTION, gpu.name)
        assert gpu.verdict is alone.gpus[0].verdict
        assert (gpu.peak or together.peak) == alone.peak or gpu.peak is None
    first, *others = together.gpus
    assert first.peak is None
    is_first_new = first.name == "a100-40gb"
    assert [gpu.peak is not None for gpu in others] == [
        is_first_new or gpu.name == "a100-40gb" for gpu in others
    ]


def test_attention_of_older_cards_takes_more() -> None:
    older = answer(ATTENTION, "a100-40gb", "t4").gpus[1].peak
    newer = answer(ATTENTION, "a100-40gb", "t4").peak
    assert older is not None and older.allocated is not None and newer.allocated is not None
    assert older.allocated.point > 2 * newer.allocated.point


def test_cards_that_need_the_same_have_no_peak_of_their_own() -> None:
    assert all(gpu.peak is None for gpu in answer(PLAIN, "t4", "a100-40gb", "rtx-4090").gpus)
    assert all(gpu.peak is None for gpu in answer(ATTENTION, "rtx-4090", "a100-40gb", "h200").gpus)

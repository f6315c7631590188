"""The step as a picture, and what each line's modules hold."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.plan.timeline import MAX_MOMENTS, timeline
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate, Phase
from torchwise_memory.runtime.ledger import Block, Ledger, Record, StorageKind, SummingAllocator

SCRIPT = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(256, 1024),
            nn.ReLU(),
            nn.Linear(1024, 256),
        )

    def forward(self, x):
        return x + self.body(x)

model = nn.Sequential(*[Block() for _ in range(3)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(4096, 256, device="cuda")
for _ in range(4):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def estimated(folder: Path) -> Estimate:
    path = folder / "main.py"
    path.write_text(SCRIPT)
    module = lower_text(str(path), SCRIPT)
    (estimate,) = estimate_module(module, Project((str(folder),)), EstimateRequest()).estimates
    return estimate


def test_the_highest_moment_is_the_peak_and_phases_follow_the_step(tmp_path: Path) -> None:
    estimate = estimated(tmp_path)
    assert estimate.peak.allocated
    highest = max(estimate.timeline, key=lambda moment: moment.bytes)
    assert highest.bytes == estimate.peak.allocated.point
    assert highest.by_purpose == estimate.breakdown
    assert highest.phase is estimate.phase
    phases = list(dict.fromkeys(moment.phase for moment in estimate.timeline))
    assert set(phases) == set(Phase)
    assert phases.index(Phase.BACKWARD) < phases.index(Phase.OPTIMIZER)
    assert {moment.origin.line for moment in estimate.timeline if moment.origin} >= {15, 21, 22}


def test_modules_are_counted_at_the_line_that_makes_them(tmp_path: Path) -> None:
    estimate = estimated(tmp_path)
    by_line = {(entry.origin.line, entry.name): entry for entry in estimate.modules}
    wide, narrow = 256 * 1024 + 1024, 1024 * 256 + 256
    assert by_line[9, "Linear"].count == by_line[17, "Block"].count == 3
    assert by_line[9, "Linear"].parameters == 3 * wide
    assert by_line[11, "Linear"].parameters == 3 * narrow
    assert by_line[17, "Block"].parameters == by_line[17, "Sequential"].parameters == 3 * (wide + narrow)
    assert by_line[9, "Linear"].weight_bytes == 3 * 4 * wide
    assert by_line[17, "Sequential"].alive_bytes is None
    inner, blocks = by_line[10, "ReLU"].alive_bytes, by_line[17, "Block"].alive_bytes
    assert inner is not None and blocks is not None and 0 < inner < blocks


@given(st.lists(st.tuples(st.sampled_from("bdk"), st.integers(1, 2000), st.sampled_from(StorageKind))))
def test_each_moment_is_what_the_ledger_says(events: list[tuple[str, int, StorageKind]]) -> None:
    ledger = Ledger(SummingAllocator())
    held: list[tuple[Block, Record]] = [ledger.birth(100, "before", "float32", (), StorageKind.WEIGHTS)]
    ledger.watch()
    births: list[int] = []
    for what, number, kind in events:
        if what == "b":
            held.append(ledger.birth(number, "op", "float32", (), kind))
            births.append(ledger.sequence)
        elif what == "k" and held:
            ledger.change_kind(held[number % len(held)][1], kind)
        elif held:
            ledger.death(*held.pop(number % len(held)))
    moments = timeline(ledger.lives(), ledger.watched_from, ledger.peak_sequence)
    assert len(moments) <= MAX_MOMENTS + 1
    if births:
        totals = [sum(ledger.bytes_by_kind(birth).values()) for birth in births]
        assert max(moment.bytes for moment in moments) == max(totals)
        if len(births) <= MAX_MOMENTS:
            assert [moment.bytes for moment in moments] == totals
    else:
        assert moments == ()

"""A batch that a function of the project makes is a tensor, however large the function is."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.events import Store
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

PROGRAM = """
import numpy as np
import torch
from torch import nn

data = np.memmap("train.bin", dtype=np.uint16, mode="r")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, idx, targets=None):
        logits = self.layer(idx)
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits, targets)


def get_batch():
    ix = {indices}
    x = torch.stack([torch.from_numpy((data[i : i + 8]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[{part}]).astype(np.int64)) for i in ix])
    return x.cuda(), y.cuda()


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running = 0
for step in range(10000):
    x, y = {batch}
    optimizer.zero_grad()
    _, loss = model(x, y)
    loss.backward()
    running += loss
    optimizer.step()
"""


@pytest.mark.parametrize(
    "indices", ["torch.randint(9, (8,))", "torch.randint(len(data) - 8, (8,))", "(1, 2)"]
)
@pytest.mark.parametrize("part", ["i : i + 8", "i + 1 : i + 1 + 8"])
@pytest.mark.parametrize(
    "batch", ["get_batch()", "np.unseen()"]
)  # the latter may be None: then there is no backward
def test_the_loss_is_a_tensor(indices: str, part: str, batch: str) -> None:
    text = PROGRAM.format(indices=indices, part=part, batch=batch)
    trace = run(lower_text("train.py", text), Project(()))
    assert not trace.silence.failed
    assert [b.loss is not None and b.loss.reduction for b in trace.backwards] == ["mean"] * 2
    assert [store.name for store in trace.of(Store)] == ["running"]


TABLES = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, tables):
        tables["item"] = self.first(tables["item"])
        return self.second(tables["item"])


def main(loader):
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    {made}
    for batch in loader:
        loss = nn.functional.cross_entropy(net({given}), batch.y)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("made", "given", "is_kept"),
    [("pass", "batch.x_dict", False), ("kept = {'item': torch.zeros(8)}", "kept", True)],
)
def test_a_dictionary_of_a_batch_is_a_new_one(made: str, given: str, is_kept: bool) -> None:
    trace = run(lower_text("train.py", TABLES.format(made=made, given=given)), Project(()))
    assert not trace.silence.failed
    assert bool(trace.of(Store)) is is_kept

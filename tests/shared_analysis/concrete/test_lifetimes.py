"""Memory is given back exactly when CPython would drop the last reference."""

from __future__ import annotations

import gc

import pytest
from tests.shared_analysis.concrete.running import collector_off, interpreter, run

MEGABYTE = "torch.empty(262144, device='cuda')"  # one MiB of float32

# Snippets end with `probe` set to the number of MiB that are alive; the second item is CPython's answer.
SNIPPETS: dict[str, tuple[str, int]] = {
    "a name holds": (f"x = {MEGABYTE}", 1),
    "an expression statement holds nothing": (f"{MEGABYTE}", 0),
    "rebinding releases": (f"x = {MEGABYTE}\nx = None", 0),
    "two names": (f"x = {MEGABYTE}\ny = x\ndel x", 1),
    "locals go at return": (f"def f():\n    x = {MEGABYTE}\n    return 1\nf()", 0),
    "what is returned stays": (f"def f():\n    x = {MEGABYTE}\n    return x\ny = f()", 1),
    "closures keep what they use": (
        f"def f():\n    x = {MEGABYTE}\n    y = {MEGABYTE}\n    return lambda: x\ng = f()",
        1,
    ),
    "loop variables survive": (f"for i in range(3):\n    x = {MEGABYTE}", 1),
    "comprehension variables do not": (f"y = [0 for x in [{MEGABYTE}]]", 0),
    "the exception name is dropped": (
        f"def f():\n    x = {MEGABYTE}\n    raise ValueError(x)\n"
        "try:\n    f()\nexcept ValueError as e:\n    pass",
        0,
    ),
    "lists hold": (f"x = [{MEGABYTE} for _ in range(3)]\nx.pop()", 2),
    "views share": (f"x = {MEGABYTE}\ny = x.view(512, 512)\ndel x", 1),
    "an unpacked tuple goes": (f"a, b = {MEGABYTE}, {MEGABYTE}\ndel a", 1),
    "attributes hold": (f"class A: pass\na = A()\na.x = {MEGABYTE}\ndel a.x", 0),
    "an instance takes its attributes along": (f"class A: pass\na = A()\na.x = {MEGABYTE}\ndel a", 0),
    "a finished generator": (f"def g():\n    x = {MEGABYTE}\n    yield 1\nfor _ in g(): pass", 0),
    "a suspended generator": (f"def g():\n    x = {MEGABYTE}\n    yield 1\n    yield 2\ni = g()\nnext(i)", 1),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_alive_after(name: str) -> None:
    source, expected = SNIPPETS[name]
    it = interpreter()
    with collector_off():
        run("import torch\n" + source, it)
        alive = it.world.ledger.allocator.allocated
    it.close()
    assert alive == expected << 20


def test_a_reassigned_parameter_releases_the_callers_temporary() -> None:
    source = f"""
import torch
def f(x):
    x = None
    x = {MEGABYTE}
f({MEGABYTE})
"""
    it = interpreter()
    with collector_off():
        run(source, it)
    assert it.world.ledger.allocator.allocated == 0
    # the block was free again before the call ended: a second one reuses it
    assert it.world.ledger.allocator.peak_allocated == 1 << 20


TRAINING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        parts = [f for f in (x, x * 2)]
        return self.layers(sum(parts))

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(32, 64, device="cuda")
y = torch.randint(0, 10, (32,), device="cuda")
"""
# written out, because a loop would be left after its second step
STEP = """
optimizer.zero_grad()
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_rounds_leave_nothing_behind(rounds: int) -> None:
    """The standing leak test: every round ends with the same bytes, and none outlive the program."""
    sizes = []
    for count in (rounds, rounds + 1):
        it = interpreter()
        with collector_off():
            run(TRAINING + STEP * count, it)
            sizes.append(it.world.ledger.allocator.allocated)
            it.close()
            it.world.close()
            left = it.world.ledger.allocator.allocated
            del it
        gc.collect()
        assert left == 0
    assert sizes[0] == sizes[1]


def test_a_custom_autograd_function_keeps_what_it_saves_until_its_backward() -> None:
    source = """
import torch

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * ctx.factor, None

w = torch.empty(262144, device="cuda", requires_grad=True)
loss = Double.apply(w + 1, 2).sum()
"""
    it = interpreter()
    allocator = it.world.ledger.allocator
    with collector_off():
        # the weight and the saved sum; the doubled tensor is not needed by sum()
        run(source, it)
        assert allocator.allocated - 512 == 2 << 20
        run(source + "loss.backward()\n", other := interpreter())
        # the weight and its gradient
        assert other.world.ledger.allocator.allocated - 512 == 2 << 20

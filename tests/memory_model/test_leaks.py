"""Our own machinery must not look like memory: with the collector off, rounds end where they began, and
nothing stays.

The step below uses what has leaked before or could: closures, views and in-place writes, tied weights,
autocast's cache, checkpoint frames, hooks, retained graphs, a loop that keeps its last outputs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.memory_model.runtime_kit import Kit

from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.storage import Storage
from torchwise_memory.runtime.tensor import Parameter, Tensor

HEADS, WIDTH, TOKENS, VOCABULARY = 4, 64, 32, 100


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Model:
    def __init__(self, kit: Kit) -> None:
        self.table = kit.parameter(VOCABULARY, WIDTH)
        self.norm = kit.parameter(WIDTH), kit.parameter(WIDTH)
        self.qkv = kit.parameter(3 * WIDTH, WIDTH), kit.parameter(3 * WIDTH)
        self.out = kit.parameter(WIDTH, WIDTH), kit.parameter(WIDTH)
        self.up = kit.parameter(4 * WIDTH, WIDTH)
        self.down = kit.parameter(WIDTH, 4 * WIDTH)

    def parameters(self) -> list[Parameter]:
        return [self.table, *self.norm, *self.qkv, *self.out, self.up, self.down]


def _block(kit: Kit, model: Model, x: Tensor) -> Tensor:
    h = kit.F("layer_norm", x, (WIDTH,), *model.norm)
    q, k, v = (
        kit.M("transpose", kit.M("view", part, -1, TOKENS, HEADS, WIDTH // HEADS), 1, 2)
        for part in kit.M("split", kit.F("linear", h, *model.qkv), WIDTH, 2)
    )
    attended = kit.F("scaled_dot_product_attention", q, k, v, is_causal=True)
    merged = kit.M("reshape", kit.M("transpose", attended, 1, 2), -1, TOKENS, WIDTH)
    x = kit.M("__add__", x, kit.F("dropout", kit.F("linear", merged, *model.out), 0.1))
    hidden = kit.F("silu", kit.F("linear", x, model.up), inplace=True)
    kit.M("__setitem__", hidden, (slice(None), 0), 0.0)
    result: Tensor = kit.M("__add__", x, kit.F("linear", hidden, model.down))
    return result


def _step(kit: Kit, model: Model, checkpointed: bool, seen: list[int]) -> tuple[Tensor, Tensor]:
    context = Autocast("cuda", dtypes.bfloat16)
    context.enter(kit.w)
    ids = kit.T("randint", 0, VOCABULARY, (2, TOKENS), device="cuda")
    x = kit.F("embedding", ids, model.table)
    for _ in range(2):
        if checkpointed:
            x = kit.T("utils.checkpoint.checkpoint", lambda t: _block(kit, model, t), x, use_reentrant=False)
        else:
            x = _block(kit, model, x)
    kit.M("register_hook", x, lambda w, gradient: seen.append(gradient.numel))
    logits = kit.F("linear", x, model.table)
    loss = kit.F("cross_entropy", kit.M("view", logits, -1, VOCABULARY), kit.M("view", ids, -1))
    context.leave(kit.w)
    kit.M("backward", loss, retain_graph=True)
    kit.M("backward", loss)
    return loss, logits


@pytest.mark.parametrize("checkpointed", [False, True])
def test_rounds_end_with_the_bytes_they_began_with(checkpointed: bool) -> None:
    kit = Kit()
    model = Model(kit)
    after: list[int] = []
    held: object = None
    for _ in range(4):
        held = _step(kit, model, checkpointed, [])
        for parameter in model.parameters():
            parameter.grad = None
        after.append(kit.allocated)
    assert held is not None
    assert after[1] == after[2] == after[3]
    assert len(kit.w.ledger.live) == len({record.key for record in kit.w.ledger.live.values()})


@pytest.mark.parametrize("checkpointed", [False, True])
def test_nothing_survives_its_world(checkpointed: bool) -> None:
    kit = Kit()
    model = Model(kit)
    outputs = _step(kit, model, checkpointed, [])
    ledger, allocator = kit.w.ledger, kit.allocator
    assert allocator.allocated > 0
    del outputs, model, kit
    assert ledger.live == {}
    assert allocator.allocated == 0
    assert [item for item in gc.get_objects() if isinstance(item, Storage) and item.ledger is ledger] == []


def test_an_error_in_the_middle_of_a_step_leaves_nothing_behind() -> None:
    kit = Kit()
    model = Model(kit)
    weights = kit.allocated
    with pytest.raises(Exception, match="do not broadcast"):
        _failing(kit, model)
    kit.w.autocast_cache.clear()
    kit.w.workspaces.clear()
    assert kit.allocated == weights


def _failing(kit: Kit, model: Model) -> None:
    x = kit.F("embedding", kit.T("randint", 0, VOCABULARY, (2, TOKENS), device="cuda"), model.table)
    kit.M("__add__", _block(kit, model, x), kit.tensor(7))

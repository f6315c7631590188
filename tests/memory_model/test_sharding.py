"""Fully sharded parameters: what lives when, in bytes that follow from the algorithm."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from torchwise_memory.classes import CLASS_FUNCTIONS, CLASSES
from torchwise_memory.library import METHODS
from torchwise_memory.modules.base import call
from torchwise_memory.policies.sharding import Order, Sharding, shard
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.ledger import StorageKind, SummingAllocator
from torchwise_memory.runtime.world import World

WIDTH, LAYERS = 256, 4
LAYER_BYTES = WIDTH * WIDTH * 4


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    native = CLASSES[name]
    made = native.make()
    native.construct(w, made, *args, **kwargs)
    return made


def network(w: World, sharding: Sharding) -> Any:
    layers = [make(w, "torch.nn.Linear", WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = make(w, "torch.nn.Sequential", *layers).to(w, "cuda")
    order = Order()
    for layer in layers:
        shard(w, layer, sharding, order)
    return model


def step(w: World, model: Any, optimizer: Any) -> None:
    optimizer.zero_grad(w)
    x = w.new((2, WIDTH), DTYPES["float32"], "randn", kind=StorageKind.INPUT)
    output: Any = call(w, model, (x,), {})
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    optimizer.step(w)


def weights(w: World) -> int:
    return sum(record.bytes for record in w.ledger.live.values() if record.kind is StorageKind.WEIGHTS)


@pytest.mark.parametrize("processes", [1, 4, 8])
def test_a_quiet_model_holds_shards_of_weights_gradients_and_states(processes: int) -> None:
    w = World(SummingAllocator())
    model = network(w, Sharding(processes))
    assert weights(w) == LAYERS * LAYER_BYTES // processes
    optimizer = make(w, "torch.optim.AdamW", model.list_parameters(w), fused=True)
    step(w, model, optimizer)
    workspaces = sum(storage.bytes for storage in w.workspaces.values())
    scalars = LAYERS * 4
    assert w.ledger.allocator.allocated - workspaces == 4 * LAYERS * LAYER_BYTES // processes + scalars
    before = w.ledger.allocator.allocated
    step(w, model, optimizer)
    assert w.ledger.allocator.allocated == before


def test_forward_holds_one_unit_and_its_flat_buffer_at_a_time() -> None:
    w = World(SummingAllocator())
    model = network(w, Sharding(8))
    x = w.new((2, WIDTH), DTYPES["float32"], "randn")
    call(w, model, (x,), {})
    base = w.ledger.allocator.allocated
    w.ledger.watch()
    call(w, model, (x,), {})
    peak = w.ledger.peak_bytes - base
    assert 2 * LAYER_BYTES <= peak < 2 * LAYER_BYTES + 50_000


def test_backward_gathers_one_unit_ahead() -> None:
    peaks = []
    for prefetches in (False, True):
        w = World(SummingAllocator())
        model = network(w, Sharding(8, prefetches=prefetches))
        optimizer = make(w, "torch.optim.SGD", model.list_parameters(w))
        step(w, model, optimizer)
        w.ledger.watch()
        step(w, model, optimizer)
        peaks.append(w.ledger.peak_bytes)
    assert peaks[1] - peaks[0] == pytest.approx(LAYER_BYTES, rel=0.2)


def test_without_resharding_all_units_stay_whole_until_backward() -> None:
    w = World(SummingAllocator())
    model = network(w, Sharding(8, reshard_after_forward=False))
    x = w.new((2, WIDTH), DTYPES["float32"], "randn")
    output: Any = call(w, model, (x,), {})
    assert weights(w) == LAYERS * LAYER_BYTES + LAYERS * LAYER_BYTES // 8
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    assert weights(w) == LAYERS * LAYER_BYTES // 8


def test_mixed_precision_gathers_in_half_and_reduces_in_full() -> None:
    w = World(SummingAllocator())
    model = network(w, Sharding(8, DTYPES["bfloat16"], DTYPES["float32"]))
    x = w.new((2, WIDTH), DTYPES["bfloat16"], "randn")
    output: Any = call(w, model, (x,), {})
    assert output.dtype is DTYPES["bfloat16"]
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    for _, parameter in model.walk_parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype is DTYPES["float32"]
        assert parameter.grad.shape == (WIDTH // 8, WIDTH)


def test_accumulated_gradients_stay_shards() -> None:
    w = World(SummingAllocator())
    model = network(w, Sharding(4))
    sizes = []
    for _ in range(3):
        x = w.new((2, WIDTH), DTYPES["float32"], "randn")
        output: Any = call(w, model, (x,), {})
        METHODS["backward"].call(w, METHODS["sum"].call(w, output))
        del output, x
        sizes.append(w.ledger.allocator.allocated)
    assert sizes[0] == sizes[1] == sizes[2]


def blocks(w: World) -> Any:
    layers = [make(w, "torch.nn.TransformerEncoderLayer", 64, 2, 256, batch_first=True) for _ in range(3)]
    return make(w, "torch.nn.Sequential", make(w, "torch.nn.Linear", 64, 64), *layers).to(w, "cuda")


def test_the_classic_wrapper_wraps_by_policy() -> None:
    w = World(SummingAllocator())
    w.world_size = 4
    model = blocks(w)
    whole = weights(w)
    policy = make(
        w, "torch.distributed.fsdp.wrap.ModuleWrapPolicy", [CLASSES["torch.nn.TransformerEncoderLayer"].host]
    )
    precision = make(w, "torch.distributed.fsdp.MixedPrecision", DTYPES["bfloat16"], DTYPES["bfloat16"])
    wrapped = make(
        w,
        "torch.distributed.fsdp.FullyShardedDataParallel",
        model,
        auto_wrap_policy=policy,
        mixed_precision=precision,
    )
    assert [bool(child.policies) for child in model.children.values()] == [False, True, True, True]
    assert model.policies
    assert weights(w) == pytest.approx(whole / 4, rel=0.01)
    x = w.new((2, 8, 64), DTYPES["bfloat16"], "randn")
    output: Any = call(w, wrapped, (x,), {})
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    assert all(parameter.grad is not None for _, parameter in model.walk_parameters())
    assert weights(w) == pytest.approx(whole / 4, rel=0.01)


def test_fully_shard_is_called_inside_out() -> None:
    w = World(SummingAllocator())
    w.world_size = 2
    model = blocks(w)
    whole = weights(w)
    fully_shard = CLASS_FUNCTIONS["torch.distributed.fsdp.fully_shard"]
    for layer in list(model.children.values())[1:]:
        fully_shard.call(w, layer)
    assert fully_shard.call(w, model) is model
    assert weights(w) == pytest.approx(whole / 2, rel=0.01)
    output: Any = call(w, model, (w.new((2, 8, 64), DTYPES["float32"], "randn"),), {})
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    assert weights(w) == pytest.approx(whole / 2, rel=0.01)


def test_nothing_outlives_the_program() -> None:
    w = World(SummingAllocator())
    model = network(w, Sharding(8))
    optimizer = make(w, "torch.optim.AdamW", model.list_parameters(w))
    step(w, model, optimizer)
    del model, optimizer
    w.close()
    assert not w.ledger.live


@pytest.mark.parametrize("reshards", [True, False])
def test_frozen_units_are_released_one_after_the_other(reshards: bool) -> None:
    w = World(SummingAllocator())
    sharding = Sharding(8, reshard_after_forward=reshards, prefetches=False, copies_out=False)
    model = network(w, sharding)
    first, *others = model.list_parameters(w)
    for parameter in others:
        parameter.requires_grad = False
    optimizer = make(w, "torch.optim.AdamW", [first], fused=True)
    peaks = []
    for _ in range(3):
        w.ledger.watch()
        base = weights(w)
        step(w, model, optimizer)
        peaks.append(w.ledger.peak_bytes)
        # the last to run in backward is trained, so nothing stays whole
        assert weights(w) == base == LAYERS * LAYER_BYTES // 8
    assert peaks[1] == peaks[2]
    if reshards:
        # the trained unit, its gradient and that flattened; no other unit beside them
        workspaces = sum(storage.bytes for storage in w.workspaces.values())
        assert peaks[2] - workspaces < 4.5 * LAYER_BYTES

"""States and temporaries of optimizers, in bytes a parameter, as real PyTorch was seen to take them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from torchwise_memory.classes import CLASS_FUNCTIONS, CLASSES
from torchwise_memory.report import Phase
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.ledger import StorageKind, SummingAllocator
from torchwise_memory.runtime.tensor import Parameter
from torchwise_memory.runtime.world import World

SHAPES = ((1024, 1024), (512, 1024), (1024,))
COUNT = sum(a * (b[0] if b else 1) for a, *b in SHAPES)


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    native = CLASSES[name if "." in name else f"torch.optim.{name}"]
    made = native.make()
    native.construct(w, made, *args, **kwargs)
    return made


def parameters(w: World, dtype: str = "float32") -> list[Parameter]:
    return [Parameter(w.new(shape, DTYPES[dtype], "weight", kind=StorageKind.WEIGHTS)) for shape in SHAPES]


def give_gradients(w: World, tensors: list[Parameter]) -> None:
    for tensor in tensors:
        tensor.grad = w.like(tensor, "gradient")


def measured(name: str, dtype: str = "float32", **options: Any) -> tuple[float, float]:
    """(state, extra at the second step) in bytes a parameter."""
    w = World(SummingAllocator())
    tensors = parameters(w, dtype)
    optimizer = make(w, name, tensors, lr=1e-3, **options)
    give_gradients(w, tensors)
    before = w.ledger.allocator.allocated
    optimizer.step(w)
    after = w.ledger.allocator.allocated
    w.ledger.watch()
    optimizer.step(w)
    assert w.ledger.allocator.allocated == after
    at_start = sum(tensor.bytes * 2 for tensor in tensors)
    states = after - before if name != "Adagrad" else after - at_start
    return states / COUNT, (w.ledger.peak_bytes - after) / COUNT


@pytest.mark.parametrize(
    ("name", "options", "state", "extra"),
    [
        ("SGD", {}, 0, 0),
        ("SGD", {"momentum": 0.9}, 4, 0),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, 4, 4),
        ("Adam", {}, 8, 4),
        ("Adam", {"weight_decay": 0.1}, 8, 4),
        ("AdamW", {}, 8, 4),
        ("AdamW", {"fused": True}, 8, 0),
        ("AdamW", {"amsgrad": True}, 12, 4),
        ("NAdam", {}, 8, 4),
        ("RAdam", {}, 8, 4),
        ("RMSprop", {}, 4, 4),
        ("RMSprop", {"momentum": 0.9, "centered": True}, 12, 4),
        ("Adagrad", {}, 4, 8),
        ("Adadelta", {}, 8, 8),
        ("bitsandbytes.optim.AdamW8bit", {}, 2 + 8 / 256, 0),
        ("bitsandbytes.optim.PagedAdamW8bit", {}, 0, 0),
        ("lion_pytorch.Lion", {}, 4, None),
        ("apex.optimizers.FusedAdam", {}, 8, 0),
    ],
)
def test_bytes_a_parameter(name: str, options: dict[str, Any], state: float, extra: float | None) -> None:
    states, extras = measured(name, **options)
    assert states == pytest.approx(state, abs=0.01)
    if extra is not None:
        assert extras == pytest.approx(extra, abs=0.01)


def test_states_follow_the_type_of_the_parameter() -> None:
    assert measured("AdamW", "bfloat16") == pytest.approx((4, 2), abs=0.01)
    assert measured("bitsandbytes.optim.AdamW8bit", "bfloat16")[0] == pytest.approx(2.03, abs=0.01)


def test_one_parameter_at_a_time_without_foreach() -> None:
    _, extra = measured("AdamW", foreach=False)
    assert extra * COUNT == 1024 * 1024 * 4


def test_adafactor_keeps_a_row_and_a_column() -> None:
    state, extra = measured("Adafactor")
    assert state < 0.02
    assert extra * COUNT == 1024 * 1024 * 4


def test_small_tensors_stay_in_fp32_in_8_bit_optimizers() -> None:
    w = World(SummingAllocator())
    small = Parameter(w.new((4095,), DTYPES["float32"], "weight"))
    small.grad = w.like(small, "gradient")
    optimizer = make(w, "bitsandbytes.optim.AdamW8bit", [small])
    before = w.ledger.allocator.allocated
    optimizer.step(w)
    assert w.ledger.allocator.allocated - before == 2 * 4095 * 4


def test_states_are_made_for_parameters_that_have_gradients_and_in_the_optimizer_phase() -> None:
    w = World(SummingAllocator())
    tensors = parameters(w)
    optimizer = make(w, "AdamW", tensors)
    tensors[0].grad = w.like(tensors[0], "gradient")
    optimizer.step(w)
    assert set(optimizer.state) == {tensors[0]}
    states = [record for record in w.ledger.live.values() if record.kind is StorageKind.OPTIMIZER]
    assert {record.phase for record in states} == {Phase.OPTIMIZER}
    assert w.phase is Phase.FORWARD
    assert optimizer.state[tensors[0]]["step"].device.type == "cpu"


def test_zero_grad_drops_gradients_unless_told_to_keep_them() -> None:
    w = World(SummingAllocator())
    tensors = parameters(w)
    optimizer = make(w, "SGD", tensors)
    give_gradients(w, tensors)
    optimizer.zero_grad(w, set_to_none=False)
    assert all(tensor.grad is not None for tensor in tensors)
    optimizer.zero_grad(w)
    assert all(tensor.grad is None for tensor in tensors)


def test_groups_take_their_own_options() -> None:
    w = World(SummingAllocator())
    first, second, third = parameters(w)
    optimizer = make(w, "SGD", [{"params": [first], "momentum": 0.9}, {"params": [second]}], lr=0.1)
    optimizer.add_param_group(w, {"params": third, "lr": 1.0})
    give_gradients(w, [first, second, third])
    optimizer.step(w)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 1.0]
    assert list(optimizer.state[first]) == ["momentum_buffer"]
    assert not optimizer.state[second]
    state = optimizer.state_dict(w)
    assert [group["params"] for group in state["param_groups"]] == [[0], [1], [2]]


def test_an_empty_parameter_list_stops_the_run() -> None:
    with pytest.raises(Unsupported):
        make(World(SummingAllocator()), "Adam", [])


def test_a_closure_runs_with_gradients_on() -> None:
    w = World(SummingAllocator())
    tensors = parameters(w)
    seen: list[bool] = []

    def closure() -> str:
        seen.append(w.grad_enabled)
        return "loss"

    w.grad_enabled = False
    assert make(w, "SGD", tensors).step(w, closure) == "loss"
    assert seen == [True]


def test_schedules_are_inert() -> None:
    w = World(SummingAllocator())
    optimizer = make(w, "SGD", parameters(w), lr=0.5)
    schedule = make(w, "torch.optim.lr_scheduler.OneCycleLR", optimizer, max_lr=1.0, total_steps=10)
    schedule.step(w)
    assert schedule.get_last_lr(w) == [0.5]


def test_a_scaler_takes_two_scalars_and_passes_steps_on() -> None:
    w = World(SummingAllocator())
    tensors = parameters(w)
    optimizer = make(w, "AdamW", tensors)
    scaler = make(w, "torch.amp.GradScaler")
    give_gradients(w, tensors)
    loss = w.new((), DTYPES["float32"], "loss")
    assert scaler.scale(w, loss).dtype is DTYPES["float32"]
    scaler.step(w, optimizer)
    scaler.update(w)
    assert set(optimizer.state) == set(tensors)
    off = make(w, "torch.cuda.amp.GradScaler", enabled=False)
    assert off.scale(w, loss) is loss


def test_clipping_holds_no_copy_of_the_gradients() -> None:
    w = World(SummingAllocator())
    tensors = parameters(w)
    give_gradients(w, tensors)
    before = w.ledger.allocator.allocated
    w.ledger.watch()
    total = CLASS_FUNCTIONS["torch.nn.utils.clip_grad_norm_"].call(w, tensors, 1.0)
    assert total.shape == ()
    assert w.ledger.peak_bytes - before < 4096

"""Activation checkpointing: what is kept, what is made again, and when the recomputation stops."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from tests.memory_model.runtime_kit import Kit

from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.tensor import Tensor

MIB = 1 << 20
SIDE = 512


def _body(kit: Kit, calls: list[str]) -> Callable[[Tensor], Tensor]:
    def body(x: Tensor) -> Tensor:
        calls.append("start")
        for _ in range(4):
            x = kit.T("exp", x)
        calls.append("end")
        x = kit.M("__add__", x, 1)
        calls.append("after the last saved tensor")
        return x

    return body


@pytest.mark.parametrize("reentrant", [False, True])
def test_only_the_input_is_kept(reentrant: bool) -> None:
    kit = Kit()
    x = kit.hidden(SIDE, SIDE)
    before = kit.allocated
    out = kit.T("utils.checkpoint.checkpoint", _body(kit, []), x, use_reentrant=reentrant)
    assert kit.allocated == before + out.bytes
    assert out.requires_grad


def test_the_recomputation_stops_after_the_last_saved_tensor() -> None:
    kit = Kit()
    calls: list[str] = []
    out = kit.T("utils.checkpoint.checkpoint", _body(kit, calls), kit.hidden(SIDE, SIDE), use_reentrant=False)
    assert calls == ["start", "end", "after the last saved tensor"]
    calls.clear()
    kit.M("backward", kit.T("sum", out))
    assert calls == ["start"]


def test_reentrant_checkpoints_run_the_whole_body_again() -> None:
    kit = Kit()
    calls: list[str] = []
    out = kit.T("utils.checkpoint.checkpoint", _body(kit, calls), kit.hidden(SIDE, SIDE), use_reentrant=True)
    calls.clear()
    kit.M("backward", kit.T("sum", out))
    assert calls == ["start", "end", "after the last saved tensor"]
    assert kit.inputs[0].grad is not None


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_peak_is_one_region_and_gradients_arrive(reentrant: bool) -> None:
    plain, saving = Kit(), Kit()
    peaks = []
    for kit, checkpointed in ((plain, False), (saving, True)):
        x = kit.hidden(SIDE, SIDE)
        for _ in range(4):
            body = _body(kit, [])
            x = (
                kit.T("utils.checkpoint.checkpoint", body, x, use_reentrant=reentrant)
                if checkpointed
                else body(x)
            )
        loss = kit.T("sum", x)
        del x
        kit.w.ledger.watch()
        kit.M("backward", loss)
        peaks.append(kit.w.ledger.peak_bytes)
        assert kit.inputs[0].grad is not None
    assert peaks[1] < peaks[0] / 1.5


def test_without_gradients_the_body_just_runs() -> None:
    kit = Kit()
    kit.w.grad_enabled = False
    out = kit.T("utils.checkpoint.checkpoint", _body(kit, []), kit.tensor(4), use_reentrant=False)
    assert out.is_leaf


def test_recomputation_casts_weights_again() -> None:
    kit = Kit()
    weight = kit.parameter(SIDE, SIDE)
    context = Autocast("cuda", dtypes.bfloat16)
    context.enter(kit.w)
    x = kit.hidden(8, SIDE)
    out = kit.T(
        "utils.checkpoint.checkpoint",
        lambda t: kit.F("gelu", kit.F("linear", t, weight)), x, use_reentrant=False,
    )  # fmt: skip
    context.leave(kit.w)
    kit.M("backward", kit.T("sum", out))
    assert weight.grad is not None
    assert weight.grad.dtype is dtypes.float32
    assert kit.w.autocast_dtype is None
    assert kit.w.save_policies == []


def test_nothing_survives_a_recomputation() -> None:
    gc.collect()
    gc.disable()
    try:
        kit = Kit()
        x = kit.hidden(SIDE, SIDE)
        out = kit.T("utils.checkpoint.checkpoint", _body(kit, []), x, use_reentrant=False)
        kit.M("backward", kit.T("sum", out))
        del out, x
        kit.inputs.clear()
        assert kit.allocated == 0
    finally:
        gc.enable()


def test_checkpoint_sequential_checkpoints_all_segments_but_the_last() -> None:
    kit = Kit()
    x = kit.hidden(SIDE, SIDE)
    layers = [lambda t: kit.T("exp", t) for _ in range(4)]
    before = kit.allocated
    out = kit.T("utils.checkpoint.checkpoint_sequential", layers, 2, x, use_reentrant=False)
    # Both results of the second segment are kept; that of the first nobody needs.
    assert kit.allocated == before + 2 * MIB
    kit.M("backward", kit.T("sum", out))
    assert kit.inputs[0].grad is not None


def test_saved_tensors_can_wait_on_the_host() -> None:
    kit = Kit()
    x = kit.hidden(SIDE, SIDE)
    before = kit.allocated
    context = kit.T("autograd.graph.save_on_cpu")
    context.enter(kit.w)
    out = _body(kit, [])(x)
    context.leave(kit.w)
    assert kit.allocated == before + out.bytes
    kit.M("backward", kit.T("sum", out))
    assert kit.inputs[0].grad is not None


def test_hooks_of_the_program_keep_what_they_return() -> None:
    kit = Kit()
    x = kit.hidden(SIDE, SIDE)
    seen: list[str] = []

    def pack(tensor: Tensor) -> object:
        seen.append("pack")
        return kit.M("to", tensor, dtypes.bfloat16)

    def unpack(packed: object) -> object:
        seen.append("unpack")
        return kit.M("to", packed, dtypes.float32)

    context = kit.T("autograd.graph.saved_tensors_hooks", pack, unpack)
    context.enter(kit.w)
    out = kit.T("sum", kit.T("exp", x))
    context.leave(kit.w)
    kit.M("backward", out)
    assert seen == ["pack", "unpack"]
    assert kit.inputs[0].grad is not None

"""`torch.autograd.Function` of the program: what is kept, what runs without recording, what comes back."""

from __future__ import annotations

import gc

import pytest
from tests.memory_model.runtime_kit import Kit, graph_bytes

from torchwise_memory.runtime.custom import FunctionContext, apply_function
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor

SIDE = 512
MIB = 1 << 20


def _squared(kit: Kit, x: Tensor, results: int = 2) -> Tensor:
    def forward(context: FunctionContext) -> object:
        context.to_save = (x,)
        context.fields["factor"] = 2.0
        return kit.T("mul", kit.T("exp", x), x)

    def backward(context: FunctionContext, gradients: tuple[Tensor | None, ...]) -> object:
        (kept,) = context.saved_tensors
        gradient = kit.T("mul", kit.T("mul", gradients[0], kept), context.fields["factor"])
        return (gradient, *(None for _ in range(results - 1)))

    result = apply_function(kit.w, "Squared", (x, 3), forward, backward)
    assert isinstance(result, Tensor)
    return result


def test_only_what_was_given_to_save_for_backward_is_kept() -> None:
    kit = Kit()
    x = kit.hidden(SIDE, SIDE)
    before = kit.allocated
    out = _squared(kit, x)
    assert kit.allocated == before + out.bytes
    assert out.node is not None
    assert graph_bytes(out, kit.inputs) == MIB


def test_the_gradient_of_the_program_reaches_the_leaf() -> None:
    kit = Kit()
    kit.M("backward", kit.T("sum", _squared(kit, kit.hidden(SIDE, SIDE))))
    assert kit.inputs[0].grad is not None


def test_too_few_results_are_refused() -> None:
    kit = Kit()
    loss = kit.T("sum", _squared(kit, kit.hidden(4), results=1))
    with pytest.raises(Unsupported, match="1 results for 2 arguments"):
        kit.M("backward", loss)


def test_without_gradients_there_is_no_node() -> None:
    kit = Kit()
    assert _squared(kit, kit.tensor(4)).is_leaf


def test_an_argument_that_is_returned_becomes_a_tensor_of_its_own() -> None:
    kit = Kit()
    x = kit.hidden(4)
    old = x.node
    out = apply_function(kit.w, "Identity", (x,), lambda context: x, lambda context, gradients: gradients[0])
    assert out is not x
    assert x.node is old
    assert isinstance(out, Tensor)
    assert out.storage is x.storage


def test_nothing_is_left_when_the_graph_is_gone() -> None:
    gc.collect()
    gc.disable()
    try:
        kit = Kit()
        out = _squared(kit, kit.hidden(SIDE, SIDE))
        kit.M("backward", kit.T("sum", out))
        del out
        kit.inputs.clear()
        assert kit.allocated == 0
    finally:
        gc.enable()

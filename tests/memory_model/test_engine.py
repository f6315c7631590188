"""The rules of the backward engine, each seen in what is allocated."""

from __future__ import annotations

import pytest
from tests.memory_model.runtime_kit import Kit

from torchwise_memory.report import Phase
from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.errors import OutOfFuel, Unsupported
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tape import record
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

MIB = 1 << 20
SIDE = 512  # a fp32 square of this side is one MiB


@pytest.fixture
def kit() -> Kit:
    return Kit()


def _square(kit: Kit) -> Tensor:
    return kit.tensor(SIDE, SIDE, requires_grad=True)


def _births(kit: Kit) -> list[str]:
    return [record.operator for record in kit.w.ledger.alive_at(kit.w.ledger.sequence)]


def _backward_operators(kit: Kit, root: Tensor, gradient: Tensor | None = None) -> list[str]:
    """Names of what is born on the card during backward, in order."""
    born: list[str] = []
    real = kit.w.ledger.birth

    def birth(size: int, operator: str, *rest: object) -> object:
        born.append(operator)
        return real(size, operator, *rest)  # type: ignore[arg-type]

    kit.w.ledger.birth = birth  # type: ignore[method-assign, assignment]
    kit.M("backward", root, gradient)
    del kit.w.ledger.birth
    return born


def test_saved_tensors_go_as_soon_as_their_node_has_run(kit: Kit) -> None:
    x = _square(kit)
    y = kit.T("exp", kit.T("exp", kit.T("exp", x)))
    loss = kit.T("sum", y)
    del y
    assert kit.allocated == 4 * MIB + 4
    kit.w.ledger.watch()
    kit.M("backward", loss)
    # First step: three saved results and one new gradient beside x; each further step lets one result go.
    assert kit.w.ledger.peak_bytes == 5 * MIB + 8
    assert kit.allocated == 2 * MIB + 4


def test_a_dense_gradient_nobody_else_holds_becomes_grad_without_a_copy(kit: Kit) -> None:
    x = _square(kit)
    born = _backward_operators(kit, kit.T("sum", kit.T("exp", x)))
    assert born == ["ones_like", "exp_backward"]
    assert x.grad is not None
    assert x.grad.storage.record is not None
    assert x.grad.storage.record.kind is StorageKind.GRADIENTS


def test_a_gradient_that_two_leaves_share_is_copied_for_the_first(kit: Kit) -> None:
    a, b = _square(kit), _square(kit)
    total = kit.T("add", a, b)
    born = _backward_operators(kit, total, kit.tensor(SIDE, SIDE))
    assert born == ["grad", "grad"]  # the caller holds the gradient too
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.storage is not b.grad.storage


def test_the_second_of_two_sharing_leaves_takes_the_gradient_over(kit: Kit) -> None:
    a, b = _square(kit), _square(kit)
    born = _backward_operators(kit, kit.T("sum", kit.T("exp", kit.T("add", a, b))))
    assert born == ["ones_like", "exp_backward", "grad"]


def test_an_expanded_gradient_is_copied(kit: Kit) -> None:
    x = _square(kit)
    assert _backward_operators(kit, kit.T("sum", x)) == ["ones_like", "grad"]
    assert x.grad is not None
    assert x.grad.is_contiguous


def test_a_gradient_in_another_layout_than_its_leaf_is_copied(kit: Kit) -> None:
    x = _square(kit)
    y = kit.T("exp", kit.M("contiguous", kit.M("transpose", x, 0, 1)))
    assert _backward_operators(kit, kit.T("sum", y)) == ["ones_like", "exp_backward", "grad"]
    assert x.grad is not None
    assert x.grad.strides == x.strides


def test_the_gradient_of_a_weight_used_transposed_comes_in_its_layout(kit: Kit) -> None:
    weight, x = _square(kit), kit.tensor(SIDE, SIDE)
    product = kit.T("matmul", x, kit.M("t", weight))
    assert "grad" not in _backward_operators(kit, kit.T("sum", kit.T("exp", product)))


def test_two_gradients_are_added_in_place_of_a_dying_one(kit: Kit) -> None:
    x = _square(kit)
    h = kit.T("exp", x)
    loss = kit.T("sum", kit.T("add", kit.T("exp", h), kit.T("sin", h)))
    born = _backward_operators(kit, loss)
    assert "grad sum" not in born


def test_two_gradients_that_others_hold_are_added_into_a_third(kit: Kit) -> None:
    x, other = _square(kit), _square(kit)
    h = kit.T("exp", x)
    # Both gradients of h are the very gradient of the sum, and `other` waits for it as well.
    loss = kit.T("add", kit.T("add", h, h), other)
    born = _backward_operators(kit, loss, kit.tensor(SIDE, SIDE))
    assert born.count("grad sum") == 1


def test_a_leaf_used_twice_gets_grad_after_its_last_use(kit: Kit) -> None:
    x = _square(kit)
    ready: list[int] = []
    kit.w.gradient_ready.append(lambda w, leaf: ready.append(w.ledger.sequence))
    kit.M("backward", kit.T("sum", kit.T("mul", kit.T("exp", x), kit.T("sin", x))))
    assert len(ready) == 1


def test_later_operators_run_first(kit: Kit) -> None:
    order: list[str] = []

    def step(name: str, *inputs: Tensor) -> Tensor:
        result = kit.tensor(4)

        def back(w: World, saved: object, gradients: object) -> list[Tensor | None]:
            order.append(name)
            return [w.new((4,), dtypes.float32, name) for _ in inputs]

        record(kit.w, name, inputs, (), back, result)
        return result

    x = kit.tensor(4, requires_grad=True)
    first = step("first", x)
    second = step("second", x)
    third = step("third", x)
    kit.M("backward", step("join", third, first, second), kit.tensor(4))
    assert order == ["join", "third", "second", "first"]


def test_gradients_are_cast_to_the_type_of_the_forward_input(kit: Kit) -> None:
    weight = kit.parameter(SIDE, SIDE)
    context = Autocast("cuda", dtypes.bfloat16)
    context.enter(kit.w)
    loss = kit.T("sum", kit.F("linear", kit.tensor(SIDE, SIDE), weight))
    context.leave(kit.w)
    born = _backward_operators(kit, loss)
    assert weight.grad is not None
    assert weight.grad.dtype is dtypes.float32
    assert born[-2:] == ["linear_dw", "to"]


def test_gradients_of_broadcast_inputs_are_summed_after_the_operator(kit: Kit) -> None:
    x, row = kit.tensor(SIDE, SIDE), kit.tensor(SIDE, requires_grad=True)
    born = _backward_operators(kit, kit.T("sum", kit.T("mul", x, row)))
    assert born == ["ones_like", "mul", "sum_to"]
    assert row.grad is not None
    assert row.grad.shape == (SIDE,)


def test_gradients_accumulate_into_what_is_there(kit: Kit) -> None:
    x = _square(kit)
    kit.M("backward", kit.T("sum", kit.T("exp", x)))
    first = x.grad
    kit.M("backward", kit.T("sum", kit.T("exp", x)))
    assert x.grad is first
    assert kit.allocated == 2 * MIB


def test_a_second_backward_over_a_freed_graph_is_refused(kit: Kit) -> None:
    loss = kit.T("sum", kit.T("exp", _square(kit)))
    kit.M("backward", loss)
    with pytest.raises(Unsupported, match="retain_graph"):
        kit.M("backward", loss)


def test_a_retained_graph_keeps_what_it_saved(kit: Kit) -> None:
    x = _square(kit)
    loss = kit.T("sum", kit.T("exp", x))
    kit.M("backward", loss, retain_graph=True)
    assert kit.allocated == 3 * MIB + 4
    kit.M("backward", loss)
    assert kit.allocated == 2 * MIB + 4


def test_gradients_of_gradients_are_refused(kit: Kit) -> None:
    loss = kit.T("sum", _square(kit))
    with pytest.raises(Unsupported, match="create_graph"):
        kit.M("backward", loss, create_graph=True)


def test_backward_from_many_elements_needs_a_gradient(kit: Kit) -> None:
    with pytest.raises(Unsupported, match="no gradient given"):
        kit.M("backward", kit.T("exp", _square(kit)))


def test_backward_without_a_graph_is_refused(kit: Kit) -> None:
    with pytest.raises(Unsupported, match="does not require a gradient"):
        kit.M("backward", kit.T("sum", kit.tensor(4)))


def test_autograd_grad_leaves_grad_alone(kit: Kit) -> None:
    x, y = _square(kit), _square(kit)
    h = kit.T("exp", x)
    loss = kit.T("sum", kit.T("mul", h, y))
    (dh, dx) = kit.T("autograd.grad", loss, [h, x])
    assert dh.shape == dx.shape == (SIDE, SIDE)
    assert x.grad is None
    assert y.grad is None


def test_autograd_grad_of_something_unused_needs_permission(kit: Kit) -> None:
    x, y = _square(kit), _square(kit)
    with pytest.raises(Unsupported, match="not used"):
        kit.T("autograd.grad", kit.T("sum", x), [y])
    assert kit.T("autograd.grad", kit.T("sum", x), [y], allow_unused=True) == (None,)


def test_backward_with_inputs_accumulates_only_there(kit: Kit) -> None:
    x, y = _square(kit), _square(kit)
    kit.M("backward", kit.T("sum", kit.T("mul", x, y)), inputs=[x])
    assert x.grad is not None
    assert y.grad is None


def test_hooks_see_and_replace_gradients(kit: Kit) -> None:
    x = _square(kit)
    h = kit.T("exp", x)
    seen: list[tuple[str, tuple[int, ...]]] = []
    kit.M("register_hook", h, lambda w, g: seen.append(("inside", g.shape)))
    kit.M("register_hook", x, lambda w, g: w.like(g, "clipped"))
    kit.M("register_post_accumulate_grad_hook", x, lambda w, leaf: seen.append(("after", leaf.grad.shape)))
    kit.M("retain_grad", h)
    kit.M("backward", kit.T("sum", h))
    assert seen == [("inside", (SIDE, SIDE)), ("after", (SIDE, SIDE))]
    assert h.grad is not None
    assert x.grad is not None
    assert x.grad.storage.record is not None
    assert x.grad.storage.record.operator == "clipped"


def test_the_phase_is_backward_inside_and_what_it_was_outside(kit: Kit) -> None:
    phases: list[Phase] = []
    x = _square(kit)
    kit.w.gradient_ready.append(lambda w, leaf: phases.append(w.phase))
    kit.w.phase = Phase.OPTIMIZER
    kit.M("backward", kit.T("sum", x))
    assert phases == [Phase.BACKWARD]
    assert kit.w.phase is Phase.OPTIMIZER


def test_each_thread_takes_its_cublas_workspace_once(kit: Kit) -> None:
    weight = kit.parameter(8, 8)
    for _ in range(2):
        kit.M("backward", kit.T("sum", kit.F("linear", kit.tensor(8, 8), weight)))
    spaces = [r for r in kit.w.ledger.live.values() if r.operator == "cublas workspace"]
    assert [space.bytes for space in spaces] == [8_519_680, 8_519_680]


def test_fuel_runs_out_loudly() -> None:
    w = World(fuel=3)
    for _ in range(3):
        w.new((1,), dtypes.float32, "test")
    with pytest.raises(OutOfFuel):
        w.new((1,), dtypes.float32, "test")

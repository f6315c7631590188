"""In-place operators and views: storages kept, producers re-based, needed inputs cloned."""

from __future__ import annotations

import pytest
from tests.memory_model.runtime_kit import Kit, graph_bytes

from torchwise_memory.runtime.contexts import GradMode
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor

SIDE = 512
MIB = 1 << 20


@pytest.fixture
def kit() -> Kit:
    return Kit()


def _hidden(kit: Kit) -> Tensor:
    return kit.hidden(SIDE, SIDE)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "selu", "celu"])
def test_formulas_of_the_output_add_nothing_in_place(kit: Kit, name: str) -> None:
    h = _hidden(kit)
    before = kit.allocated
    assert kit.F(name, h, inplace=True) is h
    assert kit.allocated == before
    assert graph_bytes(h, kit.inputs) == MIB


@pytest.mark.parametrize("name", ["silu", "mish", "hardswish", "hardtanh", "relu6", "hardsigmoid"])
def test_formulas_of_the_input_clone_it_first(kit: Kit, name: str) -> None:
    h = _hidden(kit)
    before = kit.allocated
    assert kit.F(name, h, inplace=True) is h
    assert kit.allocated == before + MIB


def test_without_a_graph_nothing_is_cloned(kit: Kit) -> None:
    h = kit.tensor(SIDE, SIDE)
    before = kit.allocated
    kit.F("silu", h, inplace=True)
    assert kit.allocated == before
    assert h.is_leaf


def test_the_producer_is_rebased(kit: Kit) -> None:
    h, other = _hidden(kit), _hidden(kit)
    old = h.node
    kit.M("add_", h, other)
    assert h.node is not old
    assert h.node is not None
    assert h.node.edges[0] == (old, 0)


def test_a_tensor_without_graph_joins_the_one_of_what_is_added(kit: Kit) -> None:
    plain = kit.tensor(SIDE, SIDE)
    kit.M("add_", plain, _hidden(kit))
    assert plain.requires_grad
    assert not plain.is_leaf


def test_a_leaf_that_trains_may_not_change_in_place(kit: Kit) -> None:
    with pytest.raises(Unsupported, match="leaf"):
        kit.M("add_", kit.parameter(4), 1)
    with pytest.raises(Unsupported, match="view of a leaf"):
        kit.M("zero_", kit.M("__getitem__", kit.parameter(4, 4), 0))


def test_without_gradients_a_leaf_may_change_in_place(kit: Kit) -> None:
    weight = kit.parameter(4)
    mode = GradMode(False)
    mode.enter(kit.w)
    kit.M("mul_", weight, 0.9)
    mode.leave(kit.w)
    assert weight.is_leaf


def test_a_view_shares_its_storage_and_knows_its_base(kit: Kit) -> None:
    h = _hidden(kit)
    before = kit.allocated
    view = kit.M("transpose", kit.M("view", h, 16, 32, SIDE), 0, 1)
    assert view.storage is h.storage
    assert view.base is h
    assert kit.allocated == before


def test_writing_to_a_part_rebases_the_whole(kit: Kit) -> None:
    h, part = _hidden(kit), _hidden(kit)
    old = h.node
    kit.M(
        "__setitem__", h, (slice(None), slice(0, 8)), kit.M("__getitem__", part, (slice(None), slice(0, 8)))
    )
    assert h.node is not None
    assert h.node.name == "CopySlices"
    assert h.node.edges[0] == (old, 0)
    kit.M("backward", kit.T("sum", kit.T("exp", h)))
    assert all(leaf.grad is not None for leaf in kit.inputs)


def test_views_that_strides_do_not_allow_are_refused_or_copied(kit: Kit) -> None:
    turned = kit.M("transpose", _hidden(kit), 0, 1)
    with pytest.raises(Unsupported, match="cannot be seen"):
        kit.M("view", turned, -1)
    before = kit.allocated
    flat = kit.M("reshape", turned, -1)
    assert kit.allocated == before + MIB
    assert flat.storage is not turned.storage


def test_contiguous_copies_only_where_it_must(kit: Kit) -> None:
    h = _hidden(kit)
    assert kit.M("contiguous", h) is h
    assert kit.M("contiguous", kit.M("transpose", h, 0, 1)).storage is not h.storage


def test_detach_and_data_cut_the_graph_and_share_the_storage(kit: Kit) -> None:
    h = _hidden(kit)
    cut = kit.M("detach", h)
    assert cut.storage is h.storage
    assert cut.is_leaf
    assert not cut.requires_grad


def test_channels_last_survives_pointwise_operators_and_convolutions(kit: Kit) -> None:
    image = kit.M("contiguous", kit.tensor(2, 8, 4, 4), memory_format="torch.channels_last")
    assert image.strides == (128, 1, 32, 8)
    out = kit.F("relu", kit.F("conv2d", image, kit.parameter(16, 8, 3, 3), padding=1))
    assert out.strides == (256, 1, 64, 16)


def test_dropout_in_place_keeps_noise_of_its_own_type(kit: Kit) -> None:
    h = _hidden(kit)
    before = kit.allocated
    kit.F("dropout", h, 0.1, True, True)
    assert kit.allocated == before + MIB


def test_cpu_tensors_take_nothing_of_the_card(kit: Kit) -> None:
    x = kit.T("randn", 64, 64, requires_grad=True)
    kit.M("backward", kit.T("sum", kit.T("matmul", x, x)))
    assert kit.allocated == 0
    moved = kit.M("to", x, "cuda")
    assert kit.allocated == moved.bytes == 64 * 64 * 4


def test_operands_on_two_devices_are_refused(kit: Kit) -> None:
    with pytest.raises(Unsupported, match="different devices"):
        kit.T("add", kit.T("randn", 4), kit.tensor(4))

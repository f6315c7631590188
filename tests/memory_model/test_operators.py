"""What operators refuse, which type autocast gives them, and how arguments reach them."""

from __future__ import annotations

import pytest
from tests.memory_model.runtime_kit import Kit

from torchwise_memory.library import FUNCTIONS, METHODS
from torchwise_memory.operators.registry import REQUIRED
from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor

BF16, FP32 = dtypes.bfloat16, dtypes.float32


def _amp(kit: Kit) -> None:
    Autocast("cuda", BF16).enter(kit.w)


# Classes of `aten/src/ATen/autocast_mode.h` in PyTorch 2.13.
@pytest.mark.parametrize("name", ["mm", "matmul"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_products_run_in_half_under_autocast(name: str, dtype: DType) -> None:
    kit = Kit()
    _amp(kit)
    assert kit.T(name, kit.tensor(4, 4, dtype=dtype), kit.tensor(4, 4)).dtype is BF16


@pytest.mark.parametrize(
    "name",
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "sum",
        "prod",
    ],
)
def test_the_fp32_class_widens_half_operands(name: str) -> None:
    kit = Kit()
    _amp(kit)
    assert kit.T(name, kit.tensor(4, 4, dtype=BF16)).dtype is FP32


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cumsum", "cumprod", "logsumexp"])
def test_the_fp32_class_with_a_dimension(name: str) -> None:
    kit = Kit()
    _amp(kit)
    assert kit.T(name, kit.tensor(4, 4, dtype=BF16), -1).dtype is FP32


@pytest.mark.parametrize(
    "name", ["relu", "sigmoid", "tanh", "sqrt", "abs", "neg", "mean", "amax", "clone", "cos", "sin"]
)
def test_everything_else_keeps_its_type(name: str) -> None:
    kit = Kit()
    _amp(kit)
    assert kit.T(name, kit.tensor(4, 4, dtype=BF16)).dtype is BF16


@pytest.mark.parametrize("name", ["gelu", "silu", "relu", "dropout", "leaky_relu", "hardswish"])
def test_activations_keep_their_type(name: str) -> None:
    kit = Kit()
    _amp(kit)
    assert kit.F(name, kit.tensor(4, 4, dtype=BF16)).dtype is BF16


def test_half_precision_softmax_of_fp16_is_widened_inside_the_kernel() -> None:
    sizes = []
    for dtype in (dtypes.float16, BF16):
        kit = Kit()
        x = kit.tensor(64, 64, dtype=dtype)
        kit.w.ledger.watch()
        kit.F("softmax", x, -1, dtype=FP32)
        sizes.append(kit.w.ledger.peak_bytes - x.bytes)
    assert sizes == [64 * 64 * 4, 2 * 64 * 64 * 4]


def test_joining_takes_the_widest_type() -> None:
    kit = Kit()
    _amp(kit)
    assert kit.T("cat", [kit.tensor(4), kit.tensor(4, dtype=BF16)]).dtype is FP32


def test_weights_are_cast_once_a_region_and_frozen_ones_at_every_use() -> None:
    kit = Kit()
    context = Autocast("cuda", BF16)
    context.enter(kit.w)
    x = kit.tensor(8, 64, dtype=BF16)
    trained, frozen = kit.parameter(64, 64), kit.parameter(64, 64, requires_grad=False)
    born: list[int] = []
    for weight in (trained, trained, frozen, frozen):
        before = kit.w.fuel
        kit.F("linear", x, weight)
        born.append(before - kit.w.fuel)
    # A cast and a product; the second use of the trained weight has only the product.
    assert born == [2, 1, 2, 2]
    assert len(kit.w.autocast_cache) == 1
    context.leave(kit.w)
    assert kit.w.autocast_cache == {}


def test_a_nested_region_that_is_off_does_nothing_and_keeps_the_cache() -> None:
    kit = Kit()
    outer, inner = Autocast("cuda", BF16), Autocast("cuda", None)
    outer.enter(kit.w)
    weight = kit.parameter(4, 4)
    kit.F("linear", kit.tensor(4, 4), weight)
    inner.enter(kit.w)
    assert kit.F("linear", kit.tensor(4, 4), weight).dtype is FP32
    inner.leave(kit.w)
    assert len(kit.w.autocast_cache) == 1
    outer.leave(kit.w)


def test_binary_cross_entropy_is_refused_under_autocast() -> None:
    kit = Kit()
    _amp(kit)
    with pytest.raises(Unsupported, match="unsafe under autocast"):
        kit.F("binary_cross_entropy", kit.tensor(4), kit.tensor(4))


def test_frozen_layers_keep_what_the_rest_needs_and_no_more() -> None:
    kit = Kit()
    x = kit.hidden(64, 64)
    before = kit.allocated
    frozen = kit.F("linear", x, kit.parameter(64, 64, requires_grad=False))
    assert frozen.node is not None
    assert [slot is not None for slot in frozen.node.saved or ()] == [False, True]
    trained = kit.F("linear", kit.tensor(64, 64), kit.parameter(64, 64))
    assert [slot is not None for slot in trained.node.saved or ()] == [True, False]
    assert kit.allocated > before


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("torch.matmul", [(2, 3), (4, 5)]),
        ("torch.add", [(2, 3), (4,)]),
        ("torch.nn.functional.linear", [(2, 3), (4, 5)]),
        ("torch.nn.functional.conv2d", [(1, 3, 8, 8), (4, 2, 3, 3)]),
        ("torch.nn.functional.layer_norm", [(2, 3)]),
        ("torch.bmm", [(2, 3, 4), (3, 4, 5)]),
    ],
)
def test_shapes_that_torch_refuses_are_refused(name: str, shapes: list[tuple[int, ...]]) -> None:
    kit = Kit()
    args: list[object] = [kit.tensor(*shape) for shape in shapes]
    if name.endswith("layer_norm"):
        args.append((4,))
    with pytest.raises(Unsupported, match=r"torch raises here|do not broadcast"):
        FUNCTIONS[name].invoke(kit.w, args, {})


def test_operands_of_two_types_are_refused_by_products() -> None:
    kit = Kit()
    with pytest.raises(Unsupported, match="types"):
        kit.F("linear", kit.tensor(2, 4), kit.tensor(4, 4, dtype=BF16))


def test_arguments_that_the_signature_does_not_take_are_refused_by_name() -> None:
    kit = Kit()
    with pytest.raises(Unsupported, match=r"torch\.nn\.functional\.gelu: arguments not understood"):
        kit.F("gelu", kit.tensor(4), rounding="up")


def test_numpy_names_of_parameters_are_understood() -> None:
    kit = Kit()
    assert kit.T("sum", kit.tensor(2, 3), axis=1, keepdims=True).shape == (2, 1)


def test_sizes_may_be_given_as_numbers_a_tuple_or_by_keyword() -> None:
    kit = Kit()
    shapes = [
        kit.T("zeros", 2, 3),
        kit.T("zeros", (2, 3)),
        kit.T("zeros", size=(2, 3)),
        kit.M("view", kit.tensor(6), 2, 3),
    ]
    assert {tuple(tensor.shape) for tensor in shapes} == {(2, 3)}


def test_tables_describe_signatures() -> None:
    params = FUNCTIONS["torch.nn.functional.layer_norm"].params
    assert [param.name for param in params] == ["input", "normalized_shape", "weight", "bias", "eps"]
    assert params[0].default is REQUIRED
    assert params[-1].default == 1e-05
    assert METHODS["view"].params[-1].kind == "VAR_POSITIONAL"


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4)),
        ("bhqd,bhkd->bhqk", [(2, 4, 5, 8), (2, 4, 6, 8)], (2, 4, 5, 6)),
        ("...ij,...jk", [(2, 3, 4), (2, 4, 5)], (2, 3, 5)),
        ("ii->i", [(3, 3)], (3,)),
        ("ij->", [(3, 3)], ()),
        ("bi,bj,bk->bijk", [(2, 3), (2, 4), (2, 5)], (2, 3, 4, 5)),
        ("nchw,kc->nkhw", [(2, 3, 4, 5), (6, 3)], (2, 6, 4, 5)),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], expected: tuple[int, ...]) -> None:
    kit = Kit()
    operands = [kit.tensor(*shape, requires_grad=True) for shape in shapes]
    result = kit.T("einsum", equation, *operands)
    assert tuple(result.shape) == expected
    kit.M("backward", kit.T("sum", result))
    assert all(operand.grad is not None and operand.grad.shape == operand.shape for operand in operands)


def test_masks_pick_everything_and_the_answer_says_so() -> None:
    kit = Kit()
    picked = kit.M("__getitem__", kit.tensor(4, 8), kit.tensor(4, dtype=dtypes.boolean))
    assert picked.shape == (4, 8)
    assert any("mask" in sentence for sentence in kit.w.assumptions)


def test_many_indices_are_sorted_in_the_embedding_backward() -> None:
    peaks = []
    for count in (1000, 4000):
        kit = Kit()
        table = kit.parameter(100, 64)
        loss = kit.T("sum", kit.F("embedding", kit.tensor(count, dtype=dtypes.int64), table))
        kit.w.ledger.watch()
        kit.M("backward", loss)
        births = kit.w.ledger.sequence
        peaks.append(births)
        assert isinstance(table.grad, Tensor)
    assert peaks[1] > peaks[0]

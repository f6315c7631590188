"""Small CPU tensors know their elements: constructors compute widths and schedules with them."""

from __future__ import annotations

import pytest
from tests.memory_model.runtime_kit import Kit
from tests.memory_model.torch_like import Like, Namespace

from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.unknown import UnknownItems, UnknownScalar


@pytest.mark.parametrize(
    ("expression", "elements"),
    [
        ("torch.arange(5)", [0, 1, 2, 3, 4]),
        ("torch.arange(1, 2, 0.25)", [1.0, 1.25, 1.5, 1.75]),
        ("torch.linspace(0, 1, 5)", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("torch.linspace(0, 0.2, sum([2, 1]))", [0.0, 0.1, 0.2]),
        ("torch.zeros(3)", [0.0, 0.0, 0.0]),
        ("torch.full((2,), 7)", [7, 7]),
        ("torch.tensor([[1, 2], [3, 4]])", [[1, 2], [3, 4]]),
        ("torch.tensor([[1, 2], [3, 4]]).T", [[1, 3], [2, 4]]),
        ("torch.tensor([[1, 2], [3, 4]])[1]", [3, 4]),
        ("torch.tensor([[1, 2], [3, 4]])[:, 1]", [2, 4]),
        ("torch.tensor([[1, 2], [3, 4]]).reshape(-1)", [1, 2, 3, 4]),
        ("torch.arange(4) * 2 + 1", [1, 3, 5, 7]),
        ("2 ** torch.arange(4)", [1, 2, 4, 8]),
        ("1 / torch.arange(1, 3)", [1.0, 0.5]),
        ("torch.arange(3)[:, None] + torch.arange(2)", [[0, 1], [1, 2], [2, 3]]),
        ("torch.arange(3) < 2", [True, True, False]),
        ("~(torch.arange(3) < 2)", [False, False, True]),
        ("torch.tensor([1.6, 2.4]).round().int()", [2, 2]),
        ("torch.exp(torch.zeros(2))", [1.0, 1.0]),
        ("torch.arange(5).flip(0)", [4, 3, 2, 1, 0]),
        ("torch.arange(5).cumsum(0)", [0, 1, 3, 6, 10]),
        ("torch.arange(6)[torch.tensor([1, 3])]", [1, 3]),
        ("torch.cat([torch.arange(2), torch.arange(3)])", [0, 1, 0, 1, 2]),
        ("torch.where(torch.arange(3) > 1, 5, 0)", [0, 0, 5]),
        ("torch.clamp(torch.arange(5), 1, 3)", [1, 1, 2, 3, 3]),
        ("torch.diff(torch.tensor([1, 4, 9]))", [3, 5]),
        ("torch.arange(3).repeat(2)", [0, 1, 2, 0, 1, 2]),
        ("torch.arange(4).view(2, 2).t().contiguous()", [[0, 2], [1, 3]]),
    ],
)
def test_elements(expression: str, elements: object) -> None:
    kit = Kit()
    result = eval(expression, {"torch": Namespace(kit.w, "torch"), "sum": sum})
    assert isinstance(result, Like)
    assert result.tolist() == pytest.approx(elements) if _is_flat(elements) else result.tolist() == elements


def _is_flat(elements: object) -> bool:
    return isinstance(elements, list) and all(isinstance(element, float) for element in elements)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("torch.tensor(3).item()", 3),
        ("torch.arange(5).sum().item()", 10),
        ("torch.linspace(0, 1, 3).mean().item()", 0.5),
        ("torch.arange(5).max().item()", 4),
        ("torch.arange(5).prod().item()", 0),
        ("(torch.arange(3) == 1).any().item()", True),
        ("(torch.arange(3) == 1).all().item()", False),
        ("torch.arange(5).argmax().item()", 4),
    ],
)
def test_single_elements(expression: str, value: object) -> None:
    kit = Kit()
    assert eval(expression, {"torch": Namespace(kit.w, "torch")}) == value


def test_elements_on_the_card_are_never_known() -> None:
    kit = Kit()
    one = kit.tensor()
    assert isinstance(kit.M("item", one), UnknownScalar)
    assert isinstance(kit.M("tolist", kit.tensor(2, 3)), UnknownItems)
    assert isinstance(kit.M("item", kit.M("cuda", kit.T("tensor", 3))), UnknownScalar)


def test_an_unknown_number_may_be_an_operand_but_never_an_extent() -> None:
    kit = Kit()
    number = kit.M("item", kit.tensor())
    assert kit.T("mul", kit.tensor(4), number).shape == (4,)
    with pytest.raises(Unsupported, match="extent is not known"):
        kit.T("zeros", number)


def test_writing_in_place_forgets_what_is_not_known_any_more() -> None:
    kit = Kit()
    x = kit.T("arange", 4)
    kit.M("__setitem__", x, 0, 9)
    assert isinstance(kit.M("tolist", x), UnknownItems)
    y = kit.T("arange", 4)
    view = kit.M("__getitem__", y, slice(0, 2))
    kit.M("add_", view, 1)
    assert isinstance(kit.M("tolist", y), UnknownItems)
    kit.M("fill_", y, 3)
    assert kit.M("tolist", y) == [3, 3, 3, 3]


def test_large_tensors_carry_no_elements() -> None:
    kit = Kit()
    assert kit.T("arange", 5000).storage.values is None
    assert kit.T("arange", 5000).shape == (5000,)

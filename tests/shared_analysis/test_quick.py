"""Records are what frozen dataclasses are, to everybody who does not write to them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from torchwise_analysis import quick
from torchwise_analysis.quick import record


@dataclass(frozen=True, slots=True)
class PlainBase:
    one: int


@dataclass(frozen=True, slots=True)
class Plain(PlainBase):
    two: tuple[int, ...] = (2,)
    three: list[int] = field(default_factory=list[int])


@record(frozen=True, slots=True)
class QuickBase:
    one: int


@record(frozen=True, slots=True)
class Quick(QuickBase):
    two: tuple[int, ...] = (2,)
    three: list[int] = field(default_factory=list[int])


@record(frozen=True, slots=True)
class Nothing:
    pass


@record(frozen=True, slots=True, eq=False)
class Thing:
    one: int


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, (3,)), {}),
    ((1,), {"three": [4]}),
    ((), {"one": 1, "two": (), "three": []}),
]


@pytest.mark.parametrize(("positional", "keywords"), ARGUMENTS)
def test_a_record_holds_what_a_dataclass_holds(positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    plain, made = Plain(*positional, **keywords), Quick(*positional, **keywords)
    assert dataclasses.astuple(made) == dataclasses.astuple(plain)
    assert repr(made) == repr(plain).replace("Plain", "Quick")
    assert made == Quick(*positional, **keywords)
    assert made != cast("object", plain)
    assert [f.name for f in dataclasses.fields(made)] == [f.name for f in dataclasses.fields(plain)]
    assert Quick.__match_args__ == Plain.__match_args__


def test_wrong_arguments_are_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            Thing()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError):
            Thing(1, 2)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    assert Thing(1).one == 1
    assert list(inspect.signature(Thing.__init__).parameters)[1:] == ["one"]


def test_each_gets_a_list_of_its_own() -> None:
    first, second = Quick(1), Quick(1)
    first.three.append(5)
    assert second.three == []


def test_equal_records_have_equal_hashes_and_things_are_themselves() -> None:
    assert hash(QuickBase(1)) == hash(QuickBase(1)) == hash(PlainBase(1))
    assert Nothing() == Nothing() and hash(Nothing()) == hash(Nothing())
    assert QuickBase(1) != QuickBase(2)
    assert Thing(1) != Thing(1)


def test_replaced_copied_and_pickled() -> None:
    made = Quick(1, (7,))
    for replace in (quick.replace, dataclasses.replace):
        assert replace(made, one=3) == Quick(3, (7,))
        assert made.one == 1
    assert quick.replace(Plain(1), one=2) == Plain(2)
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_record_has_slots_alone() -> None:
    assert not hasattr(Quick(1), "__dict__")
    with pytest.raises(AttributeError):
        setattr(Quick(1), "other", 1)  # noqa: B010 - not for type checkers

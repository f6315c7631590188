"""Operators on constants give CPython's results, or refuse before they compute something huge."""

from __future__ import annotations

import operator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from torchwise_analysis.interp.core import constants

_SAME = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    "**": operator.pow,
}


@given(st.sampled_from(sorted(_SAME)), st.integers(-(2**40), 2**40), st.integers(-50, 50))
def test_integers_agree_with_cpython(op: str, left: int, right: int) -> None:
    try:
        expected = _SAME[op](left, right)
    except (ArithmeticError, ValueError) as error:
        with pytest.raises(type(error)):
            constants.binary(op, left, right)
        return
    assert constants.binary(op, left, right) == expected


@pytest.mark.parametrize(
    ("op", "left", "right"),
    [
        ("**", 10, 10**9),
        ("<<", 1, 10**9),
        ("*", "a", 10**9),
        ("*", 10**9, [0]),
        ("*", (1, 2), 10**12),
        ("%", "%999999999d", 1),
        ("%", "%*d", (10**9, 1)),
        ("*", 2**4000, 2**4000),
    ],
)
def test_results_out_of_bounds_are_refused(op: str, left: object, right: object) -> None:
    with pytest.raises(constants.TooLarge):
        constants.binary(op, left, right)


def test_ordinary_formatting_works() -> None:
    assert constants.binary("%", "epoch %03d of %s", (7, "ten")) == "epoch 007 of ten"


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [("in", 2, [1, 2], True), ("not in", "b", "abc", False), ("is", None, None, True), ("<", 1, 2, True)],
)
def test_comparisons(op: str, left: object, right: object, expected: bool) -> None:
    assert constants.compare(op, left, right) is expected

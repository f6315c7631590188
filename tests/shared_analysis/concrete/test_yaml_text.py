"""What the reader of settings refuses, and that it always ends."""

from __future__ import annotations

import pytest

from torchwise_analysis.interp.concrete.library import yaml_text
from torchwise_analysis.interp.concrete.values import Int


@pytest.mark.parametrize("text", ["[}", "{]", "[a}", "{a: b]", "[[}]", "x: [1, {a]}", "['a' b]"])
def test_brackets_that_do_not_match_are_refused(text: str) -> None:
    """`[}` once filled a list until the memory was gone."""
    with pytest.raises(ValueError, match="line 1"):
        yaml_text.load(text, "c.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[a,\n b,\n 'c\n d']", ["a", "b", "c d"]),
        ("x: 'one\n  two''s\n  three'", {"x": "one two's three"}),
        ('x: "one\n  \\"two\\"\n  three"', {"x": 'one "two" three'}),
        ("'a key' : 1\nb   : 2", {"a key": 1, "b": 2}),
        ("{a: 1, 'b': [2]}", {"a": 1, "b": [2]}),
        ('- {"a": 1}\n- -b: 2', [{"a": 1}, {"-b": 2}]),
        ("x: {a: [1, 2], b: {}}", {"x": {"a": [1, 2], "b": {}}}),
    ],
)
def test_what_goes_on_over_lines(text: str, value: object) -> None:
    assert yaml_text.load(text, "c.yaml") == value


def test_whole_numbers_know_where_each_stands() -> None:
    numbers = yaml_text.load("x: [8, 80, 8]", "c.yaml")
    assert isinstance(numbers, dict)
    places = [number.columns for number in numbers["x"] if isinstance(number, Int)]
    assert places == [(4, 5), (7, 9), (11, 12)]


@pytest.mark.parametrize(
    "text",
    [
        "x: [\n" + "1,\n" * 15_000,
        "x: '" + "a\n" * 15_000,
        'x: "' + "a\n" * 15_000,
        "a" + " " * 200_000 + "b",
        "x: [" + ", ".join(str(number) for number in range(60_000)) + "]",
        "[" * 200_000,
    ],
    ids=["open list", "open text", "open text in double quotes", "blanks", "numbers", "brackets"],
)
def test_large_texts_cost_by_their_size(text: str) -> None:
    """By the square of it, each of these would take minutes."""
    try:
        yaml_text.load(text, "c.yaml")
    except (ValueError, RecursionError) as error:
        assert str(error)


def test_a_text_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        yaml_text.load("x: " + "a" * (1 << 20), "c.yaml")

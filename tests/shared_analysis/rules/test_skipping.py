"""A batch run passes over files that by their text can hold nothing. Nothing may be lost by that."""

from __future__ import annotations

import pytest

from torchwise_analysis.engine import could_matter
from torchwise_analysis.rules import all_rules
from torchwise_analysis.rules._framework import Example
from torchwise_analysis.rules._snippets import parse

FAULTY = [
    pytest.param(example, id=f"{entry.rule.name}: {example.title}")
    for entry in all_rules()
    for example in entry.rule.all_examples
    if parse(example.code).expected
]


@pytest.mark.parametrize("example", FAULTY)
def test_a_file_with_a_finding_is_never_passed_over(example: Example) -> None:
    assert could_matter(parse(example.code).text)


@pytest.mark.parametrize(
    "text", ["", "import json\nprint(json.dumps({}))\n", "def step(x):\n    return x + 1\n"]
)
def test_a_file_without_any_word_of_training_is(text: str) -> None:
    assert not could_matter(text)

"""Texts on which LibCST fails in ways of its own are texts that do not parse."""

from __future__ import annotations

import pytest

from torchwise_analysis.source import Document


@pytest.mark.parametrize("text", ['""t""\n', 'x = "a" t"b"\n', 'f("a" t"{b}")\n'])
def test_strings_of_different_kinds(text: str) -> None:
    document = Document("a.py", f"y = 1\n{text}z = 2\n")
    assert document.module.line_count == 4
    document.replace(f"y = 1\n{text}z = 3\n")
    assert "3" in repr(document.module)

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from torchwise_server.reporters.excerpt import excerpt


def test_the_indentation_is_dropped() -> None:
    part = excerpt("        history.append(loss)", 23, 27, 80)
    assert part.text == "history.append(loss)"
    assert part.text[part.start : part.start + part.length] == "loss"


def test_wide_characters_are_measured_in_cells() -> None:
    part = excerpt("損失 = x", 5, 6, 80)
    assert (part.start, part.length) == (7, 1)


def test_tabs_inside_a_line_are_expanded() -> None:
    part = excerpt("a\tb", 2, 3, 80)
    assert (part.text, part.start) == ("a    b", 5)


def test_escape_sequences_are_made_visible_and_the_mark_stays_right() -> None:
    part = excerpt("s = '\x1b[2J'; loss", 12, 16, 80)
    assert part.text == "s = '\\x1b[2J'; loss"
    assert part.text[part.start : part.start + part.length] == "loss"


def test_a_long_line_is_cut_around_the_mark() -> None:
    line = "x" * 300 + " loss " + "y" * 300
    part = excerpt(line, 301, 305, 60)
    assert cell_len(part.text) <= 60
    assert part.text[part.start : part.start + part.length] == "loss"
    assert part.text.startswith("…")
    assert part.text.endswith("…")


@given(st.text(max_size=200), st.integers(0, 220), st.integers(0, 220), st.integers(20, 120))
def test_any_line_and_any_mark_fit(line: str, column: int, end: int, width: int) -> None:
    line = line.replace("\n", "").replace("\r", "")
    part = excerpt(line, column, end, width)
    assert cell_len(part.text) <= width
    assert part.start >= 0
    assert part.length >= 1
    assert part.start + part.length <= width + 1

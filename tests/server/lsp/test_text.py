"""Line splitting and incremental changes, against plain string slicing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchwise_server.lsp.text import Change, Position, Text, difference, split_lines

TRICKY = st.text(alphabet="ab \t\r\n\f\v\x85\u2028\u2029\x1c😋é", max_size=40)


def offset(lines: list[str], position: Position) -> int:
    return sum(len(line) for line in lines[: position.line]) + position.column


def test_only_the_three_endings_end_a_line() -> None:
    assert split_lines("a\fb\n\u2028c\r\nd\re") == ["a\fb\n", "\u2028c\r\n", "d\r", "e"]
    assert split_lines("") == [""]
    assert split_lines("a\n") == ["a\n", ""]


@given(TRICKY)
def test_lines_give_the_text_back(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    assert len(lines) == text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1


@given(
    TRICKY, st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), TRICKY))
)
def test_changes_equal_slicing(text: str, changes: list[tuple[float, float, float, float, str]]) -> None:
    document = Text(text)
    for line, column, end_line, end_column, new in changes:
        first, last = sorted(
            _place(document, at, across) for at, across in ((line, column), (end_line, end_column))
        )
        lines = document.lines
        whole = str(document)
        expected = whole[: offset(lines, first)] + new + whole[offset(lines, last) :]
        document.apply(Change(first, last, new))
        assert document.lines == split_lines(expected)


def _place(document: Text, line: float, column: float) -> Position:
    number = int(line * (len(document.lines) - 1))
    return Position(number, int(column * len(document.line(number))))


@given(TRICKY, TRICKY)
def test_difference_turns_one_into_the_other(old: str, new: str) -> None:
    document = Text(old)
    change = difference(document, Text(new))
    assert (change is None) == (old == new)
    if change is not None:
        document.apply(change)
    assert document.lines == split_lines(new)


def test_positions_outside_are_clamped() -> None:
    document = Text("ab\r\ncd")
    document.apply(Change(Position(0, 99), Position(0, 99), "!"))
    assert str(document) == "ab!\r\ncd"
    document.apply(Change(Position(9, 0), Position(9, 0), "\n"))
    assert str(document) == "ab!\r\ncd\n"

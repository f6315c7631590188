"""Lines through edits, and the joined text of notebooks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span
from torchwise_server.lsp.documents import Cell, OpenDocument, OpenNotebook
from torchwise_server.lsp.text import Change, Position, Text

LINES = st.integers(0, 12)


@given(
    st.lists(
        st.tuples(
            LINES, LINES, st.sampled_from([0, 2, 99]), st.sampled_from(["", "a", "\n", "x\ny\n", "\nz"])
        )
    )
)
def test_untouched_lines_are_found_again(edits: list[tuple[int, int, int, str]]) -> None:
    text = "".join(f"line {number}\n" for number in range(12))
    document = OpenDocument("file:///a.py", "/a.py", text, 1)
    for number, (one, other, column, new) in enumerate(edits):
        first, last = min(one, other), max(one, other)
        end = Position(last, column) if last > first else Position(first, column)
        change = Change(Position(first, column), end, new)
        document.apply(change)
        document.change(number + 2, [change])
    now = document.text.lines
    for number in range(12):
        if f"line {number}\n" in now:
            assert document.current_line(number, 1) == now.index(f"line {number}\n")


def test_notebook_is_one_program_with_lines_of_its_cells() -> None:
    cells = {"a": "%load x\nx = 1", "b": "", "c": "%%bash\nrm BUG", "d": "y = !ls\nif y:\n    %run z\n"}
    notebook = OpenNotebook(
        "book",
        "/book.ipynb",
        ["markdown", *cells],
        {uri: Cell(uri, 1, Text(text)) for uri, text in cells.items()},
    )
    assert str(notebook.text) == "\nx = 1\n\n\n\ny = None\nif y:\n    pass\n"
    located = notebook.locate(Place("/book.ipynb", Span(6, 0, 6, 4)))
    assert located is not None
    assert (located.uri, located.span) == ("d", Span(1, 0, 1, 4))
    assert notebook.position("d", Position(1, 3)) == Position(6, 3)


def test_a_range_over_two_cells_cannot_be_shown() -> None:
    cells = {"a": Cell("a", 1, Text("x = 1")), "b": Cell("b", 1, Text("y = 2"))}
    notebook = OpenNotebook("book", "/book.ipynb", ["a", "b"], cells)
    assert notebook.locate(Place("/book.ipynb", Span(0, 0, 1, 2))) is None
    whole = notebook.locate(Place("/book.ipynb", Span(0, 0, 1, 0)))
    assert whole is not None
    assert whole.span == Span(0, 0, 0, 5)

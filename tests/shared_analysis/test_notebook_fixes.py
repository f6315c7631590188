"""Edits of notebooks: inside cells, the rest of the file byte for byte, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchwise_analysis.findings import Confidence, Edit, Finding, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, apply_edits
from torchwise_analysis.notebook_fixes import NotebookFixer
from torchwise_analysis.source.lines import split_lines
from torchwise_analysis.source.nodes import Span
from torchwise_analysis.source.notebooks import read_notebook

LINES = st.sampled_from(
    [
        "x = 1",
        "for i in y:",
        "    z(i)",
        "%matplotlib inline",
        "%%time",
        "!ls",
        "a = !ls",
        "",
        "s = '☃ \"q\" \\n'",
        "# é",
    ]
)
SOURCES = st.lists(LINES, min_size=1, max_size=5).map("\n".join)


def cell(source: str, as_lines: bool, final: bool) -> dict[str, Any]:
    text = source + ("\n" if final else "")
    value = text.splitlines(keepends=True) if as_lines else text
    return {"outputs": [], "cell_type": "code", "metadata": {"x": ["]", "}"]}, "source": value, "id": "a\\"}


CELLS = st.lists(
    st.one_of(
        st.builds(cell, SOURCES, st.booleans(), st.booleans()),
        st.just({"cell_type": "markdown", "source": ["# {[\n", '"source": 3']}),
        st.just(7),
    ),
    min_size=1,
    max_size=4,
)


def fix(edits: tuple[Edit, ...], line: int) -> tuple[Finding, Fix]:
    place = Place("n.ipynb", Span(line, 0, line, 1))
    finding = Finding("TW000", "r", Severity.ERROR, Confidence.CERTAIN, "m", place)
    return finding, Fix("f", Safety.SAFE, edits)


def code_sources(data: str) -> list[object]:
    return [
        "".join(each["source"]) if isinstance(each, dict) and each["cell_type"] == "code" else each
        for each in json.loads(data)["cells"]
    ]


@given(CELLS, st.sampled_from([None, 1, 4]), st.booleans(), st.data())
def test_an_edit_is_done_inside_its_cell_or_refused(
    cells: list[Any], indent: int | None, ascii_: bool, data: st.DataObject
) -> None:
    before = json.dumps({"metadata": {}, "cells": cells, "nbformat": 4}, indent=indent, ensure_ascii=ascii_)
    file = SourceFile("n.ipynb", read_notebook(before).text)
    lines = split_lines(file.text)
    line = data.draw(st.integers(0, len(lines) - 1))
    column = data.draw(st.integers(0, len(lines[line])))
    end = data.draw(st.integers(column, len(lines[line])))
    text = data.draw(st.sampled_from(["", "w", "import w\n", "    w()\n", "w('☃')", "\n"]))
    edit = Edit(Place("n.ipynb", Span(line, column, line, end)), text)
    fixer = NotebookFixer(before)
    after = fixer.apply(file, *fix((edit,), line))
    if after is None:
        return
    assert after == apply_edits(file, (edit,))
    new = fixer.data(after)
    assert read_notebook(new).text == after
    changed = [
        one for one, other in zip(code_sources(before), code_sources(new), strict=True) if one != other
    ]
    assert len(changed) <= 1
    # all but the sources is as it was
    blank = [
        {**each, "source": ""} if isinstance(each, dict) and each["cell_type"] == "code" else each
        for each in json.loads(new)["cells"]
    ]
    assert blank == [
        {**each, "source": ""} if isinstance(each, dict) and each["cell_type"] == "code" else each
        for each in cells
    ]


@given(CELLS)
def test_an_edit_that_changes_nothing_leaves_every_byte(cells: list[Any]) -> None:
    before = json.dumps({"cells": cells}, indent=2)
    file = SourceFile("n.ipynb", read_notebook(before).text)
    fixer = NotebookFixer(before)
    edit = Edit(Place("n.ipynb", Span(0, 0, 0, 0)), "")
    after = fixer.apply(file, *fix((edit,), 0))
    assert after is None or fixer.data(after) == before


TWO = json.dumps(
    {"cells": [cell("for x in y:\n    step()", True, False), cell("done()", True, False)]}, indent=1
)


@pytest.mark.parametrize(
    ("text", "line", "number"),
    [("    zero()\n", 1, 0), ("zero()\n", 1, 0), ("zero()\n", 2, 1), ("import torch\n", 1, 1)],
)
def test_a_statement_between_two_cells_goes_where_it_belongs(text: str, line: int, number: int) -> None:
    file = SourceFile("n.ipynb", read_notebook(TWO).text)
    fixer = NotebookFixer(TWO)
    edit = Edit(Place("n.ipynb", Span(2, 0, 2, 0)), text)
    after = fixer.apply(file, *fix((edit,), line))
    assert after is not None
    sources = code_sources(fixer.data(after))
    assert text.strip() in str(sources[number])
    assert text.strip() not in str(sources[1 - number])


@pytest.mark.parametrize(
    ("source", "span", "text"),
    [
        ("%%time\nx = 1", Span(0, 0, 0, 0), "import torch\n"),  # the magic must stay on top
        ("!ls\nx = 1", Span(0, 0, 0, 2), "y"),  # a command, blanked in the code
        ("x = 1", Span(0, 0, 3, 0), ""),  # past its cell
    ],
)
def test_what_has_no_place_in_a_cell_is_refused(source: str, span: Span, text: str) -> None:
    data = json.dumps({"cells": [cell(source, True, False)]})
    file = SourceFile("n.ipynb", read_notebook(data).text)
    assert NotebookFixer(data).apply(file, *fix((Edit(Place("n.ipynb", span), text),), 0)) is None


def test_old_notebooks_keep_their_cells_in_worksheets() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y = 2"]}]}], "nbformat": 3}
    data = "\ufeff" + json.dumps(old, indent=1)
    file = SourceFile("n.ipynb", read_notebook(data.removeprefix("\ufeff")).text)
    fixer = NotebookFixer(data)
    after = fixer.apply(file, *fix((Edit(Place("n.ipynb", Span(1, 4, 1, 5)), "3"),), 1))
    assert after is not None
    assert fixer.data(after) == data.replace("y = 2", "y = 3")

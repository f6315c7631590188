"""Notebooks become one text, and hostile ones a problem."""

from __future__ import annotations

import json

import pytest

from torchwise_analysis.source import lower_text
from torchwise_analysis.source.notebooks import read_notebook, without_magics


def _code(source: object) -> dict[str, object]:
    return {"cell_type": "code", "source": source}


def _notebook(*cells: object, **fields: object) -> bytes:
    return json.dumps({"cells": list(cells), **fields}).encode()


def test_cells_follow_one_another() -> None:
    notebook = read_notebook(
        _notebook(
            {"cell_type": "markdown", "source": "text"}, _code(["x = 1\n", "y = 2"]), _code(""), _code("z\n")
        )
    )
    assert notebook.text == "x = 1\ny = 2\n\nz\n"
    assert [notebook.cell_of(line) for line in range(4)] == [(2, 1), (2, 2), (3, 1), (4, 1)]
    assert notebook.line_of(2, 2) == 1
    assert notebook.line_of(1, 1) is None
    assert notebook.line_of(4, 2) is None
    assert read_notebook(_notebook()).cell_of(0) is None


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%matplotlib inline\nx = 1", "\nx = 1"),
        ("!pip install 'torch\nx = 1", "\nx = 1"),
        ("if a:\n    !ls\nelse: b", "if a:\n    pass\nelse: b"),
        ("x = !ls \\\n -l\ny", "x = get_ipython()\n\ny"),
        ("x = %time f()", "x = get_ipython()"),
        ("model?\nmodel.fit??\n?model", "\n\n"),
        ("%%bash\nls\necho 1\n", "\n\n\n"),
        ("%%time\nx = 1\n", "\nx = 1\n"),
        ("x = (1\n% 2)\n", "x = (1\n% 2)\n"),
        ("s = '''\n!no\n%no\n'''\n", "s = '''\n!no\n%no\n'''\n"),
        ("x = a != b\r\n%x\r\ny", "x = a != b\r\n\r\ny"),
    ],
)
def test_magics_are_blanked(cell: str, expected: str) -> None:
    assert without_magics(cell) == expected
    assert lower_text("cell.py", expected).problems == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x00", "not a notebook"),
        (b"\xff\xfe\x00", "not a notebook"),
        (b"[1]", "no JSON object"),
        (b"{}", "no list of cells"),
        (b'{"cells": {}}', "no list of cells"),
        (b'{"worksheets": [3]}', "no list of cells"),
        (b"[" * 100_000, "not a notebook"),
        (_notebook(metadata={"kernelspec": {"language": "julia"}}), "julia"),
    ],
)
def test_hostile_files_are_problems(data: bytes, problem: str) -> None:
    notebook = read_notebook(data)
    assert notebook.text == ""
    assert notebook.problem is not None
    assert problem in notebook.problem


def test_hostile_cells_are_passed_over() -> None:
    notebook = read_notebook(
        _notebook(
            1,
            None,
            _code(3),
            {"cell_type": []},
            _code(["a\n", 1, None]),
            {**_code("b"), "metadata": {"vscode": {"languageId": "sql"}}},
            metadata=[],
        )
    )
    assert notebook.text == "a\n"
    assert notebook.cell_of(0) == (5, 1)


def test_worksheets_of_format_3() -> None:
    cells = [{"cell_type": "code", "input": ["x = 1"]}]
    notebook = read_notebook(json.dumps({"worksheets": [{"cells": cells}]}))
    assert notebook.text == "x = 1\n"


@pytest.mark.parametrize("data", [b"", b" \n", ""])
def test_an_empty_file_is_a_notebook_without_cells(data: bytes | str) -> None:
    notebook = read_notebook(data)
    assert (notebook.text, notebook.problem, notebook.cells) == ("", None, ())

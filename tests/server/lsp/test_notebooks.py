"""Notebooks: cells are documents of their own for the client, one program for the analysis."""

from __future__ import annotations

import pytest
from lsprotocol import types as lsp
from tests.server.lsp.editor import Editor, lsp_range

BOOK = "file:///project/book.ipynb"


def cell(number: int) -> str:
    return f"vscode-notebook-cell:/project/book.ipynb#W{number}sZmlsZQ%3D%3D"


@pytest.fixture
def client_name() -> str:
    return "visual-studio-code"


def opened(editor: Editor, *texts: str) -> None:
    cells = [lsp.NotebookCell(lsp.NotebookCellKind.Code, cell(number)) for number in _numbers(texts)]
    items = [lsp.TextDocumentItem(cell(number), "python", 1, text) for number, text in enumerate(texts)]
    book = lsp.NotebookDocument(BOOK, "jupyter-notebook", 1, cells)
    editor.client.notebook_document_did_open(lsp.DidOpenNotebookDocumentParams(book, items))


def changed(editor: Editor, change: lsp.NotebookDocumentCellChanges) -> None:
    editor.client.notebook_document_did_change(
        lsp.DidChangeNotebookDocumentParams(
            lsp.VersionedNotebookDocumentIdentifier(2, BOOK), lsp.NotebookDocumentChangeEvent(cells=change)
        )
    )


async def test_findings_lie_in_their_cells(editor: Editor) -> None:
    await editor.start()
    opened(editor, "%matplotlib inline\n!pip install BUG\nx = 1", "", "😋 BUG\n", "y")
    assert await editor.diagnostics(cell(0)) == []
    (found,) = await editor.diagnostics(cell(2))
    assert found.range == lsp_range((0, 3), (0, 6))
    assert found.related_information
    assert found.related_information[0].location == lsp.Location(cell(0), lsp_range((0, 0), (0, 1)))


async def test_fix_edits_its_cell(editor: Editor) -> None:
    await editor.start()
    opened(editor, "x", "BUG")
    (found,) = await editor.diagnostics(cell(1))
    action = await editor.resolved((await editor.actions(cell(1), found.range))[0])
    assert action.edit and action.edit.document_changes
    (change,) = action.edit.document_changes
    assert isinstance(change, lsp.TextDocumentEdit)
    assert change.text_document == lsp.OptionalVersionedTextDocumentIdentifier(cell(1), 1)
    assert list(change.edits) == [lsp.TextEdit(lsp_range((0, 0), (0, 3)), "FIXED")]


async def test_cells_are_typed_in_moved_and_removed(editor: Editor) -> None:
    await editor.start()
    opened(editor, "x", "y")
    event = lsp.TextDocumentContentChangePartial(lsp_range((0, 1), (0, 1)), "\nBUG")
    document = lsp.VersionedTextDocumentIdentifier(2, cell(1))
    changed(
        editor,
        lsp.NotebookDocumentCellChanges(
            text_content=[lsp.NotebookDocumentCellContentChanges(document, [event])]
        ),
    )
    (found,) = await editor.diagnostics(cell(1))
    assert found.range == lsp_range((1, 0), (1, 3))
    added = lsp.NotebookCell(lsp.NotebookCellKind.Code, cell(7))
    changed(
        editor,
        lsp.NotebookDocumentCellChanges(
            structure=lsp.NotebookDocumentCellChangeStructure(
                lsp.NotebookCellArrayChange(0, 1, [added]),
                did_open=[lsp.TextDocumentItem(cell(7), "python", 1, "a\nBUG\n\n")],
                did_close=[lsp.TextDocumentIdentifier(cell(0))],
            )
        ),
    )
    assert [item.range for item in await editor.diagnostics(cell(7))] == [lsp_range((1, 0), (1, 3))]
    assert [item.range for item in await editor.diagnostics(cell(1))] == [lsp_range((1, 0), (1, 3))]
    assert await editor.diagnostics(cell(0)) == []


async def test_lens_and_hover_in_a_cell(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    opened(editor, "x\ny", "z\nfor x in y:\n    pass")
    await editor.command("torchwise.showMemoryReport", cell(1))
    (lens,) = await editor.lenses(cell(1))
    assert lens.range.start == lsp.Position(1, 0)
    assert await editor.lenses(cell(0)) == []
    text = await editor.hover(cell(1), 1, 4)
    assert text and "[cell 2, line 2](" in text


def _numbers(texts: tuple[str, ...]) -> list[int]:
    return [number for number, _ in enumerate(texts)]

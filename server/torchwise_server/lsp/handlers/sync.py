"""Documents and notebooks: opened, changed, saved, closed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lsprotocol import types as lsp

from torchwise_server.lsp import project_file
from torchwise_server.lsp.convert import Units, change_from, path_of
from torchwise_server.lsp.documents import Cell, OpenDocument, OpenFile, OpenNotebook
from torchwise_server.lsp.handlers import contained
from torchwise_server.lsp.handlers.diagnostics import clear, start_over
from torchwise_server.lsp.server import TorchwiseServer
from torchwise_server.lsp.text import Change, Text


def register(server: TorchwiseServer) -> None:
    server.handle(lsp.TEXT_DOCUMENT_DID_OPEN, contained(did_open))
    server.handle(lsp.TEXT_DOCUMENT_DID_CHANGE, contained(did_change))
    server.handle(lsp.TEXT_DOCUMENT_DID_SAVE, contained(did_save))
    server.handle(lsp.TEXT_DOCUMENT_DID_CLOSE, contained(did_close))
    server.handle(lsp.NOTEBOOK_DOCUMENT_DID_OPEN, contained(notebook_did_open))
    server.handle(lsp.NOTEBOOK_DOCUMENT_DID_CHANGE, contained(notebook_did_change))
    server.handle(lsp.NOTEBOOK_DOCUMENT_DID_SAVE, contained(notebook_did_save))
    server.handle(lsp.NOTEBOOK_DOCUMENT_DID_CLOSE, contained(notebook_did_close))


def did_open(ls: TorchwiseServer, params: lsp.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    path = path_of(item.uri)
    if Path(path).name == project_file.NAME:
        ls.session.files[item.uri] = OpenFile(item.uri, path, Text(item.text), item.version)
        return
    ls.session.open(OpenDocument(item.uri, path_of(item.uri), item.text, item.version))


def did_change(ls: TorchwiseServer, params: lsp.DidChangeTextDocumentParams) -> None:
    file = ls.session.files.get(params.text_document.uri)
    if file is not None:
        _change(file, params.content_changes, ls.session.client.units)
        file.version = params.text_document.version
        return
    document = ls.session.document(params.text_document.uri)
    if document is None:
        return
    changes: list[Change | str] = []
    for event in params.content_changes:
        change = change_from(event, document.text.line, ls.session.client.units)
        document.apply(change)
        changes.append(change)
    document.change(params.text_document.version, changes)
    if ls.session.options_for(document).run_on == "type":
        ls.session.ask(document)


def did_save(ls: TorchwiseServer, params: lsp.DidSaveTextDocumentParams) -> None:
    document = ls.session.document(params.text_document.uri)
    if document is not None:
        ls.session.saved(document)
    elif params.text_document.uri in ls.session.files and not ls.session.client.watches_files:
        start_over(ls)


def did_close(ls: TorchwiseServer, params: lsp.DidCloseTextDocumentParams) -> None:
    if ls.session.files.pop(params.text_document.uri, None) is not None:
        return
    document = ls.session.close(params.text_document.uri)
    if document is not None:
        clear(ls, document.uris)


def notebook_did_open(ls: TorchwiseServer, params: lsp.DidOpenNotebookDocumentParams) -> None:
    book = params.notebook_document
    order = [cell.document for cell in book.cells]
    cells = _cells(params.cell_text_documents)
    ls.session.open(OpenNotebook(book.uri, path_of(book.uri), order, cells))


def notebook_did_change(ls: TorchwiseServer, params: lsp.DidChangeNotebookDocumentParams) -> None:
    notebook = ls.session.notebook(params.notebook_document.uri)
    change = params.change.cells
    if notebook is None or change is None:
        return
    if change.structure is not None:
        array = change.structure.array
        added = [cell.document for cell in array.cells or ()]
        opened = _cells(change.structure.did_open or ())
        notebook.rearrange(array.start, array.delete_count, added, opened)
        clear(ls, ls.session.index_cells(notebook))
    for item in change.text_content or ():
        _change_cell(notebook, item, ls.session.client.units)
    notebook.refresh()
    ls.session.ask(notebook)


def notebook_did_save(ls: TorchwiseServer, params: lsp.DidSaveNotebookDocumentParams) -> None:
    notebook = ls.session.notebook(params.notebook_document.uri)
    if notebook is not None:
        ls.session.saved(notebook)


def notebook_did_close(ls: TorchwiseServer, params: lsp.DidCloseNotebookDocumentParams) -> None:
    notebook = ls.session.close(params.notebook_document.uri)
    if notebook is not None:
        clear(ls, notebook.uris)


def _cells(items: Iterable[lsp.TextDocumentItem]) -> dict[str, Cell]:
    """Python cells only: the client may send others, or change the language of one."""
    return {
        item.uri: Cell(item.uri, item.version, Text(item.text))
        for item in items
        if item.language_id == "python"
    }


def _change_cell(notebook: OpenNotebook, item: lsp.NotebookDocumentCellContentChanges, units: Units) -> None:
    cell = notebook.cell(item.document.uri)
    if cell is not None:
        _change(cell, item.changes, units)
        cell.version = item.document.version


def _change(
    target: Cell | OpenFile, events: Iterable[lsp.TextDocumentContentChangeEvent], units: Units
) -> None:
    for event in events:
        change = change_from(event, target.text.line, units)
        if isinstance(change, str):
            target.text = Text(change)
        else:
            target.text.apply(change)

"""Code lens: the peak memory above each loop.

A client that can be asked to refresh gets what is known at once, and a refresh when that changes; another
one waits for the estimate of its text. A lens keeps its last value while the code is incomplete: one that
vanishes moves the text under the reader's eyes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lsprotocol import types as lsp

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import Estimate
from torchwise_server.lsp.convert import range_to
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.handlers import contained, contained_async
from torchwise_server.lsp.handlers.commands import SHOW_MEMORY_REPORT
from torchwise_server.lsp.markdown import lens_title
from torchwise_server.lsp.server import TorchwiseServer


def register(server: TorchwiseServer) -> None:
    server.handle(lsp.TEXT_DOCUMENT_CODE_LENS, contained_async(lenses))
    server.handle(lsp.CODE_LENS_RESOLVE, contained(resolve))


async def lenses(ls: TorchwiseServer, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
    uri = params.text_document.uri
    document = ls.session.document(uri)
    if document is None or not ls.session.options_for(document).code_lens:
        return []
    if not ls.session.client.refreshes_lenses:
        await ls.session.estimated(document)
    answer = document.estimated
    made: list[lsp.CodeLens] = []
    for number, estimate in enumerate(answer.estimates if answer else ()):
        where = _range(ls, document, uri, estimate)
        if where is not None:
            made.append(lsp.CodeLens(where, data=[document.uri, number]))
    return made


def resolve(ls: TorchwiseServer, lens: lsp.CodeLens) -> lsp.CodeLens:
    uri, number = cast("Sequence[object]", lens.data or ("", 0))
    document = ls.session.document(str(uri))
    answer = document.estimated if document else None
    if document is None or answer is None or not cast(int, number) < len(answer.estimates):
        lens.command = lsp.Command("Peak memory: being computed", "")
        return lens
    estimate = answer.estimates[cast(int, number)]
    lens.command = lsp.Command(
        title=lens_title(estimate, stale=answer.is_kept),
        command=SHOW_MEMORY_REPORT,
        arguments=[document.uri],
    )
    return lens


def refresh(ls: TorchwiseServer, document: OpenDocument) -> None:
    """Ask the client for its lenses again, if they say something else or stand elsewhere now."""
    answer = document.estimated
    if answer is None or not ls.session.client.refreshes_lenses:
        return
    shown = answer.estimates if ls.session.options_for(document).code_lens else ()
    now = tuple(
        (
            lens_title(estimate, stale=answer.is_kept),
            document.current_line(estimate.origin.line - 1, answer.made_at),
        )
        for estimate in shown
    )
    if now != document.lenses:
        document.lenses = now
        ls.workspace_code_lens_refresh(None)


def _range(ls: TorchwiseServer, document: OpenDocument, uri: str, estimate: Estimate) -> lsp.Range | None:
    if estimate.origin.path != document.path or document.estimated is None:
        return None
    line = document.current_line(max(estimate.origin.line - 1, 0), document.estimated.made_at)
    text = document.text.line(line)
    start = len(text) - len(text.lstrip())
    located = document.locate(Place(document.path, Span(line, start, line, len(text))))
    if located is None or located.uri != uri:
        return None
    return range_to(located.span, located.line, ls.session.client.units)

"""Inlay hints, off by default: behind a line, what of its making is alive at the peak."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types as lsp

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import Alive
from torchwise_server.lsp.convert import markdown, range_to
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.handlers import contained
from torchwise_server.lsp.markdown import alive_hint, alive_tooltip
from torchwise_server.lsp.server import TorchwiseServer

# A line that made less than this share of the peak is not what a reader looks for.
_WORTH_SHOWING = 0.01


def register(server: TorchwiseServer) -> None:
    server.handle(lsp.TEXT_DOCUMENT_INLAY_HINT, contained(inlay_hints))


def inlay_hints(ls: TorchwiseServer, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
    uri = params.text_document.uri
    document = ls.session.document(uri)
    if document is None or not ls.session.options_for(document).inlay_hints:
        return []
    hints: list[lsp.InlayHint] = []
    for line, groups in _by_line(document):
        end = len(document.text.line(line).rstrip())
        located = document.locate(Place(document.path, Span(line, end, line, end)))
        if located is None or located.uri != uri:
            continue
        position = range_to(located.span, located.line, ls.session.client.units).start
        if params.range.start.line <= position.line <= params.range.end.line:
            hints.append(
                lsp.InlayHint(
                    position,
                    alive_hint(groups),
                    tooltip=markdown(alive_tooltip(groups)),
                    padding_left=True,
                )
            )
    return hints


def refresh(ls: TorchwiseServer, document: OpenDocument) -> None:
    """Ask the client for its hints again, if they say something else now."""
    if not ls.session.client.refreshes_hints:
        return
    is_on = ls.session.options_for(document).inlay_hints
    now = tuple((line, alive_hint(groups)) for line, groups in _by_line(document)) if is_on else ()
    if now != document.hinted:
        document.hinted = now
        ls.workspace_inlay_hint_refresh(None)


def _by_line(document: OpenDocument) -> Iterator[tuple[int, list[Alive]]]:
    """Lines of this document with what they made, where it is worth showing.

    Of several loops the one with the higher peak speaks: two numbers at one line would need an explanation.
    """
    answer = document.estimated
    known = [estimate for estimate in (answer.estimates if answer else ()) if estimate.peak.allocated]
    if answer is None or not known:
        return
    largest = max(known, key=lambda estimate: estimate.peak.allocated.point if estimate.peak.allocated else 0)
    lines: dict[int, list[Alive]] = {}
    for group in largest.alive:
        if group.origin is not None and group.origin.path == document.path:
            line = document.current_line(group.origin.line - 1, answer.made_at)
            lines.setdefault(line, []).append(group)
    peak = largest.peak.allocated.point if largest.peak.allocated else 0
    for line, groups in sorted(lines.items()):
        if sum(group.bytes for group in groups) >= _WORTH_SHOWING * peak:
            yield line, groups

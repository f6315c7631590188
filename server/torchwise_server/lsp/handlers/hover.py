"""Hover: help on a finding, the estimate on a loop, from the last results: nobody waits for new ones."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types as lsp

from torchwise_analysis.findings import Finding
from torchwise_analysis.rules import rule_named
from torchwise_memory.report import Origin
from torchwise_server.lsp.convert import markdown
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.handlers import contained
from torchwise_server.lsp.links import link_from
from torchwise_server.lsp.markdown import estimate_hover, finding_hover, unanswered_hover
from torchwise_server.lsp.server import TorchwiseServer
from torchwise_server.lsp.text import Position


def register(server: TorchwiseServer) -> None:
    server.handle(lsp.TEXT_DOCUMENT_HOVER, contained(hover))


def hover(ls: TorchwiseServer, params: lsp.HoverParams) -> lsp.Hover | None:
    found = ls.session.position(params.text_document.uri, params.position)
    if found is None or not ls.session.options_for(found[0]).hover:
        return None
    document, place = found
    parts = [*_findings(ls, document, place), *_estimates(ls, document, place)]
    return lsp.Hover(markdown("\n\n---\n\n".join(parts))) if parts else None


def _findings(ls: TorchwiseServer, document: OpenDocument, place: Position) -> Iterator[str]:
    for finding, _ in ls.session.shown(document):
        if finding.place.path == document.path and _covers(document, finding, place):
            text = finding_hover(finding, rule_named(finding.rule))
            if text:
                yield text


def _estimates(ls: TorchwiseServer, document: OpenDocument, place: Position) -> Iterator[str]:
    answer = document.estimated
    if answer is None:
        return
    link = link_from(ls.session, document)

    def is_here(origin: Origin) -> bool:
        line = document.current_line(origin.line - 1, answer.made_at)
        return origin.path == document.path and line == place.line

    yield from (estimate_hover(estimate, link) for estimate in answer.estimates if is_here(estimate.origin))
    yield from (unanswered_hover(entry) for entry in answer.unanswered if is_here(entry.origin))


def _covers(document: OpenDocument, finding: Finding, place: Position) -> bool:
    span, version = finding.place.span, document.checked.version if document.checked else 0
    start = document.current_line(span.line, version), span.column
    end = document.current_line(span.end_line, version), span.end_column
    return start <= (place.line, place.column) <= end

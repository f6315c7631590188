"""Diagnostics: pulled by clients that can, pushed to the others, never both."""

from __future__ import annotations

from collections.abc import Iterable

from lsprotocol import types as lsp

from torchwise_analysis.findings import Finding
from torchwise_analysis.policy import Display
from torchwise_server.lsp.convert import diagnostic
from torchwise_server.lsp.documents import OpenDocument, Shown
from torchwise_server.lsp.handlers import contained_async
from torchwise_server.lsp.pages import page_address
from torchwise_server.lsp.server import TorchwiseServer


def register(server: TorchwiseServer) -> None:
    options = lsp.DiagnosticOptions(
        identifier="torchwise", inter_file_dependencies=True, workspace_diagnostics=True
    )
    server.handle(lsp.TEXT_DOCUMENT_DIAGNOSTIC, contained_async(pull), options)


async def pull(
    ls: TorchwiseServer, params: lsp.DocumentDiagnosticParams
) -> lsp.RelatedFullDocumentDiagnosticReport | lsp.RelatedUnchangedDocumentDiagnosticReport:
    uri = params.text_document.uri
    document = ls.session.document(uri)
    if document is None:
        return lsp.RelatedFullDocumentDiagnosticReport(items=[])
    await ls.session.checked(document)
    items = of_document(ls, document).get(uri, [])
    result_id = ls.session.result_id(uri, items)
    if result_id == params.previous_result_id:
        return lsp.RelatedUnchangedDocumentDiagnosticReport(result_id=result_id)
    return lsp.RelatedFullDocumentDiagnosticReport(items=items, result_id=result_id)


def push(ls: TorchwiseServer, document: OpenDocument) -> None:
    """Publish the newest findings, unless a newer version is being analysed."""
    if document.checked is None or document.checked.version != document.version:
        return
    found = of_document(ls, document)
    for uri in document.uris:
        ls.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, found.get(uri, []), version=document.version_of(uri))
        )


def clear(ls: TorchwiseServer, uris: Iterable[str]) -> None:
    """Nothing stays on screen for what is closed; who pulls forgets by itself."""
    if ls.session.client.pulls_diagnostics:
        return
    for uri in uris:
        ls.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def start_over(ls: TorchwiseServer, *, keeps_scans: bool = False) -> None:
    """Settings or files changed: analyse everything again, and have it asked for."""
    ls.session.reload(keeps_scans=keeps_scans)
    if ls.session.client.pulls_diagnostics and ls.session.client.refreshes_diagnostics:
        ls.workspace_diagnostic_refresh(None)


def of_document(ls: TorchwiseServer, document: OpenDocument) -> dict[str, list[lsp.Diagnostic]]:
    """Diagnostics by the client's documents; the same ones as long as the findings are."""
    surface = ls.session.options_for(document).surface
    findings = document.checked.findings if document.checked else ()
    is_plain = document.has_plain_columns(ls.session.client.units)
    kept = document.diagnostics
    shown_as = (surface, ls.session.options.docs_url)
    if kept is not None and is_plain and kept.findings is findings and kept.shown_as == shown_as:
        return kept.by_uri
    found = dict[str, list[lsp.Diagnostic]]()
    for finding, how in ls.session.shown(document):
        shown = made(ls, finding, how)
        if shown is not None:
            found.setdefault(shown[0], []).append(shown[1])
    # columns of places in other files follow from their lines, too
    is_alone = document.checked is not None and not document.checked.read
    document.diagnostics = Shown(findings, shown_as, found) if is_plain and is_alone else None
    return found


def made(ls: TorchwiseServer, finding: Finding, how: Display) -> tuple[str, lsp.Diagnostic] | None:
    """The client's document and the diagnostic; None where there is no place to show it."""
    session = ls.session
    return diagnostic(
        finding,
        how,
        session.locate,
        session.client.units,
        page_address(finding.rule, session.options.docs_url),
        tags=session.client.shows_tags,
    )

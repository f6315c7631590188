"""Quick fixes: what the finding proposes, and the comment that silences it here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from lsprotocol import types as lsp

from torchwise_analysis.findings import Edit, Finding, Fix, Safety
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.suppressions import ignore_here
from torchwise_server.lsp.convert import SOURCE, diagnostic, workspace_edit
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.handlers import contained, contained_async
from torchwise_server.lsp.pages import page_address
from torchwise_server.lsp.server import TorchwiseServer


def register(server: TorchwiseServer) -> None:
    options = lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix], resolve_provider=True)
    server.handle(lsp.TEXT_DOCUMENT_CODE_ACTION, contained_async(code_actions), options)
    server.handle(lsp.CODE_ACTION_RESOLVE, contained(resolve))


async def code_actions(ls: TorchwiseServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    document = ls.session.document(params.text_document.uri)
    if document is None or not _wants_quick_fixes(params.context.only):
        return []
    if await ls.session.verified(document) is None:
        return []
    actions: list[lsp.CodeAction] = []
    for number, finding, shown in _at(ls, document, params.text_document.uri, params.range):
        reported = next((item for item in params.context.diagnostics if _same(item, shown)), shown)
        for choice, fix in enumerate(_offers(document, finding)):
            actions.append(_action(ls, document, fix, reported, [number, choice]))
    return actions


def resolve(ls: TorchwiseServer, action: lsp.CodeAction) -> lsp.CodeAction:
    """Fill in the edit, if the document is still the one the action was offered for."""
    uri, version, number, choice = cast("Sequence[object]", action.data or ("", 0, 0, 0))
    document = ls.session.document(str(uri))
    if document is None or document.version != version or document.checked is None:
        return action
    finding = document.checked.findings[cast(int, number)]
    action.edit = _edit(ls, _offers(document, finding)[cast(int, choice)])
    return action


def _action(
    ls: TorchwiseServer, document: OpenDocument, fix: Fix, reported: lsp.Diagnostic, key: list[int]
) -> lsp.CodeAction:
    title = fix.title if fix.safety is Safety.SAFE else f"{fix.title} (changes training)"
    return lsp.CodeAction(
        title=title,
        kind=lsp.CodeActionKind.QuickFix,
        diagnostics=[reported],
        is_preferred=True if key[1] == 0 and fix.safety is Safety.SAFE and not _is_silencing(fix) else None,
        edit=None if ls.session.client.lazy_edits else _edit(ls, fix),
        data=[document.uri, document.version, *key],
    )


def _offers(document: OpenDocument, finding: Finding) -> list[Fix]:
    """The fixes that have edits, the safe ones first, then the comment."""
    fixes = sorted((fix for fix in finding.fixes if fix.edits), key=lambda fix: fix.safety is not Safety.SAFE)
    if finding.place.path == document.path and not finding.rule.endswith(("-suppression", "-reason")):
        fixes.append(ignore_here(SourceFile(document.path, str(document.text)), finding))
    return fixes


def _edit(ls: TorchwiseServer, fix: Fix) -> lsp.WorkspaceEdit | None:
    session = ls.session

    def version(uri: str) -> int | None:
        document = session.document(uri)
        return document.version_of(uri) if document else None

    return workspace_edit(
        [(edit.place, edit.text) for edit in _in_order(fix.edits)],
        session.locate,
        session.client.units,
        version if session.client.versioned_edits else None,
    )


def _in_order(edits: Sequence[Edit]) -> list[Edit]:
    return sorted(edits, key=lambda edit: (edit.place.path, edit.place.span))


def _at(
    ls: TorchwiseServer, document: OpenDocument, uri: str, where: lsp.Range
) -> Iterator[tuple[int, Finding, lsp.Diagnostic]]:
    """The shown findings that touch a range, by their number."""
    numbers = (
        {id(finding): number for number, finding in enumerate(document.checked.findings)}
        if document.checked
        else {}
    )
    for finding, how in ls.session.shown(document):
        made = diagnostic(
            finding, how, ls.session.locate, ls.session.client.units, page_address(finding.rule)
        )
        if made is None or made[0] != uri:
            continue
        if _key(made[1].range.start) <= _key(where.end) and _key(where.start) <= _key(made[1].range.end):
            yield numbers[id(finding)], finding, made[1]


def _key(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


def _same(reported: lsp.Diagnostic, own: lsp.Diagnostic) -> bool:
    return reported.source == SOURCE and reported.code == own.code and reported.range == own.range


def _is_silencing(fix: Fix) -> bool:
    return any("torchwise: ignore" in edit.text for edit in fix.edits)


def _wants_quick_fixes(only: Sequence[lsp.CodeActionKind | str] | None) -> bool:
    return only is None or any(str(getattr(kind, "value", kind)) in ("", "quickfix") for kind in only)

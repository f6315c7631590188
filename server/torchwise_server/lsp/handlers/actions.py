"""Code actions: what a finding proposes, the ways to silence it, and all safe fixes at once.

An offer is a title first; its edit is made when the client asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lsprotocol import types as lsp

from torchwise_analysis.findings import Edit, Finding, Fix, Place, Safety
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.source.nodes import Span
from torchwise_analysis.suppressions import ignore_here, ignore_in_file
from torchwise_server.lsp import project_file
from torchwise_server.lsp.convert import SOURCE, address, workspace_edit
from torchwise_server.lsp.documents import OpenDocument, OpenNotebook
from torchwise_server.lsp.handlers import contained, contained_async
from torchwise_server.lsp.handlers.diagnostics import made
from torchwise_server.lsp.server import TorchwiseServer

if TYPE_CHECKING:
    from torchwise_analysis.settings import LoadedSettings

FIX_ALL = f"{lsp.CodeActionKind.SourceFixAll.value}.torchwise"
NOTEBOOK_FIX_ALL = f"notebook.{FIX_ALL}"

# An editor that saves waits for this; what is not known by then is fixed by the next save.
_FIX_ALL_BUDGET_S = 1.0

_ALL = "all"


def register(server: TorchwiseServer) -> None:
    kinds = [lsp.CodeActionKind.QuickFix, FIX_ALL, NOTEBOOK_FIX_ALL]
    options = lsp.CodeActionOptions(code_action_kinds=kinds, resolve_provider=True)
    server.handle(lsp.TEXT_DOCUMENT_CODE_ACTION, contained_async(code_actions), options)
    server.handle(lsp.CODE_ACTION_RESOLVE, contained(resolve))


async def code_actions(ls: TorchwiseServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    document = ls.session.document(params.text_document.uri)
    only = params.context.only
    quick = only is None or _wants(only, lsp.CodeActionKind.QuickFix.value)
    everything = next((kind for kind in (FIX_ALL, NOTEBOOK_FIX_ALL) if only and _wants(only, kind)), None)
    if document is None or not (quick or everything):
        return []
    in_passing = params.context.trigger_kind == lsp.CodeActionTriggerKind.Automatic
    budget_s = _FIX_ALL_BUDGET_S if in_passing and not quick else None
    try:
        checked = await asyncio.wait_for(ls.session.verified(document), budget_s)
    except asyncio.TimeoutError:
        return []
    if checked is None:
        return []
    actions = list(_quick_fixes(ls, document, params)) if quick else []
    if everything and _all_safe_edits(document):
        actions.append(_fix_all(ls, document, everything))
    return actions


def resolve(ls: TorchwiseServer, action: lsp.CodeAction) -> lsp.CodeAction:
    """Fill in the edit, if the document is still the one the action was offered for."""
    uri, version, number, choice = cast("Sequence[object]", action.data or ("", 0, 0, 0))
    document = ls.session.document(str(uri))
    if document is None or document.version != version or document.checked is None:
        return action
    if number == _ALL:
        action.edit = edit_of(ls, _all_safe_edits(document))
        return action
    finding = document.checked.findings[cast(int, number)]
    action.edit = _offers(ls, document, finding)[cast(int, choice)].edit()
    return action


# --------------------------------------------------------------------------- one finding


@dataclass(frozen=True, slots=True)
class _Offer:
    """One way to get rid of a finding. is_fix: it changes the program, not what is said about it."""

    title: str
    is_fix: bool
    is_safe: bool
    edit: Callable[[], lsp.WorkspaceEdit | None]


def _quick_fixes(
    ls: TorchwiseServer, document: OpenDocument, params: lsp.CodeActionParams
) -> Iterator[lsp.CodeAction]:
    for number, finding, shown in _at(ls, document, params.text_document.uri, params.range):
        reported = next((item for item in params.context.diagnostics if _same(item, shown)), shown)
        for choice, offer in enumerate(_offers(ls, document, finding)):
            yield lsp.CodeAction(
                title=offer.title,
                kind=lsp.CodeActionKind.QuickFix,
                diagnostics=[reported],
                is_preferred=True if choice == 0 and offer.is_fix and offer.is_safe else None,
                edit=None if ls.session.client.lazy_edits else offer.edit(),
                data=[document.uri, document.version, number, choice],
            )


def _offers(ls: TorchwiseServer, document: OpenDocument, finding: Finding) -> list[_Offer]:
    """The fixes that have edits, the safe ones first, then the ways to silence it, the nearest first."""
    fixes = sorted((fix for fix in finding.fixes if fix.edits), key=lambda fix: fix.safety is not Safety.SAFE)
    offers = [_offer(ls, fix) for fix in fixes]
    is_about_comment = finding.rule.endswith(("-suppression", "-reason"))
    if finding.place.path != document.path or is_about_comment:
        return offers
    file = SourceFile(document.path, str(document.text))
    offers.append(
        _Offer(
            f"Ignore {finding.rule} here", False, True, lambda: edit_of(ls, ignore_here(file, finding).edits)
        )
    )
    if not _begins_with_cell_magic(document):
        offers.append(
            _Offer(
                f"Ignore {finding.rule} in this file",
                False,
                True,
                lambda: edit_of(ls, ignore_in_file(file, finding).edits),
            )
        )
    return [*offers, *_in_project(ls, document, finding)]


def _offer(ls: TorchwiseServer, fix: Fix) -> _Offer:
    is_safe = fix.safety is Safety.SAFE
    title = fix.title
    if not is_safe:
        note = "changes training"
        title = f"{title[:-1]}; {note})" if title.endswith(")") and " (" in title else f"{title} ({note})"
    return _Offer(title, True, is_safe, lambda: edit_of(ls, fix.edits))


def _begins_with_cell_magic(document: OpenDocument) -> bool:
    """A comment above `%%time` would take the magic away."""
    return isinstance(document, OpenNotebook) and bool(
        document.cells and document.cells[0].text.line(0).lstrip().startswith("%%")
    )


# --------------------------------------------------------------------------- the project


def _in_project(ls: TorchwiseServer, document: OpenDocument, finding: Finding) -> Iterator[_Offer]:
    """An entry of `ignore` in the nearest pyproject.toml, or in a new one of the workspace folder."""
    path = _project_file(ls, document)
    if path is None:
        return
    text = ls.session.text_of(str(path))
    title = f"Ignore {finding.rule} in this project ({project_file.NAME})"
    if text is None:
        if ls.session.client.creates_files:
            yield _Offer(title, False, True, lambda: _new_file(str(path), finding.rule))
        return
    change = project_file.ignoring(text, finding.rule)
    if change is not None:
        edit = Edit(Place(str(path), Span(*change.start, *change.end)), change.text)
        yield _Offer(title, False, True, lambda: edit_of(ls, (edit,)))


def _project_file(ls: TorchwiseServer, document: OpenDocument) -> Path | None:
    """The file whose settings count, else the nearest one, else where one would be made."""
    from torchwise_analysis.settings import SettingsFinder

    if not Path(document.path).is_absolute():
        return None
    loaded: LoadedSettings = SettingsFinder().find(Path(document.path))
    if loaded.path is not None:
        return loaded.path
    folder = ls.session.folder_of(document)
    if folder is None:
        return None
    inside = [folder, *(path for path in Path(document.path).parents if path.is_relative_to(folder))]
    candidates = sorted({path / project_file.NAME for path in inside}, key=lambda path: -len(path.parts))
    return next((path for path in candidates if path.is_file()), folder / project_file.NAME)


def _new_file(path: str, rule: str) -> lsp.WorkspaceEdit | None:
    uri = address(path)
    if uri is None:
        return None
    start = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
    return lsp.WorkspaceEdit(
        document_changes=[
            lsp.CreateFile(uri, options=lsp.CreateFileOptions(ignore_if_exists=True)),
            lsp.TextDocumentEdit(
                lsp.OptionalVersionedTextDocumentIdentifier(uri),
                [lsp.TextEdit(start, project_file.new_file(rule))],
            ),
        ]
    )


# --------------------------------------------------------------------------- all at once


def _fix_all(ls: TorchwiseServer, document: OpenDocument, kind: str) -> lsp.CodeAction:
    return lsp.CodeAction(
        title="Fix all torchwise findings that have a safe fix",
        kind=kind,
        edit=None if ls.session.client.lazy_edits else edit_of(ls, _all_safe_edits(document)),
        data=[document.uri, document.version, _ALL, 0],
    )


def _all_safe_edits(document: OpenDocument) -> tuple[Edit, ...]:
    """The first safe fix of each finding in this document. One that touches another's text waits for the
    next round, when it is known whether it is still wanted."""
    chosen: list[Edit] = []
    for finding in document.checked.findings if document.checked else ():
        fix = next((fix for fix in finding.fixes if fix.edits and fix.safety is Safety.SAFE), None)
        if fix is None or any(edit.place.path != document.path for edit in fix.edits):
            continue
        fresh = [edit for edit in fix.edits if edit not in chosen]
        if not any(_collide(edit, other) for edit in fresh for other in chosen):
            chosen += fresh
    return tuple(chosen)


def _collide(one: Edit, other: Edit) -> bool:
    a, b = one.place.span, other.place.span
    if (a.line, a.column) == (b.line, b.column):
        return True
    return (a.line, a.column) < (b.end_line, b.end_column) and (b.line, b.column) < (a.end_line, a.end_column)


# --------------------------------------------------------------------------- protocol


def edit_of(ls: TorchwiseServer, edits: Sequence[Edit]) -> lsp.WorkspaceEdit | None:
    """Edits of ours as the client takes them; None if one of them cannot be shown."""
    session = ls.session
    ordered = sorted(edits, key=lambda edit: (edit.place.path, edit.place.span))
    return workspace_edit(
        [(edit.place, edit.text) for edit in ordered],
        session.locate,
        session.client.units,
        session.version_of if session.client.versioned_edits else None,
    )


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
        shown = made(ls, finding, how)
        if shown is None or shown[0] != uri:
            continue
        if _key(shown[1].range.start) <= _key(where.end) and _key(where.start) <= _key(shown[1].range.end):
            yield numbers[id(finding)], finding, shown[1]


def _key(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


def _same(reported: lsp.Diagnostic, own: lsp.Diagnostic) -> bool:
    return reported.source == SOURCE and reported.code == own.code and reported.range == own.range


def _wants(only: Sequence[lsp.CodeActionKind | str], kind: str) -> bool:
    """Whether a client that asks for these kinds means `kind`: each holds for all below it."""
    asked = [str(getattr(item, "value", item)) for item in only]
    return any(item == "" or item == kind or kind.startswith(item + ".") for item in asked)

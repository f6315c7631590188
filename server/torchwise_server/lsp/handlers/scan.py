"""Workspace diagnostics: findings of files that are not open, for clients that pull and users who want it.

The request stays open while nothing changes, as the protocol allows, so that nobody polls. Files are read
one at a time on the analysis thread, after everything else that waits there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from lsprotocol import types as lsp

from torchwise_analysis.engine import could_matter
from torchwise_analysis.files import MAX_SOURCE_BYTES, read_regular
from torchwise_analysis.findings import Finding
from torchwise_analysis.policy import display
from torchwise_analysis.settings import SettingsFinder
from torchwise_server.lsp.convert import address, path_of
from torchwise_server.lsp.handlers import contained_async
from torchwise_server.lsp.handlers.diagnostics import made
from torchwise_server.lsp.server import TorchwiseServer

# Changes come in swarms: a branch switch, a save of all files.
_CALM_S = 0.5

Report: TypeAlias = (
    "lsp.WorkspaceFullDocumentDiagnosticReport | lsp.WorkspaceUnchangedDocumentDiagnosticReport"
)


def register(server: TorchwiseServer) -> None:
    server.handle(lsp.WORKSPACE_DIAGNOSTIC, contained_async(pull))


async def pull(ls: TorchwiseServer, params: lsp.WorkspaceDiagnosticParams) -> lsp.WorkspaceDiagnosticReport:
    """Reports of all files whose findings the client does not know; waits until there may be some."""
    known = {item.uri: item.value for item in params.previous_result_ids}
    token = params.work_done_token
    while True:
        number = ls.session.news.number
        sent: list[Report] = []

        def send(report: Report, sent: list[Report] = sent) -> None:
            sent.append(report)
            if params.partial_result_token is not None:
                part = lsp.WorkspaceDiagnosticReportPartialResult([report])
                ls.progress(lsp.ProgressParams(params.partial_result_token, part))

        await _Scan(ls, known, send).run(token)
        token = None  # a bar ends once
        if any(isinstance(item, lsp.WorkspaceFullDocumentDiagnosticReport) for item in sent):
            return lsp.WorkspaceDiagnosticReport([] if params.partial_result_token is not None else sent)
        await ls.session.news.after(number)
        await asyncio.sleep(_CALM_S)


class _Scan:
    """One walk through the workspace."""

    def __init__(self, ls: TorchwiseServer, known: dict[str, str], send: Callable[[Report], None]) -> None:
        self._ls = ls
        self._known = known
        self._send = send
        self._found: dict[str, list[lsp.Diagnostic]] = {}
        self._told: dict[str, int] = {}

    async def run(self, token: lsp.ProgressToken | None) -> None:
        """Report every file as soon as it is known, and again if another one's code has findings in it."""
        paths = await asyncio.to_thread(self._paths)
        progress = self._ls.work_done_progress
        if token is not None:
            progress.begin(token, lsp.WorkDoneProgressBegin("torchwise: reading the workspace", percentage=0))
        for number, path in enumerate(paths):
            if token is not None:
                message = f"{number} of {len(paths)} files"
                percentage = 100 * number // len(paths)
                progress.report(token, lsp.WorkDoneProgressReport(message=message, percentage=percentage))
            await self._file(path)
        for uri in self._found:
            if len(self._found[uri]) > self._told.get(uri, 0):
                self._tell(uri)
        for uri in self._known:  # deleted, opened, or no longer wanted
            if uri not in self._told:
                self._tell(uri)
        if token is not None:
            progress.end(token, lsp.WorkDoneProgressEnd())

    async def _file(self, path: str) -> None:
        uri = address(path)
        text = await asyncio.to_thread(_read, path)
        if uri is None or text is None or self._is_open(uri):
            return
        checked = await self._ls.session.scanned(path, text) if could_matter(text) else None
        surface = self._ls.session.options_at(uri).surface
        for finding in checked.findings if checked else ():
            self._add(finding, made(self._ls, finding, display(finding, surface)))
        self._tell(uri)

    def _add(self, finding: Finding, shown: tuple[str, lsp.Diagnostic] | None) -> None:
        if shown is None or self._is_open(shown[0]):
            return
        items = self._found.setdefault(shown[0], [])
        if not any(item.range == shown[1].range and item.code == finding.rule for item in items):
            items.append(shown[1])

    def _tell(self, uri: str) -> None:
        items = [] if self._is_open(uri) else self._found.get(uri, [])
        self._told[uri] = len(items)
        result_id = self._ls.session.result_id(uri, list(items))
        if self._known.get(uri) == result_id:
            self._send(lsp.WorkspaceUnchangedDocumentDiagnosticReport(uri, result_id))
        elif items or uri in self._known:
            self._send(lsp.WorkspaceFullDocumentDiagnosticReport(uri, items, result_id=result_id))

    def _is_open(self, uri: str) -> bool:
        return self._ls.session.document(uri) is not None

    def _paths(self) -> list[str]:
        """Python files of the folders whose settings ask for it; called on a thread of its own."""
        from torchwise_server.cli.files import collect

        folders = [path_of(uri) for uri in self._ls.session.folders if self._is_wanted(uri)]
        found = collect(folders, SettingsFinder())
        return [str(item.path.absolute()) for item in found.files if item.path.suffix == ".py"]

    def _is_wanted(self, folder: str) -> bool:
        session = self._ls.session
        options = session.folder_options.get(folder, session.options)
        return options.enable and options.workspace_diagnostics


def _read(path: str) -> str | None:
    from torchwise_analysis.source.decode import decode

    try:
        data = read_regular(path, MAX_SOURCE_BYTES + 1)
    except OSError:
        return None
    return None if len(data) > MAX_SOURCE_BYTES else decode(data).text

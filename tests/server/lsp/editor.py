"""An editor for tests: a client that can what a real one can, waits for events and never sleeps."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest_lsp
from lsprotocol import types as lsp
from lsprotocol.converters import get_converter
from pytest_lsp.client import LanguageClient, make_test_lsp_client

TIMEOUT_S = 60.0
T = TypeVar("T")


def capabilities(name: str) -> lsp.ClientCapabilities:
    """What a current release of the editor sends; pytest-lsp's recording of VS Code is of 2022."""
    made = pytest_lsp.client_capabilities(name)
    if name == "visual-studio-code":
        assert made.text_document and made.workspace and made.general
        made.text_document.diagnostic = lsp.DiagnosticClientCapabilities(related_document_support=False)
        made.workspace.diagnostics = lsp.DiagnosticWorkspaceClientCapabilities(refresh_support=True)
        made.workspace.inlay_hint = lsp.InlayHintWorkspaceClientCapabilities(refresh_support=True)
        made.general.position_encodings = [lsp.PositionEncodingKind.Utf16]
        made.notebook_document = lsp.NotebookDocumentClientCapabilities(
            lsp.NotebookDocumentSyncClientCapabilities(dynamic_registration=True)
        )
    return made


class Editor:
    """Documents as the user sees them; positions are in the units of the connection."""

    def __init__(self, client: LanguageClient, name: str) -> None:
        self.client = client
        self.name = name
        self.pulls = False
        self.encoding: str = "utf-16"
        self.published: list[lsp.PublishDiagnosticsParams] = []
        self.lens_refreshes = 0
        self.hint_refreshes = 0
        self.diagnostic_refreshes = 0
        self.registered: list[lsp.Registration] = []
        self.estimated: list[dict[str, object]] = []  # a notification of the product's own
        self.configurations = 0  # how often the server asked for its settings
        self.applied: list[lsp.ApplyWorkspaceEditParams] = []
        self.parts: list[lsp.WorkspaceDocumentDiagnosticReport] = []  # partial results
        self.stderr: list[str] = []
        self._news = asyncio.Condition()
        self._versions: dict[str, int] = {}
        self._result: lsp.InitializeResult | None = None

    @property
    def server(self) -> lsp.ServerCapabilities:
        assert self._result is not None
        return self._result.capabilities

    async def start(
        self, options: object = None, folder: Path | None = None, *, more_folders: tuple[Path, ...] = ()
    ) -> None:
        wanted = capabilities(self.name)
        self.pulls = wanted.text_document is not None and wanted.text_document.diagnostic is not None
        roots = [*([folder] if folder else []), *more_folders]
        folders = [lsp.WorkspaceFolder(root.as_uri(), root.name) for root in roots] or None
        self._result = await self.client.initialize_session(
            lsp.InitializeParams(wanted, workspace_folders=folders, initialization_options=options)
        )
        self.encoding = str(self.server.position_encoding or "utf-16")

    # ------------------------------------------------------------------ documents

    def open(self, uri: str, text: str) -> None:
        self._versions[uri] = 1
        item = lsp.TextDocumentItem(uri, "python", 1, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))

    def edit(self, uri: str, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        self._versions[uri] += 1
        event = lsp.TextDocumentContentChangePartial(lsp_range(start, end), text)
        self._change(uri, event)

    def replace(self, uri: str, text: str) -> None:
        self._versions[uri] += 1
        self._change(uri, lsp.TextDocumentContentChangeWholeDocument(text))

    def close(self, uri: str) -> None:
        self.client.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri)))

    def units(self, text: str) -> int:
        """The width of `text` on this connection."""
        kinds = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
        codec, width = kinds[self.encoding]
        return len(text.encode(codec)) // width

    # ------------------------------------------------------------------ answers

    async def diagnostics(self, uri: str) -> list[lsp.Diagnostic]:
        """Those of the newest version."""
        if self.pulls:
            report = await soon(
                self.client.text_document_diagnostic_async(
                    lsp.DocumentDiagnosticParams(lsp.TextDocumentIdentifier(uri))
                )
            )
            assert isinstance(report, lsp.RelatedFullDocumentDiagnosticReport)
            return list(report.items)
        params = await self.publication(lambda item: item.uri == uri and item.version == self._versions[uri])
        return list(params.diagnostics)

    async def publication(
        self, wanted: Callable[[lsp.PublishDiagnosticsParams], bool]
    ) -> lsp.PublishDiagnosticsParams:
        found = await self.until(
            lambda: next((item for item in reversed(self.published) if wanted(item)), None)
        )
        assert isinstance(found, lsp.PublishDiagnosticsParams)
        return found

    async def until(self, condition: Callable[[], object]) -> object:
        """Wait for messages of the server until `condition` gives something."""

        async def waiting() -> object:
            async with self._news:
                while not (value := condition()):
                    await self._news.wait()
                return value

        return await soon(waiting())

    async def settings_read(self, times: int) -> None:
        """Wait until the server has its settings for the n-th time."""
        await self.until(lambda: self.configurations >= times)
        await self.command("torchwise.listRules")  # answered after our answer was read

    async def lens_refresh(self, after: int) -> None:
        """Wait until the server asked for lenses more than `after` times."""
        await self.until(lambda: self.lens_refreshes > after)

    async def actions(
        self,
        uri: str,
        where: lsp.Range,
        items: list[lsp.Diagnostic] | None = None,
        only: list[lsp.CodeActionKind | str] | None = None,
    ) -> list[lsp.CodeAction]:
        params = lsp.CodeActionParams(
            lsp.TextDocumentIdentifier(uri), where, lsp.CodeActionContext(items or [], only)
        )
        answer = await soon(self.client.text_document_code_action_async(params))
        return [item for item in answer or () if isinstance(item, lsp.CodeAction)]

    async def resolved(self, action: lsp.CodeAction) -> lsp.CodeAction:
        return action if action.edit else await soon(self.client.code_action_resolve_async(action))

    async def hover(self, uri: str, line: int, character: int) -> str | None:
        params = lsp.HoverParams(lsp.TextDocumentIdentifier(uri), lsp.Position(line, character))
        answer = await soon(self.client.text_document_hover_async(params))
        if answer is None:
            return None
        assert isinstance(answer.contents, lsp.MarkupContent)
        return answer.contents.value

    async def completions(self, uri: str, line: int, character: int) -> dict[str, lsp.CompletionItem]:
        """By label."""
        params = lsp.CompletionParams(lsp.TextDocumentIdentifier(uri), lsp.Position(line, character))
        answer = await soon(self.client.text_document_completion_async(params))
        assert not isinstance(answer, lsp.CompletionList)
        return {item.label: item for item in answer or ()}

    async def hints(self, uri: str, last_line: int = 1000) -> list[lsp.InlayHint]:
        params = lsp.InlayHintParams(lsp.TextDocumentIdentifier(uri), lsp_range((0, 0), (last_line, 0)))
        answer = await soon(self.client.text_document_inlay_hint_async(params))
        return list(answer or ())

    def apply(self, text: str, edit: lsp.WorkspaceEdit | None, uri: str) -> str:
        """`text`, the document `uri`, after the edit, applied as an editor does."""
        assert edit is not None
        edits: list[lsp.TextEdit | lsp.AnnotatedTextEdit | lsp.SnippetTextEdit] = []
        for change in edit.document_changes or ():
            if isinstance(change, lsp.TextDocumentEdit) and change.text_document.uri == uri:
                edits += change.edits
        edits += (edit.changes or {}).get(uri, ())
        lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)

        def offset(position: lsp.Position) -> int:
            line, column = lines[position.line], 0
            while self.units(line[:column]) < position.character:
                column += 1
            return sum(len(item) for item in lines[: position.line]) + column

        assert edits
        for item in sorted(edits, key=lambda item: -offset(item.range.start)):
            assert isinstance(item, lsp.TextEdit)
            text = text[: offset(item.range.start)] + item.new_text + text[offset(item.range.end) :]
        return text

    async def lenses(self, uri: str) -> list[lsp.CodeLens]:
        params = lsp.CodeLensParams(lsp.TextDocumentIdentifier(uri))
        found = await soon(self.client.text_document_code_lens_async(params))
        return [await soon(self.client.code_lens_resolve_async(lens)) for lens in found or ()]

    async def command(self, name: str, *arguments: object) -> object:
        return await soon(
            self.client.workspace_execute_command_async(lsp.ExecuteCommandParams(name, list(arguments)))
        )

    async def stop(self) -> None:
        """Say goodbye, if nobody did."""
        if not self.client.stopped:
            await soon(self.client.shutdown_session())
        await self.client.stop()  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------ plumbing

    async def heard(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _change(self, uri: str, event: lsp.TextDocumentContentChangeEvent) -> None:
        document = lsp.VersionedTextDocumentIdentifier(self._versions[uri], uri)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [event]))


async def launched(name: str, command: list[str]) -> Editor:
    """An editor with its server running; `start` says hello."""
    client = make_test_lsp_client()
    editor = Editor(client, name)

    async def lens_refresh(_: None) -> None:
        editor.lens_refreshes += 1
        await editor.heard()

    async def hint_refresh(_: None) -> None:
        editor.hint_refreshes += 1
        await editor.heard()

    async def diagnostic_refresh(_: None) -> None:
        editor.diagnostic_refreshes += 1
        await editor.heard()

    async def estimated(params: object) -> None:
        assert isinstance(plain(params), dict)
        editor.estimated.append(plain(params))
        await editor.heard()

    async def applied(params: lsp.ApplyWorkspaceEditParams) -> lsp.ApplyWorkspaceEditResult:
        editor.applied.append(params)
        await editor.heard()
        return lsp.ApplyWorkspaceEditResult(applied=True)

    async def registered(params: lsp.RegistrationParams) -> None:
        editor.registered += params.registrations
        await editor.heard()

    client.feature(lsp.WORKSPACE_CODE_LENS_REFRESH)(lens_refresh)
    client.feature(lsp.WORKSPACE_INLAY_HINT_REFRESH)(hint_refresh)
    client.protocol.fm.features[lsp.WORKSPACE_DIAGNOSTIC_REFRESH] = diagnostic_refresh
    client.feature(lsp.CLIENT_REGISTER_CAPABILITY)(registered)
    client.protocol.fm.features["torchwise/estimated"] = estimated
    client.protocol.fm.features[lsp.WORKSPACE_APPLY_EDIT] = applied
    answer = client.protocol.fm.features[lsp.WORKSPACE_CONFIGURATION]

    async def configuration(params: lsp.ConfigurationParams) -> object:
        editor.configurations += 1
        await editor.heard()
        return answer(params)

    client.protocol.fm.features[lsp.WORKSPACE_CONFIGURATION] = configuration

    # pytest-lsp's own handlers keep no versions
    async def published(params: lsp.PublishDiagnosticsParams) -> None:
        editor.published.append(params)
        await editor.heard()

    async def logged(params: lsp.LogMessageParams) -> None:
        client.log_messages.append(params)
        await editor.heard()

    async def shown(params: lsp.ShowMessageParams) -> None:
        client.messages.append(params)
        await editor.heard()

    client.protocol.fm.features[lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS] = published
    client.protocol.fm.features[lsp.WINDOW_LOG_MESSAGE] = logged
    client.protocol.fm.features[lsp.WINDOW_SHOW_MESSAGE] = shown
    original = client.protocol.fm.features[lsp.PROGRESS]

    async def progressed(params: lsp.ProgressParams) -> None:
        if isinstance(params.value, dict) and "items" in params.value:  # the client keeps those as they came
            editor.parts += [_report(item) for item in params.value["items"]]
        else:
            original(params)
        await editor.heard()

    client.protocol.fm.features[lsp.PROGRESS] = progressed
    process_start = client.start_io
    await process_start(command[0], *command[1:])
    assert client._server is not None and client._server.stderr is not None
    if client._stderr_forwarder:
        client._stderr_forwarder.cancel()
    client._stderr_forwarder = asyncio.create_task(_listen(editor, client._server.stderr))
    return editor


async def _listen(editor: Editor, stream: asyncio.StreamReader) -> None:
    while line := await stream.readline():
        editor.stderr.append(line.decode().rstrip())
        sys.stderr.buffer.write(line)
        await editor.heard()


def plain(value: Any) -> Any:
    """What came without a declared type, as dictionaries and lists."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if hasattr(value, "__dict__"):
        return {key: plain(item) for key, item in vars(value).items()}
    return value


def _report(item: dict[str, object]) -> lsp.WorkspaceDocumentDiagnosticReport:
    converter = get_converter()
    if item["kind"] == "full":
        return converter.structure(item, lsp.WorkspaceFullDocumentDiagnosticReport)
    return converter.structure(item, lsp.WorkspaceUnchangedDocumentDiagnosticReport)


async def soon(work: Awaitable[T]) -> T:
    """The result of `work`; a server that does not answer fails the test."""
    return await asyncio.wait_for(work, TIMEOUT_S)


def lsp_range(start: tuple[int, int], end: tuple[int, int]) -> lsp.Range:
    return lsp.Range(lsp.Position(*start), lsp.Position(*end))

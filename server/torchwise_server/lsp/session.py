"""What the server knows: the client, its documents, their answers, and who waits for one.

Lives on the message loop. Nothing here blocks; questions go to `Analysis`, answers come back through
`received`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from lsprotocol import types as lsp

from torchwise_analysis.files import read_regular
from torchwise_analysis.findings import Finding, Place
from torchwise_analysis.policy import Display, display
from torchwise_server.lsp.analysis import Analysis, Answer, Backend, Failure, OutOfStep, Started
from torchwise_server.lsp.convert import Located, Units, address, path_of
from torchwise_server.lsp.documents import Checked, Estimated, OpenDocument, OpenFile, OpenNotebook
from torchwise_server.lsp.options import EditorOptions, table_of
from torchwise_server.lsp.text import Position, Text
from torchwise_server.lsp.worker import Lane

logger = logging.getLogger(__name__)

# A pause in typing that is shorter than the one between two keystrokes of a fast typist, so that each
# keystroke still gets its answer, but the events of one multi-cursor edit or paste share one analysis.
CHECK_DELAY_S = 0.02
# Estimates are read between thoughts, not between keystrokes.
ESTIMATE_DELAY_S = 0.3
# A related place in a larger file is shown without converting its columns.
_MAX_RELATED_BYTES = 4 << 20

# VS Code, too, keeps no more for one file of one extension; nobody reads them.
_MOST_LISTED = 1_000


@dataclass(frozen=True, slots=True)
class Client:
    """What the client can do."""

    units: Units = field(default_factory=Units)
    pulls_diagnostics: bool = False
    refreshes_diagnostics: bool = False
    refreshes_lenses: bool = False
    refreshes_hints: bool = False
    shows_tags: bool = False
    completes_in_markdown: bool = False
    creates_files: bool = False
    versioned_edits: bool = False
    lazy_edits: bool = False
    has_configuration: bool = False
    has_progress: bool = False
    watches_files: bool = False
    watches_configuration: bool = False
    shows_reports: bool = False

    @staticmethod
    def of(params: lsp.InitializeParams) -> Client:
        """Read the capabilities once, so that no handler has to climb through optional fields."""
        capabilities = params.capabilities
        document = capabilities.text_document or lsp.TextDocumentClientCapabilities()
        workspace = capabilities.workspace or lsp.WorkspaceClientCapabilities()
        window = capabilities.window or lsp.WindowClientCapabilities()
        general = capabilities.general or lsp.GeneralClientCapabilities()
        offered = [
            item for item in general.position_encodings or () if item in tuple(lsp.PositionEncodingKind)
        ]
        action = document.code_action
        lazy = action.resolve_support.properties if action and action.resolve_support else ()
        edits = workspace.workspace_edit or lsp.WorkspaceEditClientCapabilities()
        item = document.completion.completion_item if document.completion else None
        published = document.publish_diagnostics
        started = table_of(params.initialization_options) or {}
        return Client(
            units=Units(offered[0] if offered else lsp.PositionEncodingKind.Utf16),
            pulls_diagnostics=document.diagnostic is not None,
            refreshes_diagnostics=bool(workspace.diagnostics and workspace.diagnostics.refresh_support),
            refreshes_lenses=bool(workspace.code_lens and workspace.code_lens.refresh_support),
            refreshes_hints=bool(workspace.inlay_hint and workspace.inlay_hint.refresh_support),
            completes_in_markdown=bool(item and lsp.MarkupKind.Markdown in (item.documentation_format or ())),
            shows_tags=bool(published and published.tag_support),
            creates_files=bool(
                edits.document_changes
                and lsp.ResourceOperationKind.Create in (edits.resource_operations or ())
            ),
            versioned_edits=bool(edits.document_changes),
            lazy_edits="edit" in lazy,
            has_configuration=bool(workspace.configuration),
            has_progress=bool(window.work_done_progress),
            watches_files=bool(
                workspace.did_change_watched_files and workspace.did_change_watched_files.dynamic_registration
            ),
            watches_configuration=bool(
                workspace.did_change_configuration and workspace.did_change_configuration.dynamic_registration
            ),
            shows_reports=started.get("clientShowsReports") is True,
        )


@dataclass(frozen=True, slots=True)
class _Scan:
    """The findings of a file that is not open, and what they rest on."""

    key: tuple[EditorOptions, bytes]
    checked: Checked
    stamps: dict[str, tuple[int, int, int]]

    def is_current(self) -> bool:
        """Whether the other files are those that were read; touches the disk."""
        return all(stamp(name) == known for name, known in self.stamps.items())


def stamp(path: str) -> tuple[int, int, int]:
    """Changes when the file does, also where its time was set back or kept."""
    try:
        status = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size)


class News:
    """Something changed that findings of closed files may depend on."""

    def __init__(self) -> None:
        self.number = 0
        self._waiters: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        self.number += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def after(self, number: int) -> None:
        """Wait until there is some that is newer."""
        while self.number <= number:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Session:
    """The state of one connection."""

    def __init__(self, backend: Backend) -> None:
        self.client = Client()
        self.options = EditorOptions()
        self.folders: list[str] = []
        self._folder_options: dict[str, EditorOptions] = {}
        self.files: dict[str, OpenFile] = {}
        self.chosen_gpus: tuple[str, ...] | None = None  # by a command, until the settings change
        self.news = News()
        self._backend = backend
        self._is_warm = False
        self._scans: dict[str, _Scan] = {}
        self._scanned: dict[str, tuple[OpenDocument, asyncio.Future[Checked | None]]] = {}
        self._documents: dict[str, OpenDocument] = {}
        self._notebook_of: dict[str, OpenNotebook] = {}
        self._others: dict[str, Text] = {}
        self._waiters: dict[tuple[str, Lane], list[tuple[int, asyncio.Future[None]]]] = {}
        self._asked: dict[tuple[str, Lane], int] = {}  # versions that an answer is still to come for
        self._complained: set[str] = set()
        self._results: dict[str, tuple[str, list[lsp.Diagnostic]]] = {}
        self._result_number = 0
        self._name = uuid.uuid4().hex[:8]  # a client may still know results of a server before this one
        self._analysis: Analysis | None = None
        self.on_answer: Callable[[OpenDocument, Answer], None] = _ignore

    @property
    def analysis(self) -> Analysis:
        if self._analysis is None:
            loop = asyncio.get_running_loop()

            def deliver(document: OpenDocument, answer: Answer) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self.received, document, answer)

            self._analysis = Analysis(self._backend, deliver)
        return self._analysis

    # ----------------------------------------------------------------------- documents

    def document(self, uri: str) -> OpenDocument | None:
        """The open document that the client's document `uri` is, or is a cell of."""
        return self._documents.get(uri) or self._notebook_of.get(uri)

    def documents(self) -> Iterator[OpenDocument]:
        yield from self._documents.values()

    def notebook(self, uri: str) -> OpenNotebook | None:
        document = self._documents.get(uri)
        return document if isinstance(document, OpenNotebook) else None

    def open(self, document: OpenDocument) -> None:
        self._documents[document.uri] = document
        if isinstance(document, OpenNotebook):
            self.index_cells(document)
        self._stop_scan(document.path)
        self.news.tell()
        self.ask(document, 0.0)

    def index_cells(self, notebook: OpenNotebook) -> list[str]:
        """Note the notebook's cells; the ones that are gone."""
        now = set(notebook.uris)
        gone = [uri for uri, owner in self._notebook_of.items() if owner is notebook and uri not in now]
        for uri in gone:
            del self._notebook_of[uri]
        for uri in now:
            self._notebook_of[uri] = notebook
        return gone

    def close(self, uri: str) -> OpenDocument | None:
        document = self._documents.pop(uri, None)
        if document is None:
            return None
        for client_uri in document.uris:
            self._notebook_of.pop(client_uri, None)
            self._results.pop(client_uri, None)
        self.analysis.forget(document)
        self.news.tell()
        for lane in Lane:
            self._asked.pop((document.uri, lane), None)
            self._wake(document, lane, None)
        return document

    def options_for(self, document: OpenDocument) -> EditorOptions:
        """Editor options that count for the document."""
        return self.options_at(document.uri)

    def options_at(self, uri: str) -> EditorOptions:
        """Those of the innermost workspace folder that holds `uri`."""
        holding = [folder for folder in self._folder_options if uri.startswith(folder.rstrip("/") + "/")]
        options = self._folder_options[max(holding, key=len)] if holding else self.options
        return options if self.chosen_gpus is None else options.with_gpus(self.chosen_gpus)

    @property
    def folder_options(self) -> dict[str, EditorOptions]:
        return self._folder_options

    def result_id(self, uri: str, items: list[lsp.Diagnostic]) -> str:
        """The same as long as the diagnostics of `uri` are."""
        last = self._results.get(uri)
        if last is None or (last[1] is not items and last[1] != items):
            self._result_number += 1
            last = self._results[uri] = (f"{self._name}-{self._result_number}", items)
        return last[0]

    def choose_gpus(self, names: tuple[str, ...] | None) -> None:
        """Compare estimates with these cards, whatever the settings say; None: as they say."""
        self.chosen_gpus = names
        for document in self._documents.values():
            self._ask(document, Lane.ESTIMATE)

    def configure(self, options: EditorOptions, by_folder: dict[str, EditorOptions]) -> None:
        self.chosen_gpus = None
        self.options = options
        self._folder_options = by_folder
        self.news.tell()

    # ----------------------------------------------------------------------- questions and answers

    def ask(self, document: OpenDocument, delay_s: float = CHECK_DELAY_S) -> None:
        """The document changed: analyse its newest version."""
        self.give_up(document, Lane.VERIFY)
        self._ask(document, Lane.CHECK, delay_s)
        # at once only where nobody types: what a keystroke stops is begun again after the next pause
        self._ask(document, Lane.ESTIMATE, ESTIMATE_DELAY_S if delay_s > 0.0 else 0.0)

    def saved(self, document: OpenDocument) -> None:
        """The file on disk changed: other open files may import it."""
        self._others.pop(document.path, None)
        self.analysis.saved(document)
        self.news.tell()
        for other in self._documents.values():
            if other is not document or self.options_for(other).run_on == "save":
                self.ask(other)

    async def checked(self, document: OpenDocument) -> Checked | None:
        """The findings of the newest version; None if the analysis died or the document was closed."""
        await self._answered(document, Lane.CHECK)
        return document.checked

    def give_up(self, document: OpenDocument, lane: Lane) -> None:
        """The user cancelled this work: nobody gets an answer."""
        self.analysis.stop(document, lane)
        self._asked.pop((document.uri, lane), None)
        self._wake(document, lane, None)

    async def verified(self, document: OpenDocument) -> Checked | None:
        """The findings of the newest version with fixes that were tried; None if there are none to be had."""
        checked = await self.checked(document)
        if checked is None or checked.version != document.version:
            return None
        if not checked.is_verified and any(
            fix.edits for finding in checked.findings for fix in finding.fixes
        ):
            if (document.uri, Lane.VERIFY) not in self._asked:
                self._ask(document, Lane.VERIFY)
            await self._answered(document, Lane.VERIFY)
        return document.checked if document.checked and document.checked.version == document.version else None

    async def estimated(self, document: OpenDocument) -> Estimated | None:
        """The estimates of the newest version."""
        await self._answered(document, Lane.ESTIMATE)
        return document.estimated

    async def scanned(self, path: str, text: str) -> Checked | None:
        """The findings of a file that is not open; None if it was opened meanwhile or the analysis died.

        They are kept until the file, one that the analysis read for it, or the settings change.
        """
        options = self.options_at(address(path) or path)
        kept = self._scans.get(path)
        key = options, hashlib.blake2b(text.encode("utf-8", "surrogatepass")).digest()
        if kept is not None and kept.key == key and await asyncio.to_thread(kept.is_current):
            return kept.checked
        checked = await self._scan(path, text, options)
        if checked is not None:
            open_paths = {document.path for document in self._documents.values()}
            stamps = {} if checked.read & open_paths else {name: stamp(name) for name in checked.read}
            if len(stamps) == len(checked.read):  # what is open changes without its file
                self._scans[path] = _Scan(key, checked, stamps)
        return checked

    async def _scan(self, path: str, text: str, options: EditorOptions) -> Checked | None:
        document = OpenDocument(f"torchwise-scan:{path}", path, text, 0)
        future: asyncio.Future[Checked | None] = asyncio.get_running_loop().create_future()
        self._scanned[path] = document, future
        self.analysis.ask(Lane.SCAN, document, options)
        try:
            return await future
        finally:
            if self._scanned.get(path, (None, None))[0] is document:
                del self._scanned[path]
                self.analysis.forget(document)

    def _stop_scan(self, path: str) -> None:
        """A file is opened: the scan's copy must not stand in its way."""
        document, future = self._scanned.pop(path, (None, None))
        if document is not None and future is not None:
            self.analysis.forget(document)
            if not future.done():
                future.set_result(None)

    def received(self, document: OpenDocument, answer: Answer) -> None:
        """An answer of the analysis, on the message loop."""
        scanned, future = self._scanned.get(document.path, (None, None))
        if scanned is document and future is not None:
            if not isinstance(answer, Started) and not future.done():
                future.set_result(answer if isinstance(answer, Checked) else None)
            return
        if self._documents.get(document.uri) is not document:
            return
        if isinstance(answer, Checked):
            if not self._is_warm:
                self._is_warm = True
                self.analysis.warm()
            document.checked = answer
            self._came(document, Lane.VERIFY if answer.is_verified else Lane.CHECK, answer.version)
            if answer.valid_s is not None and answer.version == document.version:
                options = self.options_for(document)
                self.analysis.ask(Lane.CHECK, document, options, answer.valid_s + 0.05)
        elif isinstance(answer, Estimated):
            document.estimated = _kept(document.estimated, answer)
            self._came(document, Lane.ESTIMATE, answer.version)
        elif isinstance(answer, Failure):
            document.resend()
            self._came(document, answer.lane, answer.version)
        elif isinstance(answer, OutOfStep):
            document.resend()
            self.ask(document, 0.0)
        try:
            self.on_answer(document, answer)
        except Exception:
            logger.exception("showing an answer for %s failed", document.uri)

    def is_first_complaint(self, message: str) -> bool:
        """Whether this failure was not shown yet: one broken file must not tell so at every key."""
        if message in self._complained:
            return False
        self._complained.add(message)
        return True

    def reload(self, *, keeps_scans: bool = False) -> None:
        """Settings or files on disk changed: analyse everything again.

        keeps_scans: only texts changed, so that findings of files that read none of them still hold.
        """
        if not keeps_scans:
            self._scans.clear()
        self._others.clear()
        self.analysis.reload()
        self.news.tell()
        for document in self._documents.values():
            self.ask(document, 0.0)

    def shutdown(self) -> None:
        if self._analysis is not None:
            self._analysis.close()

    def _ask(self, document: OpenDocument, lane: Lane, delay_s: float = 0.0) -> None:
        self._asked[document.uri, lane] = document.version
        self.analysis.ask(lane, document, self.options_for(document), delay_s)

    async def _answered(self, document: OpenDocument, lane: Lane) -> None:
        """Wait for the answer that is to come, if one is: it may also be a failure."""
        version = self._asked.get((document.uri, lane))
        if version is None:
            return
        self.analysis.hurry(document, lane)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((document.uri, lane), []).append((version, future))
        await future

    def _came(self, document: OpenDocument, lane: Lane, version: int) -> None:
        if self._asked.get((document.uri, lane), version + 1) <= version:
            del self._asked[document.uri, lane]
        self._wake(document, lane, version)

    def _wake(self, document: OpenDocument, lane: Lane, version: int | None) -> None:
        """Release who waits for `version` or an earlier one; None: everybody, there will be no answer."""
        left: list[tuple[int, asyncio.Future[None]]] = []
        for wanted, future in self._waiters.pop((document.uri, lane), []):
            if future.done():
                continue
            if version is None or wanted <= version:
                future.set_result(None)
            else:
                left.append((wanted, future))
        if left:
            self._waiters[document.uri, lane] = left

    # ----------------------------------------------------------------------- places

    def shown(self, document: OpenDocument) -> Iterator[tuple[Finding, Display]]:
        """The findings that an editor lists, the first ones of a file that is full of them."""
        surface = self.options_for(document).surface
        findings = document.checked.findings if document.checked else ()
        listed = ((finding, how) for finding in findings if (how := display(finding, surface)).is_listed)
        return islice(listed, _MOST_LISTED)

    def locate(self, place: Place) -> Located | None:
        """A place of an open document, or of another file, for the client."""
        for document in self._documents.values():
            if document.path == place.path:
                return document.locate(place)
        for file in self.files.values():
            if file.path == place.path:
                return Located(file.uri, place.span, file.text.line)
        if not Path(place.path).is_absolute():
            return None
        uri = address(place.path)
        return Located(uri, place.span, self._other(place.path).line) if uri else None

    def position(self, uri: str, position: lsp.Position) -> tuple[OpenDocument, Position] | None:
        """A position from the client as one in the analysed text."""
        document = self.document(uri)
        if document is None:
            return None
        line = document.line_of(uri, position.line)
        column = self.client.units.column(line, position.character)
        place = document.position(uri, Position(position.line, column))
        return (document, place) if place is not None else None

    def version_of(self, uri: str) -> int | None:
        """The client's version of what it has open."""
        if uri in self.files:
            return self.files[uri].version
        document = self.document(uri)
        return document.version_of(uri) if document else None

    def text_of(self, path: str) -> Text | None:
        """A file as the client has it open, else as it is on disk; None where there is none."""
        for file in self.files.values():
            if file.path == path:
                return file.text
        return _read(path) if Path(path).is_file() else None

    def folder_of(self, document: OpenDocument) -> Path | None:
        """The innermost workspace folder that holds the document."""
        paths = [Path(path_of(folder)) for folder in self.folders]
        holding = [path for path in paths if Path(document.path).is_relative_to(path)]
        return max(holding, key=lambda path: len(path.parts), default=None)

    def _other(self, path: str) -> Text:
        """The text of a file that is not open, for the units of its columns."""
        if path not in self._others:
            self._others[path] = _read(path)
        return self._others[path]


def _ignore(document: OpenDocument, answer: Answer) -> None:
    """What happens on screen before the handlers are there."""


def _kept(last: Estimated | None, answer: Estimated) -> Estimated:
    """Broken text has fewer loops than the reader sees: then the last good estimates stay."""
    if last is None or not answer.is_broken or len(answer.estimates) >= len(last.estimates):
        return answer
    return replace(last, version=answer.version, is_broken=True)


def _read(path: str) -> Text:
    from torchwise_analysis.source.decode import decode

    try:
        data = read_regular(path, _MAX_RELATED_BYTES)
    except OSError:
        return Text("")
    return Text(decode(data).text)

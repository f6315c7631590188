"""The connection itself: capabilities, settings, folders, files that change on disk, the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from lsprotocol import types as lsp

from torchwise_analysis.files import read_regular
from torchwise_analysis.names.launches import may_start
from torchwise_server.lsp import project_file
from torchwise_server.lsp.analysis import Answer, Failure, Started
from torchwise_server.lsp.convert import path_of
from torchwise_server.lsp.documents import Checked, Estimated, OpenDocument
from torchwise_server.lsp.handlers import contained, contained_async, hints, lens
from torchwise_server.lsp.handlers.diagnostics import push, start_over
from torchwise_server.lsp.options import EditorOptions, read_options, table_of
from torchwise_server.lsp.panel import estimated_brief
from torchwise_server.lsp.progress import LongWork
from torchwise_server.lsp.server import TorchwiseServer
from torchwise_server.lsp.session import Client

logger = logging.getLogger(__name__)

# A notification of ours, for clients that show reports: an estimate is there, or another one.
ESTIMATED = "torchwise/estimated"

_WATCHED = (
    "**/{pyproject.toml,*.py,*.json,*.yaml,*.yml}",
    "**/{*.sh,*.bash,*.slurm,*.sbatch,*.cmd,*.md,README*,Makefile,makefile,justfile}",
)
# A text that starts scripts is no longer than this.
_MAX_START_BYTES = 256 << 10


def register(server: TorchwiseServer) -> None:
    server.session.on_answer = _answers(server)
    server.handle(lsp.INITIALIZE, contained(initialize))
    server.handle(lsp.INITIALIZED, contained_async(initialized))
    server.handle(lsp.SHUTDOWN, contained(shutdown))
    server.handle(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION, contained_async(did_change_configuration))
    server.handle(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, contained(did_change_watched_files))
    server.handle(lsp.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, contained_async(did_change_folders))


def initialize(ls: TorchwiseServer, params: lsp.InitializeParams) -> None:
    ls.session.client = Client.of(params)
    ls.session.folders = [folder.uri for folder in params.workspace_folders or ()]
    started = table_of(params.initialization_options) or {}
    table = {key: value for key, value in started.items() if key != "clientShowsReports"}
    ls.session.configure(_read(ls, table.get("settings", table)), {})


async def initialized(ls: TorchwiseServer, _: lsp.InitializedParams) -> None:
    await _register_watchers(ls)
    await _fetch_options(ls)


def shutdown(ls: TorchwiseServer, _: None) -> None:
    ls.session.shutdown()


async def did_change_configuration(ls: TorchwiseServer, params: lsp.DidChangeConfigurationParams) -> None:
    if ls.session.client.has_configuration:
        await _fetch_options(ls)
        return
    sent = table_of(params.settings)
    if sent is not None:
        ls.session.configure(_read(ls, sent.get("torchwise", sent)), {})
        start_over(ls)


def did_change_watched_files(ls: TorchwiseServer, params: lsp.DidChangeWatchedFilesParams) -> None:
    mattering = [change for change in params.changes if _matters(ls, change.uri)]
    if mattering:
        start_over(ls, keeps_scans=all(_is_edit_of_code(change) for change in mattering))


def _is_edit_of_code(change: lsp.FileEvent) -> bool:
    """Whether no name can mean another file than before, and no setting changed."""
    return change.type is lsp.FileChangeType.Changed and change.uri.endswith(".py")


def _matters(ls: TorchwiseServer, uri: str) -> bool:
    """Whether an answer may depend on a file that changed on disk.

    Python files may be imported. A configuration file (of Hugging Face, Hydra, ...) matters where an estimate
    read it or an open document names it or its folder: training runs write many files of that kind. A text
    that starts scripts matters where it names an open one, or did.
    """
    path = Path(path_of(uri))
    if path.name == project_file.NAME:
        return True
    if ls.session.document(uri) is not None:  # what is open counts as it is in the editor
        return False
    if path.suffix == ".py":
        return True
    if may_start(path.name):
        return _names_open_script(ls, path)
    for document in ls.session.documents():
        estimates = document.estimated.estimates if document.estimated else ()
        if any(str(path) in estimate.read_files for estimate in estimates):
            return True
        text = str(document.text)
        if path.stem in text or (path.parent.name and path.parent.name in text):
            return True
    return False


def _names_open_script(ls: TorchwiseServer, path: Path) -> bool:
    documents = list(ls.session.documents())
    estimates = [one for document in documents if document.estimated for one in document.estimated.estimates]
    if any(one.launch is not None and one.launch.origin.path == str(path) for one in estimates):
        return True
    try:
        text = read_regular(str(path), _MAX_START_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    return any(Path(document.path).stem in text for document in documents)


async def did_change_folders(ls: TorchwiseServer, params: lsp.DidChangeWorkspaceFoldersParams) -> None:
    gone = {folder.uri for folder in params.event.removed}
    kept = [uri for uri in ls.session.folders if uri not in gone]
    ls.session.folders = [*kept, *(folder.uri for folder in params.event.added)]
    await _fetch_options(ls)


def _answers(ls: TorchwiseServer) -> Callable[[OpenDocument, Answer], None]:
    """What happens on screen when the analysis answers."""
    long_work = LongWork(ls)

    def show(document: OpenDocument, answer: Answer) -> None:
        ls.collector.poke()
        if isinstance(answer, Started):
            long_work.began(document, answer.lane)
            return
        long_work.ended()
        if isinstance(answer, Checked) and not ls.session.client.pulls_diagnostics:
            push(ls, document)
        elif isinstance(answer, Estimated):
            if ls.session.client.shows_reports:
                ls.protocol.notify(ESTIMATED, estimated_brief(document))
            lens.refresh(ls, document)
            hints.refresh(ls, document)
        for failure in [answer.message] if isinstance(answer, Failure) else _failures(answer):
            if ls.session.is_first_complaint(failure):
                ls.say(lsp.MessageType.Error, f"{document.uri}: {failure}")

    return show


def _failures(answer: Answer) -> tuple[str, ...]:
    return answer.failures if isinstance(answer, Checked | Estimated) else ()


async def _fetch_options(ls: TorchwiseServer) -> None:
    """Ask the client for its settings, as a whole and for each folder."""
    if not ls.session.client.has_configuration:
        return
    scopes = [None, *ls.session.folders]
    items = [lsp.ConfigurationItem(scope_uri=scope, section="torchwise") for scope in scopes]
    tables = await ls.workspace_configuration_async(lsp.ConfigurationParams(items))
    before = (ls.session.options, ls.session.folder_options)
    if any(tables):
        options = [_read(ls, table) for table in tables]
        ls.session.configure(options[0], dict(zip(ls.session.folders, options[1:], strict=False)))
    elif before[1]:
        # a client that knows nothing of us: what it sent at the start stays, but not for folders that went
        ls.session.configure(ls.session.options, {})
    if before != (ls.session.options, ls.session.folder_options):
        start_over(ls)


def _read(ls: TorchwiseServer, table: object) -> EditorOptions:
    options, problems = read_options(table)
    for problem in problems:
        ls.say(lsp.MessageType.Warning, problem)
    return options


async def _register_watchers(ls: TorchwiseServer) -> None:
    client = ls.session.client
    wanted: list[lsp.Registration] = []
    if client.watches_files:
        watched = lsp.DidChangeWatchedFilesRegistrationOptions(
            [lsp.FileSystemWatcher(pattern) for pattern in _WATCHED]
        )
        wanted.append(lsp.Registration("torchwise-files", lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, watched))
    if client.watches_configuration:
        section = lsp.DidChangeConfigurationRegistrationOptions(section="torchwise")
        wanted.append(lsp.Registration("torchwise-settings", lsp.WORKSPACE_DID_CHANGE_CONFIGURATION, section))
    if wanted:
        await ls.client_register_capability_async(lsp.RegistrationParams(wanted))

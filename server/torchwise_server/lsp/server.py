"""The language server: pygls with our own documents, and every exception contained."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, cast

from cattrs import Converter
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, PyglsError
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter

from torchwise_server import __version__
from torchwise_server.lsp.analysis import Backend
from torchwise_server.lsp.collector import PauseCollector
from torchwise_server.lsp.convert import plain_diagnostic
from torchwise_server.lsp.session import Session

logger = logging.getLogger(__name__)

Params = TypeVar("Params")

_NOTEBOOKS = lsp.NotebookDocumentSyncOptions(
    notebook_selector=[
        lsp.NotebookDocumentFilterWithNotebook(
            notebook="jupyter-notebook", cells=[lsp.NotebookCellLanguage(language="python")]
        )
    ],
    save=True,
)

# pygls would keep texts of its own for these, cut into lines by `str.splitlines`
_KEPT_BY_US = (
    lsp.TEXT_DOCUMENT_DID_OPEN,
    lsp.TEXT_DOCUMENT_DID_CHANGE,
    lsp.TEXT_DOCUMENT_DID_CLOSE,
    lsp.NOTEBOOK_DOCUMENT_DID_OPEN,
    lsp.NOTEBOOK_DOCUMENT_DID_CHANGE,
    lsp.NOTEBOOK_DOCUMENT_DID_CLOSE,
)


def _converter() -> Converter:
    """pygls' converter between messages and their types."""
    made: Converter = default_converter()  # type: ignore[no-untyped-call]
    made.register_unstructure_hook(lsp.Diagnostic, plain_diagnostic)
    return made


class TorchwiseServer(LanguageServer):
    """The server of one connection."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - pygls is typed in part
            "torchwise", __version__, notebook_document_sync=_NOTEBOOKS, converter_factory=_converter
        )
        self.session = Session(backend)
        self.collector = PauseCollector()
        builtin = cast("dict[str, object]", self.protocol.fm.builtin_features)  # pyright: ignore[reportUnknownMemberType]
        for method in _KEPT_BY_US:
            del builtin[method]

    def handle(
        self,
        method: str,
        handler: Callable[[TorchwiseServer, Params], object],
        options: object = None,
    ) -> None:
        """Let `handler` answer messages of one method."""
        self.feature(method, options)(handler)

    def run_command(self, name: str, handler: Callable[..., object]) -> None:
        """Let `handler` run the command `name`."""
        self.command(name)(handler)

    def report_server_error(
        self, error: Exception, source: type[PyglsError] | type[JsonRpcException]
    ) -> None:
        """To the log only: a message box at each key press helps nobody."""
        logger.error("%s: %s", source.__name__, error)

    def say(self, kind: lsp.MessageType, message: str) -> None:
        """A line in the client's output channel."""
        self.window_log_message(lsp.LogMessageParams(kind, message))


def create_server(backend: Backend) -> TorchwiseServer:
    """A server with all its features."""
    from torchwise_server.lsp.handlers import (
        actions,
        commands,
        completion,
        diagnostics,
        hints,
        hover,
        lens,
        scan,
        sync,
        workspace,
    )

    server = TorchwiseServer(backend)
    registrations: tuple[Callable[[TorchwiseServer], None], ...] = (
        workspace.register,
        sync.register,
        diagnostics.register,
        actions.register,
        hover.register,
        lens.register,
        hints.register,
        completion.register,
        scan.register,
        commands.register,
    )
    for register in registrations:
        register(server)
    return server

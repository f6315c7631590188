"""Work-done progress for an analysis that takes long; short ones show nothing."""

from __future__ import annotations

import asyncio
import logging
import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from lsprotocol import types as lsp

from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.worker import Lane

if TYPE_CHECKING:
    from torchwise_server.lsp.server import TorchwiseServer

logger = logging.getLogger(__name__)

_LONG_S = 0.7
_TITLES = {
    Lane.CHECK: "torchwise: reading the code",
    Lane.VERIFY: "torchwise: trying fixes",
    Lane.ESTIMATE: "torchwise: estimating memory",
    Lane.SCAN: "torchwise: reading the workspace",
}


class LongWork:
    """Watches the analysis from the message loop: one thread, so one thing at a time."""

    def __init__(self, server: TorchwiseServer) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: str | None = None
        self._shown: str | None = None

    def began(self, document: OpenDocument, lane: Lane) -> None:
        self.ended()
        if self._server.session.client.has_progress:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LONG_S, self._show, document, lane)

    def ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wanted = None
        token, self._shown = self._shown, None
        if token is not None:
            self._server.work_done_progress.end(token, lsp.WorkDoneProgressEnd())

    def _show(self, document: OpenDocument, lane: Lane) -> None:
        self._timer = None
        task = asyncio.ensure_future(self._create(document, lane))
        task.add_done_callback(_log)

    async def _create(self, document: OpenDocument, lane: Lane) -> None:
        token = str(uuid.uuid4())
        self._wanted = token
        progress = self._server.work_done_progress
        await progress.create_async(token)  # pyright: ignore[reportUnknownMemberType]
        if self._wanted != token:  # the work ended while the client made the bar
            return
        self._shown = token
        cancelled = cast("Future[None]", progress.tokens[token])  # pyright: ignore[reportUnknownMemberType]
        cancelled.add_done_callback(lambda _: self._server.session.give_up(document, lane))
        progress.begin(token, lsp.WorkDoneProgressBegin(_TITLES[lane], cancellable=True))


def _log(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.warning("progress was not shown: %s", task.exception())

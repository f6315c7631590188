"""Questions about open documents, asked on the message loop and answered on the analysis thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from torchwise_server.lsp.documents import Checked, Estimated, OpenDocument, Update
from torchwise_server.lsp.options import EditorOptions
from torchwise_server.lsp.worker import Lane, Stop, Worker

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """What knows PyTorch. Called on the analysis thread only, so it needs no locks.

    `uri` names a document from its first `update` to `forget`. `check` and `estimate` may return None after
    `stop` became true; what they return carries any version, it is set here.
    """

    def update(self, uri: str, path: str, update: Update) -> None: ...

    def check(self, uri: str, options: EditorOptions, stop: Stop) -> Checked | None: ...

    def verify(self, uri: str, options: EditorOptions, stop: Stop) -> Checked | None:
        """The last answer of `check` again, with only those fixes that hold when they are tried."""

    def estimate(self, uri: str, options: EditorOptions, stop: Stop) -> Estimated | None: ...

    def saved(self, path: str) -> None:
        """The file on disk changed."""

    def forget(self, uri: str) -> None: ...

    def warm(self) -> None:
        """Nothing is asked at the moment: load what later questions need."""

    def reload(self) -> None:
        """Files on disk or settings changed: nothing read before may be trusted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An analysis died; the document keeps its last answers."""

    version: int
    lane: Lane
    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """An analysis began; it may take long."""

    lane: Lane


@dataclass(frozen=True, slots=True)
class OutOfStep:
    """The analysis needs the whole text before it can answer."""


Answer: TypeAlias = "Started | Checked | Estimated | Failure | OutOfStep"
Deliver: TypeAlias = Callable[[OpenDocument, Answer], None]


class Analysis:
    """Schedules the questions of one session. `deliver` is called on the analysis thread."""

    def __init__(self, backend: Backend, deliver: Deliver) -> None:
        self._backend = backend
        self._deliver = deliver
        self._worker = Worker()
        self._seen: dict[str, int] = {}  # analysis thread: version of each document there

    def ask(self, lane: Lane, document: OpenDocument, options: EditorOptions, delay_s: float = 0.0) -> None:
        """Answer one question for the newest version, after a pause in typing."""

        def work(stop: Stop) -> bool:
            return self._answer(lane, document, options, stop)

        self._worker.submit(lane, document.uri, work, delay_s)

    def hurry(self, document: OpenDocument, lane: Lane) -> None:
        """Somebody waits for this answer."""
        self._worker.hurry(lane, document.uri)

    def stop(self, document: OpenDocument, lane: Lane) -> None:
        self._worker.cancel(lane, document.uri)

    def forget(self, document: OpenDocument) -> None:
        """The document was closed."""

        def work(_: Stop) -> bool:
            if self._seen.pop(document.uri, None) is not None:
                self._backend.forget(document.uri)
            return True

        for lane in (Lane.VERIFY, Lane.ESTIMATE, Lane.SCAN):
            self._worker.cancel(lane, document.uri)
        self._worker.submit(Lane.CHECK, document.uri, work)

    def saved(self, document: OpenDocument) -> None:
        """The document's file changed: who imports it is out of date."""

        def work(_: Stop) -> bool:
            self._backend.saved(document.path)
            return True

        self._worker.submit(Lane.CHECK, f"saved {document.uri}", work)

    def reload(self) -> None:
        """Forget what was read from disk."""

        def work(_: Stop) -> bool:
            self._backend.reload()
            return True

        self._worker.submit(Lane.CHECK, "", work)

    def warm(self) -> None:
        """Get ready for edits, behind everything that is asked."""

        def work(_: Stop) -> bool:
            self._backend.warm()
            return True

        self._worker.submit(Lane.SCAN, "", work)

    def close(self) -> None:
        self._worker.close()

    # ----------------------------------------------------------------------- analysis thread

    def _answer(self, lane: Lane, document: OpenDocument, options: EditorOptions, stop: Stop) -> bool:
        began = time.perf_counter()
        version = document.version
        try:
            if not self._catch_up(document):
                self._deliver(document, OutOfStep())
                return True
            version = self._seen[document.uri]
            self._deliver(document, Started(lane))
            answer = self._ask(lane, document.uri, options, stop)
        except Exception as error:
            logger.exception("%s of %s failed", lane.name.lower(), document.uri)
            # whatever state the analysis is in, the next question starts from the whole text
            if self._seen.pop(document.uri, None) is not None:
                self._backend.forget(document.uri)
            self._deliver(document, Failure(version, lane, f"{type(error).__name__}: {error}"))
            return True
        if answer is None or stop():
            return False
        seconds = time.perf_counter() - began
        if isinstance(answer, Estimated):
            self._deliver(document, replace(answer, version=version, made_at=version, seconds=seconds))
        else:
            self._deliver(document, replace(answer, version=version, seconds=seconds))
        return True

    def _ask(self, lane: Lane, uri: str, options: EditorOptions, stop: Stop) -> Checked | Estimated | None:
        if lane in (Lane.CHECK, Lane.SCAN):
            return self._backend.check(uri, options, stop)
        if lane is Lane.ESTIMATE:
            return self._backend.estimate(uri, options, stop)
        verified = self._backend.verify(uri, options, stop)
        return verified and replace(verified, is_verified=True)

    def _catch_up(self, document: OpenDocument) -> bool:
        """Hand on the changes that the analysis has not seen; false if it lacks what they start from."""
        while document.unseen:
            update = document.unseen.popleft()
            if document.uri not in self._seen and not update.is_whole:
                return False
            self._backend.update(document.uri, document.path, update)
            self._seen[document.uri] = update.version
        return document.uri in self._seen

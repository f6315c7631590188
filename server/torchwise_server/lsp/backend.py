"""The engine behind the server: documents kept incrementally, one engine a project and its settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.engine import CheckReport, Engine, ProblemKind, could_matter, open_project
from torchwise_analysis.names.project import project_roots
from torchwise_analysis.settings import Settings, SettingsFinder
from torchwise_analysis.source import Document
from torchwise_analysis.source.nodes import Module
from torchwise_server.lsp.documents import Checked, Estimated, Update
from torchwise_server.lsp.options import EditorOptions
from torchwise_server.lsp.worker import Stop

if TYPE_CHECKING:
    from torchwise_analysis.interp.abstract.runs import Memory

# Lines of open documents whose runs are remembered: 15 KB each. Whoever comes back to another one waits once
# as long as when it was opened.
_REMEMBERED_LINES = 8_000
# Lines of files that open documents import, a kilobyte each.
_IMPORTED_LINES = 30_000


@dataclass(frozen=True, slots=True)
class _Version:
    """A text that an estimate read: of an open document, or of the disk (both None)."""

    module: Module | None
    text: str | None


@dataclass(frozen=True, slots=True)
class _LastEstimate:
    """An estimate and what it was made of: the document and the open ones it read, and files on disk.

    texts: files that were looked through as they are on disk. words: parts of the names of modules that were
    looked for. entered: lines (from 1) of the functions that ran, by path.
    """

    engine: Engine
    project_version: int
    read: Mapping[str, _Version]
    texts: frozenset[str]
    words: frozenset[str]
    entered: frozenset[tuple[str, int]]
    answer: Estimated

    def for_edited(self, engine: Engine, opened: Callable[[str], Document | None]) -> _LastEstimate | None:
        """The same answer for the documents as they are now, lines moved; None where another may come out.

        Comments that state nothing, blanks, functions that no run entered and files that none read change
        nothing.
        """
        if engine is not self.engine or any(map(self._reads, self._changed_on_disk())):
            return None
        kept: _LastEstimate | None = self
        for path, before in self.read.items():
            document = opened(path)
            now = _Version(None, None) if document is None else _Version(document.module, document.text)
            if kept is not None and (now.module is not before.module or now.text != before.text):
                kept = kept._with(path, before, now)
        return kept

    def _changed_on_disk(self) -> Iterator[str]:
        for path, version in self.engine.project.forgotten.items():
            if version > self.project_version:
                yield path

    def _reads(self, path: str) -> bool:
        """Whether the answer may depend on what is on disk there."""
        version = self.read.get(path)
        if version is not None and version.module is not None and path not in self.texts:
            return False  # the open document counts
        file = Path(path)
        name = file.parent.name if file.stem == "__init__" else file.stem
        return version is not None or path in self.texts or file.suffix != ".py" or name in self.words

    def _with(self, path: str, before: _Version, now: _Version) -> _LastEstimate | None:
        """For another text of one document."""
        if before.module is None or before.text is None or now.module is None or now.text is None:
            return None
        from torchwise_analysis.plan.reuse import moved, shift_between

        answer = self.answer
        # why there is no answer is told in words that look at the whole text
        is_whole = bool(answer.unanswered) or not answer.estimates
        lines = frozenset(line for entered, line in self.entered if entered == path)
        shift = shift_between(before.module, before.text, now.module, now.text, None if is_whole else lines)
        if shift is None or (is_whole and not shift.is_none):
            return None
        found = moved(answer, path, shift)
        if found is None:
            return None
        entered = {place for place in self.entered if place[0] != path}
        entered.update((path, shift.line(line)) for line in lines)
        return replace(self, read={**self.read, path: now}, entered=frozenset(entered), answer=found)


@dataclass(slots=True)
class _Subject:
    """A document under analysis, with its last report and what the next one can take from earlier ones."""

    document: Document
    report: CheckReport = field(default_factory=CheckReport)
    memory: Memory | None = None
    estimated: _LastEstimate | None = None


class EngineBackend:
    """Lives on the analysis thread."""

    def __init__(self) -> None:
        self._subjects: dict[str, _Subject] = {}
        self._by_path: dict[str, _Subject] = {}
        self._finder = SettingsFinder()
        self._engines: dict[tuple[Settings, Path, tuple[str, ...]], Engine] = {}
        self._remembered: dict[str, None] = {}  # documents with a memory, the latest last

    def update(self, uri: str, path: str, update: Update) -> None:
        for change in update.changes:
            if not isinstance(change, str):
                self._subjects[uri].document.edit(*change.start, *change.end, change.text)
            elif uri in self._subjects:
                self._subjects[uri].document.replace(change)
            else:
                subject = self._subjects[uri] = _Subject(Document(path, change))
                self._by_path[path] = subject

    def check(self, uri: str, options: EditorOptions, stop: Stop) -> Checked | None:
        subject = self._subjects[uri]
        document = subject.document
        if not options.enable or not could_matter(document.text):
            subject.report = CheckReport()
            return Checked()
        if subject.memory is None:
            # not at start-up: the client waits for the greeting first
            from torchwise_analysis.interp.abstract.recall import Recall
            from torchwise_analysis.interp.abstract.runs import Memory

            subject.memory = Memory(recall=Recall())
        engine = self._engine(document.path, options)
        self._make_room(uri, engine)
        engine.project.asked.clear()
        report = engine.check_quickly(document, stop, memory=subject.memory)
        if report.is_stopped or stop():
            return None
        if report.findings == subject.report.findings:
            # the same objects: what was made of them for the client holds
            report = replace(report, findings=subject.report.findings)
        subject.report = report
        read = frozenset(engine.project.asked - {document.path})
        return replace(_checked(report), valid_s=_validity(document), read=read)

    def verify(self, uri: str, options: EditorOptions, stop: Stop) -> Checked | None:
        subject = self._subjects[uri]
        engine = self._engine(subject.document.path, options)
        report = engine.with_verified_fixes(subject.document, subject.report, stop)
        return None if stop() else _checked(report)

    def estimate(self, uri: str, options: EditorOptions, stop: Stop) -> Estimated | None:
        subject = self._subjects[uri]
        document = subject.document
        if not options.enable or not could_matter(document.text):
            return Estimated()
        # findings come first: what estimates need is loaded with the first estimate
        from torchwise_analysis.plan import EstimateRequest

        engine = self._engine(document.path, options)
        last = subject.estimated
        kept = last.for_edited(engine, self._open_document) if last is not None else None
        if kept is not None:
            subject.estimated = kept
            return kept.answer
        project = engine.project
        project.asked.clear()
        project.asked_texts.clear()
        report = engine.estimate(document, EstimateRequest(gpus=engine.settings.gpus), stop)
        if stop():
            return None
        failures = tuple(item.message for item in report.problems if item.kind is ProblemKind.FAILURE)
        is_broken = any(item.kind is ProblemKind.SYNTAX for item in report.problems)
        answer = Estimated(report.estimates, report.unanswered, is_broken=is_broken, failures=failures)
        entered = {(document.path, line) for line in report.entered} | report.entered_elsewhere
        listed = {path for estimate in report.estimates for path in estimate.read_files}
        subject.estimated = _LastEstimate(
            engine,
            project.version,
            {path: self._version(path) for path in (document.path, *project.asked)},
            frozenset(project.asked_texts | (listed - project.asked)),
            project.words_of_names,
            frozenset(entered),
            answer,
        )
        return answer

    def forget(self, uri: str) -> None:
        subject = self._subjects.pop(uri, None)
        if subject is not None:
            self._by_path.pop(subject.document.path, None)
            self._remembered.pop(uri, None)
            self.saved(subject.document.path)

    def saved(self, path: str) -> None:
        for engine in self._engines.values():
            engine.project.forget(path)

    def warm(self) -> None:
        # what the first edit needs and the first answer did not
        Document("", "x = 1\n").tree_for(0)

    def reload(self) -> None:
        self._finder = SettingsFinder()
        self._engines.clear()

    def _engine(self, path: str, options: EditorOptions) -> Engine:
        loaded = self._finder.find(Path(path))
        settings = options.applied_to(loaded.settings)
        key = settings, loaded.root, project_roots(path)
        engine = self._engines.pop(key, None)
        if engine is None:
            engine = Engine(settings, loaded.root, open_project(path, settings, self._open_module))
        self._engines[key] = engine  # the latest last
        return engine

    def _make_room(self, uri: str, engine: Engine) -> None:
        """Forget what edits of other documents would take from earlier runs, the longest unused first."""
        if next(reversed(self._remembered), None) == uri:
            return
        self._remembered.pop(uri, None)
        self._remembered[uri] = None
        left = _REMEMBERED_LINES
        for other in reversed(list(self._remembered)):
            left -= self._subjects[other].document.line_count
            if left < 0 and other != uri:
                self._subjects[other].memory = None
                del self._remembered[other]
        left = _IMPORTED_LINES - engine.project.loaded_lines
        for key, other_engine in reversed(list(self._engines.items())):
            if other_engine is engine:
                continue
            left -= other_engine.project.loaded_lines
            if left < 0:
                self._let_go(other_engine)
                del self._engines[key]

    def _let_go(self, engine: Engine) -> None:
        for uri, subject in self._subjects.items():
            if subject.memory is not None and subject.memory.project is engine.project:
                subject.memory = None
                self._remembered.pop(uri, None)
            if subject.estimated is not None and subject.estimated.engine is engine:
                subject.estimated = None

    def _open_module(self, path: str) -> Module | None:
        """Unsaved text wins over the disk."""
        document = self._open_document(path)
        return document.module if document else None

    def _open_document(self, path: str) -> Document | None:
        subject = self._by_path.get(path)
        return subject.document if subject else None

    def _version(self, path: str) -> _Version:
        document = self._open_document(path)
        return _Version(None, None) if document is None else _Version(document.module, document.text)


def _validity(document: Document) -> float | None:
    """Seconds until the stand-in of a broken part is given up and the answer changes by itself."""
    until = document.stale_until
    return None if until is None else max(until - time.monotonic(), 0.0)


def _checked(report: CheckReport) -> Checked:
    return Checked(
        report.findings,
        is_broken=any(item.kind is ProblemKind.SYNTAX for item in report.problems),
        failures=tuple(item.message for item in report.problems if item.kind is ProblemKind.FAILURE),
        statistics=report.statistics,
    )

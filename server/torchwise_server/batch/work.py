"""What is asked of one file and what is answered, and who answers it: the analyst of one process.

Two questions are asked of a file. *First*: what does it show, and which functions of other files does it
call? *Again*, of a file whose functions others call: what does it show, when these are not run on arguments
that nobody knows? An analyst that was asked the first question can answer the second for little. A third one
is asked of few: which fixes hold of those *tried* in files that it calls? What is found there is found from
each caller, and reported from one.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.engine import (
    CheckReport,
    CheckStatistics,
    Engine,
    Problem,
    ProblemKind,
    could_matter,
)
from torchwise_analysis.findings import Finding
from torchwise_analysis.names.project import Project
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.collector import collector_paused
from torchwise_server.batch import codec
from torchwise_server.batch.store import Store, digest
from torchwise_server.cli.reading import Reader, Reading

if TYPE_CHECKING:
    from torchwise_analysis.fixes import SourceFile
    from torchwise_analysis.interp.abstract.runs import Memory

Key = tuple[str, int, int, str]  # of a function: file, line, column, name

# What is remembered between the two questions, counted in events and facts, and of other files, in lines.
_REMEMBERED = 400_000
_LOWERED_LINES = 400_000


@dataclass(frozen=True, slots=True)
class Job:
    """A file to check. path: absolute; explicit: named by the user; settings: index into the plan's."""

    path: str
    explicit: bool
    settings: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What holds for all jobs.

    settings: each with the folder that its patterns are relative to. cache: the folder of the store, None
    without one. tool: of which torchwise results are valid. is_complete: pass over nothing by its text.
    """

    settings: tuple[tuple[Settings, str], ...]
    cache: str | None = None
    tool: str = ""
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What one file shows.

    is_read: it gave a text. is_skipped: by its text alone it holds nothing to say. problems: of the reading
    and the analysis. calls: functions of other files that it calls. passed: lines of other files whose
    statements its runs executed, as bits of a number in base 16. by_itself: the findings of the first answer,
    in a second one.
    """

    is_read: bool
    is_skipped: bool = False
    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()
    statistics: CheckStatistics = field(default_factory=CheckStatistics)
    calls: tuple[Key, ...] = ()
    passed: tuple[tuple[str, str], ...] = ()
    by_itself: tuple[Finding, ...] | None = None


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer follows from besides the file itself.

    files: others that were read, and `content`, one digest over them. folders: those whose listings decided
    what an import finds, and `listing`, one digest over these. releases: what was asked of libraries.
    launches: and of the lines that start scripts.
    """

    files: tuple[str, ...]
    content: str
    folders: tuple[str, ...]
    listing: str
    releases: tuple[tuple[str, str], ...]
    launches: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """An answer as it is kept."""

    basis: Basis
    answer: Answer


_NOTHING = Basis((), digest(), (), digest(), (), ())


class Facts:
    """What the disk holds, looked at once in a run."""

    def __init__(self) -> None:
        self._contents: dict[str, str] = {}
        self._listings: dict[str, str] = {}

    def know(self, path: str, content: str) -> None:
        """The digest of a file that was read anyhow."""
        self._contents[path] = content

    def content(self, path: str) -> str:
        """The digest of a file."""
        found = self._contents.get(path)
        if found is None:
            found = self._contents[path] = content_of(path)
        return found

    def contents(self, paths: Iterable[str]) -> str:
        return digest(*(self.content(path) for path in paths))

    def listings(self, folders: Iterable[str]) -> str:
        return digest(*(self._listing(folder) for folder in folders))

    def _listing(self, folder: str) -> str:
        found = self._listings.get(folder)
        if found is None:
            found = self._listings[folder] = listing_of(folder)
        return found


def content_of(path: str) -> str:
    """The digest of a file's bytes; empty where there is none to read."""
    from torchwise_analysis.files import MAX_NOTEBOOK_BYTES, read_regular

    try:
        return digest(read_regular(path, MAX_NOTEBOOK_BYTES + 1))
    except (OSError, ValueError):
        return ""


def listing_of(folder: str) -> str:
    """The digest of the names in a folder that an import could mean."""
    try:
        with os.scandir(folder) as found:
            names = [
                entry.name
                for entry in found
                if entry.name.endswith(".py") or (entry.name.isidentifier() and entry.is_dir())
            ]
    except OSError:
        return ""
    return digest(*sorted(names))


class Analyst:
    """Answers for files of any number of projects. For one thread."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._store = Store(Path(plan.cache) if plan.cache else None)
        self._reader = Reader()
        self._facts = Facts()
        self._memories: OrderedDict[str, tuple[Memory, int]] = OrderedDict()
        self._remembered = 0

    def first(self, job: Job) -> Answer:
        """What the file shows by itself."""
        reading, content = self._read(job)
        document = reading.document
        if document is None:
            # only a file that somebody named is a problem when it is no Python
            is_silent = reading.is_foreign and not job.explicit
            return Answer(is_read=False, problems=() if is_silent else reading.problems)
        engine = self._engine(job)
        if not job.explicit and not self.plan.is_complete and not could_matter(document.text):
            skipped = Answer(is_read=True, is_skipped=True)
            self._keep(name_of(self.plan, job, content, engine.project), skipped, _NOTHING)
            return skipped
        shared = _shared(document, engine.project)
        engine.project.asked.clear()
        name = name_of(self.plan, job, content, engine.project)
        if not job.explicit and not self.plan.is_complete and engine.is_silent(shared):
            silent = Answer(is_read=True, is_skipped=True, problems=reading.problems)
            self._keep(name, silent, self._basis_of(engine.project, job.path, reading.problems))
            return silent
        from torchwise_analysis.interp.abstract.runs import Memory

        memory = Memory()
        answer, basis = self._answer(engine, shared, reading, frozenset(), memory)
        self._keep(name, answer, basis)
        if not engine.project.is_library(job.path):  # nobody calls into a library
            self._remember(job.path, memory)
        return answer

    def again(self, job: Job, called: frozenset[Key]) -> Answer:
        """What the file shows when it is known that other files call these functions of it."""
        reading, content = self._read(job)
        document = reading.document
        if document is None:
            return Answer(is_read=False, problems=reading.problems)
        engine = self._engine(job)
        memory, size = self._memories.pop(job.path, (None, 0))
        self._remembered -= size
        engine.project.asked.clear()
        shared = _shared(document, engine.project)
        answer, basis = self._answer(engine, shared, reading, called, memory)
        self._keep(name_of(self.plan, job, content, engine.project, called), answer, basis)
        if memory is not None:
            self._remember(job.path, memory)
        return answer

    def tried(self, job: Job, called: frozenset[Key], findings: tuple[Finding, ...]) -> Answer:
        """Findings of the file in files that it calls, with those edits that hold; `called` as it was when
        they were found."""
        reading, content = self._read(job)
        document = reading.document
        if document is None:
            return Answer(is_read=False, problems=reading.problems)
        engine = self._engine(job)
        project = engine.project
        project.asked.clear()
        shared = _shared(document, project)
        memory, _ = self._memories.get(job.path, (None, 0))
        report = engine.verified_in_callees(shared, findings, called, memory=memory)
        answer = Answer(is_read=True, findings=report.findings, problems=report.problems)
        name = name_of(self.plan, job, content, project, called, findings)
        self._keep(name, answer, self._basis_of(project, document.path, report.problems))
        return answer

    # ------------------------------------------------------------------ inside

    def _read(self, job: Job) -> tuple[Reading, str]:
        data, reading = self._reader.read_bytes(job.path)
        if data is None:
            return reading, ""
        content = digest(data)
        self._facts.know(job.path, content)
        return reading, content

    def _engine(self, job: Job) -> Engine:
        settings, root = self.plan.settings[job.settings]
        engine = self._reader.engine(settings, Path(root), job.path)
        engine.project.bound(_LOWERED_LINES)
        if self.plan.cache:
            engine.project.watch_folders()
        return engine

    def _answer(
        self,
        engine: Engine,
        shared: SourceFile,
        reading: Reading,
        called: frozenset[Key],
        memory: Memory | None,
    ) -> tuple[Answer, Basis | None]:
        with collector_paused():
            report = engine.check_quickly(shared, reached_elsewhere=called, memory=memory)
            report = engine.with_verified_fixes(
                shared, report, for_report=True, are_callees_later=True, memory=memory
            )
        problems = (*reading.problems, *report.problems)
        answer = Answer(
            is_read=True,
            findings=report.findings,
            problems=problems,
            statistics=report.statistics,
            calls=_calls(report, shared.path),
            passed=_passed(report, shared.path),
        )
        return answer, self._basis_of(engine.project, shared.path, problems)

    def _basis_of(self, project: Project, path: str, problems: Iterable[Problem]) -> Basis | None:
        """What is to be kept with an answer; None for one that is not."""
        # a fault of ours may be gone the next time
        is_sound = all(problem.kind is not ProblemKind.FAILURE for problem in problems)
        if not is_sound or not self.plan.cache:
            return None
        files = tuple(sorted(project.asked - {path}))
        folders = tuple(sorted(project.folders_behind((path, *files))))
        releases = tuple(sorted((name, repr(found)) for name, found in project.asked_releases()))
        launches = tuple(sorted((script, repr(found)) for script, found in project.asked_launches()))
        listing = self._facts.listings(folders)
        return Basis(files, self._facts.contents(files), folders, listing, releases, launches)

    def _keep(self, name: str, answer: Answer, basis: Basis | None) -> None:
        if basis is not None and self.plan.cache:
            self._store.put(name, codec.encoded(Entry(basis, answer)))

    def _remember(self, path: str, memory: Memory) -> None:
        size = sum(len(one.content.events) + len(one.content.facts) for one in memory.results.values())
        self._memories[path] = memory, size
        self._remembered += size
        while self._remembered > _REMEMBERED and len(self._memories) > 1:
            _, (_, gone) = self._memories.popitem(last=False)
            self._remembered -= gone


def _shared(document: SourceFile, project: Project) -> SourceFile:
    """The document with the one lowering that its importers and its own check share."""
    from torchwise_analysis.fixes import SourceFile

    return SourceFile(document.path, document.text, lower=project.lowered)


def name_of(
    plan: Plan,
    job: Job,
    content: str,
    project: Project,
    called: frozenset[Key] = frozenset(),
    tried: Iterable[Finding] = (),
) -> str:
    """The name of an answer in the store: all that it follows from and that is known beforehand."""
    settings, root = plan.settings[job.settings]
    places = (*project.roots, "", *project.libraries)
    functions = (f"{key[0]}:{key[1]}:{key[2]}:{key[3]}" for key in sorted(called))
    how = f"{job.explicit} {plan.is_complete}"
    findings = (repr(finding) for finding in tried)
    return digest(
        plan.tool, repr(settings), root, job.path, how, content, *places, "", *functions, "", *findings
    )


def answered_before(store: Store, facts: Facts, project: Project, name: str) -> Answer | None:
    """The answer of an earlier run, if everything it follows from is as it was then."""
    data = store.get(name)
    if data is None:
        return None
    try:
        entry = codec.decoded(Entry, data)
    except codec.NotOfThisKindError:
        return None
    basis = entry.basis
    if basis.content != facts.contents(basis.files) or basis.listing != facts.listings(basis.folders):
        return None
    if any(repr(project.releases(library)) != found for library, found in basis.releases):
        return None
    if any(repr(project.launches(script)) != found for script, found in basis.launches):
        return None
    return entry.answer


def failed(job: Job, what: str) -> Answer:
    """The answer for a file that nobody could answer for."""
    return Answer(is_read=True, problems=(Problem(job.path, None, what, ProblemKind.FAILURE),))


def _calls(report: CheckReport, path: str) -> tuple[Key, ...]:
    return tuple(sorted(key for key in report.reached if key[0] != path))


def _passed(report: CheckReport, path: str) -> tuple[tuple[str, str], ...]:
    return tuple((other, f"{lines:x}") for other, lines in sorted(report.passed.items()) if other != path)

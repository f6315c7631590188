"""All files of a run: from memory what did not change, the rest by analysts; then what calls across mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.engine import with_advice_alone
from torchwise_analysis.together import Caller, Callers, best_told, root_of, standing
from torchwise_server.batch.store import Store, digest
from torchwise_server.batch.work import Answer, Facts, Job, Key, Plan, answered_before, name_of

if TYPE_CHECKING:
    from torchwise_analysis.findings import Finding
    from torchwise_analysis.names.project import Project
    from torchwise_server.batch.executors import OnExecutor
    from torchwise_server.batch.processes import Here, Processes, Task
    from torchwise_server.batch.shards import File

Advance = Callable[[int], None]


def check_files(
    jobs: Sequence[Job],
    plan: Plan,
    processes: int = 1,
    executor: Executor | None = None,
    advance: Advance = lambda _: None,
    known: Sequence[File] = (),
    *,
    is_shard: bool = False,
) -> list[Answer]:
    """What each file shows, in their order; the same whatever answers the questions.

    processes: how many may be used here, unless an `executor` is given. `advance` is told how many files are
    done. known: what the shards of this run found, for all jobs. is_shard: other files are checked elsewhere,
    and which findings stand is not settled before all callers are known.
    """
    run = _Run(jobs, plan, advance, known, is_shard)
    with run.workers(processes, executor) as workers:
        run.ask_first(workers)
        run.ask_again(workers)
        answers = run.answers() if is_shard else run.tried(workers)
    run.store.prune()
    return answers


def callers_among(jobs: Sequence[Job], answers: Sequence[Answer]) -> Callers:
    """What the files call of each other."""
    callers = Callers(root_of(job.path for job in jobs))
    for caller in _callers(jobs, answers):
        callers.add(caller)
    return callers


def _callers(jobs: Sequence[Job], answers: Sequence[Answer]) -> list[Caller]:
    return [
        Caller(
            job.path,
            answer.calls,
            {path: int(lines, 16) for path, lines in answer.passed},
            answer.findings,
        )
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _settled(jobs: Sequence[Job], answers: Sequence[Answer]) -> list[Answer]:
    """The answers with those findings that stand, now that all callers are known."""
    found = standing(_callers(jobs, answers), [answer.by_itself for answer in answers])
    return [
        answer if answer.by_itself is None else replace(answer, findings=findings, by_itself=None)
        for answer, findings in zip(answers, found, strict=True)
    ]


def _with_tried(path: str, answer: Answer, tried: Sequence[Answer]) -> Answer:
    """The answer with what was tried in files that are called; what was not is told from another file."""
    if not any(finding.has_edits and finding.place.path != path for finding in answer.findings):
        return answer
    known = {(one.place, one.rule): one for told in tried for one in told.findings}
    findings = tuple(
        one
        if one.place.path == path or not one.has_edits
        else known.get((one.place, one.rule)) or with_advice_alone(one)
        for one in answer.findings
    )
    problems = (*answer.problems, *(problem for told in tried for problem in told.problems))
    return replace(answer, findings=findings, problems=problems)


class _Run:
    """One run over some files."""

    def __init__(
        self, jobs: Sequence[Job], plan: Plan, advance: Advance, known: Sequence[File], is_shard: bool
    ) -> None:
        self._jobs, self._plan, self._advance, self._is_shard = jobs, plan, advance, is_shard
        self._answers: list[Answer | None] = [None] * len(jobs)
        self.store = Store(Path(plan.cache) if plan.cache else None)
        self._facts = Facts()
        self._places = _Places(plan)
        self._contents: dict[int, str] = {}
        self._taken = [frozenset(file.called) for file in known]
        self._tried: list[tuple[int, Answer]] = []  # by earlier runs
        if known:
            self._answers[:] = [file.answer for file in known]
        else:
            self._recall()

    def workers(self, processes: int, executor: Executor | None) -> Here | Processes | OnExecutor | _Nobody:
        """Who answers, given how much is left."""
        left = sum(answer is None for answer in self._answers) or len(self._again())
        if left == 0 and not self._is_shard:
            left = len(self._untried(_settled(self._jobs, self.answers())))
        if left == 0:
            return _Nobody()
        if executor is not None:
            from torchwise_server.batch.executors import OnExecutor

            return OnExecutor(executor, self._plan)
        from torchwise_server.batch.processes import FILES_PER_PROCESS, Here, Processes

        count = min(processes, -(-left // FILES_PER_PROCESS))
        return Processes(self._plan, count) if count > 1 else Here(self._plan)

    def ask_first(self, workers: Here | Processes | OnExecutor | _Nobody) -> None:
        """Each file for itself."""
        left = [number for number, answer in enumerate(self._answers) if answer is None]
        if left:
            from torchwise_server.batch.processes import Task

            self._ask(workers, [Task(number, self._jobs[number]) for number in left])

    def ask_again(self, workers: Here | Processes | OnExecutor | _Nobody) -> None:
        """The files whose functions others call."""
        again = self._again()
        if again:
            self._ask(workers, again)

    def answers(self) -> list[Answer]:
        return [answer for answer in self._answers if answer is not None]

    def tried(self, workers: Here | Processes | OnExecutor | _Nobody) -> list[Answer]:
        """What each file shows in the end: fixes in files that it calls are tried for the findings that are
        told from it."""
        answers = _settled(self._jobs, self.answers())
        tasks = self._untried(answers)
        found: dict[int, list[Answer]] = {}

        def done(number: int, answer: Answer) -> None:
            found.setdefault(tasks[number].number, []).append(answer)
            self._advance(len(self._jobs) - 1)

        if tasks:
            workers.run([replace(task, number=index) for index, task in enumerate(tasks)], done)
        for number, answer in self._tried:
            found.setdefault(number, []).append(answer)
        return [
            _with_tried(job.path, answer, found.get(number, ()))
            for number, (job, answer) in enumerate(zip(self._jobs, answers, strict=True))
        ]

    # ------------------------------------------------------------------ inside

    def _ask(self, workers: Here | Processes | OnExecutor | _Nobody, tasks: Sequence[Task]) -> None:
        finished = len(self._jobs) - len(tasks)

        def done(number: int, answer: Answer) -> None:
            nonlocal finished
            finished += 1
            self._put(number, answer)
            self._advance(min(finished, len(self._jobs) - 1))

        workers.run(tasks, done)

    def _put(self, number: int, answer: Answer) -> None:
        before = self._answers[number]
        if before is not None:
            # who calls whom was settled by the first answers
            by_itself = before.findings if before.by_itself is None else before.by_itself
            answer = replace(answer, calls=before.calls, passed=before.passed, by_itself=by_itself)
        self._answers[number] = answer

    def _recall(self) -> None:
        """Answer what earlier runs did."""
        if self._plan.cache is None:
            return
        for number, job in enumerate(self._jobs):
            content = self._facts.content(job.path)
            if content:
                self._contents[number] = content
                self._answers[number] = self._known(number, frozenset())

    def _known(self, number: int, called: frozenset[Key], tried: Sequence[Finding] = ()) -> Answer | None:
        content = self._contents.get(number)
        if content is None:
            return None
        job = self._jobs[number]
        project = self._places.project(job)
        name = name_of(self._plan, job, content, project, called, tried)
        return answered_before(self.store, self._facts, project, name)

    def _untried(self, answers: Sequence[Answer]) -> list[Task]:
        """Third questions that nobody answered before."""
        from torchwise_server.batch.processes import Task

        callers = callers_among(self._jobs, answers)
        by_question: dict[tuple[int, frozenset[Key]], list[Finding]] = {}
        for number, finding in best_told(answer.findings for answer in answers):
            path, raw = self._jobs[number].path, self._answers[number]
            if finding.place.path == path or not finding.has_edits or raw is None:
                continue
            is_with_callers = raw.by_itself is not None and finding in raw.findings
            called = callers.into(path) if is_with_callers else frozenset[Key]()
            by_question.setdefault((number, called), []).append(finding)
        tasks: list[Task] = []
        self._tried.clear()
        for (number, called), findings in by_question.items():
            known = self._known(number, called, findings)
            if known is None:
                tasks.append(Task(number, self._jobs[number], called, tuple(findings)))
            else:
                self._tried.append((number, known))
        return tasks

    def _again(self) -> list[Task]:
        """Second questions that nobody answered before; those that were are put in their places."""
        present = [answer or Answer(is_read=False) for answer in self._answers]
        if any(answer is None for answer in self._answers):
            return []
        tasks: list[Task] = []
        callers = callers_among(self._jobs, present)
        for number, job in enumerate(self._jobs):
            called = callers.into(job.path)
            if not called or present[number].is_skipped or not present[number].is_read:
                continue
            if self._taken and self._taken[number] == called:
                continue  # its shard saw all of them
            known = self._known(number, called)
            if known is not None:
                self._put(number, known)
                continue
            from torchwise_server.batch.processes import Task

            tasks.append(Task(number, job, called))
        return tasks


class _Places:
    """The projects of files, for their names alone."""

    def __init__(self, plan: Plan) -> None:
        from torchwise_server.cli.reading import Reader

        self._plan = plan
        self._reader = Reader()

    def project(self, job: Job) -> Project:
        return self._reader.project(self._plan.settings[job.settings][0], job.path)


class _Nobody:
    """When everything is known."""

    def run(self, tasks: Sequence[Task], done: Callable[[int, Answer], None]) -> None:  # noqa: ARG002
        raise AssertionError("nothing is left to ask")

    def __enter__(self) -> _Nobody:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def tool_identity() -> str:
    """Changes with every file of torchwise and of its plug-ins, and with the Python that reads sources."""
    import os
    import sys

    import torchwise_analysis
    import torchwise_server
    from torchwise_analysis.plugins import plugins

    parts = [torchwise_server.__version__, sys.version, plugins().identity]
    for package in (torchwise_analysis, torchwise_server):
        for folder, folders, files in os.walk(package.__path__[0]):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118
                parts.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return digest(*parts)

"""Fixes of files that may call each other: each is kept only if no file that reads it is the worse for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchwise_analysis.engine import (
    CheckReport,
    Engine,
    Problem,
    ProblemKind,
    Stop,
    check_among,
    check_together_quickly,
    never,
)
from torchwise_analysis.findings import Finding, Fix
from torchwise_analysis.fixes import Repair, SourceFile, apply_plainly, repair
from torchwise_analysis.together import Caller, Callers, root_of

# A fix in one file may make room for one in another; more rounds than these were never needed.
_MOST_ROUNDS = 3

Apply = Callable[[SourceFile, Finding, Fix], "str | None"]
Wanted = Callable[[Finding, Fix], bool]


@dataclass(frozen=True, slots=True)
class Job:
    """One file to fix. wanted: which fixes to apply. apply: gives the text after a fix, or refuses it."""

    engine: Engine
    document: SourceFile
    wanted: Wanted
    apply: Apply = apply_plainly


@dataclass(frozen=True, slots=True)
class Outcome:
    """A file after its fixes, and what of it could not be analysed before them."""

    repair: Repair
    problems: tuple[Problem, ...] = ()


def repair_together(
    jobs: Sequence[Job], stop: Stop = never, advance: Callable[[int], None] = lambda _: None
) -> list[Outcome]:
    """Apply the wanted fixes of all files, one at a time; an outcome for each job, in their order.

    The projects of the engines see the fixed texts afterwards. `advance` is told how many files are analysed.
    Never raises for what a document can hold.
    """
    table = _Table(
        jobs, check_together_quickly([(job.engine, job.document) for job in jobs], stop, advance), stop
    )
    for _ in range(_MOST_ROUNDS):
        changes = [table.fix(index) for index in range(len(jobs))]
        if not any(changes):
            break
    return [table.outcome(index) for index in range(len(jobs))]


class _Table:
    """The files with their latest texts and reports."""

    def __init__(self, jobs: Sequence[Job], reports: Sequence[CheckReport], stop: Stop) -> None:
        self.jobs = jobs
        self.stop = stop
        self.files = [job.document for job in jobs]
        self.reports = list(reports)
        self.problems: list[list[Problem]] = [list(report.problems) for report in reports]
        self.repairs = [Repair(job.document, (), ()) for job in jobs]

    def fix(self, index: int) -> bool:
        """Fix one file as far as it goes; whether it changed."""
        job, file = self.jobs[index], self.files[index]
        if file.module.problems:  # nobody knows what else the author was about to write
            return False
        readers = self._readers(index)
        findings = [finding for one in readers for finding in self.reports[one].findings]
        if not any(job.wanted(each, fix) for each in findings for fix in each.fixes if fix.edits):
            return False
        seen: dict[str, dict[int, CheckReport]] = {}

        def reanalyse(path: str, text: str) -> list[Finding] | None:  # noqa: ARG001
            reports = self._reports(index, SourceFile(file.path, text), readers)
            if reports is None:
                return None
            seen[text] = reports
            return [finding for one in readers for finding in reports[one].findings]

        try:
            done = repair(file, findings, job.wanted, reanalyse, job.apply)
        except Exception as error:  # the border: a fault of ours leaves the file as it was
            message = f"fixing failed ({type(error).__name__}: {error}); this is a fault of torchwise"
            self.problems[index].append(Problem(file.path, None, message, ProblemKind.FAILURE))
            done = Repair(file, (), ())
        self._substitute(file.path, done.file.text)
        before = self.repairs[index]
        self.files[index] = done.file
        self.repairs[index] = replace(done, applied=(*before.applied, *done.applied))
        if not done.applied:
            return False
        for one, report in seen[done.file.text].items():
            self.reports[one] = report
        return True

    def outcome(self, index: int) -> Outcome:
        """The file after all fixes, with everything that is found in it."""
        path = self.files[index].path
        left: dict[tuple[object, ...], Finding] = {}
        for report in self.reports:
            for finding in report.findings:
                if finding.place.path == path:
                    left.setdefault((finding.rule, finding.place), finding)
        found = replace(self.repairs[index], file=self.files[index], left=tuple(left.values()))
        return Outcome(found, tuple(self.problems[index]))

    def _readers(self, index: int) -> list[int]:
        """The file itself and those whose code runs into it."""
        path = self.files[index].path
        callers = (
            one
            for one, report in enumerate(self.reports)
            if one != index and any(key[0] == path for key in report.reached)
        )
        return [index, *callers]

    def _reports(self, index: int, file: SourceFile, readers: Sequence[int]) -> dict[int, CheckReport] | None:
        """What its readers say of a file with another text; None where it is worse than a finding."""
        if file.module.problems:
            return None
        self._substitute(file.path, file.text)
        reports: dict[int, CheckReport] = {}
        for one in readers[1:]:
            reports[one] = self._report(one, self.files[one], reports)
        reports[index] = self._report(index, file, reports)
        if any(_is_worse(self.reports[one], after) for one, after in reports.items()):
            return None
        return reports

    def _report(self, one: int, file: SourceFile, changed: dict[int, CheckReport]) -> CheckReport:
        callers = Callers(root_of(each.path for each in self.files))
        for other, report in enumerate(self.reports):
            now = changed.get(other, report)
            if other != one:
                callers.add(Caller(self.files[other].path, now.reached, now.passed, now.findings))
        return check_among(self.jobs[one].engine, file, callers, self.stop)

    def _substitute(self, path: str, text: str) -> None:
        for project in {id(job.engine.project): job.engine.project for job in self.jobs}.values():
            project.substitute(path, text)


def _is_worse(before: CheckReport, after: CheckReport) -> bool:
    """Whether something could not be analysed any more, or a backward reaches less than it did."""
    if after.is_stopped or len(after.problems) > len(before.problems):
        return True
    is_comparable = len(after.graphs) == len(before.graphs)
    return is_comparable and any(new < old for old, new in zip(before.graphs, after.graphs, strict=True))

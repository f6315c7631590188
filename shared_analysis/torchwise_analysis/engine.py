"""The one facade that the language server and the command line call: a document in, a report out.

Everything below may fail on code nobody foresaw. What fails is contained here: logged with its traceback,
reported as a problem of the document in a sentence, and the rest of the report stands.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torchwise_analysis.findings import Confidence, Finding, Fix, Place, Safety
from torchwise_analysis.names.environment import library_folders
from torchwise_analysis.names.project import Project, project_roots
from torchwise_analysis.plugins import plugins
from torchwise_analysis.policy import at_least_confidence
from torchwise_analysis.settings import Settings, matches_any
from torchwise_analysis.source.collector import collector_paused
from torchwise_analysis.together import (
    Caller,
    Callers,
    agreed,
    alone,
    root_of,
    sorted_by_place,
    standing,
)
from torchwise_memory.report import PlanField

if TYPE_CHECKING:
    from torchwise_analysis.fixes import SourceFile
    from torchwise_analysis.interp.abstract.entries import FunctionKey
    from torchwise_analysis.interp.abstract.runs import Memory
    from torchwise_analysis.interp.abstract.trace import Silence, Trace
    from torchwise_analysis.plan import EstimateRequest
    from torchwise_analysis.source.nodes import Module, Span
    from torchwise_memory.report import Estimate, Unanswered

logger = logging.getLogger(__name__)

Stop = Callable[[], bool]

# A file without any of these words can hold nothing that a rule speaks of: no backward, step, mode, loss
# or loader can be told from other code without one of them, and what a file does through imports of the
# project is found when the importing file is analysed, because callees are entered.
_WORDS_THAT_MATTER = re.compile(
    r"torch|\bbackward\b|lightning|accelerat|deepspeed|fabric|transformers|zero_grad|state_dict|autocast"
    r"|DataLoader|Trainer|optimizer|\.step\(|\.eval\("
)


# A comment for torchwise, about which there may be something to say. Two patterns that begin with a text are
# found many times faster than one of two branches.
_ADDRESSES = re.compile(r"torchwise"), re.compile(r"TW\d")

# Characters of a file whose fixes are tried: analysing a larger one again takes seconds.
_MOST_VERIFIED = 600_000


class ProblemKind(Enum):
    """Why a part of the answer is missing."""

    UNREADABLE = "unreadable"  # no such text: missing, not permitted, not decodable
    SYNTAX = "syntax"  # text that is not Python; the rest of the file was analysed
    UNANSWERED = "unanswered"  # a loop without an estimate; the message says what was not known
    FAILURE = "failure"  # a fault of ours, contained
    UNFINISHED = "unfinished"  # more than one file may cost; what was analysed is said

    @property
    def is_missing(self) -> bool:
        """Whether the run could not do what it was asked to; what is unfinished did all that it may cost."""
        return self is not ProblemKind.UNFINISHED


@dataclass(frozen=True, slots=True)
class Problem:
    """What could not be analysed; `line` from 0, None for the file as a whole.

    plan: what an estimate that stopped had read of the training plan, by field.
    """

    path: str
    line: int | None
    message: str
    kind: ProblemKind
    plan: tuple[tuple[str, PlanField], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckStatistics:
    """What was counted on the way.

    not_analysed: places that the interpreter passed over, with the reason. silent: how often it gave up
    something without a place, by reason. by_function: the same by path and function.
    """

    suppressed: int = 0
    visits: int = 0
    not_analysed: tuple[tuple[Place, str], ...] = ()
    silent: tuple[tuple[str, int], ...] = ()
    by_function: tuple[tuple[str, str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings of one document, of every grade, sorted by place; front ends decide what to show.

    Findings may lie in other files that the document's code calls into. is_stopped: the caller's `stop`
    became true and the report is not complete. reached: functions that the document's code calls, its own
    and others'. passed: lines of other files whose statements its runs executed, as `together.Lines`.
    reached_elsewhere: functions of the document that were given as called from other files.
    by_itself: all that is found when none are given, and `only_by_itself`, what stands of it though it is not
    found otherwise (see `together`); empty where no other file calls into the document.
    graphs: how many forward passes each backward reaches, in the order of path, line and column.
    """

    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()
    statistics: CheckStatistics = field(default_factory=CheckStatistics)
    is_stopped: bool = False
    reached: frozenset[FunctionKey] = frozenset()
    passed: Mapping[str, int] = field(default_factory=dict[str, int])
    reached_elsewhere: frozenset[FunctionKey] = frozenset()
    by_itself: tuple[Finding, ...] = ()
    only_by_itself: tuple[Finding, ...] = ()
    graphs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EstimateReport:
    """An estimate for each loop of one document; `unanswered` says what stopped the others.

    entered: lines (from 1) of the document's functions that were followed; entered_elsewhere: of those of
    other files of the project, each with its path.
    """

    estimates: tuple[Estimate, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    problems: tuple[Problem, ...] = ()
    entered: frozenset[int] = frozenset()
    entered_elsewhere: frozenset[tuple[str, int]] = frozenset()


class Analysable(Protocol):
    """What the engine needs of a document, open in an editor or read from disk."""

    @property
    def path(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def module(self) -> Module: ...


def never() -> bool:
    """A `stop` that never stops."""
    return False


def could_matter(text: str) -> bool:
    """Whether a file can hold anything a rule speaks of, by its text alone."""
    return _WORDS_THAT_MATTER.search(text) is not None or any(word in text for word in plugins().words)


def _is_addressed(text: str) -> bool:
    return any(address.search(text) for address in _ADDRESSES)


def open_project(
    path: str, settings: Settings, overlay: Callable[[str], Module | None] = lambda _: None
) -> Project:
    """The project that the file `path` belongs to, with the libraries that its code may be read from."""
    libraries = settings.site_packages or library_folders(Path(path))
    return Project(project_roots(path), libraries, overlay)


class Engine:
    """Answers questions about documents of one project, under one set of settings.

    `root`: the folder that the settings' patterns are relative to. Not safe for several threads at once.
    """

    def __init__(self, settings: Settings, root: Path, project: Project) -> None:
        self.settings = settings
        self.root = root
        self.project = project

    def is_silent(self, document: SourceFile) -> bool:
        """Whether nothing that would be shown can be found in the document, told by its words and those of
        what it imports, as the disk holds it.

        Only built-in rules say which words they rest on: with others nothing is silent.
        """
        from torchwise_analysis.interp import abstract
        from torchwise_analysis.semantics import speaking

        if plugins().rules or _is_addressed(document.text):
            return False
        try:
            with collector_paused():
                trees = document.parsed.trees()
                most, all_grades = abstract.DEFAULT_LIMITS.mentions, self._shows_grade(Confidence.POSSIBLE)
                return speaking.is_silent(document.path, trees, self.project, most, all_grades)
        except (SyntaxError, RecursionError):  # what does not parse is analysed in parts
            return False
        except Exception:  # the border: the analysis tells what is wrong with the file
            logger.exception("asking what %s speaks of failed", document.path)
            return False

    def check(self, document: Analysable, stop: Stop = never) -> CheckReport:
        """All findings with fixes that were verified by analysing the fixed text again.

        Never raises for what a document can hold.
        """
        report = self.check_quickly(document, stop)
        return self.with_verified_fixes(document, report, stop)

    def check_quickly(
        self,
        document: Analysable,
        stop: Stop = never,
        reached_elsewhere: frozenset[FunctionKey] = frozenset(),
        memory: Memory | None = None,
    ) -> CheckReport:
        """All findings, their fixes not yet verified: for an editor that asks at every keystroke.

        reached_elsewhere: functions of the document that other files are known to call. What they are called
        with is seen there, so here they are not judged with arguments that nobody knows.
        memory: of earlier checks of this document. What an edit did not touch is not analysed again; the
        report is the same as without.
        """
        problems: tuple[Problem, ...] = ()
        try:
            problems = _syntax_problems(document)
            with collector_paused():
                report = self._judge(document, stop, reached_elsewhere, memory)
        except Exception as error:  # the border: whatever breaks inside is one problem of one document
            return CheckReport(problems=(*problems, _failure(document.path, "the analysis", error)))
        if stop():
            return CheckReport(problems=problems, is_stopped=True)
        findings = tuple(finding for finding in report.findings if not self._is_ignored(finding))
        return replace(report, findings=findings, problems=(*problems, *report.problems))

    def with_verified_fixes(
        self,
        document: Analysable,
        report: CheckReport,
        stop: Stop = never,
        *,
        for_report: bool = False,
        are_callees_later: bool = False,
        memory: Memory | None = None,
    ) -> CheckReport:
        """The report with those edits only that leave a file which parses, without the finding and without a
        new one; others become advice.

        for_report: try those of findings that are shown, and of these such, too, that change another file of
        the project, which the document calls; are_callees_later: leave those as they are, for
        `verified_in_callees`. memory: of the check that gave the report; what an edit does not touch is not
        analysed again for it, and the answer is the same as without.
        """
        from torchwise_analysis.fixes import SourceFile
        from torchwise_analysis.rules import verified

        if not any(finding.has_edits for finding in report.findings):
            return report
        if report.only_by_itself:
            # whether such a finding is gone shows only in the runs that it was found in
            only = set(report.only_by_itself)
            rest = tuple(finding for finding in report.findings if finding not in only)
            parts = [
                self.with_verified_fixes(
                    document,
                    part,
                    stop,
                    for_report=for_report,
                    are_callees_later=are_callees_later,
                    memory=memory,
                )
                for part in (
                    replace(report, findings=rest, by_itself=(), only_by_itself=()),
                    replace(
                        report,
                        findings=report.only_by_itself,
                        reached_elsewhere=frozenset(),
                        only_by_itself=(),
                    ),
                )
            ]
            findings = sorted_by_place(finding for part in parts for finding in part.findings)
            return replace(report, findings=findings, problems=parts[0].problems)
        if len(document.text) > _MOST_VERIFIED:
            return replace(report, findings=tuple(map(with_advice_alone, report.findings)))
        file = SourceFile(document.path, document.text, document.module)
        later = {
            number
            for number, one in enumerate(report.findings)
            if are_callees_later and self._is_tried_in_callee(document, one)
        }
        tried = [
            number
            for number, one in enumerate(report.findings)
            if number not in later and (not for_report or self._shows(one))
        ]
        try:
            done = verified(
                file,
                [report.findings[number] for number in tried],
                lambda path, text: self._reanalyse(path, text, stop, report.reached_elsewhere, memory),
                report.by_itself or report.findings,
            )
            by_number = dict(zip(tried, done, strict=True))
            by_number |= {number: report.findings[number] for number in later}
            findings = tuple(
                by_number.get(number) or with_advice_alone(one) for number, one in enumerate(report.findings)
            )
            if for_report and not are_callees_later:
                elsewhere = self._verified_elsewhere(file, report, stop, memory)
                findings = tuple(elsewhere.get(number, finding) for number, finding in enumerate(findings))
        except Exception as error:  # a finding without its fix is still right
            without = tuple(replace(finding, fixes=()) for finding in report.findings)
            problem = _failure(document.path, "verifying fixes", error)
            return replace(report, findings=without, problems=(*report.problems, problem))
        return replace(report, findings=findings)

    def verified_in_callees(
        self,
        document: Analysable,
        findings: Sequence[Finding],
        reached_elsewhere: frozenset[FunctionKey] = frozenset(),
        stop: Stop = never,
        memory: Memory | None = None,
    ) -> CheckReport:
        """Findings of a document that lie in files which it calls, with those edits only that hold there.

        reached_elsewhere: as it was for the check that found them.
        """
        from torchwise_analysis.fixes import SourceFile

        report = CheckReport(tuple(findings), reached_elsewhere=reached_elsewhere)
        try:
            file = SourceFile(document.path, document.text, document.module)
            with collector_paused():
                done = self._verified_elsewhere(file, report, stop, memory)
        except Exception as error:  # the border, as above
            without = tuple(replace(finding, fixes=()) for finding in findings)
            return replace(
                report, findings=without, problems=(_failure(document.path, "verifying fixes", error),)
            )
        kept = (done.get(number) or with_advice_alone(one) for number, one in enumerate(findings))
        return replace(report, findings=tuple(kept))

    def estimate(self, document: Analysable, request: EstimateRequest, stop: Stop = never) -> EstimateReport:
        """The peak memory of each loop of the document. Never raises for what a document can hold."""
        problems: tuple[Problem, ...] = ()
        try:
            problems = _syntax_problems(document)
            report = _estimate(document.module, self.project, replace(request, text=document.text), stop)
        except Exception as error:  # the border, as above
            return EstimateReport(problems=(*problems, _failure(document.path, "the estimate", error)))
        return replace(report, problems=(*problems, *report.problems))

    # ------------------------------------------------------------------ inside the border

    def _judge(
        self,
        document: Analysable,
        stop: Stop,
        reached: frozenset[FunctionKey],
        memory: Memory | None = None,
    ) -> CheckReport:
        from torchwise_analysis.fixes import SourceFile
        from torchwise_analysis.interp import abstract
        from torchwise_analysis.rules import judge

        plugins()  # what they teach about libraries has to be there before the run
        is_library = self.project.is_library(document.path)
        limits = abstract.LIBRARY_LIMITS if is_library else abstract.DEFAULT_LIMITS
        trace = abstract.run(
            document.module, self.project, limits=limits, stop=stop, reached=reached, memory=memory
        )
        file = SourceFile(document.path, document.text, document.module)
        result = judge(
            trace, file, self.settings, ignored=self._ignored(document.path), others=self._others(trace)
        )
        failures = [f"the rule {failure.rule} failed: {failure.message}" for failure in result.failures]
        failures += [f"part of the analysis failed: {message}" for message in trace.silence.failed]
        return CheckReport(
            result.findings,
            (
                *(Problem(document.path, None, message, ProblemKind.FAILURE) for message in failures),
                *_unfinished(document.path, trace.silence),
            ),
            _statistics(result.statistics.suppressed, trace.silence),
            reached=trace.reached,
            passed=trace.passed,
            reached_elsewhere=reached,
            graphs=trace.once("graphs", lambda: _graphs(trace)),
        )

    def _reanalyse(
        self,
        path: str,
        text: str,
        stop: Stop,
        reached: frozenset[FunctionKey],
        memory: Memory | None = None,
    ) -> tuple[Finding, ...] | None:
        from torchwise_analysis.fixes import SourceFile

        changed = SourceFile(path, text)
        if changed.module.problems:
            return None
        # an edit that all runs would have to be repeated for must not cost those of the text itself
        is_local = memory is not None and memory.source.keeps_definitions(changed.module)
        return self._judge(changed, stop, reached, memory if is_local else None).findings

    def _verified_elsewhere(
        self, document: SourceFile, report: CheckReport, stop: Stop, memory: Memory | None
    ) -> dict[int, Finding]:
        """The findings that lie in files which the document calls, by their number, with what holds there."""
        from torchwise_analysis.rules import verified

        by_path: dict[str, list[int]] = {}
        for number, finding in enumerate(report.findings):
            if self._is_tried_in_callee(document, finding):
                by_path.setdefault(finding.place.path, []).append(number)
        found: dict[int, Finding] = {}
        for path, numbers in sorted(by_path.items()):
            other = self._callee(path)
            if other is None:
                continue
            before = self._seen_together(document, report, other, stop, memory)
            done = verified(
                other,
                [report.findings[number] for number in numbers],
                partial(self._reanalyse_callee, document, report, stop),
                before,
            )
            found.update(zip(numbers, done, strict=True))
        return found

    def _is_tried_in_callee(self, document: Analysable, finding: Finding) -> bool:
        return finding.place.path != document.path and self._shows(finding) and finding.has_edits

    def _callee(self, path: str) -> SourceFile | None:
        """A file of the project whose text may be tried otherwise: notebooks and broken files may not."""
        from torchwise_analysis.fixes import SourceFile

        is_own = path.endswith(".py") and not self.project.describe(path).is_library
        text = self.project.text(path) if is_own else None
        other = None if text is None else SourceFile(path, text, lower=self.project.lowered)
        return None if other is None or other.module.problems else other

    def _reanalyse_callee(
        self, document: SourceFile, report: CheckReport, stop: Stop, path: str, text: str
    ) -> tuple[Finding, ...] | None:
        from torchwise_analysis.fixes import SourceFile

        with self.project.holding(path, text):
            changed = SourceFile(path, text, lower=self.project.lowered)
            if changed.module.problems:
                return None
            return self._seen_together(document, report, changed, stop)

    def _seen_together(
        self,
        document: SourceFile,
        report: CheckReport,
        callee: SourceFile,
        stop: Stop,
        memory: Memory | None = None,
    ) -> tuple[Finding, ...]:
        """What is found from the document, and in the file that it calls."""
        from_document = self._judge(document, stop, report.reached_elsewhere, memory)
        called = frozenset(key for key in from_document.reached if key[0] == callee.path)
        return (*from_document.findings, *self._judge(callee, stop, called).findings)

    def _others(self, trace: Trace) -> tuple[SourceFile, ...]:
        from torchwise_analysis.fixes import SourceFile

        texts = ((path, self.project.text(path)) for path in trace.analysed_files if path != trace.path)
        return tuple(
            SourceFile(path, text, self.project.load(path)) for path, text in texts if text is not None
        )

    def _ignored(self, path: str) -> tuple[str, ...]:
        return tuple(
            rule
            for pattern, rules in self.settings.per_file_ignores
            if matches_any(Path(path), self.root, (pattern,))
            for rule in rules
        )

    def _shows(self, finding: Finding) -> bool:
        """May a report show it? What fails a run is shown at any grade."""
        return self._shows_grade(finding.confidence)

    def _shows_grade(self, confidence: Confidence) -> bool:
        floors = self.settings.min_confidence, self.settings.fail_confidence
        return any(at_least_confidence(confidence, floor) for floor in floors)

    def _is_ignored(self, finding: Finding) -> bool:
        """By the settings for the file that the finding lies in, not for the one it was found from."""
        from torchwise_analysis.rules import selects

        ignored = self._ignored(finding.place.path)
        return any(selects(selector, finding.rule, finding.code) for selector in ignored)


def check_together(
    documents: Sequence[tuple[Engine, Analysable]],
    stop: Stop = never,
    advance: Callable[[int], None] = lambda _: None,
) -> list[CheckReport]:
    """Check files that may call each other: a report for each, in their order, whatever that order is."""
    reports = check_together_quickly(documents, stop, advance)
    return [
        engine.with_verified_fixes(document, report, stop, for_report=True)
        for (engine, document), report in zip(documents, reports, strict=True)
    ]


def check_together_quickly(
    documents: Sequence[tuple[Engine, Analysable]],
    stop: Stop = never,
    advance: Callable[[int], None] = lambda _: None,
) -> list[CheckReport]:
    """The same with fixes not yet verified.

    A file is analysed a second time where another one calls its functions: only then it is known that their
    arguments are seen there. What stands of the first is said in `together`. `advance` is told how many
    files are done.
    """
    # traces hold no cycles, so looking for some between two files only costs
    with collector_paused():
        return _check_together(documents, stop, advance)


def _check_together(
    documents: Sequence[tuple[Engine, Analysable]], stop: Stop, advance: Callable[[int], None]
) -> list[CheckReport]:
    from torchwise_analysis.interp.abstract.runs import Memory

    reports: list[CheckReport] = []
    memories: list[Memory] = []
    for done, (engine, document) in enumerate(documents):
        advance(done)
        memories.append(Memory())
        reports.append(engine.check_quickly(document, stop, memory=memories[-1]))
    first = Callers(root_of(document.path for _, document in documents))
    for (_, document), report in zip(documents, reports, strict=True):
        first.add(Caller(document.path, report.reached, report.passed))
    again = [
        _again(engine, document, report, first.into(document.path), stop, memory)
        for (engine, document), report, memory in zip(documents, reports, memories, strict=True)
    ]
    files = [
        Caller(document.path, report.reached, report.passed, report.findings)
        for (_, document), report in zip(documents, again, strict=True)
    ]
    by_itself = [None if other is one else one.findings for one, other in zip(reports, again, strict=True)]
    return [
        _standing(one, other, findings)
        for one, other, findings in zip(reports, again, standing(files, by_itself), strict=True)
    ]


def check_among(engine: Engine, document: Analysable, callers: Callers, stop: Stop = never) -> CheckReport:
    """Check a file whose callers are known, its fixes not yet verified."""
    first = engine.check_quickly(document, stop)
    again = _again(engine, document, first, callers.into(document.path), stop)
    findings = agreed(document.path, first.findings, again.findings, callers)
    return _standing(first, again, findings)


def _again(
    engine: Engine,
    document: Analysable,
    first: CheckReport,
    elsewhere: frozenset[FunctionKey],
    stop: Stop,
    memory: Memory | None = None,
) -> CheckReport:
    """The report with functions that others call not run on unknown arguments; `first`, if there are none."""
    if not elsewhere or first.is_stopped:
        return first
    again = engine.check_quickly(document, stop, elsewhere, memory)
    # who calls whom was settled by the first reports
    return replace(again, reached=first.reached, passed=first.passed)


def _standing(first: CheckReport, again: CheckReport, findings: tuple[Finding, ...]) -> CheckReport:
    """The report on a file whose callers are known, with what stands of its findings."""
    if again is first:
        return first
    only = set(alone(first.findings, again.findings))
    return replace(
        again,
        findings=findings,
        by_itself=first.findings,
        only_by_itself=tuple(finding for finding in findings if finding in only),
    )


def with_advice_alone(finding: Finding) -> Finding:
    """The finding with what its fixes say, and none of their edits."""
    fixes = tuple(Fix(fix.title, Safety.ADVICE, ()) if fix.edits else fix for fix in finding.fixes)
    return replace(finding, fixes=fixes)


def _estimate(module: Module, project: Project, request: EstimateRequest, stop: Stop) -> EstimateReport:
    from torchwise_analysis.plan import estimate_module

    answer = estimate_module(module, project, request, stop=stop)
    return EstimateReport(
        answer.estimates,
        answer.unanswered,
        entered=answer.entered,
        entered_elsewhere=answer.entered_elsewhere,
    )


def _syntax_problems(document: Analysable) -> tuple[Problem, ...]:
    return tuple(
        Problem(document.path, problem.span.line, problem.message, ProblemKind.SYNTAX)
        for problem in document.module.problems
    )


def _graphs(trace: Trace) -> tuple[int, ...]:
    passes: dict[tuple[str, Span], int] = {}
    for event in trace.backwards:
        key = (event.place.path, event.place.span)
        passes[key] = max(passes.get(key, 0), len(event.passes))
    return tuple(passes[key] for key in sorted(passes))


def _unfinished(path: str, silence: Silence) -> Iterator[Problem]:
    """One line on what the fuel did not reach: silence must not be taken for an answer."""
    from torchwise_analysis.interp.abstract.limits import TOO_DEEP, TOO_LARGE, TOO_MANY

    ends = sorted(
        (place.span.line, why)
        for place, why in silence.not_analysed
        if place.path == path and why in (TOO_LARGE, TOO_MANY, TOO_DEEP)
    )
    if silence.fuel_spent or ends:
        line, why = ends[0] if ends else (None, TOO_LARGE)
        more = f", and {len(ends) - 1} more" if len(ends) > 1 else ""
        yield Problem(path, line, f"{why}{more}", ProblemKind.UNFINISHED)


def _failure(path: str, what: str, error: Exception) -> Problem:
    logger.exception("%s of %s failed", what, path)
    message = f"{what} failed ({type(error).__name__}: {error}); this is a fault of torchwise"
    return Problem(path, None, message, ProblemKind.FAILURE)


_SILENT = {
    "dead_paths": "paths that end in a call which never returns",
    "cut": "calls too deep or recursive to enter",
    "unknown_backwards": "backwards on a value that no known forward made",
    "lost": "values given up where paths join",
}


def _statistics(suppressed: int, silence: Silence) -> CheckStatistics:
    counted = [(reason, getattr(silence, what)) for what, reason in _SILENT.items()]
    return CheckStatistics(
        suppressed,
        silence.visits,
        silence.not_analysed,
        tuple((reason, number) for reason, number in counted if number),
        tuple(
            (path, function, _SILENT[what], number)
            for path, function, what, number in silence.by_function
            if what in _SILENT
        ),
    )

"""`torchwise check`: findings of files, folders, notebooks and standard input."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise_analysis.findings import Finding
from torchwise_analysis.policy import FailureLevel, at_least_confidence, fails
from torchwise_analysis.settings import Settings, SettingsFinder
from torchwise_analysis.together import best_told
from torchwise_server.cli import Exit, UsageError, batching, reporting
from torchwise_server.cli.console import Progress
from torchwise_server.cli.files import STDIN, Inputs, collect
from torchwise_server.cli.options import Parser, add_verbose, plugin_problems, shown_path
from torchwise_server.cli.output import complain
from torchwise_server.cli.selecting import add_selection, require_known_selection, settings_for
from torchwise_server.reporters.words import one_line

if TYPE_CHECKING:
    from torchwise_analysis.engine import CheckStatistics, Engine, Problem
    from torchwise_analysis.fixes import SourceFile
    from torchwise_server.batch.shards import File
    from torchwise_server.cli.batching import Asked
    from torchwise_server.cli.reading import Reader
    from torchwise_server.reporters.check_run import CheckRun

_MOST_EXCLUDED = 10

_DESCRIPTION = """\
Find training bugs that never crash: losses kept with their graph, gradients never cleared, a model left
in evaluation mode, softmax applied twice. Every finding shows the evidence it rests on. The code is read as
text; nothing of it is imported or run."""

_EPILOG = """\
examples:
  torchwise check                                   this folder
  torchwise check train.py notebooks/*.ipynb
  torchwise check src --select retained-graph,TW2   some rules only (names, codes, prefixes of codes)
  torchwise check . --fail-on warning --fail-confidence likely     strict, for CI
  torchwise check --diff main                       only what this branch brings
  torchwise check --update-baseline                 accept what is there; then check with --baseline
  torchwise check --format concise --report sarif=torchwise.sarif
  cat train.py | torchwise check - --stdin-filename src/train.py

formats:
FORMATS

confidence:
  certain    every link of the chain was resolved
  likely     one link rests on a convention, named in the message
  possible   two or more do; counted in the last line, shown with --min-confidence possible

exit status:
  0  nothing at or above the failing level (default: certain errors)
  1  findings at or above it
  2  could not run: bad usage or settings, nothing to read, an internal error
  3  nothing failing, but some files could not be parsed or fully analysed; the report names them

Settings come from [tool.torchwise] of the nearest pyproject.toml; options win over them.
To silence one finding:  # torchwise: ignore[rule-name] -- reason""".replace(
    "FORMATS", reporting.FORMATS_HELP
)


def run(words: list[str]) -> int:
    """Check, report, and return the exit status."""
    options = parser().parse(words)
    paths: list[str] = options.paths or ["."]
    stdin = STDIN in paths
    if options.stdin_filename and not stdin:
        raise UsageError("--stdin-filename needs - among the paths")
    finder = SettingsFinder()
    inputs = collect([path for path in paths if path != STDIN], finder)
    require_known_selection(options)

    from torchwise_server.cli.reading import Reader

    reader = Reader()
    if stdin:
        return _finished(_check_with_stdin(inputs, options, finder, reader), options, inputs, reader)
    asked = batching.planned(inputs, options, finder)
    if options.shard is not None:
        return batching.hand_on(asked, options)
    return finish(asked, options, inputs, reader)


def finish(
    asked: Asked, options: argparse.Namespace, inputs: Inputs, reader: Reader, known: Sequence[File] = ()
) -> int:
    """Check, report, and return the exit status. `known`: what the shards of the same run found."""
    answers = batching.check(asked, options, known)
    checked = [
        _Checked(answer.findings, answer.problems, answer.statistics, asked.settings_of(job))
        for job, answer in zip(asked.jobs, answers, strict=True)
    ]
    for job, answer in zip(asked.jobs, answers, strict=True):
        if answer.findings:  # so that files of its libraries are shown by their short names
            reader.project(asked.settings_of(job), job.path)
    read = sum(answer.is_read for answer in answers)
    skipped = sum(answer.is_skipped for answer in answers)
    outcome = _outcome(checked, _problems_outside(inputs), read, skipped, options, reader)
    return _finished(outcome, options, inputs, reader)


def _finished(outcome: _Outcome, options: argparse.Namespace, inputs: Inputs, reader: Reader) -> int:
    if outcome.read == 0:
        _say_nothing_read(inputs, outcome.run.problems)
        if options.format != "text":
            reporting.report(options, outcome.run, reader.sources)
        return Exit.FAILED
    if options.update_baseline:
        return reporting.update_baseline(options, outcome.run, reader.sources)
    reporting.report(options, outcome.run, reader.sources)
    return _status(outcome)


# --------------------------------------------------------------------------- options


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("check", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="file, folder, pattern, or - for standard input (default: .)"
    )
    add_report_options(parser)
    batching.add_batching(parser)
    parser.add_argument("--stdin-filename", metavar="NAME", help="path to report and resolve imports for -")
    add_verbose(parser)
    return parser


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Which findings, reported how: the same for `check` and for `merge`."""
    add_selection(parser)
    reporting.add_narrowing(parser)
    reporting.add_output(parser)
    parser.add_argument(
        "--statistics", action="store_true", help="add counts by rule and what was not analysed"
    )


# --------------------------------------------------------------------------- checking


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was found and what decides the exit status; `read` counts the files that gave a text."""

    run: CheckRun
    read: int
    is_failing: bool


@dataclass(frozen=True, slots=True)
class _Checked:
    """What one file shows, with the settings that hold for it."""

    findings: Sequence[Finding]
    problems: Sequence[Problem]
    statistics: CheckStatistics
    settings: Settings


def _problems_outside(inputs: Inputs) -> list[Problem]:
    from torchwise_analysis.engine import Problem, ProblemKind

    problems = [Problem(item.path, None, item.why, ProblemKind.UNREADABLE) for item in inputs.missing]
    return problems + plugin_problems()


def _check_with_stdin(
    inputs: Inputs, options: argparse.Namespace, finder: SettingsFinder, reader: Reader
) -> _Outcome:
    """In this process and without memory: other files see the text on standard input in place of its file."""
    from torchwise_analysis.engine import check_together, could_matter
    from torchwise_analysis.fixes import SourceFile

    problems = _problems_outside(inputs)
    documents: list[tuple[Engine, SourceFile]] = []
    read = skipped = 0
    for file in (None, *inputs.files):
        reading = reader.read_stdin(options.stdin_filename) if file is None else reader.read(file.path)
        document = reading.document
        if document is None:
            if file is None or file.explicit or not reading.is_foreign:
                problems += reading.problems
            continue
        read += 1
        if file is not None and not file.explicit and not could_matter(document.text):
            skipped += 1
            continue
        problems += reading.problems
        loaded = settings_for(document.path, options, finder)
        engine = reader.engine(loaded.settings, loaded.root, document.path)
        # importers of the file and its own check share one lowering
        documents.append((engine, SourceFile(document.path, document.text, lower=engine.project.lowered)))
    with Progress(len(documents)) as progress:
        reports = check_together(
            documents, advance=lambda done: progress.advance(done, shown_path(documents[done][1].path))
        )
    checked = [
        _Checked(report.findings, report.problems, report.statistics, engine.settings)
        for report, (engine, _) in zip(reports, documents, strict=True)
    ]
    return _outcome(checked, problems, read, skipped, options, reader)


def _outcome(
    checked: Sequence[_Checked],
    problems: Sequence[Problem],
    read: int,
    skipped: int,
    options: argparse.Namespace,
    reader: Reader,
) -> _Outcome:
    from torchwise_server.reporters.check_run import CheckRun

    best = [(one, checked[number].settings) for number, one in best_told(one.findings for one in checked)]
    narrowed = reporting.narrowed([finding for finding, _ in best], options, reader)
    kept = {id(finding) for finding in narrowed.findings}
    failing = [finding for finding, settings in best if id(finding) in kept and _fails(finding, settings)]
    shown = [
        finding
        for finding, settings in best
        if id(finding) in kept
        # what fails a run is always shown, or nobody could say why it failed
        and (at_least_confidence(finding.confidence, settings.min_confidence) or _fails(finding, settings))
    ]
    silent: Counter[str] = Counter()
    for one in checked:
        silent.update(dict(one.statistics.silent))
        silent.update(Counter(reason for _, reason in one.statistics.not_analysed))
    every_problem = (*problems, *(problem for one in checked for problem in one.problems))
    run = CheckRun(
        findings=tuple(sorted(shown, key=_order)),
        hidden=len(kept) - len(shown),
        problems=tuple(dict.fromkeys(every_problem)),
        files=read,
        skipped_by_text=skipped,
        not_analysed=dict(silent),
        failing=tuple(sorted(failing, key=_order)),
        unchanged=narrowed.unchanged,
        known=narrowed.known,
        gone=narrowed.gone,
    )
    return _Outcome(run, read, is_failing=bool(failing))


def _fails(finding: Finding, settings: Settings) -> bool:
    return fails(finding, FailureLevel(settings.fail_on, settings.fail_confidence))


def _order(finding: Finding) -> tuple[object, ...]:
    return (finding.place.path, finding.place.span, finding.code)


# --------------------------------------------------------------------------- reporting


def _status(outcome: _Outcome) -> int:
    if outcome.is_failing:
        return Exit.FINDINGS
    return Exit.UNREAD if any(problem.kind.is_missing for problem in outcome.run.problems) else Exit.OK


def _say_nothing_read(inputs: Inputs, problems: Sequence[Problem]) -> None:
    """Nothing read is an error, never "no findings": say what was passed over, and why."""
    lines = [f"{item.path}: {item.why}" for item in inputs.empty]
    lines += [f"{shown_path(problem.path)}: {problem.message}" for problem in problems]
    lines += [f"{shown_path(item.path)}: {item.why}" for item in inputs.excluded[:_MOST_EXCLUDED]]
    if len(inputs.excluded) > _MOST_EXCLUDED:
        lines.append(f"and {len(inputs.excluded) - _MOST_EXCLUDED} more excluded")
    complain("\n  ".join(("nothing was read", *(one_line(line) for line in lines))))

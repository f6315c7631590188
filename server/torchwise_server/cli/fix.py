"""`torchwise fix`: applies what `check` offers, file by file, each fix analysed before it is kept."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.findings import Finding, Fix, Safety
from torchwise_analysis.policy import FailureLevel, at_least_confidence, fails
from torchwise_analysis.settings import Settings, SettingsFinder
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.console import Progress, report_console
from torchwise_server.cli.files import STDIN, Inputs, collect
from torchwise_server.cli.options import Parser, add_verbose, plugin_problems, shown_path
from torchwise_server.cli.output import complain, say, say_bytes
from torchwise_server.cli.selecting import add_selection, require_known_selection, settings_for
from torchwise_server.reporters.words import one_line

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

    from torchwise_analysis.fixes import Applied, Repair
    from torchwise_server.cli.editable import Editable
    from torchwise_server.cli.reading import Reader

_DESCRIPTION = """\
Apply the fixes that `torchwise check` offers. Without options only safe ones: those after which every value,
gradient and update is the same as before. Fixes are applied one at a time, and each is kept only if the file
then parses, has lost the finding and gained none. Formatting, comments, line endings, encoding and mode of a
file stay; a file is replaced in one step or not at all."""

_EPILOG = """\
examples:
  torchwise fix --diff                     show what would change, change nothing
  torchwise fix train.py notebooks/
  torchwise fix src --unsafe --diff        with fixes that change training, on purpose: look before
  torchwise fix src --unsafe --select missing-zero-grad
  torchwise fix - < train.py > fixed.py
  torchwise fix --diff > fixes.patch       `patch -p1 < fixes.patch` applies it, with -R takes it back

safety:
  safe     same values, gradients and updates on every input; only memory, time or printed types may differ
  unsafe   changes training, which is mostly the point; applied only with --unsafe
  advice   no edit can be right without knowledge that the source does not hold; never applied

exit status:
  0  done, and nothing is left that fails a run (with --diff: nothing would change)
  1  findings are left that fail a run (with --diff: something would change)
  2  could not run: bad usage or settings, nothing to read, an internal error
  3  some files could not be read, analysed or written; the report names them"""


def run(words: list[str]) -> int:
    """Fix, report, and return the exit status."""
    options = parser().parse(words)
    paths: list[str] = options.paths or ["."]
    stdin = STDIN in paths
    if stdin and len(paths) > 1:
        raise UsageError("- (standard input) stands alone: the fixed text goes to standard output")
    if options.stdin_filename and not stdin:
        raise UsageError("--stdin-filename needs - as the path")
    if stdin and options.format != "text":
        raise UsageError("--format json reports on files; with - the fixed text goes to standard output")
    require_known_selection(options)
    with _interruptible():
        return _fix(paths, stdin, options)


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("fix", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="file, folder, pattern, or - for standard input (default: .)"
    )
    parser.add_argument("--unsafe", action="store_true", help="apply fixes that change training, too")
    parser.add_argument("--diff", action="store_true", help="print the changes as a patch, write nothing")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    add_selection(parser)
    parser.add_argument("--stdin-filename", metavar="NAME", help="path to resolve settings and imports for -")
    add_verbose(parser)
    return parser


@contextmanager
def _interruptible() -> Generator[None, None, None]:
    """A termination by the system ends a run as Ctrl-C does: between two files, leaving nothing behind."""

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --------------------------------------------------------------------------- fixing


@dataclass(frozen=True, slots=True)
class _Fixed:
    """One file after its fixes; `why` says what kept it from being fixed or written."""

    file: Editable
    repair: Repair
    settings: Settings
    why: str = ""

    @property
    def is_changed(self) -> bool:
        return not self.why and self.repair.file.text != self.file.document.text


@dataclass(frozen=True, slots=True)
class _Failure:
    """A file, or a part of it, that was not analysed, and why."""

    path: str
    line: int | None
    message: str


def _fix(paths: Sequence[str], stdin: bool, options: argparse.Namespace) -> int:
    from torchwise_server.cli.reading import Reader

    finder = SettingsFinder()
    inputs = collect([path for path in paths if path != STDIN], finder)
    reader = Reader()
    files, failures = _files(inputs, paths, stdin, options, reader)
    if not files:
        lines = [f"{item.path}: {item.why}" for item in (*inputs.empty, *inputs.excluded[:10])]
        lines += [f"{shown_path(failure.path)}: {failure.message}" for failure in failures]
        complain("\n  ".join(("nothing was read", *(one_line(line) for line in lines))))
        return Exit.FAILED
    fixed, more = _repaired(files, options, finder, reader)
    failures += more
    if stdin:
        _give_back(fixed[0], options)
    elif options.diff:
        for one in fixed:
            if one.is_changed:
                _print_diff(one, shown_path(one.file.path))
    else:
        fixed = [_written(one) for one in fixed]
    _report(fixed, failures, options, reader, quiet=stdin or options.diff)
    return _status(fixed, failures, options)


def _files(
    inputs: Inputs, paths: Sequence[str], stdin: bool, options: argparse.Namespace, reader: Reader
) -> tuple[list[Editable], list[_Failure]]:
    from torchwise_analysis.engine import could_matter
    from torchwise_server.cli.editable import Editable, NotEditableError, allowed_folders

    failures = [_Failure(item.path, None, item.why) for item in inputs.missing]
    failures += [_Failure(each.path, None, each.message) for each in plugin_problems()]
    if stdin:
        name = options.stdin_filename or "<stdin>"
        try:
            return [Editable.from_bytes(name, sys.stdin.buffer.read(), reader)], failures
        except NotEditableError as error:
            return [], [*failures, _Failure(name, None, str(error))]
    files: dict[Path, Editable] = {}
    folders = allowed_folders(paths)
    for each in inputs.files:
        try:
            file = Editable.read(each.path, folders, reader)
        except NotEditableError as error:
            if each.explicit or not error.is_foreign:
                failures.append(_Failure(str(each.path), None, str(error)))
            continue
        if each.explicit or could_matter(file.document.text):
            files.setdefault(file.original.path, file)  # a link and what it leads to are one file
    if inputs.files and not files and not failures:
        failures.append(_Failure(paths[0], None, "nothing of PyTorch in any file"))
    return list(files.values()), failures


def _repaired(
    files: Sequence[Editable], options: argparse.Namespace, finder: SettingsFinder, reader: Reader
) -> tuple[list[_Fixed], list[_Failure]]:
    from torchwise_analysis.repairs import Job, repair_together

    jobs: list[Job] = []
    for file in files:
        loaded = settings_for(file.document.path, options, finder)
        engine = reader.engine(loaded.settings, loaded.root, file.document.path)
        wanted = _wanted(loaded.settings, unsafe=options.unsafe)
        jobs.append(Job(engine, file.document, wanted, file.apply))
    with Progress(len(files), "fixing") as progress:
        outcomes = repair_together(
            jobs, advance=lambda done: progress.advance(done, shown_path(files[done].path))
        )
    fixed = [
        _Fixed(file, outcome.repair, job.engine.settings)
        for file, outcome, job in zip(files, outcomes, jobs, strict=True)
    ]
    problems = (problem for outcome in outcomes for problem in outcome.problems if problem.kind.is_missing)
    return fixed, [_Failure(each.path, each.line, each.message) for each in problems]


def _wanted(settings: Settings, *, unsafe: bool) -> Callable[[Finding, Fix], bool]:
    def wanted(finding: Finding, fix: Fix) -> bool:
        if not at_least_confidence(finding.confidence, settings.min_confidence):
            return False
        return fix.safety is Safety.SAFE or (unsafe and fix.safety is Safety.UNSAFE)

    return wanted


def _identity(finding: Finding) -> tuple[str, str, int]:
    return finding.place.path, finding.rule, finding.place.span.line


def _written(one: _Fixed) -> _Fixed:
    from torchwise_server.cli.writing import NotWrittenError, write

    if not one.is_changed:
        return one
    try:
        write(one.file.original, one.file.encoded(one.repair.file.text))
    except NotWrittenError as error:
        return _Fixed(one.file, one.repair, one.settings, f"not written: {error}")
    return one


# --------------------------------------------------------------------------- reporting


def _give_back(one: _Fixed, options: argparse.Namespace) -> None:
    """Standard input, fixed, on standard output: its bytes as they came where nothing was to fix."""
    if not options.diff:
        say_bytes(one.file.encoded(one.repair.file.text) if one.is_changed else one.file.original.data)
    elif one.is_changed:
        _print_diff(one, options.stdin_filename or "<stdin>")


def _print_diff(one: _Fixed, name: str) -> None:
    from torchwise_server.reporters import patch

    lines = patch.lines(name, one.file.original.data, one.file.encoded(one.repair.file.text))
    console = report_console()
    if console.is_terminal:
        patch.show(lines, one.file.encoding, console)
    else:
        say_bytes(b"".join(lines))


def _report(
    fixed: Sequence[_Fixed],
    failures: Sequence[_Failure],
    options: argparse.Namespace,
    reader: Reader,
    *,
    quiet: bool,
) -> None:
    if options.format == "json":
        say(json.dumps(_as_dict(fixed, failures, reader), indent=1))
        return
    console = None if quiet else report_console()
    rows: list[tuple[str, str, str, str]] = []
    for one in fixed:
        if one.why:
            rows.append((shown_path(one.file.path), one.why, "", ""))
        elif not quiet:
            rows += [_applied(each, reader) for each in one.repair.applied]
    for failure in failures:
        where = "" if failure.line is None else f":{reader.sources.line(failure.path, failure.line)}"
        rows.append((f"{shown_path(failure.path)}{where}", failure.message, "", ""))
    lines = [
        ": ".join(part for part in (where, rule, title) if part) + mark for where, rule, title, mark in rows
    ]
    lines = [one_line(line) for line in (*lines, *_summary(fixed, options))]
    if console is None:
        complain("\n".join(lines))
    elif not console.is_terminal:
        say("\n".join(lines))
    else:
        _show(rows, _summary(fixed, options), console)


def _show(rows: Sequence[tuple[str, str, str, str]], summary: Sequence[str], console: Console) -> None:
    """The same for a terminal."""
    from rich.text import Text

    for where, rule, title, mark in rows:
        line = Text(one_line(where), style="bold").append("  ")
        line.append(one_line(rule), style="bold green" if title else "magenta")
        line.append(f"  {one_line(title)}" if title else "", style="not bold").append(mark, style="yellow")
        console.print(line, highlight=False)
    if rows:
        console.print()
    first, *others = summary
    console.print(Text(one_line(first), style="bold"))
    for other in others:
        console.print(Text(one_line(other), style="dim"))


def _applied(one: Applied, reader: Reader) -> tuple[str, str, str, str]:
    place = one.finding.place
    return reader.sources.at(place.path, place.span.line), one.finding.rule, one.fix.title, _mark(one)


def _mark(one: Applied) -> str:
    is_unmarked = one.fix.safety is Safety.UNSAFE and "changes training" not in one.fix.title
    return " (unsafe)" if is_unmarked else ""


def _summary(fixed: Sequence[_Fixed], options: argparse.Namespace) -> list[str]:
    from torchwise_server.reporters.words import count

    done = sum(len(one.repair.applied) for one in fixed if one.is_changed)
    files = sum(one.is_changed for one in fixed)
    verb = "would be fixed" if options.diff else "fixed"
    nothing = "nothing fixed" if any(one.why for one in fixed) else "nothing to fix"
    parts = [f"{count(done, 'finding')} {verb} in {count(files, 'file')}" if done else nothing]
    left = _left(fixed)
    unsafe = sum(any(_is_edit(fix, Safety.UNSAFE) for fix in finding.fixes) for finding in left)
    refused = sum(len(one.repair.refused) for one in fixed)
    if unsafe and not options.unsafe:
        parts.append(f"{unsafe} more with --unsafe, which changes training; look first: --unsafe --diff")
    if refused:
        fixes = "1 fix" if refused == 1 else f"{refused} fixes"
        parts.append(f"{fixes} left out: the result was not better")
    by_hand = sum(not any(fix.edits for fix in finding.fixes) for finding in left)
    if by_hand:
        parts.append(f"{by_hand} to be looked at by hand (torchwise check)")
    return parts


def _left(fixed: Sequence[_Fixed]) -> list[Finding]:
    found: dict[tuple[object, ...], Finding] = {}
    for one in fixed:
        for finding in one.repair.left:
            is_shown = at_least_confidence(finding.confidence, one.settings.min_confidence)
            if is_shown and finding.place.path == one.file.path:
                found[_identity(finding)] = finding
    return list(found.values())


def _is_edit(fix: Fix, safety: Safety) -> bool:
    return bool(fix.edits) and fix.safety is safety


def _as_dict(fixed: Sequence[_Fixed], failures: Sequence[_Failure], reader: Reader) -> dict[str, object]:
    """What was done, for programs. Lines count from 1 and are those at the moment of each fix."""
    return {
        "version": 1,
        "fixed": [
            {
                "path": reader.sources.name(each.finding.place.path),
                "line": each.line + 1,
                **reader.sources.cell_fields(each.finding.place.path, each.line),
                "rule": each.finding.rule,
                "code": each.finding.code,
                "title": each.fix.title,
                "safety": each.fix.safety.value,
            }
            for one in fixed
            if one.is_changed
            for each in one.repair.applied
        ],
        "left": [
            {
                "path": reader.sources.name(finding.place.path),
                "line": finding.place.span.line + 1,
                **reader.sources.cell_fields(finding.place.path, finding.place.span.line),
                "rule": finding.rule,
                "code": finding.code,
                "fix": next((fix.safety.value for fix in finding.fixes if fix.edits), None),
            }
            for finding in _left(fixed)
        ],
        "problems": [
            *(
                {"path": shown_path(one.file.path), "line": None, "message": one.why}
                for one in fixed
                if one.why
            ),
            *(
                {
                    "path": shown_path(failure.path),
                    "line": None if failure.line is None else failure.line + 1,
                    "message": failure.message,
                }
                for failure in failures
            ),
        ],
    }


def _status(fixed: Sequence[_Fixed], failures: Sequence[_Failure], options: argparse.Namespace) -> int:
    if options.diff:
        is_failing = any(one.is_changed for one in fixed)
    else:
        is_failing = any(
            fails(finding, FailureLevel(one.settings.fail_on, one.settings.fail_confidence))
            for one in fixed
            for finding in one.repair.left
        )
    if is_failing:
        return Exit.FINDINGS
    return Exit.UNREAD if failures or any(one.why for one in fixed) else Exit.OK

"""Which findings a report is about, in which format it goes where."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.findings import Finding, Place
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.output import complain, say

if TYPE_CHECKING:
    from rich.console import Console

    from torchwise_server.cli.reading import Reader
    from torchwise_server.reporters.check_run import CheckRun
    from torchwise_server.reporters.sources import Sources

BASELINE = "torchwise-baseline.json"
FORMATS = {
    "text": "findings with source, evidence and fix",
    "concise": "a line for each finding",
    "json": "everything, as a stable format",
    "sarif": "SARIF 2.1.0, for code scanning",
    "github": "annotations of a GitHub workflow",
    "gitlab": "a GitLab code quality report",
    "junit": "JUnit XML",
    "markdown": "a summary for a pull request",
}
FORMATS_HELP = "\n".join(f"  {name:<10} {what}" for name, what in FORMATS.items())
_GROUPS = ("file", "rule", "severity")


def add_narrowing(parser: argparse.ArgumentParser) -> None:
    """`--diff`, `--baseline`, `--update-baseline`."""
    group = parser.add_argument_group("only what is new")
    group.add_argument(
        "--diff",
        metavar="BASE",
        help="only findings whose place or evidence touches a line changed since BASE (any git revision)",
    )
    group.add_argument("--baseline", metavar="FILE", help="leave out the findings that this file lists")
    group.add_argument(
        "--update-baseline",
        action="store_true",
        help=f"write what is found now to the baseline (default: {BASELINE}) instead of reporting it",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """`--format`, `--output-file`, `--group-by`."""
    group = parser.add_argument_group("the report")
    group.add_argument(
        "--format", choices=tuple(FORMATS), default="text", help="see below (default: text)", metavar="NAME"
    )
    group.add_argument(
        "--output-file",
        metavar="FILE",
        help="write the report there, whole or not at all; say how it went here",
    )
    group.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="write a further report of the same run, for example sarif=out.sarif; repeat it",
    )
    group.add_argument(
        "--group-by", choices=_GROUPS, help="with text and concise: order findings under headings"
    )


# --------------------------------------------------------------------------- narrowing


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The findings to report, and how many were left out for which reason."""

    findings: tuple[Finding, ...]
    unchanged: int = 0
    known: int = 0
    gone: int = 0


def narrowed(findings: Sequence[Finding], options: argparse.Namespace, reader: Reader) -> Narrowed:
    """The findings on changed lines that the baseline does not hold.

    Raises:
        UsageError: the revision or the baseline is not there.
    """
    left = tuple(findings)
    unchanged = 0
    if options.diff is not None:
        left = _on_changed_lines(left, options.diff, reader)
        unchanged = len(findings) - len(left)
    if options.baseline is None or options.update_baseline:
        return Narrowed(left, unchanged)
    from torchwise_server.cli import baseline

    new = baseline.narrowed(left, Path(options.baseline), reader.sources)
    return Narrowed(new.findings, unchanged, new.known, new.gone if options.diff is None else 0)


def _on_changed_lines(findings: Sequence[Finding], base: str, reader: Reader) -> tuple[Finding, ...]:
    from torchwise_server.cli.changes import changes_since

    paths = {place.path for finding in findings for place in _places(finding)}
    texts = {path: "\n".join(reader.sources.lines(path)) for path in sorted(paths)}
    changes = changes_since(base, texts, Path.cwd())
    return tuple(
        finding
        for finding in findings
        if any(changes.touch(place.path, place.span.line, place.span.end_line) for place in _places(finding))
    )


def _places(finding: Finding) -> tuple[Place, ...]:
    return (
        finding.place,
        *(link.place for link in finding.evidence),
        *(other.place for other in finding.also),
    )


def update_baseline(options: argparse.Namespace, run: CheckRun, sources: Sources) -> int:
    """Write the baseline, say what changed in it, and return the exit status."""
    from torchwise_server.cli import baseline
    from torchwise_server.reporters.words import count

    file = Path(options.baseline or BASELINE)
    before = sum(baseline.read(file).values()) if file.exists() else None
    known = baseline.narrowed(run.findings, file, sources).known if before is not None else 0
    write_text(file, baseline.render(run.findings, file, sources), "--baseline")
    words = f"{file}: {count(len(run.findings), 'finding')}"
    if before is not None:
        words += f", {len(run.findings) - known} new, {before - known} gone"
    say(f"{words}. Check with --baseline {file}")
    for problem in run.problems:
        complain(f"{sources.name(problem.path)}: {problem.message}")
    return Exit.UNREAD if run.problems else Exit.OK


# --------------------------------------------------------------------------- reporting


def report(options: argparse.Namespace, run: CheckRun, sources: Sources) -> None:
    """Print the report, or write it to `--output-file`."""
    if options.group_by and options.format not in ("text", "concise"):
        raise UsageError(f"--group-by orders text for a reader; --format {options.format} has its own order")
    for form, file in _further(options.report):
        write_text(file, _as_text(form, options, run, sources), "--report")
    if options.output_file is None:
        if options.format in ("text", "concise"):
            from torchwise_server.cli.console import report_console

            _print(options.format, options, run, sources, report_console())
        else:
            say(rendered(options.format, run, sources))
        return
    write_text(Path(options.output_file), _as_text(options.format, options, run, sources), "--output-file")
    from torchwise_server.reporters import check_text

    complain(f"{check_text.summary(run)}; report in {options.output_file}")


def rendered(form: str, run: CheckRun, sources: Sources) -> str:
    """The report in a format that programs read, without a final line break."""
    from importlib import import_module

    module = import_module(f"torchwise_server.reporters.check_{form}")
    text: str = module.render(run, sources)
    return text


def write_text(file: Path, text: str, option: str) -> None:
    """Write a report.

    Raises:
        UsageError: it cannot be written; the message begins with `option`.
    """
    from torchwise_server.cli.writing import NotWrittenError, write_new

    try:
        write_new(file, text.encode("utf-8", "backslashreplace"))
    except NotWrittenError as error:
        raise UsageError(f"{option} {file}: {error}") from None


def _further(words: Sequence[str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for word in words:
        form, equals, file = word.partition("=")
        if not equals or not file or form not in FORMATS:
            raise UsageError(f"--report {word}: expected one of {', '.join(FORMATS)}, then = and a file")
        found.append((form, Path(file)))
    return found


def _as_text(form: str, options: argparse.Namespace, run: CheckRun, sources: Sources) -> str:
    if form not in ("text", "concise"):
        return f"{rendered(form, run, sources)}\n"
    from torchwise_server.cli.console import plain_console

    buffer = io.StringIO()
    _print(form, options, run, sources, plain_console(buffer))
    return buffer.getvalue()


def _print(form: str, options: argparse.Namespace, run: CheckRun, sources: Sources, console: Console) -> None:
    from torchwise_server.reporters import check_concise, check_text

    render = check_text.render if form == "text" else check_concise.show
    render(run, sources, console, statistics=options.statistics, group_by=options.group_by)

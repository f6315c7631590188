"""`torchwise check` for a reader: findings with source, evidence and fix, and a closing line."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from torchwise_analysis.engine import Problem, ProblemKind
from torchwise_analysis.findings import Confidence, Edit, Evidence, Finding, Fix, Place, Safety, Severity
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.excerpt import excerpt
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import count, one_line, visible

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.HINT: "cyan"}
_SAFETY = {Safety.SAFE: " (safe: same values, gradients and updates)", Safety.UNSAFE: " (only when asked)"}
# Nobody reads more of them on a terminal, and each takes half a millisecond.
_MOST_SHOWN = 300
PROBLEMS = {
    ProblemKind.UNREADABLE: "not read",
    ProblemKind.SYNTAX: "not parsed",
    ProblemKind.UNANSWERED: "not answered",
    ProblemKind.FAILURE: "internal error",
    ProblemKind.UNFINISHED: "not analysed",
}
_OWN_HINTS = "TW00"  # about suppressions: the message says everything, no page says more
_DIFF_STYLES = {"-": "red", "+": "green", " ": "dim"}
_MOST_DIFF_LINES = 8


def render(
    run: CheckRun,
    sources: Sources,
    console: Console,
    *,
    statistics: bool = False,
    group_by: str | None = None,
) -> None:
    """Print the whole report. group_by: `file`, `rule` or `severity`."""
    writer = Writer(sources, console)
    for title, findings in grouped(run, sources, group_by):
        if title:
            writer.title(title, len(findings))
        for finding in findings[:_MOST_SHOWN]:
            writer.finding(finding)
        if len(findings) > _MOST_SHOWN:
            writer.wrapped(Text(f"and {len(findings) - _MOST_SHOWN} more; --format json has all"), indent=0)
    for problem in run.problems:
        writer.problem(problem)
    if run.problems:
        writer.print(Text())
    if statistics:
        writer.statistics(run)
    writer.summary(run)


def grouped(
    run: CheckRun, sources: Sources, group_by: str | None
) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """The findings with the title of each group; one group without a title where none is asked for."""
    if group_by is None:
        yield "", run.findings
        return
    groups: dict[str, list[Finding]] = {}
    for finding in run.findings:
        groups.setdefault(_group(finding, sources, group_by), []).append(finding)
    order = [severity.value for severity in Severity] if group_by == "severity" else sorted(groups)
    if group_by == "rule":
        order.sort(key=lambda name: -len(groups[name]))
    for name in order:
        if name in groups:
            yield name, tuple(groups[name])


def _group(finding: Finding, sources: Sources, group_by: str) -> str:
    if group_by == "file":
        return one_line(sources.name(finding.place.path))
    return finding.rule if group_by == "rule" else finding.severity.value


def summary(run: CheckRun) -> str:
    """The closing line without its final stop."""
    return _summary(run).plain.rstrip(".")


class Writer:
    """Printing with the same sources on the same console."""

    def __init__(self, sources: Sources, console: Console) -> None:
        self.sources = sources
        self.console = console
        self.unicode = (console.encoding or "ascii").lower().startswith("utf")

    def title(self, words: str, number: int) -> None:
        rule = "─" if self.unicode else "-"
        line = f"{rule}{rule} {words} ({number}) "
        self.print(Text(line + rule * max(0, self.console.width - cell_len(line)), style="bold blue"))
        self.print(Text())

    # ------------------------------------------------------------------ a finding

    def finding(self, finding: Finding) -> None:
        colour = COLOURS[finding.severity]
        gutter = self._gutter(finding)
        self.print(self._heading(finding, colour))
        self.wrapped(Text(visible(finding.message), style="bold"), indent=2)
        self.print(Text())
        self._marked(finding.place, gutter, f"bold {colour}")
        for number, link in enumerate(finding.evidence, start=1):
            self._evidence(number, link, finding.place, gutter)
        for other in finding.also:
            line = self._position(other.place, finding.place.path)
            self.wrapped(Text(f"also {other.rule} ({line}): {visible(other.message)}", style="dim"), indent=2)
        for fix in finding.fixes:
            self._fix(fix)
        if not finding.code.startswith(_OWN_HINTS):
            self.print(Text(f"  more: torchwise explain {finding.rule}", style="dim"))
        self.print(Text())

    def _heading(self, finding: Finding, colour: str) -> Text:
        heading = self.address(finding.place)
        heading.append("  ").append(finding.severity.value, style=f"bold {colour}")
        heading.append("  ").append(finding.rule, style="bold").append(f" {finding.code}", style="dim")
        if finding.confidence is not Confidence.CERTAIN:
            heading.append(f"  ({finding.confidence.value})", style="dim")
        return heading

    def address(self, place: Place) -> Text:
        name = one_line(self.sources.name(place.path))
        where = f"{name}:{self.sources.line(place.path, place.span.line)}:{place.span.column + 1}"
        return Text(where, style=self._link(place.path))

    def _link(self, path: str) -> Style:
        file = Path(path)
        is_linkable = self.console.is_terminal and file.is_absolute() and file.exists()
        return Style(bold=True, link=file.as_uri() if is_linkable else None)

    def _position(self, place: Place, home: str) -> str:
        cell = self.sources.cell(place.path, place.span.line)
        line = f"cell {cell[0]}, line {cell[1]}" if cell is not None else f"line {place.span.line + 1}"
        return line if place.path == home else f"{one_line(self.sources.short(place.path))}, {line}"

    def _gutter(self, finding: Finding) -> int:
        places = (finding.place, *(link.place for link in finding.evidence))
        return max(5, *(len(self._number(place)) for place in places))

    def _number(self, place: Place) -> str:
        cell = self.sources.cell(place.path, place.span.line)
        return str(place.span.line + 1 if cell is None else cell[1])

    def _evidence(self, number: int, link: Evidence, finding: Place, gutter: int) -> None:
        note = Text().append(f"  {number}. ", style="bold")
        note.append(self._position(link.place, finding.path), style="bold").append(": ")
        self.wrapped(note.append(visible(link.message)), indent=0, hanging=5)
        if link.place != finding:  # that source stands right above
            self._marked(link.place, gutter, "dim")

    def _marked(self, place: Place, gutter: int, style: str) -> None:
        """The source line of a place with carets below; nothing where the file cannot be read."""
        lines = self.sources.lines(place.path)
        span = place.span
        if span.line >= len(lines):
            return
        line = lines[span.line]
        end = span.end_column if span.end_line == span.line else len(line)
        part = excerpt(line, span.column, end, self.console.width - gutter - 6)
        bar = " │ " if self.unicode else " | "
        blank = " " * gutter
        code = Text().append(f"  {self._number(place):>{gutter}}{bar}", style="dim").append(part.text)
        self.print(code)
        if part.start == 0 and part.length >= cell_len(part.text):
            return  # marking the whole line says nothing
        carets = Text().append(f"  {blank}{bar}", style="dim").append(" " * part.start)
        self.print(carets.append("^" * part.length, style=style))

    # ------------------------------------------------------------------ fixes

    def _fix(self, fix: Fix) -> None:
        if fix.safety is Safety.ADVICE or not fix.edits:
            self.wrapped(
                Text().append("  advice: ", style="bold").append(visible(fix.title)), indent=0, hanging=10
            )
            return
        heading = Text().append("  fix: ", style="bold green").append(visible(fix.title))
        if "changes training" not in fix.title:
            heading.append(_SAFETY[fix.safety], style="dim")
        self.wrapped(heading, indent=0, hanging=7)
        for path in dict.fromkeys(edit.place.path for edit in fix.edits):
            rows = self._diff(path, [edit for edit in fix.edits if edit.place.path == path])
            indent = min((_indentation(text) for _, text in rows if text.strip()), default=0)
            for sign, text in rows[:_MOST_DIFF_LINES]:
                part = excerpt(text, 0, 0, self.console.width - 8)
                inner = " " * (_indentation(text) - indent)
                self.print(Text(f"    {sign} {inner}{part.text}", style=_DIFF_STYLES[sign]))
            if len(rows) > _MOST_DIFF_LINES:
                self.print(Text(f"      {count(len(rows) - _MOST_DIFF_LINES, 'more line')}", style="dim"))

    def _diff(self, path: str, edits: list[Edit]) -> list[tuple[str, str]]:
        """Removed and added lines; an insertion shows the line below, too, to say where it goes."""
        before = self.sources.lines(path)
        rows: list[tuple[str, str]] = []
        for group in _touching(edits):
            first, last = group[0].place.span.line, max(edit.place.span.end_line for edit in group)
            old = list(before[first : last + 1])
            new = _edited(old, group, first)
            for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
                if kind == "equal":
                    continue
                rows += [("-", line) for line in old[i1:i2]] + [("+", line) for line in new[j1:j2]]
                if kind == "insert" and first + i1 < len(before):
                    rows.append((" ", before[first + i1]))
        return rows

    # ------------------------------------------------------------------ the end of the report

    def problem(self, problem: Problem) -> None:
        name = one_line(self.sources.name(problem.path))
        where = name if problem.line is None else f"{name}:{self.sources.line(problem.path, problem.line)}"
        text = (
            Text().append(where, style="bold").append(f"  {PROBLEMS[problem.kind]}  ", style="bold magenta")
        )
        self.wrapped(text.append(visible(problem.message)), indent=0, hanging=2)

    def statistics(self, run: CheckRun) -> None:
        counts = Counter(finding.rule for finding in run.findings)
        if counts:
            self.print(Text("findings by rule", style="bold"))
            for rule, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                self.print(Text(f"  {number:>5}  {rule}"))
        self.print(Text("files", style="bold"))
        self.print(Text(f"  {run.files:>5}  read"))
        self.print(Text(f"  {run.skipped_by_text:>5}  of them hold nothing to find and were not analysed"))
        if run.not_analysed:
            self.print(Text("not analysed", style="bold"))
            for reason, number in sorted(run.not_analysed.items(), key=lambda item: (-item[1], item[0])):
                self.wrapped(Text(f"  {number:>5}  {visible(reason)}"), indent=0, hanging=9)
        self.print(Text())

    def summary(self, run: CheckRun) -> None:
        self.wrapped(_summary(run), indent=0)

    # ------------------------------------------------------------------ printing

    def print(self, text: Text) -> None:
        self.console.print(text, no_wrap=True, overflow="ignore", crop=False)

    def wrapped(self, text: Text, indent: int, hanging: int | None = None) -> None:
        """Wrap at the width of the console, later lines under `hanging` blanks."""
        lead = indent if hanging is None else hanging
        width = max(20, self.console.width - lead)
        first, *rest = text.wrap(self.console, width)
        for line in (first, *rest):
            line.rstrip()
        self.print(Text(" " * indent).append_text(first))
        for line in rest:
            self.print(Text(" " * lead).append_text(line))


def _summary(run: CheckRun) -> Text:
    by_severity = Counter(finding.severity for finding in run.findings)
    parts = [
        Text(count(by_severity[severity], severity.value), style=f"bold {COLOURS[severity]}")
        for severity in Severity
        if by_severity[severity]
    ]
    found = Text(", ").join(parts) if parts else Text().append("No findings", style="bold green")
    text = found.append(f" in {count(run.files, 'file')}")
    safe = sum(_has(finding, Safety.SAFE) for finding in run.findings)
    unsafe = sum(_has(finding, Safety.UNSAFE) and not _has(finding, Safety.SAFE) for finding in run.findings)
    if safe:
        text.append(f"; {safe} fixable (torchwise fix)")
    if unsafe:
        text.append(f"; {unsafe}{' more' if safe else ''} fixable with --unsafe")
    if run.unchanged:
        text.append(f"; {run.unchanged} on lines that did not change")
    if run.known:
        text.append(f"; {run.known} in the baseline")
    if run.gone:
        text.append(f"; {run.gone} of the baseline are gone (--update-baseline)")
    if run.hidden:
        text.append(f"; {run.hidden} more possible, not shown (--min-confidence possible)")
    if run.problems:
        files = len({problem.path for problem in run.problems})
        text.append(f"; {count(files, 'file')} not fully analysed", style="magenta")
    return text.append(".")


def _has(finding: Finding, safety: Safety) -> bool:
    return any(fix.edits and fix.safety is safety for fix in finding.fixes)


def _touching(edits: list[Edit]) -> Iterator[list[Edit]]:
    """Edits in order, those that share a line together."""
    group: list[Edit] = []
    for edit in sorted(edits, key=lambda each: each.place.span):
        if group and edit.place.span.line > max(each.place.span.end_line for each in group):
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _edited(lines: list[str], edits: list[Edit], first: int) -> list[str]:
    """These lines, the first of which is number `first`, after edits."""
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    text = "\n".join(lines)
    for edit in reversed(edits):
        span = edit.place.span
        start = starts[span.line - first] + span.column
        end = starts[span.end_line - first] + span.end_column
        text = text[:start] + edit.text.replace("\r\n", "\n") + text[end:]
    return text.split("\n")


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())

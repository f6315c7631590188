"""`torchwise check --format github`: annotations of a GitHub workflow, one line each."""

from __future__ import annotations

from torchwise_analysis.findings import Finding, Severity
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.check_text import PROBLEMS, summary
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import visible

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "notice"}


def render(run: CheckRun, sources: Sources) -> str:
    """Workflow commands, then the closing line for whoever reads the log."""
    lines = [_finding(finding, sources) for finding in run.findings]
    for problem in run.problems:
        line = {} if problem.line is None else {"line": str(problem.line + 1)}
        fields = {
            "file": _path(problem.path, sources),
            **line,
            "title": f"torchwise: {PROBLEMS[problem.kind]}",
        }
        lines.append(_command("warning", fields, problem.message))
    return "\n".join((*lines, summary(run)))


def _finding(finding: Finding, sources: Sources) -> str:
    span = finding.place.span
    cell = sources.cell(finding.place.path, span.line)
    fields = {"file": _path(finding.place.path, sources)}
    rows = sources.rows(finding.place.path, span.line, span.end_line)
    if rows is not None:
        fields |= {"line": str(rows[0]), "endLine": str(rows[1])}
        if cell is None and span.line == span.end_line:
            fields |= {"col": str(span.column + 1), "endColumn": str(span.end_column + 1)}
    fields["title"] = f"{finding.rule} ({finding.confidence.value})"
    lead = "" if cell is None else f"cell {cell[0]}, line {cell[1]}: "
    chain = [
        f"{number}. {sources.at(link.place.path, link.place.span.line)}: {link.message}"
        for number, link in enumerate(finding.evidence, start=1)
    ]
    return _command(_LEVELS[finding.severity], fields, "\n".join((lead + finding.message, *chain)))


def _path(path: str, sources: Sources) -> str:
    return sources.name(path).replace("\\", "/")


def _command(level: str, fields: dict[str, str], message: str) -> str:
    listed = ",".join(f"{name}={_property(value)}" for name, value in fields.items())
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

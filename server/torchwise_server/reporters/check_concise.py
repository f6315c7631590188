"""`torchwise check --format concise`: a line for each finding, as editors and people scan them."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from torchwise_analysis.findings import Confidence
from torchwise_server.reporters import check_text
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import one_line


def show(
    run: CheckRun,
    sources: Sources,
    console: Console,
    *,
    statistics: bool = False,
    group_by: str | None = None,
) -> None:
    """Print `path:line:column: severity: rule: message` for each finding."""
    writer = check_text.Writer(sources, console)
    for title, findings in check_text.grouped(run, sources, group_by):
        if title:
            writer.print(Text(f"{title} ({len(findings)})", style="bold blue"))
        for finding in findings:
            line = Text("  " if title else "").append_text(writer.address(finding.place)).append(": ")
            line.append(finding.severity.value, style=check_text.COLOURS[finding.severity]).append(": ")
            line.append(finding.rule, style="bold")
            if finding.confidence is not Confidence.CERTAIN:
                line.append(f" ({finding.confidence.value})", style="dim")
            writer.print(line.append(f": {one_line(finding.message)}"))
    for problem in run.problems:
        writer.problem(problem)
    if statistics:
        writer.print(Text())
        writer.statistics(run)
    writer.summary(run)

"""`torchwise check --format markdown`: a summary that fits the comment of a pull request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torchwise_analysis.findings import Finding, Safety, Severity
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.check_text import PROBLEMS, summary
from torchwise_server.reporters.markdown_text import block, code, escaped
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import one_line

_ICONS = {Severity.ERROR: "🔴", Severity.WARNING: "🟡", Severity.HINT: "🔵"}
# A comment of GitHub ends at 65,536 characters; some of them are bytes more than one.
_MOST_CHARACTERS = 55_000
_MOST_PROBLEMS = 20


def render(run: CheckRun, sources: Sources) -> str:
    """Markdown with a table of counts and a folded section for each finding."""
    head = "### torchwise\n\n" + escaped(summary(run)) + "."
    if run.failing:
        head += f" **{len(run.failing)} of them fail this run.**"
    parts = [head]
    if run.findings:
        parts.append(_table(run))
    problems = list(_problems(run, sources))
    room = _MOST_CHARACTERS - sum(map(len, (*parts, *problems)))
    for number, finding in enumerate(run.findings):
        section = _section(finding, run, sources)
        if len(section) > room:
            parts.append(f"… and {len(run.findings) - number} more; `torchwise check` shows all.")
            break
        room -= len(section)
        parts.append(section)
    return "\n\n".join((*parts, *problems))


def _table(run: CheckRun) -> str:
    counts = Counter((finding.rule, finding.severity) for finding in run.findings)
    ordered = sorted(
        counts.items(), key=lambda item: (list(Severity).index(item[0][1]), -item[1], item[0][0])
    )
    rows = [
        f"| {_ICONS[severity]} {severity.value} | {rule} | {number} |" for (rule, severity), number in ordered
    ]
    return "\n".join(("| severity | rule | findings |", "|---|---|---:|", *rows))


def _section(finding: Finding, run: CheckRun, sources: Sources) -> str:
    place = finding.place
    where = sources.at(place.path, place.span.line)
    mark = " (fails)" if run.fails(finding) else ""
    title = (
        f"{_ICONS[finding.severity]} {_html(where)} <b>{finding.rule}</b>, {finding.confidence.value}{mark}"
    )
    lines = sources.lines(place.path)[place.span.line : place.span.end_line + 1][:3]
    body = [f"<details><summary>{title}</summary>", escaped(finding.message)]
    if lines:
        body.append(block("\n".join(line.strip() for line in lines), "python"))
    chain = [
        f"{number}. {code(sources.at(link.place.path, link.place.span.line))} {escaped(link.message)}"
        for number, link in enumerate(finding.evidence, start=1)
    ]
    if chain:
        body.append("\n".join(chain))
    body += [f"{_offer(fix.safety)}: {escaped(fix.title)}" for fix in finding.fixes]
    return "\n\n".join((*body, "</details>"))


def _offer(safety: Safety) -> str:
    return {Safety.SAFE: "Safe fix", Safety.UNSAFE: "Fix", Safety.ADVICE: "Advice"}[safety]


def _problems(run: CheckRun, sources: Sources) -> Iterator[str]:
    if not run.problems:
        return
    rows = [
        f"- {code(sources.name(problem.path))} {PROBLEMS[problem.kind]}: {escaped(problem.message)}"
        for problem in run.problems[:_MOST_PROBLEMS]
    ]
    if len(run.problems) > _MOST_PROBLEMS:
        rows.append(f"- … and {len(run.problems) - _MOST_PROBLEMS} more")
    yield "**Not fully analysed**\n\n" + "\n".join(rows)


def _html(text: str) -> str:
    """Text inside an HTML tag of Markdown, where markup counts, too: every sign as its number."""
    return re.sub(r"[^\w\s./:-]", lambda sign: f"&#{ord(sign[0])};", one_line(text))

"""`torchwise estimate --format markdown`: for a pull request, a report or a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchwise_analysis.engine import Problem
from torchwise_memory.report import Estimate, Verdict
from torchwise_server.reporters.estimate_facts import Facts, problem_rows
from torchwise_server.reporters.markdown_text import code, escaped
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import size

_ICONS = {
    Verdict.FITS: "🟢",
    Verdict.PROBABLY_FITS: "🟢",
    Verdict.BORDERLINE: "🟡",
    Verdict.PROBABLY_OOM: "🔴",
    Verdict.OOM: "🔴",
    Verdict.UNKNOWN: "⚪",
}
_MOST_ALIVE = 10
_MOST_REMEDIES = 8


def render(
    estimates: Sequence[Estimate],
    problems: Sequence[Problem],
    sources: Sources,
    *,
    described: bool = False,
) -> str:
    """A section for each loop, without a final line break."""
    parts = ["### torchwise: memory of a step"]
    for estimate in estimates:
        parts += _section(Facts(estimate, sources, described=described))
    if problems:
        rows = [f"- {code(where)} {escaped(message)}" for where, message in problem_rows(problems, sources)]
        parts.append("**No estimate**\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _section(facts: Facts) -> Iterator[str]:
    estimate = facts.estimate
    yield f"#### {escaped(facts.title)}"
    tail = f" ({escaped(facts.parameters)})" if facts.parameters else ""
    yield f"**{escaped(facts.headline)}**{tail}"
    if facts.launch:
        yield escaped(facts.launch[:1].upper() + facts.launch[1:]) + "."
    if facts.cards:
        yield _table(
            ("card", "memory", "at the peak", "verdict"),
            [
                (
                    escaped(row.title),
                    row.total,
                    "" if row.share is None else f"{row.share:.0%}",
                    f"{_ICONS[row.card.verdict]} {row.words}",
                )
                for row in facts.cards
            ],
        )
    yield _table(
        ("peak", "expected", "90 % interval", ""),
        [(row.name, row.point, row.range, escaped(row.meaning)) for row in facts.peaks],
    )
    parts = [f"{part} {size(number)}" for part, number in estimate.breakdown.items() if number > 0]
    if parts:
        yield "At the peak: " + ", ".join(parts) + "."
    if facts.remedies:
        lowered = [
            f"- −{saves} to {peak}: {escaped(change)}" + (f"; {escaped(cost)}" if cost else "")
            for saves, peak, change, cost in facts.remedies[:_MOST_REMEDIES]
        ]
        yield "**What would lower the allocated peak**\n\n" + "\n".join(lowered)
    yield "\n\n".join(("<details><summary>What it rests on</summary>", *_grounds(facts), "</details>"))


def _grounds(facts: Facts) -> Iterator[str]:
    if facts.estimate.alive:
        rows = [(bytes_, escaped(what), escaped(place)) for bytes_, what, place in facts.alive(_MOST_ALIVE)]
        yield _table(("alive at the peak", "", ""), rows)
    if facts.plan:
        yield _table(
            ("the job", "", ""),
            [(escaped(row.name), escaped(row.value), escaped(row.note)) for row in facts.plan],
        )
    if facts.estimate.assumptions:
        yield "Assumed:\n\n" + "\n".join(f"- {escaped(each)}" for each in facts.estimate.assumptions)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

"""`torchwise estimate --format html`: one file that needs nothing else, with the step as a picture.

No script, no font, no address is loaded: the page forbids itself everything but its own style sheet, which
its policy names by hash. Whatever comes from a workspace is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape

from torchwise_analysis.engine import Problem
from torchwise_memory.report import Estimate, GpuVerdict, Moment, Verdict
from torchwise_server import __version__
from torchwise_server.reporters.estimate_facts import PHASES, Facts, problem_rows
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import phase_words, size, visible

_PURPOSES = ("weights", "gradients", "optimizer", "inputs", "workspaces", "activations", "temporaries")
_TONES = {
    Verdict.FITS: "good",
    Verdict.PROBABLY_FITS: "good",
    Verdict.BORDERLINE: "fair",
    Verdict.PROBABLY_OOM: "bad",
    Verdict.OOM: "bad",
    Verdict.UNKNOWN: "none",
}
_WIDTH, _HEIGHT = 880.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 26.0, 26.0
_NAME_HEIGHT = 13.0  # of a card beside its line
_MOST_ALIVE = 12
_STEPS = (1, 2, 5)

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2430; --soft: #5b6575; --line: #d9dee6;
  --card: #f6f8fb; --good: #1a7f4b; --fair: #9a6700; --bad: #c0362c; --weights: #3b6fb6;
  --gradients: #9a59b5; --optimizer: #2a9d8f; --inputs: #7a8f3c; --workspaces: #8d7b68;
  --activations: #e0a030; --temporaries: #d1603d; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e6e9ee; --soft: #9aa4b2;
  --line: #2f3641; --card: #1c2129; --good: #4cc38a; --fair: #e2b340; --bad: #ff7b6f; --weights: #6ea3e8;
  --gradients: #c08ad8; --optimizer: #55c8b8; --inputs: #a9c05e; --workspaces: #b5a48f;
  --activations: #f0bd5a; --temporaries: #ee8a68; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.1rem; font-weight: 600; color: var(--soft); margin: 0 0 1.5rem; }
h2 { font-size: 1.05rem; margin: 2.5rem 0 .25rem; overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.75rem 0 .5rem; }
p.peak { font-size: 1.6rem; font-weight: 650; margin: 0; line-height: 1.25; }
p.note, td.note, footer { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 500; white-space: nowrap; }
td.size { white-space: nowrap; text-align: right; width: 1%; }
td.bar { width: 40%; vertical-align: middle; }
td.bar ~ td { white-space: nowrap; width: 1%; }
@media (max-width: 44rem) { th { white-space: normal; } td.bar { display: none; } }
.good { color: var(--good); }
.fair { color: var(--fair); }
.bad { color: var(--bad); }
.none { color: var(--soft); }
figure { margin: 1.25rem 0 0; padding: .75rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; }
figcaption { color: var(--soft); font-size: .85rem; padding-top: .4rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg text.strong { fill: var(--ink); font-weight: 600; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .phase { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 4; }
svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 7 4; }
svg .top { fill: none; stroke: var(--ink); stroke-width: 1.25; }
svg .empty { fill: var(--line); }
.weights { fill: var(--weights); }
.gradients { fill: var(--gradients); }
.optimizer { fill: var(--optimizer); }
.inputs { fill: var(--inputs); }
.workspaces { fill: var(--workspaces); }
.activations { fill: var(--activations); }
.temporaries { fill: var(--temporaries); }
svg .fill-good { fill: var(--good); }
svg .fill-fair { fill: var(--fair); }
svg .fill-bad { fill: var(--bad); }
svg .fill-none { fill: var(--ink); }
ul { margin: .25rem 0; padding-left: 1.25rem; }
ul.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
ul.key svg { display: inline-block; width: .7rem; height: .7rem; margin-right: .4rem; }
footer { margin-top: 3rem; font-size: .85rem; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


def render(
    estimates: Sequence[Estimate],
    problems: Sequence[Problem],
    sources: Sources,
    *,
    described: bool = False,
) -> str:
    """The whole page, without a final line break."""
    body: list[str] = ["<h1>torchwise: memory of a training step</h1>"]
    for estimate in estimates:
        body += _section(Facts(estimate, sources, described=described))
    if problems:
        rows = [
            (f"<th>{_text(where)}</th>", f"<td>{_text(why)}</td>")
            for where, why in problem_rows(problems, sources)
        ]
        body += ["<section>", "<h2>No estimate</h2>", _table(rows), "</section>"]
    body.append(
        f"<footer>torchwise {_text(__version__)}, from source alone: nothing was run. "
        "Sizes are for one GPU; intervals hold 90 % of the cases.</footer>"
    )
    names = ", ".join(dict.fromkeys(sources.name(estimate.origin.path) for estimate in estimates))
    return "\n".join((*_head(names), "<body>", "<main>", *body, "</main>", "</body>", "</html>"))


def _head(names: str) -> Iterator[str]:
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="referrer" content="no-referrer">'
    yield f"<title>{_text(names or 'estimate')}: memory of a step</title>"
    yield f"<style>{_STYLE}</style>"
    yield "</head>"


def _section(facts: Facts) -> Iterator[str]:
    estimate = facts.estimate
    yield "<section>"
    yield f"<h2>{_text(facts.title)}</h2>"
    yield f'<p class="peak">{_text(facts.headline)}</p>'
    if facts.parameters:
        yield f'<p class="note">{_text(facts.parameters)}</p>'
    if facts.launch:
        yield f'<p class="note">{_text(facts.launch)}</p>'
    if estimate.timeline:
        yield _timeline(facts)
    yield from _key(estimate)
    if facts.cards:
        yield "<h3>On the card</h3>"
        yield _cards(facts)
    yield "<h3>The peak</h3>"
    yield _table(
        [
            (
                f"<th>{_text(row.name)}</th>",
                f'<td class="size">{_text(row.point)}</td>',
                f"<td>{_text(row.range)}</td>",
                f'<td class="note">{_text(row.meaning)}</td>',
            )
            for row in facts.peaks
        ]
    )
    if facts.remedies:
        yield "<h3>What would lower the allocated peak</h3>"
        yield _table(
            [
                (
                    f'<td class="size">−{_text(saves)}</td>',
                    f'<td class="size">to {_text(peak)}</td>',
                    f"<td>{_text(change)}</td>",
                    f'<td class="note">{_text(cost)}</td>',
                )
                for saves, peak, change, cost in facts.remedies
            ]
        )
    if estimate.alive:
        yield "<h3>Alive at the peak</h3>"
        yield _table(
            [
                (
                    f'<td class="size">{_text(a)}</td>',
                    f"<td>{_text(b)}</td>",
                    f'<td class="note">{_text(c)}</td>',
                )
                for a, b, c in facts.alive(_MOST_ALIVE)
            ]
        )
    if facts.plan:
        yield f"<h3>{'The job' if facts.described else 'Read from the source'}</h3>"
        yield _table(
            [
                (
                    f"<th>{_text(row.name)}</th>",
                    f"<td>{_text(row.value)}</td>",
                    f'<td class="note">{_text(row.note)}</td>',
                )
                for row in facts.plan
            ]
        )
    if estimate.assumptions:
        yield "<h3>Assumed</h3>"
        yield "<ul>" + "".join(f"<li>{_text(each)}</li>" for each in estimate.assumptions) + "</ul>"
    yield "</section>"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    return "<table>" + "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows) + "</table>"


def _key(estimate: Estimate) -> Iterator[str]:
    parts = [(name, estimate.breakdown.get(name, 0)) for name in _PURPOSES]
    items = [
        '<li><svg viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="{name}" width="10" height="10" rx="2"/></svg>{name} {_text(size(number))}</li>'
        for name, number in parts
        if number > 0
    ]
    if items:
        yield '<ul class="key" aria-label="what the card holds at the peak">' + "".join(items) + "</ul>"


# --------------------------------------------------------------------------- pictures


def _cards(facts: Facts) -> str:
    rows: list[tuple[str, ...]] = []
    for row in facts.cards:
        tone = _TONES[row.card.verdict]
        width = 0.0 if row.share is None else min(200.0, 200.0 * row.share)
        share = "" if row.share is None else f"{row.share:.0%} of {row.total}"
        bar = (
            '<svg viewBox="0 0 200 10" aria-hidden="true">'
            '<rect class="empty" width="200" height="10" rx="2"/>'
            f'<rect class="fill-{tone}" width="{width:.1f}" height="10" rx="2"/></svg>'
        )
        rows.append(
            (
                f"<th>{_text(row.title)}</th>",
                f'<td class="bar">{bar}</td>',
                f"<td>{_text(share or row.total)}</td>",
                f'<td class="{tone}">{_text(row.words)}</td>',
            )
        )
    return _table(rows)


def _timeline(facts: Facts) -> str:
    """The step from left to right: what the card holds, by purpose, in the allocator's own terms."""
    moments = facts.estimate.timeline
    top = max(moment.bytes for moment in moments)
    limits = [card for card in facts.estimate.gpus if top * 0.5 < card.total_bytes < top * 1.6]
    scale = _Scale(len(moments), max([top, *(card.total_bytes for card in limits)]) * 1.04)
    highest = max(range(len(moments)), key=lambda index: moments[index].bytes)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{_text(_described(facts))}">',
        *_grid(scale),
        *_areas(moments, scale),
        *_phases(moments, scale),
    ]
    for card in _apart(limits, scale):
        y = scale.y(card.total_bytes)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{y - 4:.1f}" text-anchor="end">{_text(card.title)}</text>'
        )
    x, y = scale.x(highest), scale.y(top)
    anchor = "end" if x > _WIDTH * 0.7 else "start"
    shift = -6 if anchor == "end" else 6
    parts.append(f'<circle class="fill-none" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    words = f"{size(top)}, {facts.place(moments[highest].origin)}".rstrip(", ")
    parts.append(
        f'<text class="strong" x="{x + shift:.1f}" y="{max(y - 6, 11):.1f}" text-anchor="{anchor}">'
        f"{_text(words)}</text>"
    )
    parts.append("</svg>")
    caption = "Allocated memory over one warm step; operations, not seconds, from left to right."
    return f"<figure>{''.join(parts)}<figcaption>{caption}</figcaption></figure>"


def _apart(limits: Sequence[GpuVerdict], scale: _Scale) -> list[GpuVerdict]:
    """Those whose names do not lie on each other."""
    kept: list[GpuVerdict] = []
    for card in sorted(limits, key=lambda each: each.total_bytes):
        if not kept or scale.y(kept[-1].total_bytes) - scale.y(card.total_bytes) >= _NAME_HEIGHT:
            kept.append(card)
    return kept


def _described(facts: Facts) -> str:
    moments = facts.estimate.timeline
    top = max(moments, key=lambda moment: moment.bytes)
    return (
        f"memory over one step: from {size(moments[0].bytes)} up to {size(top.bytes)} "
        f"in the {PHASES[top.phase]}, then {size(moments[-1].bytes)}"
    )


class _Scale:
    """From moments and bytes to places in the picture."""

    def __init__(self, moments: int, top: float) -> None:
        self.moments, self.top = moments, top

    def x(self, index: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * index / max(1, self.moments - 1)

    def y(self, bytes_: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * bytes_ / self.top


def _grid(scale: _Scale) -> Iterator[str]:
    step = _round_step(scale.top)
    value = 0
    while value <= scale.top:
        y = scale.y(value)
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = size(value).replace(".00", "").replace(".0 ", " ") if value else "0"
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_text(label)}</text>'
        value += step


def _round_step(top: float) -> int:
    """About five steps, each 1, 2 or 5 (or ten, a hundred times that) of a unit."""
    unit = 1
    while unit * 1024 <= top / 2:
        unit *= 1024
    step = unit
    for power in (1, 10, 100, 1000):
        for factor in _STEPS:
            step = unit * factor * power
            if top / step <= 6:
                return step
    return step


def _areas(moments: Sequence[Moment], scale: _Scale) -> Iterator[str]:
    """One band for each purpose: what stays at the bottom, what comes and goes on top."""
    below = [0] * len(moments)
    for name in _PURPOSES:
        above = [low + moment.by_purpose.get(name, 0) for low, moment in zip(below, moments, strict=True)]
        if above == below:
            continue
        forth = [f"{scale.x(index):.1f},{scale.y(value):.1f}" for index, value in enumerate(above)]
        back = [f"{scale.x(index):.1f},{scale.y(value):.1f}" for index, value in enumerate(below)]
        highest = max(moment.by_purpose.get(name, 0) for moment in moments)
        title = f"<title>{name}, up to {_text(size(highest))}</title>"
        yield f'<polygon class="{name}" points="{" ".join((*forth, *reversed(back)))}">{title}</polygon>'
        below = above
    line = " ".join(f"{scale.x(index):.1f},{scale.y(value):.1f}" for index, value in enumerate(below))
    yield f'<polyline class="top" points="{line}"/>'


def _phases(moments: Sequence[Moment], scale: _Scale) -> Iterator[str]:
    start, words = 0, phase_words(moments)
    for index in range(1, len(moments) + 1):
        if index < len(moments) and words[index] == words[start]:
            continue
        x, end = scale.x(start), scale.x(min(index, len(moments) - 1))
        if start:
            yield f'<line class="phase" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        if end - x > 60:
            middle = (x + end) / 2
            yield f'<text x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{words[start]}</text>'
        start = index


def _text(text: str) -> str:
    return escape(visible(text), quote=True)

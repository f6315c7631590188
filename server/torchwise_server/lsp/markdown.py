"""What people read in an editor, as Markdown: first the answer, then the evidence, then what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import indent
from typing import TYPE_CHECKING

from torchwise_analysis.findings import Confidence, Finding, Place
from torchwise_analysis.rules import Rule
from torchwise_memory.report import (
    Alive,
    Estimate,
    GpuVerdict,
    Interval,
    Kind,
    Launch,
    ModuleMemory,
    Origin,
    Phase,
    PlanField,
    Remedy,
    Source,
    Unanswered,
    Verdict,
)
from torchwise_server.reporters.words import amount, count, one_line, size

if TYPE_CHECKING:
    from torchwise_memory.hardware import Gpu
    from torchwise_server.lsp.documents import Checked

Link = Callable[[Origin], str]
"""A place as Markdown: `[train.py:12](file:///...#L12)`."""

_VERDICTS = {
    Verdict.FITS: "fits {}",
    Verdict.PROBABLY_FITS: "probably fits {}",
    Verdict.BORDERLINE: "borderline on {}",
    Verdict.PROBABLY_OOM: "probably does not fit {}",
    Verdict.OOM: "does not fit {}",
    Verdict.UNKNOWN: "unknown on {}",
}
LOOPS = {
    Kind.TRAINING: "training loop",
    Kind.GENERATION: "generation loop",
    Kind.INFERENCE: "inference loop",
}
_SOURCES = {
    Source.DEFAULT: "library default",
    Source.CONFIGURED: "configured",
    Source.ASSUMED: "assumed",
    Source.UNKNOWN: "not known",
}
_GRADES = {
    Confidence.CERTAIN: "Certain: every step is resolved.",
    Confidence.LIKELY: "Likely: one step rests on a convention.",
    Confidence.POSSIBLE: "Possible: several steps rest on conventions.",
}
_WORD = {
    Confidence.CERTAIN: "certain",
    Confidence.LIKELY: "likely",
    Confidence.POSSIBLE: "possible",
}
_ALIVE_IN_HOVER = 8
_MAX_LAUNCH = 60
_MAX_NOT_ANALYSED = 60


# --------------------------------------------------------------------------- code lens


def lens_title(estimate: Estimate, *, stale: bool) -> str:
    """One line above the loop: the peak, its range, what it means for the chosen card, when it happens."""
    peak = estimate.peak.allocated
    if peak is None:
        return "Peak memory: not known"
    parts = [f"Peak {_with_range(peak)} per GPU"]
    parts += [verdict(gpu) for gpu in estimate.gpus[:1]]
    if estimate.phase is not None:
        parts.append(estimate.phase.value)
    if estimate.launch is not None:
        parts.append(f"with {launch_words(estimate.launch)}")
    if stale:
        parts.append("as of the last complete code")
    return " · ".join(parts)


def launch_words(launch: Launch) -> str:
    """The arguments of a start, cut where a line above code would run out of the window."""
    words = one_line(launch.words)
    return words if len(words) <= _MAX_LAUNCH else f"{words[: _MAX_LAUNCH - 1].rstrip()}…"


def verdict(gpu: GpuVerdict) -> str:
    return _VERDICTS[gpu.verdict].format(_short(gpu.title))


def verdict_word(verdict: Verdict) -> str:
    """What it means for a card that is named beside it."""
    return _VERDICTS[verdict].format("").removesuffix(" on ").strip()


def alive_hint(groups: Sequence[Alive]) -> str:
    """Behind a line: how much of what it made lives at the peak."""
    return f"{size(sum(group.bytes for group in groups))} at the peak"


def alive_tooltip(groups: Sequence[Alive]) -> str:
    """What that is."""
    return "Made here and alive at the peak:\n\n" + "\n".join(
        f"- {size(group.bytes)}: {prose(group.what)}" + (f" × {group.count}" if group.count > 1 else "")
        for group in groups
    )


def _short(title: str) -> str:
    return one_line(title).removeprefix("NVIDIA ").removeprefix("GeForce ")


def _with_range(value: Interval) -> str:
    point, between = size(value.point), interval(value)
    if between == point:
        return point
    unit = " " + point.split()[-1]
    is_shared = size(value.low).endswith(unit) and size(value.high).endswith(unit)
    return f"{point} ({between.removesuffix(unit) if is_shared else between})"


def interval(value: Interval) -> str:
    """From where to where, the unit once if it is the same: `1.70–1.75 GiB`."""
    low, high = size(value.low), size(value.high)
    if low == high:
        return low
    unit = high.split()[-1]
    return f"{low.removesuffix(' ' + unit)}–{high}"


# --------------------------------------------------------------------------- hover and report


def estimate_hover(estimate: Estimate, link: Link) -> str:
    """The estimate of one loop, short enough for a hover."""
    return _sections(
        _headline(estimate),
        _started(estimate, link),
        _alive(estimate.alive[:_ALIVE_IN_HOVER], link, hidden=len(estimate.alive) - _ALIVE_IN_HOVER),
        _plan(estimate, link),
        _remedies(estimate.remedies[:3]),
    )


def memory_report(
    name: str, estimates: Sequence[Estimate], unanswered: Sequence[Unanswered], link: Link
) -> str:
    """Everything known about the memory of one file."""
    parts = [f"# Memory of {prose(name)}"]
    for estimate in estimates:
        parts.append(f"## {LOOPS[estimate.kind].capitalize()} at {link(estimate.origin)}")
        parts.append(
            _sections(
                _headline(estimate),
                _started(estimate, link),
                _peaks(estimate),
                _gpus(estimate),
                _breakdown(estimate),
                _alive(estimate.alive, link),
                _plan(estimate, link),
                _remedies(estimate.remedies),
                _list("Assumptions", [prose(text) for text in estimate.assumptions]),
            )
        )
    if unanswered:
        rows = [f"{link(entry.origin)}: {prose(entry.message)}" for entry in unanswered]
        parts.append("## Not answered\n\n" + "\n".join(f"- {row}" for row in rows))
    if not estimates and not unanswered:
        parts.append("No training loop was found in this file.")
    return "\n\n".join(parts) + "\n"


def unanswered_hover(entry: Unanswered) -> str:
    return f"**Peak memory: not known**\n\n{prose(entry.message)}"


def _headline(estimate: Estimate) -> str:
    peak = estimate.peak.allocated
    if peak is None:
        return "**Peak memory: not known**"
    where = peak_phase(estimate)
    line = f"**Peak {_with_range(peak)} per GPU**{', ' + where if where else ''}"
    line = " · ".join([line, *headline_facts(estimate)])
    verdicts = ", ".join(verdict(gpu) for gpu in estimate.gpus)
    return f"{line}\n\n{verdicts[:1].upper()}{verdicts[1:]}" if verdicts else line


def _started(estimate: Estimate, link: Link) -> str:
    """Which start of the script the answer is for, where the project names several."""
    launch = estimate.launch
    return f"Started with {_code(launch.words)} ({link(launch.origin)})" if launch else ""


def peak_phase(estimate: Estimate) -> str:
    """When the peak comes; empty where that is not known."""
    if estimate.phase is None:
        return ""
    return (
        "in the optimizer step"
        if estimate.phase is Phase.OPTIMIZER
        else f"in the {estimate.phase.value} pass"
    )


def headline_facts(estimate: Estimate) -> list[str]:
    """What stands beside the peak: how large the model is, how many cards there are."""
    facts: list[str] = []
    if estimate.parameters is not None:
        trainable = estimate.trainable_parameters
        partly = "" if trainable in (None, estimate.parameters) else f", {amount(trainable or 0)} trainable"
        facts.append(f"{amount(estimate.parameters)} parameters{partly}")
    if estimate.gpus_used > 1:
        facts.append(f"{estimate.gpus_used} GPUs")
    return facts


def _peaks(estimate: Estimate) -> str:
    rows = [
        ("allocated (`max_memory_allocated`)", estimate.peak.allocated),
        ("reserved (`max_memory_reserved`)", estimate.peak.reserved),
        ("device (`nvidia-smi`)", estimate.peak.device),
    ]
    return _table(
        ("peak", "size", "90 % interval"),
        [
            (name, size(value.point), f"{size(value.low)} – {size(value.high)}")
            for name, value in rows
            if value is not None
        ],
    )


def _gpus(estimate: Estimate) -> str:
    return _table(
        ("GPU", "memory", "verdict"),
        [
            (prose(gpu.title), size(gpu.total_bytes), gpu.verdict.value.replace("-", " ") + _apart(gpu))
            for gpu in estimate.gpus
        ],
    )


def _apart(gpu: GpuVerdict) -> str:
    """Where the card runs other kernels than those that the rest of the text is about."""
    peak = None if gpu.peak is None else gpu.peak.allocated
    return "" if peak is None else f": {size(peak.point)} with its own kernels"


def _breakdown(estimate: Estimate) -> str:
    rows = sorted(estimate.breakdown.items(), key=lambda row: -row[1])
    return _table(("at the peak", "size"), [(prose(name), size(value)) for name, value in rows])


def _alive(groups: Sequence[Alive], link: Link, hidden: int = 0) -> str:
    rows = [
        (
            size(group.bytes),
            prose(group.what) + (f" × {group.count}" if group.count > 1 else ""),
            link(group.origin) if group.origin else "",
        )
        for group in groups
    ]
    table = _table(("size", "alive at the peak", "made at"), rows)
    return f"{table}\n\n… and {hidden} more" if hidden > 0 else table


def _plan(estimate: Estimate, link: Link) -> str:
    rows = [
        (name.replace("_", " "), _value(entry), _where(entry, link))
        for name, entry in estimate.plan.items()
        if entry.value is not None or entry.source is Source.UNKNOWN
    ]
    return _table(("plan", "value", "from"), rows)


def _value(entry: PlanField) -> str:
    if entry.value is None or isinstance(entry.value, tuple | bool):
        return plain_value(entry) or "?"
    return _code(str(entry.value))


def plain_value(entry: PlanField) -> str:
    """A fact of the plan as plain text; empty where it says nothing."""
    if entry.value is None:
        return "?" if entry.source is Source.UNKNOWN else ""
    if isinstance(entry.value, tuple):
        return " × ".join(str(item) for item in entry.value)
    if isinstance(entry.value, bool):
        return "yes" if entry.value else "no"
    return one_line(str(entry.value))


def plan_note(entry: PlanField) -> str:
    """How a fact of the plan is known, where it was not simply read."""
    return _SOURCES.get(entry.source, "")


def _where(entry: PlanField, link: Link) -> str:
    place = link(entry.origin) if entry.origin else ""
    note = plan_note(entry)
    why = prose(entry.why)
    return ", ".join(part for part in (place, note, why) if part)


def _remedies(remedies: Iterable[Remedy]) -> str:
    return _list(
        "To lower it",
        [
            f"**{prose(item.change)}**: {size(item.peak_bytes)} (saves {size(item.saves_bytes)})"
            + (f"; {prose(item.cost)}" if item.cost else "")
            for item in remedies
        ],
    )


def layer_hover(entry: ModuleMemory, estimate: Estimate) -> str:
    """What the modules that one line makes hold on the card."""
    times = f" × {entry.count}" if entry.count > 1 else ""
    head = f"**{prose(entry.name)}{times}**"
    if entry.parameters:
        head += f": {amount(entry.parameters)} parameters, {size(entry.weight_bytes)} of weights"
    peak = estimate.peak.allocated
    if entry.alive_bytes is None or peak is None:
        return head
    if entry.alive_bytes == 0:
        return f"{head}\n\nNothing that {_its(entry)} made is alive at the peak."
    share = 100 * entry.alive_bytes / max(peak.point, 1)
    part = f"{share:.0f} %" if share >= 0.5 else "less than 1 %"
    return f"{head}\n\n{size(entry.alive_bytes)} that {_its(entry)} made is alive at the peak, {part} of it."


def _its(entry: ModuleMemory) -> str:
    return "its forward pass" if entry.count == 1 else "their forward passes"


# --------------------------------------------------------------------------- findings and rules


def finding_hover(finding: Finding, rule: Rule | None) -> str:
    """Help on a squiggle: the diagnostic itself is shown by the editor already."""
    if rule is None:
        return ""
    advice = [prose(fix.title) for fix in finding.fixes if not fix.edits]
    return _sections(
        f"**{rule.name}** ({finding.code}): {rule.claim}",
        rule.cost,
        _GRADES[finding.confidence],
        _list("What to do", advice),
    )


def rule_help(rule: Rule) -> str:
    """A rule named in a comment or a settings file."""
    return f"**{rule.name}** ({rule.code}): {rule.claim}\n\n{rule.cost}"


def findings_report(name: str, rows: Sequence[tuple[Finding, bool]], link: Link) -> str:
    """Every finding of one file; with each, whether the editor lists it."""
    parts = [f"# Findings in {prose(name)}"]
    for finding, is_listed in rows:
        grade = f"{finding.severity.value}, {_WORD[finding.confidence]}"
        note = "" if is_listed else "; not shown in the editor"
        place = link(Origin(finding.place.path, finding.place.span.line + 1))
        parts.append(f"## {finding.rule} at {place}")
        parts.append(f"**{prose(finding.message)}** ({grade}{note})")
        parts.append(_chain(finding, link, lambda _: ""))
    if not rows:
        parts.append("Nothing was found in this file.")
    return "\n\n".join(part for part in parts if part) + "\n"


def evidence_report(finding: Finding, rule: Rule | None, link: Link, code: Callable[[Place], str]) -> str:
    """One finding and what proves it, each link with its line of code."""
    place = link(Origin(finding.place.path, finding.place.span.line + 1))
    advice = [prose(fix.title) + ("" if fix.edits else " (by hand)") for fix in finding.fixes]
    return _sections(
        f"# {finding.rule} at {place}",
        f"**{prose(finding.message)}**",
        _block(code(finding.place)),
        "## Evidence\n\n" + _chain(finding, link, code) if finding.evidence else "",
        _GRADES[finding.confidence],
        rule.cost if rule else "",
        _list("What to do", advice),
    )


def analysis_report(name: str, checked: Checked, link: Link) -> str:
    """What of one file was analysed: silence is only worth something where somebody looked."""
    head, counted = f"# Analysis of {prose(name)}", checked.statistics
    if not counted.visits and not checked.findings:
        return (
            f"# Analysis of {prose(name)}\n\nNothing here trains, evaluates or loads, so no rule applies.\n"
        )
    found = count(len(checked.findings), "finding")
    facts = [
        f"{counted.visits:,} steps of the program were followed, in {checked.seconds * 1000:.0f} ms",
        f"{found} of every grade, {counted.suppressed} silenced by comments",
    ]
    if checked.is_broken:
        facts.append("part of the text is no Python yet; there the last complete code was analysed")
    places = [
        (link(Origin(place.path, place.span.line + 1)), prose(why))
        for place, why in counted.not_analysed[:_MAX_NOT_ANALYSED]
    ]
    hidden = len(counted.not_analysed) - _MAX_NOT_ANALYSED
    more = f"… and {hidden} more places" if hidden > 0 else ""
    return (
        _sections(
            head,
            "\n".join(f"- {fact}" for fact in facts),
            "## Not analysed" if places or counted.silent else "Every path was followed to its end.",
            _table(("where", "why"), places),
            more,
            "\n".join(f"- {number}: {prose(reason)}" for reason, number in counted.silent),
            *(prose(failure) for failure in checked.failures),
        )
        + "\n"
    )


def _chain(finding: Finding, link: Link, code: Callable[[Place], str]) -> str:
    steps = [(step.place, step.message) for step in finding.evidence]
    steps += [(also.place, f"{also.rule}: {also.message}") for also in finding.also]
    rows: list[str] = []
    for number, (place, message) in enumerate(steps, 1):
        text = code(place)
        # indented as what belongs to the number
        shown = f"\n\n{indent(_block(text), '   ')}\n" if text else ""
        rows.append(f"{number}. {link(Origin(place.path, place.span.line + 1))}: {prose(message)}{shown}")
    return "\n".join(rows)


def _code(text: str) -> str:
    """Text as a code span, whatever back-ticks it holds."""
    text = one_line(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`" if text else ""


def _block(text: str) -> str:
    """A line of code on its own, coloured as Python where the client can."""
    text = one_line(text)
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}python\n{text}\n{fence}" if text else ""


# --------------------------------------------------------------------------- cards


def gpu_summary(gpu: Gpu) -> str:
    """A card on half a line."""
    return f"{_short(gpu.title)}, {size(gpu.total_bytes)}"


def gpu_help(gpu: Gpu, estimates: Sequence[Estimate] = ()) -> str:
    """What estimates know of a card, and whether the loops of this file fit it."""
    facts = [f"{size(gpu.total_bytes)} of memory as PyTorch sees it"]
    if gpu.nominal_gb is not None:
        facts[0] += f" ({gpu.nominal_gb:g} GB on the data sheet)"
    if not gpu.total_seen:
        facts.append(f"inferred, not read from a device: {prose(gpu.why)}")
    _, point, _ = gpu.context_bytes
    facts.append(f"about {size(point)} of it go to the CUDA context and its libraries")
    if gpu.sm is not None:
        facts.append(f"compute capability {gpu.sm // 10}.{gpu.sm % 10}")
    fits = [
        f"The loop at line {estimate.origin.line} {verdict(_fit(estimate, gpu))}: "
        f"peak {_with_range(estimate.peak.allocated)}."
        for estimate in estimates
        if estimate.peak.allocated is not None
    ]
    return _sections(f"**{prose(gpu.title)}**", "\n".join(f"- {fact}" for fact in facts), *fits)


def _fit(estimate: Estimate, gpu: Gpu) -> GpuVerdict:
    from torchwise_memory.verdict import verdict as judged

    return judged(estimate.peak.reserved, estimate.peak.allocated, gpu, estimate.gpus_used)


# --------------------------------------------------------------------------- Markdown


# A run of back-ticks closes the one of the same length before it (CommonMark 6.1).
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")
_ACTIVE = re.compile(r"[\\\[\]<>&*~]")


def prose(text: str) -> str:
    """A sentence on one line.

    Code spans stay; nothing else in it becomes a link, a picture or HTML, for names and texts of a
    workspace stand in it.
    """
    text = one_line(text)
    out = ""
    last = 0
    for span in _CODE_SPAN.finditer(text):
        out += _ACTIVE.sub(r"\\\g<0>", text[last : span.start()]) + span.group()
        last = span.end()
    return out + _ACTIVE.sub(r"\\\g<0>", text[last:])


def _sections(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _list(title: str, rows: Sequence[str]) -> str:
    return f"{title}:\n\n" + "\n".join(f"- {row}" for row in rows) if rows else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [header, [":--"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

"""What an estimate says, in words: rows of text that Markdown and HTML lay out each in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchwise_analysis.engine import Problem
from torchwise_memory.report import (
    Estimate,
    GpuVerdict,
    Interval,
    Origin,
    Peak,
    Phase,
    PlanField,
    Remedy,
    Source,
    Verdict,
)
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import amount, count, one_line, size

VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.PROBABLY_FITS: "probably fits",
    Verdict.BORDERLINE: "borderline",
    Verdict.PROBABLY_OOM: "probably out of memory",
    Verdict.OOM: "out of memory",
    Verdict.UNKNOWN: "unknown",
}
PHASES = {
    Phase.FORWARD: "forward pass",
    Phase.BACKWARD: "backward pass",
    Phase.OPTIMIZER: "optimizer step",
}
MEANINGS = {
    "allocated": "torch.cuda.max_memory_allocated()",
    "reserved": "torch.cuda.max_memory_reserved()",
    "device": "with CUDA context: what nvidia-smi shows",
}
_PEAKS = {"device": "on the card", "reserved": "reserved", "allocated": "allocated"}


# Lines that a remedy edits; more are no help.
_MOST_PLACES = 3


def changed_where(remedy: Remedy, place: Callable[[Origin], str]) -> str:
    """What to change, and where: the lines of its edits, or options of the command line."""
    origins = list(dict.fromkeys(Origin(edit.path, edit.line + 1) for edit in remedy.edits))
    places = [place(origin) for origin in origins[:_MOST_PLACES]]
    if len(origins) > _MOST_PLACES:
        places.append("...")
    where = one_line(remedy.options) or ", ".join(places)
    return f"{one_line(remedy.change)} ({where})" if where else one_line(remedy.change)


def highest(peak: Peak) -> Interval | None:
    """What a card must have: as the device counts it where that is known."""
    return peak.device or peak.reserved


def other_kernels(gpu: GpuVerdict) -> str:
    """Behind a verdict: the peak on a card whose kernels are others than those of the estimate."""
    peak = None if gpu.peak is None else highest(gpu.peak)
    return "" if peak is None else f": {size(peak.point)} with its own kernels"


@dataclass(frozen=True, slots=True)
class PeakRow:
    """One of the three peaks; `range` is its 90 % interval, empty where it is not known."""

    name: str
    point: str
    range: str
    meaning: str


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One fact of the job: its value and where it was read, or why it is assumed."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card and whether the job fits; `share` of its memory at the peak, None where it is not known."""

    card: GpuVerdict
    title: str
    share: float | None
    total: str
    words: str


class Facts:
    """The facts of one estimate, naming files as `sources` do.

    described: the job was given by options, so that no line of a file can be named.
    """

    def __init__(self, estimate: Estimate, sources: Sources, *, described: bool = False) -> None:
        self.estimate, self.sources, self.described = estimate, sources, described

    @property
    def title(self) -> str:
        path, line = self.estimate.origin
        name = one_line(self.sources.name(path))
        if self.described:
            return f"{name}, {self.estimate.kind.value}"
        return f"{name}:{self.sources.line(path, line - 1)}, {self.estimate.kind.value} loop"

    @property
    def headline(self) -> str:
        peak, name = largest(self.estimate)
        if peak is None:
            return "peak unknown"
        words = f"{size(peak.point)} {_PEAKS[name]} at the peak"
        if self.estimate.phase is not None:
            words += f", in the {PHASES[self.estimate.phase]}"
        if self.estimate.gpus_used > 1:
            words += f", on each of {self.estimate.gpus_used} GPUs"
        return words

    @property
    def parameters(self) -> str:
        whole, trained = self.estimate.parameters, self.estimate.trainable_parameters
        if whole is None:
            return ""
        words = f"{amount(whole)} parameters"
        return words if trained is None or trained == whole else f"{words}, {amount(trained)} trainable"

    @property
    def launch(self) -> str:
        """The start of the script that this is for; empty for the script as it stands."""
        launch = self.estimate.launch
        if launch is None:
            return ""
        return f"started with {one_line(launch.words) or 'its launcher'}, {self.place(launch.origin)}"

    @property
    def peaks(self) -> list[PeakRow]:
        peak = self.estimate.peak
        rows = (("allocated", peak.allocated), ("reserved", peak.reserved), ("device", peak.device))
        return [
            PeakRow(
                name,
                "unknown" if interval is None else size(interval.point),
                "" if interval is None else f"{size(interval.low)} – {size(interval.high)}",
                "depends on the card: name one with --gpu"
                if interval is None and name == "device"
                else MEANINGS[name],
            )
            for name, interval in rows
        ]

    @property
    def cards(self) -> list[CardRow]:
        rows: list[CardRow] = []
        for card in self.estimate.gpus:
            peak = highest(card.peak) if card.peak else largest(self.estimate)[0]
            share = None if peak is None else peak.point / card.total_bytes
            words = VERDICTS[card.verdict] + other_kernels(card)
            rows.append(
                CardRow(card, named_after_machine(card, card.title), share, size(card.total_bytes), words)
            )
        return rows

    @property
    def plan(self) -> list[PlanRow]:
        return [
            PlanRow(key.replace("_", " "), _value(field), self._note(field))
            for key, field in self.estimate.plan.items()
        ]

    def alive(self, most: int) -> list[tuple[str, str, str]]:
        """Size, what it is and where it was made, the largest first; the rest in one row."""
        groups = self.estimate.alive
        most = len(groups) if len(groups) == most + 1 else most
        rows = [
            (
                size(group.bytes),
                one_line(group.what) + (f" ({group.count} tensors)" if group.count > 1 else ""),
                self.place(group.origin),
            )
            for group in groups[:most]
        ]
        rest = groups[most:]
        if rest:
            total = size(sum(group.bytes for group in rest))
            rows.append((total, f"in {count(len(rest), 'smaller group')}", ""))
        return rows

    @property
    def remedies(self) -> list[tuple[str, str, str, str]]:
        """What it saves, the peak then, the change, its cost."""
        return [
            (
                size(each.saves_bytes),
                size(each.peak_bytes),
                changed_where(each, self.place),
                one_line(each.cost),
            )
            for each in self.estimate.remedies
        ]

    def place(self, origin: Origin | None) -> str:
        """A line, with its file where that is another one."""
        return self.sources.place(origin, self.estimate.origin.path)

    def _note(self, field: PlanField) -> str:
        place, why = self.place(field.origin), one_line(field.why)
        is_plain = field.source in (Source.UNKNOWN, Source.READ) or (
            field.source is Source.DEFAULT and (place or why)
        )
        word = "given" if field.source is Source.CONFIGURED else field.source.value
        return ", ".join(part for part in (place, "" if is_plain else word, why) if part)


def largest(estimate: Estimate) -> tuple[Interval | None, str]:
    """The peak that decides whether a run fits, as far as it is known, and its name."""
    peak = estimate.peak
    for name, interval in (("device", peak.device), ("reserved", peak.reserved)):
        if interval is not None:
            return interval, name
    return peak.allocated, "allocated"


def named_after_machine(card: GpuVerdict, name: str) -> str:
    """A card's name, or that of the cloud machine that stands for it, with what the machine holds."""
    if not card.machine:
        return name
    return f"{card.machine} ({name if card.cards is None else f'{card.cards:g} × {name}'})"


def problem_rows(problems: Sequence[Problem], sources: Sources) -> list[tuple[str, str]]:
    """Where there is no estimate, and what was not known."""
    return [
        (
            one_line(sources.name(problem.path))
            + ("" if problem.line is None else f":{sources.line(problem.path, problem.line)}"),
            one_line(problem.message),
        )
        for problem in problems
    ]


def _value(field: PlanField) -> str:
    value = field.value
    if field.source is Source.UNKNOWN or value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return " × ".join(str(item) for item in value)
    return one_line(str(value))

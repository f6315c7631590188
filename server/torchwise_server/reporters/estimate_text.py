"""`torchwise estimate` for a reader: one panel a loop, the answer on top, what it rests on below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torchwise_analysis.engine import Problem
from torchwise_memory.report import (
    Alive,
    Estimate,
    GpuVerdict,
    Interval,
    Launch,
    Origin,
    Peak,
    Phase,
    PlanField,
    Remedy,
    Source,
    Verdict,
)
from torchwise_server.reporters.estimate_facts import (
    changed_where,
    highest,
    named_after_machine,
    other_kernels,
)
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import amount, count, one_line, size, visible

_VERDICTS = {
    Verdict.FITS: ("fits", "bold green"),
    Verdict.PROBABLY_FITS: ("probably fits", "green"),
    Verdict.BORDERLINE: ("borderline", "bold yellow"),
    Verdict.PROBABLY_OOM: ("probably out of memory", "red"),
    Verdict.OOM: ("out of memory", "bold red"),
    Verdict.UNKNOWN: ("unknown", "dim"),
}
_PHASES = {
    Phase.FORWARD: "the forward pass",
    Phase.BACKWARD: "the backward pass",
    Phase.OPTIMIZER: "the optimizer step",
}
_PEAKS = {
    "device": " on the card at the peak",
    "reserved": " reserved at the peak",
    "allocated": " allocated at the peak",
}
_PARTS = {
    "weights": "blue",
    "gradients": "magenta",
    "optimizer": "cyan",
    "activations": "yellow",
    "inputs": "green",
    "temporaries": "red",
}
_BAR_CELLS = 28
_MOST_ALIVE = 6
_MOST_REMEDIES = 8
_WIDEST = 110
_WIDE = 80


def render(
    estimates: Sequence[Estimate],
    problems: Sequence[Problem],
    sources: Sources,
    console: Console,
    described: bool = False,
) -> None:
    """Print a panel for each loop, then what got no answer and why.

    described: the estimates are of jobs given by options, so that no line of a file can be named.
    """
    writer = _Writer(sources, console, described)
    for estimate in estimates:
        console.print(writer.panel(estimate))
    for problem in problems:
        where = one_line(sources.name(problem.path)) + (
            "" if problem.line is None else f":{sources.line(problem.path, problem.line)}"
        )
        note = Text().append(where, style="bold").append("  no estimate  ", style="bold magenta")
        for line in note.append(visible(problem.message)).wrap(console, writer.width):
            line.rstrip()
            console.print(line)


class _Writer:
    """Panels that name files in one way, for one console."""

    def __init__(self, sources: Sources, console: Console, described: bool) -> None:
        self.sources = sources
        self.described = described
        self.unicode = (console.encoding or "ascii").lower().startswith("utf")
        self.width = min(console.width, _WIDEST)
        self.bar_cells = max(8, min(_BAR_CELLS, self.width - 50))

    def panel(self, estimate: Estimate) -> Panel:
        return Panel(
            Group(*self._sections(estimate)),
            title=Text(self._title(estimate), style="bold"),
            title_align="left",
            box=box.ROUNDED if self.unicode else box.ASCII,
            width=self.width,
            padding=(0, 1),
        )

    def _title(self, estimate: Estimate) -> str:
        path, line = estimate.origin
        name = one_line(self.sources.name(path))
        if self.described:
            return f"{estimate.kind.value}, by description  {name}"
        return f"{estimate.kind.value} loop  {name}:{self.sources.line(path, line - 1)}"

    def _sections(self, estimate: Estimate) -> Iterator[RenderableType]:
        home = estimate.origin.path
        if estimate.launch is not None:
            yield self._launch(estimate.launch, home)
        yield self._headline(estimate)
        yield self._peaks(estimate.peak)
        if any(estimate.breakdown.values()):
            yield self._breakdown(estimate.breakdown)
        if estimate.gpus:
            yield self._heading("on the card")
            yield self._gpus(estimate)
        if estimate.alive:
            yield self._heading("alive at the peak")
            yield self._alive(estimate.alive, home)
        if estimate.plan:
            yield self._heading("the job" if self.described else "read from the source")
            yield self._plan(estimate.plan, home)
        if estimate.assumptions:
            yield self._heading("assumed")
            yield self._list(estimate.assumptions)
        if estimate.remedies:
            yield self._heading("what would lower the allocated peak")
            yield self._remedies(estimate.remedies, estimate.origin.path)

    def _launch(self, launch: Launch, home: str) -> Text:
        place = self._place(launch.origin, home)
        words = one_line(launch.words) or "its launcher"
        return Text(f"started with {words}").append(f"   {place}", style="dim")

    def _heading(self, text: str) -> Text:
        return Text("\n" + text, style="bold")

    # ------------------------------------------------------------------ the answer

    def _headline(self, estimate: Estimate) -> Text:
        peak, name = _largest(estimate.peak)
        text = Text()
        if peak is None:
            text.append("peak unknown", style="bold")
        else:
            text.append(size(peak.point), style="bold").append(_PEAKS[name])
            if estimate.phase is not None:
                text.append(f", in {_PHASES[estimate.phase]}")
        if estimate.gpus_used > 1:
            text.append(f", on each of {estimate.gpus_used} GPUs")
        if estimate.parameters is not None:
            text.append(f"   {amount(estimate.parameters)} parameters", style="dim")
            frozen = estimate.parameters - (estimate.trainable_parameters or 0)
            if estimate.trainable_parameters is not None and frozen:
                text.append(f", {amount(estimate.trainable_parameters)} trainable", style="dim")
        return text

    def _peaks(self, peak: Peak) -> Table:
        table = _columns("left", "right", "left", "left")
        rows = (
            ("allocated", peak.allocated, "torch.cuda.max_memory_allocated()"),
            ("reserved", peak.reserved, "torch.cuda.max_memory_reserved()"),
            ("device", peak.device, "with CUDA context: what nvidia-smi shows"),
        )
        for label, interval, meaning in rows:
            point = (
                Text("unknown", style="dim") if interval is None else Text(size(interval.point), style="bold")
            )
            if interval is None and label == "device":
                meaning = "depends on the card: name one with --gpu"
            note = Text(meaning if self.width >= _WIDE else "", style="dim")
            table.add_row(label, point, Text(self._range(interval)), note)
        return table

    def _range(self, interval: Interval | None) -> str:
        if interval is None:
            return ""
        low, high = size(interval.low), size(interval.high)
        if low.split()[1] == high.split()[1]:
            low = low.split()[0]  # one unit is enough
        return f"{low} {'–' if self.unicode else '-'} {high}"

    def _breakdown(self, breakdown: dict[str, int]) -> Text:
        total = sum(breakdown.values())
        cells = self.width - 4
        parts = [(part, number) for part, number in breakdown.items() if number > 0]
        bar, lines = Text("\n"), [Text()]
        seen = used = 0
        for part, number in parts:
            colour = _PARTS.get(part, "white")
            seen += number
            end = round(cells * seen / total)
            bar.append(("█" if self.unicode else part[0]) * (end - used), style=colour)
            used = end
            item = Text("■ " if self.unicode else f"{part[0]}: ", style=colour)
            item.append(f"{part} {size(number)}   ", style="default")
            if lines[-1].cell_len + item.cell_len > cells + 3:
                lines.append(Text())
            lines[-1].append_text(item)
        return Text("\n").join([bar, *lines])

    def _gpus(self, estimate: Estimate) -> Table:
        table = _columns("left", "left", "right", "left", "left")
        for column in table.columns[1:4]:
            column.no_wrap = True  # a bar is one line; names of machines and verdicts may be long
        for gpu in estimate.gpus:
            peak = highest(gpu.peak or estimate.peak)
            words, style = _VERDICTS[gpu.verdict]
            words += other_kernels(gpu)
            share = "" if peak is None else f"{peak.point / gpu.total_bytes:.0%}"
            table.add_row(
                named_after_machine(gpu, gpu.name).replace("×", "×" if self.unicode else "x"),
                Text("") if peak is None else self._bar(peak, gpu, style),
                share,
                f"of {size(gpu.total_bytes)}",
                Text(words, style=style),
            )
        return table

    def _bar(self, peak: Interval, gpu: GpuVerdict, style: str) -> Text:
        """Filled to the point, shaded to the upper end of the interval; an arrow beyond the card."""
        full, shade, empty, over = ("█", "▒", "·", "▶") if self.unicode else ("#", "=", ".", ">")
        point, high = (
            min(self.bar_cells, round(self.bar_cells * value / gpu.total_bytes))
            for value in (peak.point, peak.high)
        )
        bar = (
            Text()
            .append(full * max(point, 1), style=style)
            .append(shade * max(0, high - max(point, 1)), style=style)
        )
        bar.append(empty * (self.bar_cells - max(high, point, 1)), style="dim")
        return bar.append(over if peak.point > gpu.total_bytes else " ", style=style)

    # ------------------------------------------------------------------ what it rests on

    def _alive(self, alive: Sequence[Alive], home: str) -> Table:
        table = _columns("right", "left", "left")
        most = len(alive) if len(alive) == _MOST_ALIVE + 1 else _MOST_ALIVE  # never "in 1 smaller group"
        for group in alive[:most]:
            what = one_line(group.what) + (f" ({group.count} tensors)" if group.count > 1 else "")
            table.add_row(size(group.bytes), what, Text(self._place(group.origin, home), style="dim"))
        rest = alive[most:]
        if rest:
            table.add_row(
                size(sum(group.bytes for group in rest)), f"in {count(len(rest), 'smaller group')}", ""
            )
        return table

    def _plan(self, plan: dict[str, PlanField], home: str) -> Table:
        table = _columns("left", "left", "left")
        for key, plan_field in plan.items():
            label = key.replace("_", " ")
            if plan_field.source is Source.UNKNOWN or plan_field.value is None:
                value = Text("unknown", style="yellow")
            else:
                value = Text(_shown(plan_field.value), style="bold")
            table.add_row(label, value, Text(self._reason(plan_field, home), style="dim"))
        return table

    def _reason(self, plan_field: PlanField, home: str) -> str:
        place = self._place(plan_field.origin, home)
        why = one_line(plan_field.why)
        # what was read or is a default speaks through its place or reason; what is assumed always says so
        is_plain = plan_field.source in (Source.UNKNOWN, Source.READ) or (
            plan_field.source is Source.DEFAULT and (place or why)
        )
        word = "given" if plan_field.source is Source.CONFIGURED else plan_field.source.value
        return ", ".join(part for part in (place, "" if is_plain else word, why) if part)

    def _place(self, origin: Origin | None, home: str) -> str:
        return self.sources.place(origin, home)

    def _list(self, items: Sequence[str]) -> Table:
        table = _columns("left", "left")
        for item in items:
            table.add_row("•" if self.unicode else "-", one_line(item))
        return table

    def _remedies(self, remedies: Sequence[Remedy], home: str) -> Table:
        table = _columns("right", "left", "left")
        for remedy in remedies[:_MOST_REMEDIES]:
            words = Text(changed_where(remedy, lambda origin: self._place(origin, home)))
            if remedy.cost:
                words.append(f"; {one_line(remedy.cost)}", style="dim")
            minus = "−" if self.unicode else "-"
            table.add_row(
                Text(f"{minus}{size(remedy.saves_bytes)}", style="green"),
                f"to {size(remedy.peak_bytes)}",
                words,
            )
        return table


def _columns(*justify: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for side in justify:
        table.add_column(justify="right" if side == "right" else "left", overflow="fold")
    return table


def _largest(peak: Peak) -> tuple[Interval | None, str]:
    """The peak that decides whether a run fits, as far as it is known, and its name."""
    for name, interval in (("device", peak.device), ("reserved", peak.reserved)):
        if interval is not None:
            return interval, name
    return peak.allocated, "allocated"


def _shown(value: str | int | float | bool | tuple[int, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return " × ".join(str(item) for item in value)
    return one_line(str(value))

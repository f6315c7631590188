"""Runs the script, its alternatives and its remedies, and says the answer with intervals.

The modelling interval comes from measured errors (allocated within 1.5 % in every row looked at, reserved
mostly within 10 %); what could not be read widens it by being run with each of its few options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from torchwise_analysis.interp.concrete.costs import STATEMENT_FUEL
from torchwise_analysis.interp.concrete.loops import Measured
from torchwise_analysis.names.launches import GIVEN
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan.edits import edited
from torchwise_analysis.plan.explain import explained, not_reached, shortened
from torchwise_analysis.plan.remedies import Runner, remedies_of
from torchwise_analysis.plan.request import EstimateReport, EstimateRequest
from torchwise_analysis.plan.run import Change, Facts, run_script
from torchwise_analysis.plan.starts import MAX_LAUNCHES, Start, elsewhere, launched, shown
from torchwise_analysis.plan.stated import PLAN_NAMES, Stated, read_statements
from torchwise_analysis.plan.timeline import timeline
from torchwise_analysis.plan.words import alive_groups, breakdown
from torchwise_analysis.source.nodes import Module
from torchwise_memory import hardware
from torchwise_memory.hardware import Gpu
from torchwise_memory.report import (
    Estimate,
    GpuVerdict,
    Interval,
    Kind,
    Origin,
    Peak,
    PlanField,
    Source,
    TextEdit,
    Unanswered,
    Verdict,
)
from torchwise_memory.verdict import device_peak, verdict

ALLOCATED_ERROR = 0.015
RESERVED_ERROR = 0.10
# Segments of 2 and 20 MiB weigh more in small processes.
SMALL_RESERVED_BYTES = 1 << 30
SMALL_RESERVED_ERROR = 0.20
# What fusing may save of activations: inputs of elementwise operators that are made again in backward.
FUSED_SHARE = 0.4
DEFAULT_SM = 80
MAX_ALTERNATIVES = 8
# Of the script's run and of those with something changed; a single one may take as many as it has fuel for.
MAX_STEPS = 4_000_000
# Of a run by a launch line, which is one of several.
LAUNCH_FUEL = 600_000

# What a plan must say before other starts are looked at.
_BATCH = {"batch_size", "micro_batch"}
_CENTRAL = ("model", "micro_batch", "precision", "optimizer")

Stop = Callable[[], bool]


def estimate_module(
    module: Module, project: Project, request: EstimateRequest, stop: Stop = lambda: False
) -> EstimateReport:
    """Estimates for the loops of a script. Raises nothing; `unanswered` says what stopped it."""
    try:
        return _estimate(module, project, request, stop)
    except Exception as error:
        message = f"the estimate failed ({type(error).__name__}: {error})"
        return EstimateReport(unanswered=(Unanswered(Origin(module.path, 1), message),))


def _estimate(module: Module, project: Project, request: EstimateRequest, stop: Stop) -> EstimateReport:
    text = request.text if request.text is not None else project.text(module.path) or ""
    question = _Question(module, project, request, stop, read_statements(module.path, text, request.given))
    plain = Start(module, request.launch)
    facts = question.run(plain, {}, Change())
    if question.takes_batch(facts):
        facts = question.run(plain, {}, Change())
    if facts.cancelled:
        return EstimateReport()
    question.note_unused(facts)
    estimates = question.answers(plain, facts)
    if not estimates and not facts.failure and not facts.ended_at and not facts.measured:
        plain, facts, estimates = _from_elsewhere(question, plain, facts)
    with_launches = request.with_launches and request.launch is None
    if with_launches:
        estimates += _by_launch_lines(question, plain, estimates)
    if not estimates:
        starts = [plain, *islice(launched(plain, project, False), 1)] if with_launches else [plain]
        return EstimateReport(unanswered=(question.unanswered(starts, facts),))
    stopped = facts.failure and all(e.kind is not Kind.TRAINING for e in estimates)
    unanswered = (_unanswered(facts, module, project),) if stopped else ()
    own = frozenset(line for path, line in question.entered if path == module.path)
    others = frozenset(place for place in question.entered if place[0] != module.path)
    return EstimateReport(tuple(estimates), unanswered, own, others)


class _Question:
    """One file's question: what every run of it shares, and how many steps all runs took."""

    def __init__(
        self, module: Module, project: Project, request: EstimateRequest, stop: Stop, stated: Stated
    ) -> None:
        self.module = module
        self.project = project
        self.request = request
        self.stop = stop
        self.stated = stated
        self.steps = 0
        self.literals: dict[tuple[Origin, tuple[int, int]], int] = {}
        self.entered: set[tuple[str, int]] = set()
        self.cards, unknown = _cards(request.gpus)
        sm = next((card.sm for card in self.cards if card.sm), None)
        self.sm = sm or DEFAULT_SM
        self.notes = [f"the card {name} is not known" for name in unknown]
        if sm is None:
            self.notes.append("a card of compute capability 8.0")

    def run(
        self,
        start: Start,
        choices: dict[str, object],
        change: Change,
        recovers: bool = False,
        project: Project | None = None,
        sm: int | None = None,
    ) -> Facts:
        fuel = STATEMENT_FUEL if self.is_asked_for(start) else LAUNCH_FUEL
        if self.literals:
            change = replace(change, literals={**self.literals, **change.literals})
        facts = run_script(
            start,
            project or self.project,
            sm or self.sm,
            choices,
            change,
            self.stop,
            self.stated,
            recovers,
            fuel,
        )
        self.steps += facts.steps
        if project is not None:
            return facts  # lines of an edited text are not those of the file
        self.entered.update(facts.entered)
        return facts

    def takes_batch(self, facts: Facts) -> bool:
        """Whether the batch that is given is none of the script's options and variables, but takes the place
        of the numbers that it writes out."""
        size, where = self.stated.by_name.get("micro_batch", (None, None))
        if where is None or where.path != GIVEN or not isinstance(size, int) or facts.settled & _BATCH:
            return False
        literals = [literal for literal in facts.micro_batch if literal.value != size]
        self.literals = {(literal.origin, literal.columns): size for literal in literals}
        for literal in literals[:1]:
            place = shortened(f"{literal.origin.path}:{literal.origin.line}", self.project)
            self.notes.append(f"the micro-batch is {size}, as --set says, and not {literal.value} ({place})")
        return bool(literals)

    def note_unused(self, facts: Facts) -> None:
        """Say of what is given and was never asked for that it changes nothing."""
        for statement in self.request.given:
            name = statement.partition("=")[0].strip()
            taken = {name, PLAN_NAMES.get(name, name)} & facts.settled
            is_batch = PLAN_NAMES.get(name) == "micro_batch"
            if not taken and not (is_batch and self._has_batch(facts)):
                self.notes.insert(0, f"--set {statement} changes nothing: the script takes it nowhere")

    def _has_batch(self, facts: Facts) -> bool:
        field, (size, _) = facts.plan.get("micro_batch"), self.stated.by_name["micro_batch"]
        return field is not None and field.value == size

    def is_asked_for(self, start: Start) -> bool:
        """Whether a start is the one that the question is about, not one that the project names besides."""
        return start.launch is self.request.launch

    def has_enough(self) -> bool:
        """Whether the caller, or all runs together, have come to their end."""
        return self.stop() or self.steps > MAX_STEPS

    def answers(self, start: Start, facts: Facts) -> list[Estimate]:
        """An estimate for each loop that a run measured, with what its unread facts might change."""
        chosen = _chosen(facts)
        if not chosen:
            return []

        def run(choices: dict[str, object], change: Change) -> Facts:
            return self.run(start, choices, change)

        notes = list(self.notes)
        others = _alternatives(facts, run, self.has_enough) if self.request.with_alternatives else []
        if self.steps > MAX_STEPS and any(len(choice.options) > 1 for choice in facts.choices.values()):
            notes.append("what was assumed was not tried otherwise: the script takes too many steps")
        facts.assumptions = tuple(shortened(one, self.project) for one in facts.assumptions)
        facts.plan = {
            name: replace(field, why=shortened(field.why, self.project)) for name, field in facts.plan.items()
        }
        elsewhere = self._with_other_kernels(start)
        estimates: list[Estimate] = []
        for measured in chosen:
            estimate = _answer(measured, facts, others, self.cards, notes, facts.processes)
            estimate = replace(estimate, gpus=_judged_apart(estimate, measured, elsewhere, self.cards))
            wants = self.request.with_remedies and self.is_asked_for(start)
            if wants and measured.kind is Kind.TRAINING and not self.has_enough():
                remedies = remedies_of(measured, facts, self.runner(start, facts.processes))
                estimate = replace(estimate, remedies=remedies)
            launch = None if start.launch is None else shown(start.launch)
            estimates.append(replace(estimate, launch=launch, gpus_used=facts.processes))
        return estimates

    def _with_other_kernels(self, start: Start) -> dict[int, Facts]:
        """By compute capability, the same start on cards that run other kernels than the first one."""
        capabilities = {hardware.kernels(card.sm): card.sm for card in self.cards if card.sm}
        capabilities.pop(hardware.kernels(self.sm), None)
        runs: dict[int, Facts] = {}
        for sm in capabilities.values():
            if not self.has_enough():
                runs[sm] = self.run(start, {}, Change(), sm=sm)
        return runs

    def runner(self, start: Start, processes: int) -> Runner:
        """How remedies are tried: on the start with other literals, named changes, or edited texts."""

        def run(change: Change, made: tuple[TextEdit, ...]) -> Facts:
            if not made:
                return self.run(start, {}, change)
            modules = edited(made, self.text)
            if modules is None:
                return Facts(failure="the edited text is no Python")
            module = modules.get(start.module.path, start.module)
            project = self.project.with_modules(modules)
            return self.run(replace(start, module=module), {}, change, project=project)

        card = self.cards[0] if self.cards else None
        fits = None if card is None else partial(_fits, card, processes)
        return Runner(run, self.text, fits, self.has_enough, self.project, start.module.path)

    def text(self, path: str) -> str | None:
        """A file as it is run; None for an open file whose text is not at hand."""
        if path == self.module.path and self.request.text is not None:
            return self.request.text
        return None if self.project.is_open(path) else self.project.text(path)

    def unanswered(self, starts: list[Start], facts: Facts) -> Unanswered:
        """Why there is no answer, with what runs that pass over what they cannot follow read of the plan."""
        plan = _known(facts.plan)
        for start in starts:
            if self.has_enough() or all(name in plan for name in _CENTRAL):
                break
            more = self.run(start, {}, Change(), recovers=True).plan
            more.pop("accumulation", None)  # of a loop that was not followed
            plan = {**more, **plan}
        plan = {name: replace(field, why=shortened(field.why, self.project)) for name, field in plan.items()}
        return replace(_unanswered(facts, self.module, self.project), plan=plan)


def _from_elsewhere(question: _Question, plain: Start, facts: Facts) -> tuple[Start, Facts, list[Estimate]]:
    """The first file or example of the project that starts this one's loop and can be followed."""
    first: tuple[Start, Facts] | None = None
    launch = question.request.launch
    for start in elsewhere(question.module, question.project):
        if launch is not None and not launch.words:  # words would be those of this file, not of that one
            start = replace(start, launch=launch)
        if question.has_enough():
            break
        tried = question.run(start, {}, Change())
        if Path(question.module.path).absolute() not in {Path(one).absolute() for one in tried.read_files}:
            continue
        where = shortened(str(Path(start.module.path).absolute()), question.project)
        tried.assumptions = (f"the file is used as {where} uses it", *tried.assumptions)
        estimates = question.answers(start, tried)
        if any(estimate.kind is Kind.TRAINING for estimate in estimates):
            return start, tried, estimates
        first = first or (start, tried)
    return (*first, []) if first is not None and first[1].failure else (plain, facts, [])


def _by_launch_lines(question: _Question, plain: Start, known: list[Estimate]) -> list[Estimate]:
    """Estimates for the project's launch lines, as far as they differ from those before."""
    seen = {_figures(estimate) for estimate in known}
    found: list[Estimate] = []
    count = 0
    for start in launched(plain, question.project, bool(known)):
        if count >= MAX_LAUNCHES or question.has_enough():
            break
        facts = question.run(start, {}, Change())
        estimates = [e for e in question.answers(start, facts) if e.kind is Kind.TRAINING]
        fresh = [estimate for estimate in estimates if _figures(estimate) not in seen]
        seen.update(_figures(estimate) for estimate in fresh)
        found += fresh
        count += bool(fresh)
    return found


def _figures(estimate: Estimate) -> tuple[object, ...]:
    said = tuple(estimate.plan[name].value for name in _CENTRAL if name in estimate.plan)
    return (estimate.origin, estimate.peak.allocated, estimate.parameters, said)


def _known(plan: dict[str, PlanField]) -> dict[str, PlanField]:
    return {name: field for name, field in plan.items() if field.source is not Source.UNKNOWN}


def _cards(names: tuple[str, ...]) -> tuple[list[Gpu], list[str]]:
    cards: list[Gpu] = []
    unknown: list[str] = []
    for name in names:
        try:
            cards.append(hardware.find(name))
        except LookupError:
            unknown.append(name)
    return cards, unknown


def _judged_apart(
    estimate: Estimate, measured: Measured, runs: dict[int, Facts], cards: list[Gpu]
) -> tuple[GpuVerdict, ...]:
    """The verdicts, those of cards with other kernels by a run with these."""
    by_kernels = {hardware.kernels(sm): facts for sm, facts in runs.items()}
    judged: list[GpuVerdict] = []
    for card, given in zip(cards, estimate.gpus, strict=True):
        facts = by_kernels.get(hardware.kernels(card.sm))
        if facts is None:
            judged.append(given)
            continue
        same = [m for m in facts.measured if m.origin == measured.origin and m.kind is measured.kind]
        if not same:
            judged.append(verdict(None, None, card))
            continue
        there = _answer(same[0], facts, [], [card], [], facts.processes)
        is_other = same[0].peak_allocated != measured.peak_allocated
        judged.append(replace(there.gpus[0], peak=there.peak if is_other else None))
    return tuple(judged)


def _chosen(facts: Facts) -> list[Measured]:
    """Training loops where there are any; one answer for a line."""
    training = [m for m in facts.measured if m.kind is Kind.TRAINING]
    by_line: dict[Origin, Measured] = {}
    for measured in training or facts.measured:
        known = by_line.get(measured.origin)
        if known is None or measured.peak_allocated > known.peak_allocated:
            by_line[measured.origin] = measured
    return [m for m in by_line.values() if m.peak_allocated]


def _unanswered(facts: Facts, module: Module, project: Project) -> Unanswered:
    if facts.failure:
        return explained(facts.failure, facts.failed_at, module, project)
    if facts.measured:
        return Unanswered(facts.measured[0].origin, "nothing in the loop takes memory of a card")
    return not_reached(module, facts.ended_at)


def _alternatives(facts: Facts, run: Callable[[dict[str, object], Change], Facts], stop: Stop) -> list[Facts]:
    """The other options of every unread fact, one at a time."""
    found: list[Facts] = []
    for name, choice in facts.choices.items():
        for option in choice.options:
            if option == choice.value or len(found) >= MAX_ALTERNATIVES or stop():
                continue
            other = run({name: option}, Change())
            if other.measured and not other.cancelled:
                found.append(other)
    return found


def _lowered(interval: Interval, bytes_: int) -> Interval:
    return Interval(max(0, interval.low - bytes_), interval.point, interval.high)


def _fits(card: Gpu, processes: int, measured: Measured) -> bool:
    judged = verdict(_reserved(measured), _allocated(measured), card, processes).verdict
    return judged in (Verdict.FITS, Verdict.PROBABLY_FITS)


def _answer(
    measured: Measured, facts: Facts, others: list[Facts], cards: list[Gpu], notes: list[str], processes: int
) -> Estimate:
    same = [m for f in others for m in f.measured if m.origin == measured.origin and m.kind is measured.kind]
    allocated = _hull(_allocated(measured), [_allocated(m) for m in same])
    reserved = _hull(_reserved(measured), [_reserved(m) for m in same])
    if "compiled" in facts.seen and measured.kind is Kind.TRAINING:
        fused = int(FUSED_SHARE * breakdown(measured.by_kind).get("activations", 0))
        allocated, reserved = (_lowered(interval, fused) for interval in (allocated, reserved))
    card = cards[0] if cards else None
    assumptions = tuple(dict.fromkeys([*facts.assumptions, *notes]))
    return Estimate(
        origin=measured.origin,
        kind=measured.kind,
        plan=facts.plan,
        parameters=facts.parameters,
        trainable_parameters=facts.trainable,
        peak=Peak(allocated, reserved, device_peak(reserved, card, processes)),
        phase=measured.phase,
        breakdown=breakdown(measured.by_kind),
        alive=alive_groups(measured.alive, measured.sequence),
        assumptions=assumptions,
        gpus=tuple(verdict(reserved, allocated, one, processes) for one in cards),
        read_files=facts.read_files,
        timeline=timeline(measured.lives, measured.since, measured.sequence),
        modules=measured.modules,
    )


def _allocated(measured: Measured) -> Interval:
    return _around(measured.peak_allocated, ALLOCATED_ERROR)


def _reserved(measured: Measured) -> Interval:
    small = measured.peak_reserved < SMALL_RESERVED_BYTES
    around = _around(measured.peak_reserved, SMALL_RESERVED_ERROR if small else RESERVED_ERROR)
    floor = _allocated(measured).low
    return Interval(max(around.low, floor), around.point, around.high)


def _around(bytes_: int, share: float) -> Interval:
    return Interval(int(bytes_ * (1 - share)), bytes_, int(bytes_ * (1 + share)) + 1)


def _hull(first: Interval, others: list[Interval]) -> Interval:
    low = min([first.low, *(o.low for o in others)])
    high = max([first.high, *(o.high for o in others)])
    return Interval(low, first.point, high)

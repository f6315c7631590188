"""Runs the script, its alternatives and its remedies, and says the answer with intervals.

The modelling interval comes from measured errors (allocated within 1.5 % in every row looked at, reserved
mostly within 10 %); what could not be read widens it by being run with each of its few options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchwise_analysis.interp.concrete.loops import Measured
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan.explain import explained, not_reached, shortened
from torchwise_analysis.plan.remedies import remedies_of
from torchwise_analysis.plan.request import EstimateReport, EstimateRequest
from torchwise_analysis.plan.run import Change, Facts, run_script
from torchwise_analysis.plan.stated import read_statements
from torchwise_analysis.plan.timeline import timeline
from torchwise_analysis.plan.words import alive_groups, breakdown
from torchwise_analysis.source.nodes import Module
from torchwise_memory import hardware
from torchwise_memory.hardware import Gpu
from torchwise_memory.report import Estimate, Interval, Kind, Origin, Peak, PlanField, Source, Unanswered
from torchwise_memory.verdict import device_peak, verdict

ALLOCATED_ERROR = 0.015
RESERVED_ERROR = 0.10
# Segments of 2 and 20 MiB weigh more in small processes.
SMALL_RESERVED_BYTES = 1 << 30
SMALL_RESERVED_ERROR = 0.20
DEFAULT_SM = 80
MAX_ALTERNATIVES = 8
# Of the script's run and of those with something changed; a single one may take as many as it has fuel for.
MAX_STEPS = 4_000_000

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
    cards, unknown = _cards(request.gpus)
    sm = next((card.sm for card in cards if card.sm), None)

    text = request.text if request.text is not None else project.text(module.path) or ""
    stated = read_statements(module.path, text)

    steps = 0

    def run(choices: dict[str, object], change: Change) -> Facts:
        nonlocal steps
        facts = run_script(module, project, sm or DEFAULT_SM, choices, change, stop, stated)
        steps += facts.steps
        return facts

    def has_enough() -> bool:
        """Whether the caller, or all runs together, have come to their end."""
        return stop() or steps > MAX_STEPS

    facts = run({}, Change())
    if facts.cancelled:
        return EstimateReport()
    notes = [f"the card {name} is not known" for name in unknown]
    if sm is None:
        notes.append("a card of compute capability 8.0")
    chosen = _chosen(facts)
    if not chosen:
        more = run_script(module, project, sm or DEFAULT_SM, {}, Change(), stop, stated, recovers=True)
        unanswered = replace(_unanswered(facts, module, project), plan=_joined(facts, more, project))
        return EstimateReport(unanswered=(unanswered,))
    others = _alternatives(facts, run, has_enough) if request.with_alternatives else []
    if steps > MAX_STEPS and any(len(choice.options) > 1 for choice in facts.choices.values()):
        notes.append("what was assumed was not tried otherwise: the script takes too many steps")
    facts.assumptions = tuple(shortened(one, project) for one in facts.assumptions)
    estimates: list[Estimate] = []
    for measured in chosen:
        estimate = _answer(measured, facts, others, cards, notes)
        if request.with_remedies and measured.kind is Kind.TRAINING and not has_enough():
            estimate = replace(estimate, remedies=remedies_of(measured, facts, run, has_enough))
        estimates.append(estimate)
    stopped = facts.failure and all(m.kind is not Kind.TRAINING for m in chosen)
    return EstimateReport(tuple(estimates), (_unanswered(facts, module, project),) if stopped else ())


def _joined(facts: Facts, more: Facts, project: Project) -> dict[str, PlanField]:
    """What the run that stopped had read, and what the run that went on adds."""
    fields = {name: field for name, field in more.plan.items() if name not in ("accumulation",)}
    known = {name: field for name, field in facts.plan.items() if field.source is not Source.UNKNOWN}
    return {
        name: replace(field, why=shortened(field.why, project)) for name, field in {**fields, **known}.items()
    }


def _cards(names: tuple[str, ...]) -> tuple[list[Gpu], list[str]]:
    cards: list[Gpu] = []
    unknown: list[str] = []
    for name in names:
        try:
            cards.append(hardware.find(name))
        except LookupError:
            unknown.append(name)
    return cards, unknown


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


def _answer(
    measured: Measured, facts: Facts, others: list[Facts], cards: list[Gpu], notes: list[str]
) -> Estimate:
    same = [m for f in others for m in f.measured if m.origin == measured.origin and m.kind is measured.kind]
    allocated = _hull(_allocated(measured), [_allocated(m) for m in same])
    reserved = _hull(_reserved(measured), [_reserved(m) for m in same])
    card = cards[0] if cards else None
    assumptions = tuple(dict.fromkeys([*facts.assumptions, *notes]))
    return Estimate(
        origin=measured.origin,
        kind=measured.kind,
        plan=facts.plan,
        parameters=facts.parameters,
        trainable_parameters=facts.trainable,
        peak=Peak(allocated, reserved, device_peak(reserved, card)),
        phase=measured.phase,
        breakdown=breakdown(measured.by_kind),
        alive=alive_groups(measured.alive, measured.sequence),
        assumptions=assumptions,
        gpus=tuple(verdict(reserved, allocated, one) for one in cards),
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

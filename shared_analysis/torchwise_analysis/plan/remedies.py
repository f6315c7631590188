"""What would make it smaller: the same script run again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchwise_analysis.interp.concrete.loops import Measured
from torchwise_analysis.plan.fields import Literal
from torchwise_analysis.plan.run import Change, Facts
from torchwise_memory.report import Kind, Remedy, TextEdit

# Smaller savings are not worth a line.
LEAST_SAVING = 0.02
MAX_REMEDIES = 5

Run = Callable[[dict[str, object], Change], Facts]


@dataclass(frozen=True, slots=True)
class Trial:
    """A change to try: what it is called and what it costs."""

    change: Change
    title: str
    cost: str
    edits: tuple[TextEdit, ...] = ()


def remedies_of(measured: Measured, facts: Facts, run: Run, stop: Callable[[], bool]) -> tuple[Remedy, ...]:
    """The changes that save something, largest first."""
    found: list[Remedy] = []
    for trial in _trials(facts):
        if stop():
            break
        other = run({}, trial.change)
        peak = _same_loop(other, measured)
        if peak is None or other.failure:
            continue
        saved = measured.peak_allocated - peak
        if saved >= measured.peak_allocated * LEAST_SAVING:
            found.append(Remedy(trial.title, saved, peak, trial.cost, trial.edits))
    found.sort(key=lambda remedy: -remedy.saves_bytes)
    return tuple(found[:MAX_REMEDIES])


def _same_loop(other: Facts, measured: Measured) -> int | None:
    for candidate in other.measured:
        if candidate.kind is Kind.TRAINING and candidate.origin == measured.origin:
            return candidate.peak_allocated
    return None


def _trials(facts: Facts) -> list[Trial]:
    trials: list[Trial] = []
    if "precision" not in facts.seen and _plan(facts, "precision") == "float32":
        trials.append(
            Trial(
                Change(names=frozenset({"autocast"})),
                "run forward and loss under torch.autocast('cuda', dtype=torch.bfloat16)",
                "bfloat16 rounding in matrix products; usually faster",
            )
        )
    trials.extend(_half_batch(facts.micro_batch, _plan(facts, "accumulation")))
    optimizer = str(_plan(facts, "optimizer") or "")
    if optimizer.startswith("Adam") and "fused" not in optimizer:
        trials.append(
            Trial(
                Change(names=frozenset({"fused"})),
                f"{optimizer.partition(' ')[0]}(..., fused=True)",
                "none; usually faster",
            )
        )
    if "keeps_gradients" in facts.seen:
        trials.append(
            Trial(
                Change(names=frozenset({"set_to_none"})),
                "zero_grad(set_to_none=True)",
                "gradients are None between steps",
            )
        )
    if _plan(facts, "checkpointing") is not True and "checkpointable" in facts.seen:
        trials.append(
            Trial(
                Change(names=frozenset({"checkpointing"})),
                "model.gradient_checkpointing_enable()",
                "about a third more computing time",
            )
        )
    return trials


def _half_batch(literals: tuple[Literal, ...], window: object) -> list[Trial]:
    if not literals or literals[0].value < 2:
        return []
    half = literals[0].value // 2
    passes = 2 * window if isinstance(window, int) and window > 1 else 2
    edits = tuple(
        TextEdit(
            at.origin.path, at.origin.line - 1, at.columns[0], at.origin.line - 1, at.columns[1], str(half)
        )
        for at in literals
    )
    return [
        Trial(
            Change(literals={(at.origin, at.columns): half for at in literals}),
            f"micro-batch {half} instead of {literals[0].value}, accumulating {passes} of them",
            f"the same gradients from {passes} forward passes; batch norm, if any, sees smaller batches",
            edits,
        )
    ]


def _plan(facts: Facts, name: str) -> object:
    field = facts.plan.get(name)
    return None if field is None else field.value

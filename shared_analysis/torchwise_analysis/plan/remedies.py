"""What would make it smaller: the same script run again with one thing changed, or with a few.

A change that can be made mechanically is made in the text, and what is shown is what the edited text takes.
Others (a region of autocast, what no call of the script shows) are tried by telling the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from torchwise_analysis.interp.concrete.loops import Measured
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import edits
from torchwise_analysis.plan.edits import Rewrite
from torchwise_analysis.plan.fields import Literal
from torchwise_analysis.plan.run import Change, Facts
from torchwise_memory.report import Kind, Origin, Remedy, TextEdit

# Smaller savings are not worth a line.
LEAST_SAVING = 0.02
MAX_REMEDIES = 5
# Of so many changes that save most, combinations are tried.
MAX_COMBINED = 4
# From this release on the type of the weights is asked for as `dtype`.
DTYPE_SINCE = (4, 56)


@dataclass(frozen=True, slots=True)
class Trial:
    """A change to try: what it is called and what it costs. With `in_text`, its edits are what is tried."""

    title: str
    cost: str
    change: Change = field(default_factory=Change)
    edits: tuple[TextEdit, ...] = ()
    in_text: bool = False


@dataclass(frozen=True, slots=True)
class Runner:
    """How a changed script is run.

    read: the text of a file as it is run. fits: whether a peak fits the card that was asked for; None without
    one. path: of the script.
    """

    run: Callable[[Change, tuple[TextEdit, ...]], Facts]
    read: Callable[[str], str | None]
    fits: Callable[[Measured], bool] | None
    stop: Callable[[], bool]
    project: Project
    path: str


def remedies_of(measured: Measured, facts: Facts, runner: Runner) -> tuple[Remedy, ...]:
    """The changes that save something, largest first, then what fits the card where none of them does."""
    found: list[tuple[Trial, Measured]] = []
    for trial in _trials(facts, runner):
        if runner.stop():
            break
        peak = _tried(runner, trial, measured)
        if peak is not None and _saved(measured, peak) >= measured.peak_allocated * LEAST_SAVING:
            found.append((trial, peak))
    found.sort(key=lambda pair: pair[1].peak_allocated)
    remedies = [_remedy(trial, measured, peak) for trial, peak in found[:MAX_REMEDIES]]
    if runner.fits is None or runner.fits(measured):
        return tuple(remedies)
    batch = _largest_batch(measured, facts, found, runner)
    if batch is not None:
        remedies.append(batch)
    if not any(runner.fits(peak) for _, peak in found):
        combined = _combination(measured, [trial for trial, _ in found], runner)
        remedies += [combined] if combined is not None else []
    return tuple(remedies)


def _saved(measured: Measured, peak: Measured) -> int:
    return measured.peak_allocated - peak.peak_allocated


def _remedy(trial: Trial, measured: Measured, peak: Measured) -> Remedy:
    return Remedy(trial.title, _saved(measured, peak), peak.peak_allocated, trial.cost, trial.edits)


def _tried(runner: Runner, trial: Trial, measured: Measured) -> Measured | None:
    """The loop as the changed script runs it; None where that stops or another loop is found."""
    made = trial.edits if trial.in_text else ()
    other = runner.run(trial.change, made)
    return None if other.failure else _same_loop(other, edits.moved(measured.origin, made))


def _same_loop(other: Facts, origin: Origin) -> Measured | None:
    for candidate in other.measured:
        if candidate.kind is Kind.TRAINING and candidate.origin == origin:
            return candidate
    return None


def _combination(measured: Measured, trials: list[Trial], runner: Runner) -> Remedy | None:
    """The first pair that fits, else the first triple, among those that save most alone."""
    assert runner.fits is not None
    for size in (2, 3):
        for chosen in combinations(trials[:MAX_COMBINED], size):
            together = _together(chosen)
            if together is None or runner.stop():
                continue
            peak = _tried(runner, together, measured)
            if peak is not None and runner.fits(peak):
                return _remedy(together, measured, peak)
    return None


def _together(trials: tuple[Trial, ...]) -> Trial | None:
    """Several changes as one; None where two of them edit the same place."""
    made = tuple(edit for trial in trials for edit in trial.edits if trial.in_text)
    shown = tuple(edit for trial in trials for edit in trial.edits)
    if edits.overlap(shown):
        return None
    literals = {key: value for trial in trials for key, value in trial.change.literals.items()}
    names = frozenset(name for trial in trials for name in trial.change.names)
    if literals and made:
        # literals are known by their columns, which other edits may move: all in the text then
        made, literals = shown, {}
    costs = "; ".join(dict.fromkeys(trial.cost for trial in trials))
    title = " and ".join(trial.title for trial in trials)
    # an edit that is not shown for every part would not be what was tried
    complete = all(trial.edits for trial in trials)
    change = Change(literals=literals, names=names)
    return Trial(title, costs, change, made if made else shown if complete else (), bool(made))


# --------------------------------------------------------------------------- the changes


def _trials(facts: Facts, runner: Runner) -> list[Trial]:
    files = edits.texts((runner.path, *facts.read_files), runner.project, runner.read)
    rewrites = _rewrites(facts, files, runner.project)
    trials = [_by_text(rewrite) for rewrite in rewrites]
    replaced = {rewrite.stands_for for rewrite in rewrites}
    trials += _half_batch(facts.micro_batch, _plan(facts, "accumulation"))
    return trials + [trial for name, trial in _told(facts).items() if name not in replaced]


def _rewrites(facts: Facts, files: list[edits.Text], project: Project) -> list[Rewrite]:
    """The changes that can be made in the text and are not made yet."""
    optimizer, model = (_origin(facts, name) for name in ("optimizer", "model"))
    in_single = "precision" not in facts.seen and _plan(facts, "precision") == "float32"
    loads = "checkpointable" in facts.seen
    release, _ = project.release_run("transformers")
    keyword = "torch_dtype" if release is not None and release < DTYPE_SINCE else "dtype"
    found = [
        edits.half_precision(files) if in_single else None,
        edits.fused_optimizer(files, optimizer) if _updates_by_adam(facts) else None,
        edits.dropped_gradients(files) if "keeps_gradients" in facts.seen else None,
        edits.checkpointing(files, model) if loads and _plan(facts, "checkpointing") is not True else None,
        edits.fused_attention(files),
        edits.no_cache(files) if loads else None,
        edits.eight_bit_optimizer(files, optimizer) if _updates_by_adam(facts) else None,
        edits.half_weights(files, keyword) if in_single and loads else None,
    ]
    return [rewrite for rewrite in found if rewrite is not None]


def _by_text(rewrite: Rewrite) -> Trial:
    return Trial(rewrite.title, rewrite.cost, edits=rewrite.edits, in_text=True)


def _told(facts: Facts) -> dict[str, Trial]:
    """The changes that a run can be told to make, by name."""
    told: dict[str, Trial] = {}

    def tell(name: str, title: str, cost: str) -> None:
        told[name] = Trial(title, cost, Change(names=frozenset({name})))

    if "precision" not in facts.seen and _plan(facts, "precision") == "float32":
        tell(
            "autocast",
            "run forward and loss under torch.autocast('cuda', dtype=torch.bfloat16)",
            "bfloat16 rounding in matrix products; usually faster",
        )
    optimizer = str(_plan(facts, "optimizer") or "")
    if _updates_by_adam(facts) and "fused" not in optimizer:
        tell("fused", f"{optimizer.partition(' ')[0]}(..., fused=True)", "none; usually faster")
    if "keeps_gradients" in facts.seen:
        tell("set_to_none", "zero_grad(set_to_none=True)", "gradients are None between steps")
    if _plan(facts, "checkpointing") is not True and "checkpointable" in facts.seen:
        tell("checkpointing", "model.gradient_checkpointing_enable()", "about a third more computing time")
    return told


def _updates_by_adam(facts: Facts) -> bool:
    return str(_plan(facts, "optimizer") or "").startswith("Adam")


def _half_batch(literals: tuple[Literal, ...], window: object) -> list[Trial]:
    if not literals or literals[0].value < 2:
        return []
    half = literals[0].value // 2
    passes = 2 * window if isinstance(window, int) and window > 1 else 2
    return [
        Trial(
            f"micro-batch {half} instead of {literals[0].value}, accumulating {passes} of them",
            f"the same gradients from {passes} forward passes; batch norm, if any, sees smaller batches",
            Change(literals={(at.origin, at.columns): half for at in literals}),
            _written(literals, half),
        )
    ]


def _largest_batch(
    measured: Measured, facts: Facts, found: list[tuple[Trial, Measured]], runner: Runner
) -> Remedy | None:
    """The largest micro-batch that fits the card, where the script writes the batch as a number.

    The peak is nearly linear in the batch, so two runs say where to look and a third shows it.
    """
    literals = facts.micro_batch
    if runner.fits is None or not literals or literals[0].value < 4:
        return None
    full = literals[0].value
    low, high = 1, full
    half = next((peak for trial, peak in found if trial.change.literals), None)
    if half is not None and runner.fits(half):
        low = full // 2
    best: tuple[int, Measured] | None = None
    while high - low > max(1, full // 32) and not runner.stop():
        middle = (low + high) // 2
        trial = Trial("", "", Change(literals={(at.origin, at.columns): middle for at in literals}))
        peak = _tried(runner, trial, measured)
        if peak is None:
            return None
        if runner.fits(peak):
            low, best = middle, (middle, peak)
        else:
            high = middle
    if best is None:
        return None
    batch, peak = best
    title = f"micro-batch {batch} instead of {full}: the largest that fits the card"
    cost = "smaller steps unless more of them are accumulated"
    return _remedy(Trial(title, cost, edits=_written(literals, batch)), measured, peak)


def _written(literals: tuple[Literal, ...], value: int) -> tuple[TextEdit, ...]:
    return tuple(
        TextEdit(
            at.origin.path, at.origin.line - 1, at.columns[0], at.origin.line - 1, at.columns[1], str(value)
        )
        for at in literals
    )


def _plan(facts: Facts, name: str) -> object:
    known = facts.plan.get(name)
    return None if known is None else known.value


def _origin(facts: Facts, name: str) -> Origin | None:
    known = facts.plan.get(name)
    return None if known is None else known.origin

"""One cause, one finding: which hits of different rules are the same thing, and which of them is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchwise_analysis.findings import Also, Confidence, Evidence, Severity
from torchwise_analysis.policy import at_least_confidence, at_least_severity
from torchwise_analysis.rules._framework import Hit, Rule

# A finding is read by people; a chain longer than this is not.
_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Precedence:
    """A hit of `hidden` that shares its subject with a hit of `primary` is folded into it.

    raises: the folded hit makes the primary's severity at least its own.
    """

    primary: str
    hidden: str
    reason: str
    raises: bool = False


# Order matters: an earlier line may fold a hit that a later line would have used as primary.
ORDER = (
    Precedence(
        "unguarded-eval",
        "retained-graph",
        "the values are kept with a graph because the evaluation records one",
        raises=True,
    ),
    Precedence(
        "grads-cleared-before-step", "missing-zero-grad", "the clear exists and stands in the wrong place"
    ),
    Precedence("stuck-eval-mode", "eval-in-train-mode", "one missing mode change explains both"),
    Precedence("double-softmax", "nll-without-log-softmax", "one finding for each loss call"),
    Precedence("double-softmax", "bce-activation-mismatch", "one finding for each loss call"),
    Precedence("double-softmax", "kl-div-inputs", "one finding for each loss call"),
    Precedence("ddp-without-sharding", "sampler-epoch-not-set", "there is no sampler to set an epoch on"),
    Precedence("not-prepared", "ddp-forward-bypassed", "the wrapper was thrown away"),
    Precedence("not-prepared", "ddp-without-sharding", "a prepared loader would shard"),
    Precedence("softmax-wrong-dim", "deprecated-api", "the axis that was left out is the wrong one"),
    Precedence("checkpoint-reentrant-no-grad", "deprecated-api", "one missing argument explains both"),
    Precedence("missing-zero-grad", "create-graph-backward-leak", "one missing clear explains both"),
    Precedence(
        "gan-generator-not-detached",
        "unscaled-accumulation",
        "the gradients that add up are those of the other network's loss",
    ),
    Precedence(
        "gan-generator-not-detached",
        "accumulation-tail-dropped",
        "the gradients that add up are those of the other network's loss",
    ),
    Precedence("retained-graph", "sync-in-hot-loop", "a correctness rule hides a performance rule"),
    Precedence("retained-graph", "per-step-host-sync", "a correctness rule hides a performance rule"),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A hit of a rule with what was folded into it."""

    rule: Rule
    hit: Hit
    also: tuple[Also, ...] = ()


def merge(rule: Rule, hits: Iterable[Hit]) -> tuple[Judged, ...]:
    """One hit for each place: runs, worlds and callers of one defect become one finding.

    The best proven hit speaks; the others add their subjects and the places that only they know.
    """
    by_place: dict[object, list[Hit]] = {}
    for hit in hits:
        by_place.setdefault(hit.place, []).append(hit)
    return tuple(_judged(rule, _merged(group)) for group in by_place.values())


def _judged(rule: Rule, hit: Hit) -> Judged:
    return Judged(rule, hit, tuple(Also(rule.name, place.place, place.message) for place in hit.elsewhere))


def fold(judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """Apply `ORDER`."""
    left = list(judged)
    for line in ORDER:
        hidden = _by_subject(left, line.hidden)
        if not hidden:
            continue
        folded: set[int] = set()
        for index, primary in enumerate(left):
            if primary.rule.name != line.primary:
                continue
            shared = {at for subject in primary.hit.subject for at in hidden.get(subject, ())}
            folded |= shared
            for at in sorted(shared):
                primary = _with(primary, left[at], line)
            left[index] = primary
        left = [entry for at, entry in enumerate(left) if at not in folded]
    return tuple(left)


def _by_subject(judged: Sequence[Judged], rule: str) -> dict[object, list[int]]:
    """Where the hits of a rule stand, by each of their subjects."""
    places: dict[object, list[int]] = {}
    for at, entry in enumerate(judged):
        if entry.rule.name == rule:
            for subject in entry.hit.subject:
                places.setdefault(subject, []).append(at)
    return places


def _with(primary: Judged, other: Judged, line: Precedence) -> Judged:
    hit = primary.hit
    if line.raises and not at_least_severity(hit.severity, other.hit.severity):
        hit = replace(hit, severity=other.hit.severity)
    also = Also(other.rule.name, other.hit.place, other.hit.message)
    return replace(primary, hit=hit, also=tuple(dict.fromkeys((*primary.also, also, *other.also))))


def _merged(group: Sequence[Hit]) -> Hit:
    best = max(group, key=_weight)
    evidence: dict[Evidence, None] = dict.fromkeys(best.evidence)
    seen = {link.place for link in best.evidence}
    for hit in group:
        for link in hit.evidence:
            if link.place not in seen and len(evidence) < _LONGEST_CHAIN:
                evidence[link] = None
                seen.add(link.place)
    subject = frozenset[object]().union(*(hit.subject for hit in group))
    return replace(best, evidence=tuple(evidence), subject=subject)


def _weight(hit: Hit) -> tuple[int, int]:
    confidence = sum(at_least_confidence(hit.confidence, grade) for grade in Confidence)
    severity = sum(at_least_severity(hit.severity, level) for level in Severity)
    return confidence, severity

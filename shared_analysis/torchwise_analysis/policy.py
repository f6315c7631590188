"""Grading turned into behaviour: which finding is shown where, and which one fails a run.

Severity says what happens if a finding is true, confidence how well it is proven; they are never mixed
(docs/policy.md). This module is the only place that combines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchwise_analysis.findings import Confidence, Finding, Severity

_SEVERITY_RANK = {Severity.HINT: 0, Severity.WARNING: 1, Severity.ERROR: 2}
_CONFIDENCE_RANK = {Confidence.POSSIBLE: 0, Confidence.LIKELY: 1, Confidence.CERTAIN: 2}


class Surface(Enum):
    """A place where findings are read."""

    EDITOR = "editor"
    EDITOR_STRICT = "editor-strict"
    CLI = "cli"
    CI = "ci"
    CI_STRICT = "ci-strict"


class Display(Enum):
    """How one finding appears on one surface."""

    ERROR = "error"
    WARNING = "warning"
    INFORMATION = "information"
    HINT = "hint"
    COUNTED = "counted"  # only as a number in the last line
    HIDDEN = "hidden"

    @property
    def is_listed(self) -> bool:
        return self not in (Display.COUNTED, Display.HIDDEN)


_AT_SEVERITY = {
    Severity.ERROR: Display.ERROR,
    Severity.WARNING: Display.WARNING,
    Severity.HINT: Display.HINT,
}
_ONE_LOWER = {
    Severity.ERROR: Display.WARNING,
    Severity.WARNING: Display.INFORMATION,
    Severity.HINT: Display.HINT,
}


def display(finding: Finding, surface: Surface) -> Display:
    """How `finding` appears on `surface`: the table of docs/policy.md, row by row."""
    if surface in (Surface.CI, Surface.CI_STRICT) and finding.severity is Severity.HINT:
        return Display.HIDDEN
    if finding.confidence is Confidence.CERTAIN:
        return _AT_SEVERITY[finding.severity]
    if finding.confidence is Confidence.LIKELY:
        return _ONE_LOWER[finding.severity] if surface is Surface.EDITOR else _AT_SEVERITY[finding.severity]
    return {
        Surface.EDITOR: Display.HIDDEN,
        Surface.EDITOR_STRICT: Display.INFORMATION,
        Surface.CLI: Display.COUNTED,
        Surface.CI: Display.HIDDEN,
        Surface.CI_STRICT: _AT_SEVERITY[finding.severity],
    }[surface]


@dataclass(frozen=True, slots=True)
class FailureLevel:
    """What fails a run: a finding at or above both levels."""

    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.CERTAIN


STRICT_FAILURE = FailureLevel(Severity.WARNING, Confidence.LIKELY)


def fails(finding: Finding, level: FailureLevel) -> bool:
    """Whether `finding` alone makes the exit status 1."""
    return at_least_severity(finding.severity, level.severity) and at_least_confidence(
        finding.confidence, level.confidence
    )


def at_least_severity(value: Severity, floor: Severity) -> bool:
    return _SEVERITY_RANK[value] >= _SEVERITY_RANK[floor]


def at_least_confidence(value: Confidence, floor: Confidence) -> bool:
    return _CONFIDENCE_RANK[value] >= _CONFIDENCE_RANK[floor]


def weaker(*grades: Confidence) -> Confidence:
    """The weakest of several grades: a chain is as good as its weakest link."""
    return min(grades, key=_CONFIDENCE_RANK.__getitem__)


def one_weaker(grade: Confidence) -> Confidence:
    """The next weaker grade; `possible` stays."""
    return Confidence.LIKELY if grade is Confidence.CERTAIN else Confidence.POSSIBLE

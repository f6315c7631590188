"""The table of docs/policy.md, cell by cell."""

from __future__ import annotations

import pytest

from torchwise_analysis.findings import Confidence, Finding, Place, Severity
from torchwise_analysis.policy import (
    STRICT_FAILURE,
    Display,
    FailureLevel,
    Surface,
    display,
    fails,
    one_weaker,
    weaker,
)
from torchwise_analysis.source.nodes import Span


def finding(severity: Severity, confidence: Confidence) -> Finding:
    return Finding("TW000", "rule", severity, confidence, "", Place("a.py", Span(0, 0, 0, 1)))


TABLE = {
    (Surface.EDITOR, "certain"): ("error", "warning", "hint"),
    (Surface.EDITOR, "likely"): ("warning", "information", "hint"),
    (Surface.EDITOR, "possible"): ("hidden", "hidden", "hidden"),
    (Surface.EDITOR_STRICT, "certain"): ("error", "warning", "hint"),
    (Surface.EDITOR_STRICT, "likely"): ("error", "warning", "hint"),
    (Surface.EDITOR_STRICT, "possible"): ("information", "information", "information"),
    (Surface.CLI, "certain"): ("error", "warning", "hint"),
    (Surface.CLI, "likely"): ("error", "warning", "hint"),
    (Surface.CLI, "possible"): ("counted", "counted", "counted"),
    (Surface.CI, "certain"): ("error", "warning", "hidden"),
    (Surface.CI, "likely"): ("error", "warning", "hidden"),
    (Surface.CI, "possible"): ("hidden", "hidden", "hidden"),
    (Surface.CI_STRICT, "certain"): ("error", "warning", "hidden"),
    (Surface.CI_STRICT, "likely"): ("error", "warning", "hidden"),
    (Surface.CI_STRICT, "possible"): ("error", "warning", "hidden"),
}


@pytest.mark.parametrize(("row", "cells"), TABLE.items())
def test_display(row: tuple[Surface, str], cells: tuple[str, str, str]) -> None:
    surface, confidence = row
    shown = [display(finding(severity, Confidence(confidence)), surface).value for severity in Severity]
    assert tuple(shown) == cells


def test_the_table_is_complete() -> None:
    assert len(TABLE) == len(Surface) * len(Confidence)
    assert not Display.COUNTED.is_listed
    assert not Display.HIDDEN.is_listed
    assert Display.INFORMATION.is_listed


def test_only_certain_errors_fail_by_default() -> None:
    failing = [(s, c) for s in Severity for c in Confidence if fails(finding(s, c), FailureLevel())]
    assert failing == [(Severity.ERROR, Confidence.CERTAIN)]


def test_strict_runs_fail_on_likely_warnings() -> None:
    failing = {(s, c) for s in Severity for c in Confidence if fails(finding(s, c), STRICT_FAILURE)}
    assert failing == {
        (s, c) for s in (Severity.ERROR, Severity.WARNING) for c in (Confidence.CERTAIN, Confidence.LIKELY)
    }


def test_a_chain_is_as_good_as_its_weakest_link() -> None:
    assert weaker(Confidence.CERTAIN, Confidence.POSSIBLE, Confidence.LIKELY) is Confidence.POSSIBLE
    assert one_weaker(Confidence.CERTAIN) is Confidence.LIKELY
    assert one_weaker(Confidence.POSSIBLE) is Confidence.POSSIBLE

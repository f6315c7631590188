"""What one run of `torchwise check` found, ready to be reported in any format."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchwise_analysis.engine import Problem
from torchwise_analysis.findings import Finding


@dataclass(frozen=True, slots=True)
class CheckRun:
    """`findings` are those to print, sorted by place; `hidden` counts those below the wished confidence.

    `not_analysed` counts, by reason, the parts of files that the interpreter passed over.
    """

    findings: tuple[Finding, ...]
    hidden: int
    problems: tuple[Problem, ...]
    files: int
    skipped_by_text: int
    not_analysed: dict[str, int] = field(default_factory=dict[str, int])

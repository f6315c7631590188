"""What one run of `torchwise check` found, ready to be reported in any format."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchwise_analysis.engine import Problem
from torchwise_analysis.findings import Finding


@dataclass(frozen=True, slots=True)
class CheckRun:
    """`findings` are those to print, sorted by place; `hidden` counts those below the wished confidence.

    `not_analysed` counts, by reason, the parts of files that the interpreter passed over. `failing` are those
    of the findings that fail the run. `unchanged` counts what lies on lines that did not change, `known` what
    the baseline holds, `gone` what it holds and is no more.
    """

    findings: tuple[Finding, ...]
    hidden: int
    problems: tuple[Problem, ...]
    files: int
    skipped_by_text: int
    not_analysed: dict[str, int] = field(default_factory=dict[str, int])
    failing: tuple[Finding, ...] = ()
    unchanged: int = 0
    known: int = 0
    gone: int = 0

    def fails(self, finding: Finding) -> bool:
        """Whether one of the findings makes the exit status 1."""
        return any(finding is one for one in self.failing)

"""What one run of `torchwise check` found, ready to be reported in any format."""

from __future__ import annotations

from collections.abc import Callable
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


@dataclass(frozen=True, slots=True)
class Sources:
    """How reports speak of files: the name to print for a path, its lines, and the cell of a notebook's line.

    `cell` maps (path, line) to (number of the cell from 1, line in it), None where the file is no notebook.
    """

    name: Callable[[str], str]
    lines: Callable[[str], tuple[str, ...]]
    cell: Callable[[str, int], tuple[int, int] | None]

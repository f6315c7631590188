"""`torchwise check --format gitlab`: a code quality report of GitLab (the Code Climate subset it reads)."""

from __future__ import annotations

import json

from torchwise_analysis.findings import Confidence, Finding, Severity
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.identity import fingerprints
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import visible


def render(run: CheckRun, sources: Sources) -> str:
    """One JSON list."""
    names = fingerprints(run.findings, sources)
    rows = [_issue(finding, name, sources) for finding, name in zip(run.findings, names, strict=True)]
    return json.dumps(rows, indent=1)


def _issue(finding: Finding, fingerprint: str, sources: Sources) -> dict[str, object]:
    span = finding.place.span
    cell = sources.cell(finding.place.path, span.line)
    first, last = sources.rows(finding.place.path, span.line, span.end_line) or (1, 1)
    lead = "" if cell is None else f"cell {cell[0]}, line {cell[1]}: "
    return {
        "description": visible(f"{lead}{finding.message}"),
        "check_name": finding.rule,
        "fingerprint": fingerprint,
        "severity": _severity(finding),
        "categories": ["Bug Risk"] if finding.severity is Severity.ERROR else ["Performance"],
        "location": {
            "path": sources.name(finding.place.path).replace("\\", "/"),
            "lines": {"begin": first, "end": last},
        },
    }


def _severity(finding: Finding) -> str:
    """One lower for what is not certain."""
    steps = ("info", "minor", "major", "critical")
    top = {Severity.HINT: 0, Severity.WARNING: 2, Severity.ERROR: 3}[finding.severity]
    return steps[max(0, top - (finding.confidence is not Confidence.CERTAIN))]

"""A name for a finding that outlives edits elsewhere in its file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from torchwise_analysis.findings import Finding
from torchwise_server.reporters.sources import Sources


def fingerprints(findings: Sequence[Finding], sources: Sources) -> list[str]:
    """One for each finding: of its rule, its file, the text of its lines, and its number among such."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found: list[str] = []
    for finding in findings:
        place = finding.place
        lines = sources.lines(place.path)[place.span.line : place.span.end_line + 1]
        key = (sources.name(place.path), finding.rule, " ".join(" ".join(lines).split()))
        words = "\0".join((*key, str(seen[key])))
        found.append(hashlib.sha256(words.encode("utf-8", "backslashreplace")).hexdigest()[:32])
        seen[key] += 1
    return found

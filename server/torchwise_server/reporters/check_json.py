"""`torchwise check --format json`: the shape of schemas/check.schema.json. Lines and columns count from 1."""

from __future__ import annotations

import json

from torchwise_analysis.engine import Problem
from torchwise_analysis.findings import Edit, Finding, Place
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.sources import Sources

VERSION = 1


def render(run: CheckRun, sources: Sources) -> str:
    """One JSON document."""
    document = {
        "version": VERSION,
        "findings": [_finding(finding, sources) for finding in run.findings],
        "problems": [_problem(problem, sources) for problem in run.problems],
    }
    return json.dumps(document, indent=1)


def _finding(finding: Finding, sources: Sources) -> dict[str, object]:
    return {
        **_range(finding.place, sources),
        "code": finding.code,
        "rule": finding.rule,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "message": finding.message,
        "evidence": [{**_start(link.place, sources), "message": link.message} for link in finding.evidence],
        "also": [
            {"rule": other.rule, **_start(other.place, sources), "message": other.message}
            for other in finding.also
        ],
        "fixes": [
            {
                "title": fix.title,
                "safety": fix.safety.value,
                "edits": [_edit(edit, sources) for edit in fix.edits],
            }
            for fix in finding.fixes
        ],
    }


def _edit(edit: Edit, sources: Sources) -> dict[str, object]:
    return {**_range(edit.place, sources), "text": edit.text}


def _problem(problem: Problem, sources: Sources) -> dict[str, object]:
    line = problem.line
    return {
        "path": sources.name(problem.path),
        "line": None if line is None else line + 1,
        **({} if line is None else sources.notebook_fields(problem.path, line)),
        "message": problem.message,
    }


def _start(place: Place, sources: Sources) -> dict[str, object]:
    return {
        "path": sources.name(place.path),
        "line": place.span.line + 1,
        "column": place.span.column + 1,
        **sources.notebook_fields(place.path, place.span.line),
    }


def _range(place: Place, sources: Sources) -> dict[str, object]:
    return {
        **_start(place, sources),
        "end_line": place.span.end_line + 1,
        "end_column": place.span.end_column + 1,
    }

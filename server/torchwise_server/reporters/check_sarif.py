"""`torchwise check --format sarif`: SARIF 2.1.0, with the evidence of a finding as its code flow."""

from __future__ import annotations

import json
from pathlib import PurePath
from urllib.parse import quote

from torchwise_analysis.engine import Problem, ProblemKind
from torchwise_analysis.findings import Confidence, Edit, Finding, Fix, Place, Severity
from torchwise_analysis.rules import rule_named
from torchwise_analysis.rules.pages import render as render_page
from torchwise_server import __version__
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.identity import fingerprints
from torchwise_server.reporters.sources import Sources

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "note"}
_PRECISION = {Confidence.CERTAIN: "very-high", Confidence.LIKELY: "high", Confidence.POSSIBLE: "medium"}
_RANK = {Confidence.CERTAIN: 98.0, Confidence.LIKELY: 90.0, Confidence.POSSIBLE: 70.0}
_ROOT = "SRCROOT"


def render(run: CheckRun, sources: Sources) -> str:
    """One SARIF log with one run."""
    codes = sorted({finding.code: finding.rule for finding in run.findings}.items())
    index = {code: number for number, (code, _) in enumerate(codes)}
    names = fingerprints(run.findings, sources)
    results = [
        _result(finding, index[finding.code], name, sources)
        for finding, name in zip(run.findings, names, strict=True)
    ]
    failed = any(problem.kind is ProblemKind.FAILURE for problem in run.problems)
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "torchwise",
                        "semanticVersion": __version__,
                        "rules": [_rule(code, name) for code, name in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {
                    _ROOT: {"description": {"text": "The folder that torchwise was started in."}}
                },
                "invocations": [
                    {
                        "executionSuccessful": not failed,
                        "toolExecutionNotifications": [_notification(each, sources) for each in run.problems],
                    }
                ],
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=1)


def _rule(code: str, name: str) -> dict[str, object]:
    rule = rule_named(name)
    if rule is None:  # about suppressions: no page
        return {"id": code, "name": name, "shortDescription": {"text": name.replace("-", " ")}}
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": rule.claim},
        "fullDescription": {"text": f"{rule.claim} {rule.cost}"},
        "help": {"text": f"{rule.cost}\n\n{rule.fix}", "markdown": render_page(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {
            "tags": ["pytorch", rule.category.value.lower()],
            "precision": "very-high",
            "problem.severity": {"error": "error", "warning": "warning", "hint": "recommendation"}[
                rule.severity.value
            ],
        },
    }


def _result(finding: Finding, index: int, fingerprint: str, sources: Sources) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "rank": _RANK[finding.confidence],
        "message": {"text": _said(finding.place, finding.message, sources)},
        "locations": [_location(finding.place, None, sources)],
        "partialFingerprints": {"torchwise/v1": fingerprint},
        "properties": {"confidence": finding.confidence.value, "precision": _PRECISION[finding.confidence]},
    }
    if finding.evidence:
        steps = [
            {"location": _location(link.place, link.message, sources), "executionOrder": number}
            for number, link in enumerate(finding.evidence, start=1)
        ]
        last = {"location": _location(finding.place, finding.message, sources), "importance": "essential"}
        result["codeFlows"] = [
            {
                "message": {"text": "the facts that prove it, in their order"},
                "threadFlows": [{"locations": [*steps, last]}],
            }
        ]
    related = [(link.place, link.message) for link in finding.evidence]
    related += [(other.place, f"also {other.rule}: {other.message}") for other in finding.also]
    if related:
        result["relatedLocations"] = [
            {"id": number, **_location(place, message, sources)}
            for number, (place, message) in enumerate(related, start=1)
        ]
    fixes = [fix for fix in finding.fixes if fix.edits and not _has_notebook(fix, sources)]
    if fixes:
        result["fixes"] = [_fix(fix, sources) for fix in fixes]
    return result


def _location(place: Place, message: str | None, sources: Sources) -> dict[str, object]:
    span = place.span
    physical: dict[str, object] = {"artifactLocation": _artifact(place.path, sources)}
    location: dict[str, object] = {"physicalLocation": physical}
    cell = sources.cell(place.path, span.line)
    if cell is None:
        region = _region(place)
        lines = sources.lines(place.path)[span.line : span.end_line + 1]
        if lines:
            region["snippet"] = {"text": _well_formed("\n".join(lines))}
        physical["region"] = region
    else:  # columns of its code are not those of a notebook's file
        rows = sources.rows(place.path, span.line, span.end_line)
        if rows is not None:
            physical["region"] = {"startLine": rows[0], "endLine": rows[1]}
        location["logicalLocations"] = [{"fullyQualifiedName": f"cell {cell[0]}", "kind": "module"}]
    if message is not None:
        location["message"] = {"text": _said(place, message, sources)}
    return location


def _region(place: Place) -> dict[str, object]:
    span = place.span
    return {
        "startLine": span.line + 1,
        "startColumn": span.column + 1,
        "endLine": span.end_line + 1,
        "endColumn": span.end_column + 1,
    }


def _said(place: Place, message: str, sources: Sources) -> str:
    cell = sources.cell(place.path, place.span.line)
    return _well_formed(message if cell is None else f"cell {cell[0]}, line {cell[1]}: {message}")


def _fix(fix: Fix, sources: Sources) -> dict[str, object]:
    by_path: dict[str, list[Edit]] = {}
    for edit in fix.edits:
        by_path.setdefault(edit.place.path, []).append(edit)
    safety = {"safe": "same values, gradients and updates", "unsafe": "changes training or needs a look"}
    return {
        "description": {"text": f"{_well_formed(fix.title)} ({safety[fix.safety.value]})"},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(path, sources),
                "replacements": [
                    {
                        "deletedRegion": _region(edit.place),
                        "insertedContent": {"text": _well_formed(edit.text)},
                    }
                    for edit in edits
                ],
            }
            for path, edits in by_path.items()
        ],
    }


def _has_notebook(fix: Fix, sources: Sources) -> bool:
    return any(sources.cell(edit.place.path, edit.place.span.line) is not None for edit in fix.edits)


def _artifact(path: str, sources: Sources) -> dict[str, object]:
    name = sources.name(path)
    pure = PurePath(name)
    if pure.is_absolute():
        return {"uri": "file://" + quote(pure.as_posix(), errors="surrogateescape")}
    return {"uri": quote(pure.as_posix(), errors="surrogateescape"), "uriBaseId": _ROOT}


def _notification(problem: Problem, sources: Sources) -> dict[str, object]:
    physical: dict[str, object] = {"artifactLocation": _artifact(problem.path, sources)}
    rows = None if problem.line is None else sources.rows(problem.path, problem.line, problem.line)
    if rows is not None:
        physical["region"] = {"startLine": rows[0]}
    return {
        "level": "error" if problem.kind is ProblemKind.FAILURE else "warning",
        "message": {"text": _well_formed(problem.message)},
        "locations": [{"physicalLocation": physical}],
    }


def _well_formed(text: str) -> str:
    """Text without halves of characters, which no reader of JSON has to accept."""
    return text.encode("utf-8", "replace").decode("utf-8")

"""`torchwise check --format junit`: JUnit XML. A finding that fails the run is a failure; others are said in
the output of a test that passes; what could not be analysed is an error."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from torchwise_analysis.engine import Problem
from torchwise_analysis.findings import Finding
from torchwise_server.reporters.check_run import CheckRun
from torchwise_server.reporters.check_text import PROBLEMS
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import one_line, visible

# what XML 1.0 cannot hold in any spelling
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def render(run: CheckRun, sources: Sources) -> str:
    """One XML document with a suite for each file that has something to say."""
    by_file: dict[str, list[str]] = {}
    for finding in run.findings:
        by_file.setdefault(sources.name(finding.place.path), []).append(_finding(finding, run, sources))
    for problem in run.problems:
        by_file.setdefault(sources.name(problem.path), []).append(_problem(problem, sources))
    failures, errors = len(run.failing), sum(problem.kind.is_missing for problem in run.problems)
    suites = [_suite(name, cases) for name, cases in sorted(by_file.items())]
    if not suites:
        suites = [_suite("torchwise", [f'    <testcase classname="torchwise" name="{run.files} files"/>'])]
    total = sum(len(cases) for cases in by_file.values()) or 1
    head = f'<testsuites name="torchwise" tests="{total}" failures="{failures}" errors="{errors}">'
    return "\n".join(('<?xml version="1.0" encoding="UTF-8"?>', head, *suites, "</testsuites>"))


def _suite(name: str, cases: list[str]) -> str:
    failures = sum("<failure" in case for case in cases)
    errors = sum("<error" in case for case in cases)
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    return "\n".join((f"  <testsuite name={_attribute(one_line(name))} {counts}>", *cases, "  </testsuite>"))


def _finding(finding: Finding, run: CheckRun, sources: Sources) -> str:
    path, span = finding.place.path, finding.place.span
    name = f"{finding.rule} at {sources.line(path, span.line)}:{span.column + 1}"
    chain = [
        f"{number}. {sources.at(link.place.path, link.place.span.line)}: {link.message}"
        for number, link in enumerate(finding.evidence, start=1)
    ]
    text = _text("\n".join((f"{finding.severity.value}, {finding.confidence.value}", *chain)))
    message = _attribute(finding.message)
    if run.fails(finding):
        body = f"<failure type={_attribute(finding.code)} message={message}>{text}</failure>"
    else:
        body = f"<system-out>{_text(finding.message)}\n{text}</system-out>"
    return (
        f"    <testcase classname={_attribute(sources.name(path))} name={_attribute(name)}>{body}</testcase>"
    )


def _problem(problem: Problem, sources: Sources) -> str:
    what = PROBLEMS[problem.kind]
    where = "" if problem.line is None else f" at {sources.line(problem.path, problem.line)}"
    body = f"<error type={_attribute(what)} message={_attribute(problem.message)}/>"
    if not problem.kind.is_missing:
        body = f"<system-out>{_text(problem.message)}</system-out>"
    name = _attribute(f"{what}{where}")
    return f"    <testcase classname={_attribute(sources.name(problem.path))} name={name}>{body}</testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _text(text: str) -> str:
    return escape(_clean(text))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", visible(text))

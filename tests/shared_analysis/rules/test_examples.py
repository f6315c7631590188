"""Every example of every rule is run with all rules on: exact ranges, nothing else, and fixes that hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.findings import Finding, Safety
from torchwise_analysis.fixes import SourceFile, apply_edits, is_offerable
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import all_rules, judge
from torchwise_analysis.rules._framework import Example, Rule
from torchwise_analysis.rules._snippets import parse
from torchwise_analysis.settings import Settings

EXAMPLES = [
    pytest.param(entry.rule, example, id=f"{entry.rule.name}: {example.title}")
    for entry in all_rules()
    for example in entry.rule.all_examples
]


class Analysis:
    """Analyses texts of one small project on disk."""

    def __init__(self, folder: Path, example: Example) -> None:
        self.path = str(folder / "example.py")
        self.folder = folder
        for name, text in example.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def findings(self, text: str) -> tuple[Finding, ...]:
        file = SourceFile(self.path, text)
        assert file.module.problems == (), "the example must parse"
        trace = run(file.module, Project([str(self.folder)]))
        result = judge(trace, file, Settings())
        assert result.failures == ()
        return result.findings

    def reanalyse(self, path: str, text: str) -> tuple[Finding, ...] | None:
        assert path == self.path
        file = SourceFile(path, text)
        return None if file.module.problems else self.findings(text)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_findings_are_exactly_those_marked(rule: Rule, example: Example, tmp_path: Path) -> None:
    snippet = parse(example.code)
    found = Analysis(tmp_path, example).findings(snippet.text)
    shown = {(f.rule, f.place.span, f.severity, f.confidence) for f in found}
    wanted = {
        (
            mark.rule,
            mark.span,
            mark.severity or next((s for r, p, s, _ in shown if (r, p) == (mark.rule, mark.span)), None),
            mark.confidence or next((c for r, p, _, c in shown if (r, p) == (mark.rule, mark.span)), None),
        )
        for mark in snippet.expected
    }
    assert shown == wanted


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_every_edit_parses_removes_the_finding_and_adds_none(
    rule: Rule, example: Example, tmp_path: Path
) -> None:
    analysis = Analysis(tmp_path, example)
    text = parse(example.code).text
    file = SourceFile(analysis.path, text)
    found = analysis.findings(text)
    for finding in found:
        for fix in finding.fixes:
            assert is_offerable(file, finding, fix, found, analysis.reanalyse), fix.title
            assert bool(fix.edits) == (fix.safety is not Safety.ADVICE)
    if example.fixed is not None:
        first = next(f for f in found if f.rule == rule.name).fixes[0]
        assert apply_edits(file, first.edits) == parse(example.fixed).text


@pytest.mark.parametrize("rule", [entry.rule for entry in all_rules()], ids=lambda rule: rule.name)
def test_every_rule_has_faulty_and_correct_examples(rule: Rule) -> None:
    marked = [any(m.rule == rule.name for m in parse(e.code).expected) for e in rule.all_examples]
    assert marked[0] and not marked[1], "the page shows the fault first, then the correct program"
    assert sum(marked) >= 2
    assert len(marked) - sum(marked) >= 3


@pytest.mark.parametrize("rule", [entry.rule for entry in all_rules()], ids=lambda rule: rule.name)
def test_texts_are_sentences(rule: Rule) -> None:
    assert rule.claim.endswith(".") and "\n" not in rule.claim
    assert all(not line.endswith(".") for line in rule.silent), "the page adds the full stop"
    assert all(reference.address.startswith("https://") for reference in rule.references)
    assert len({reference.address for reference in rule.references}) == len(rule.references) >= 2

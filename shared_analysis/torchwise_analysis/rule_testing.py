"""Tests of a rule by its own examples, for rules outside of torchwise.

from torchwise_analysis.rule_testing import faults
import my_rule

def test_examples(tmp_path):
    assert faults(my_rule, tmp_path) == []
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from torchwise_analysis.findings import Finding, Safety
from torchwise_analysis.fixes import SourceFile, apply_edits, is_offerable
from torchwise_analysis.interp.abstract import relevance, run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.rules._framework import Example, RegisteredRule, built_in_rules, registered
from torchwise_analysis.rules._snippets import parse
from torchwise_analysis.semantics.registry import FUNCTIONS, METHODS
from torchwise_analysis.settings import Settings


def faults(module: ModuleType, folder: Path) -> list[str]:
    """What is wrong with the examples of a rule module, a sentence each; `folder` is an empty one.

    Each example is analysed with all rules on: findings must be exactly those marked, and every fix must
    leave a file that parses, without the finding and without a new one.
    """
    rule = registered(module)
    if rule is None:
        return [f"{module.__name__} defines no RULE"]
    taught = [name.rpartition(".")[2] for name, meaning in FUNCTIONS.items() if _is_of(meaning, module)]
    taught += [name for (_, name), meaning in METHODS.items() if _is_of(meaning, module)]
    relevance.teach(taught)
    found = list(_missing(rule))
    for number, example in enumerate(rule.rule.all_examples):
        place = folder / f"example{number}"
        place.mkdir()
        found += [f"{example.title}: {fault}" for fault in _Analysis(rule, example, place).faults()]
    return found


def _is_of(meaning: object, module: ModuleType) -> bool:
    return getattr(meaning, "__module__", None) == module.__name__


def _missing(entry: RegisteredRule) -> Iterator[str]:
    rule = entry.rule
    marked = [any(m.rule == rule.name for m in parse(e.code).expected) for e in rule.all_examples]
    if not marked[0]:
        yield "`wrong` marks no finding of the rule"
    if marked[1]:
        yield "`right` marks a finding of the rule"


class _Analysis:
    """The analysis of one example, a small project on disk."""

    def __init__(self, entry: RegisteredRule, example: Example, folder: Path) -> None:
        self.entry, self.example, self.folder = entry, example, folder
        self.path = str(folder / "example.py")
        for name, text in example.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def faults(self) -> Iterator[str]:
        snippet = parse(self.example.code)
        found = self._findings(snippet.text)
        if isinstance(found, str):
            yield found
            return
        wanted = {(mark.rule, mark.span): mark for mark in snippet.expected}
        shown = {(finding.rule, finding.place.span): finding for finding in found}
        for rule, span in wanted.keys() - shown.keys():
            yield f"{rule} is marked in line {span.line + 1} and not found there"
        for rule, span in shown.keys() - wanted.keys():
            yield f"{rule} is found in line {span.line + 1}, columns {span.column + 1} to {span.end_column}"
        for key in wanted.keys() & shown.keys():
            mark, finding = wanted[key], shown[key]
            for stated, said in ((mark.severity, finding.severity), (mark.confidence, finding.confidence)):
                if stated is not None and stated is not said:
                    yield f"{mark.rule} is {said.value}, not {stated.value}"
        yield from self._fix_faults(SourceFile(self.path, snippet.text), found)

    def _fix_faults(self, file: SourceFile, found: tuple[Finding, ...]) -> Iterator[str]:
        own = [finding for finding in found if finding.rule == self.entry.rule.name]
        for finding in own:
            for fix in finding.fixes:
                if not is_offerable(file, finding, fix, found, self._reanalyse):
                    yield f"the fix {fix.title!r} leaves the finding, brings another, or does not parse"
                if bool(fix.edits) == (fix.safety is Safety.ADVICE):
                    yield f"the fix {fix.title!r}: advice has no edits, and what has none is advice"
        if self.example.fixed is not None:
            wanted = parse(self.example.fixed).text
            if not own or not own[0].fixes:
                yield "`fixed` is given, and no fix is offered"
            elif apply_edits(file, own[0].fixes[0].edits) != wanted:
                yield "the first fix gives another text than `fixed`"

    def _findings(self, text: str) -> tuple[Finding, ...] | str:
        file = SourceFile(self.path, text)
        if file.module.problems:
            return f"it does not parse: {file.module.problems[0].message}"
        trace = run(file.module, Project([str(self.folder)]))
        result = judge(trace, file, Settings(), rules=(*built_in_rules(), self.entry))
        if trace.silence.failed or result.failures:
            return "; ".join((*trace.silence.failed, *(failure.message for failure in result.failures)))
        return result.findings

    def _reanalyse(self, path: str, text: str) -> tuple[Finding, ...] | None:
        found = self._findings(text) if path == self.path else "another file"
        return None if isinstance(found, str) else found

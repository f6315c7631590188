"""From hits to findings: selection, containment, merging, precedence, suppression, safety."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from torchwise_analysis.findings import Confidence, Edit, Evidence, Finding, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp import abstract
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.interp.abstract.trace import Silence, Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import CheckResult, all_rules, enabled_rules, judge, verified
from torchwise_analysis.rules._framework import Category, Example, Hit, RegisteredRule, Rule
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.nodes import Span

TEXT = "alpha\nbeta\ngamma\n"


def trace(silence: Silence | None = None) -> Trace:
    nothing: frozenset[int] = frozenset()
    return Trace(
        path="a.py",
        events=(),
        passes={},
        objects={},
        parents={},
        consumed=frozenset(),
        backed=nothing,
        escaped_passes=nothing,
        escaped_tokens=frozenset(),
        escaped=nothing,
        owns={},
        facts={},
        silence=silence or Silence(),
    )


def rule(name: str, *hits: Hit, code: str = "TW999", fixes: Iterable[Fix] = ()) -> RegisteredRule:
    page = Example("", "x\n")
    description = Rule(code, name, Category.LOOP, Severity.ERROR, "", "", page, page, (), "", "", ())
    return RegisteredRule(description, lambda _: hits, lambda hit, file: fixes)


def hit(
    line: int,
    subject: object = None,
    severity: Severity = Severity.WARNING,
    confidence: Confidence = Confidence.CERTAIN,
    evidence: tuple[Evidence, ...] = (),
) -> Hit:
    subjects = frozenset() if subject is None else frozenset({subject})
    return Hit(place(line), severity, confidence, f"line {line}", evidence, subjects)


def place(line: int) -> Place:
    return Place("a.py", Span(line, 0, line, 3))


def run(*rules: RegisteredRule, text: str = TEXT) -> CheckResult:
    return judge(trace(), SourceFile("a.py", text), Settings(), rules=rules)


def test_findings_come_in_source_order() -> None:
    result = run(rule("two", hit(2), code="TW902"), rule("one", hit(0), hit(1), code="TW901"))
    assert [(f.code, f.place.span.line) for f in result.findings] == [
        ("TW901", 0),
        ("TW901", 1),
        ("TW902", 2),
    ]
    assert (result.statistics.rules_run, result.statistics.hits, result.statistics.folded) == (2, 3, 0)


def test_settings_give_a_rule_another_severity_by_its_name_or_the_longest_prefix() -> None:
    rules = (
        rule("one", hit(0, severity=Severity.ERROR), hit(1, severity=Severity.HINT), code="TW901"),
        rule("two", hit(2, severity=Severity.ERROR), code="TW902"),
        rule("three", hit(3, severity=Severity.ERROR), code="TW101"),
    )
    settings = Settings(severity=(("TW9", Severity.HINT), ("one", Severity.WARNING), ("TW", Severity.ERROR)))
    result = judge(trace(), SourceFile("a.py", TEXT), settings, rules=rules)
    assert [f.severity for f in result.findings] == [
        Severity.HINT if selector == "TW9" else Severity.WARNING if selector == "one" else Severity.ERROR
        for selector in ("one", "one", "TW9", "TW")
    ]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Settings(), ["old"]),
        (Settings(preview=True), ["new", "old"]),
        (Settings(select=("TW9",)), ["old"]),
        (Settings(select=("new",)), ["new"]),
        (Settings(select=("TW901", "TW902")), ["new", "old"]),
        (Settings(preview=True, ignore=("new",)), ["old"]),
    ],
)
def test_a_preview_rule_runs_when_it_is_asked_for(settings: Settings, names: list[str]) -> None:
    new = rule("new", hit(0), code="TW901")
    preview = RegisteredRule(replace(new.rule, preview=True), new.detect, new.fixes)
    result = judge(
        trace(), SourceFile("a.py", TEXT), settings, rules=(preview, rule("old", hit(1), code="TW902"))
    )
    assert [f.rule for f in result.findings] == names


def test_a_rule_that_raises_silences_only_itself() -> None:
    def broken(_: Trace) -> Iterable[Hit]:
        raise ZeroDivisionError("oh")

    faulty = RegisteredRule(rule("faulty", code="TW998").rule, broken, lambda hit, file: ())
    result = run(faulty, rule("good", hit(0)))
    assert [f.rule for f in result.findings] == ["good"]
    assert [(f.rule, f.message) for f in result.failures] == [("faulty", "ZeroDivisionError: oh")]


def test_a_fix_that_raises_leaves_the_finding() -> None:
    def broken(hit: Hit, file: SourceFile) -> Iterable[Fix]:
        raise KeyError("oh")

    good = rule("good", hit(0))
    result = run(RegisteredRule(good.rule, good.detect, broken))
    assert [(f.rule, f.fixes) for f in result.findings] == [("good", ())]
    assert len(result.failures) == 1


def test_one_place_is_one_finding_and_the_best_proof_speaks() -> None:
    here, there = Evidence(place(1), "here"), Evidence(place(2), "there")
    weak = hit(0, confidence=Confidence.LIKELY, severity=Severity.ERROR, evidence=(there,))
    strong = hit(0, evidence=(here,))
    (found,) = run(rule("one", weak, strong)).findings
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert found.evidence == (here, there)


def test_one_cause_is_one_finding_with_the_other_attached() -> None:
    evaluation = rule("unguarded-eval", hit(0, ("pass", 1)), hit(1, ("pass", 2)), code="TW102")
    kept = rule("retained-graph", hit(2, ("pass", 1), Severity.ERROR), code="TW101")
    result = run(evaluation, kept)
    first, second = result.findings
    assert (first.rule, [(a.rule, a.place) for a in first.also]) == (
        "unguarded-eval",
        [("retained-graph", place(2))],
    )
    assert first.severity is Severity.ERROR, "kept outputs make it worse"
    assert (second.severity, second.also) == (Severity.WARNING, ())
    assert result.statistics.folded == 1


def test_what_has_another_cause_is_shown_beside() -> None:
    evaluation = rule("unguarded-eval", hit(0, ("pass", 1)), code="TW102")
    kept = rule("retained-graph", hit(2, ("pass", 7)), code="TW101")
    assert [f.rule for f in run(evaluation, kept).findings] == ["unguarded-eval", "retained-graph"]


def test_one_hit_is_attached_to_every_primary_that_shares_its_cause() -> None:
    evaluation = rule("unguarded-eval", hit(0, ("pass", 1)), hit(1, ("pass", 1)), code="TW102")
    kept = rule("retained-graph", hit(2, ("pass", 1)), code="TW101")
    result = run(evaluation, kept)
    assert [len(f.also) for f in result.findings] == [1, 1]


def test_a_suppressed_primary_does_not_bring_back_what_it_hides() -> None:
    evaluation = rule("unguarded-eval", hit(0, ("pass", 1)), code="TW102")
    kept = rule("retained-graph", hit(2, ("pass", 1)), code="TW101")
    result = run(evaluation, kept, text="alpha  # torchwise: ignore[unguarded-eval]\nbeta\ngamma\n")
    assert result.findings == ()
    assert result.statistics.suppressed == 1


def test_what_is_not_certain_is_never_changed_without_a_look() -> None:
    edit = Edit(place(0), "x")
    fix = Fix("x", Safety.SAFE, (edit,))
    (sure,) = run(rule("one", hit(0), fixes=[fix])).findings
    (unsure,) = run(rule("one", hit(0, confidence=Confidence.LIKELY), fixes=[fix])).findings
    assert sure.fixes[0].safety is Safety.SAFE
    assert unsure.fixes[0].safety is Safety.UNSAFE


def test_an_edit_that_does_not_hold_becomes_advice() -> None:
    fix = Fix("x", Safety.SAFE, (Edit(place(0), "x"),))
    findings = run(rule("one", hit(0), fixes=[fix])).findings
    file = SourceFile("a.py", TEXT)

    def stays(path: str, text: str) -> tuple[Finding, ...]:
        return findings

    assert verified(file, findings, lambda path, text: ())[0].fixes == (fix,)
    assert verified(file, findings, stays)[0].fixes == (Fix("x", Safety.ADVICE, ()),)
    assert verified(file, findings, lambda path, text: None)[0].fixes == (Fix("x", Safety.ADVICE, ()),)


def test_verification_ends_in_files_with_very_much_text_and_very_many_findings() -> None:
    fix = Fix("x", Safety.SAFE, (Edit(place(0), "x"),))
    findings = run(rule("one", hit(0), fixes=[fix])).findings * 50
    file = SourceFile("a.py", TEXT + "# " + "x" * 300_000 + "\n")
    seen: list[int] = []

    def analysed(path: str, text: str) -> tuple[Finding, ...]:
        seen.append(len(text))
        return ()

    fixes = [finding.fixes[0] for finding in verified(file, findings, analysed)]
    assert 0 < sum(seen) < 3 << 20
    assert fixes[0] == fix
    assert fixes[-1] == Fix("x", Safety.ADVICE, ())


@pytest.mark.parametrize(
    ("settings", "ignored", "names"),
    [
        (Settings(), (), {"one", "two"}),
        (Settings(select=("one",)), (), {"one"}),
        (Settings(select=("TW9",)), (), {"one", "two"}),
        (Settings(select=("tw901",)), (), {"one"}),
        (Settings(ignore=("two",)), (), {"one"}),
        (Settings(select=("one", "two"), ignore=("TW902",)), (), {"one"}),
        (Settings(), ("one",), {"two"}),
    ],
)
def test_rules_are_selected_by_name_code_or_prefix(
    settings: Settings, ignored: tuple[str, ...], names: set[str]
) -> None:
    rules = [rule("one", code="TW901"), rule("two", code="TW902")]
    assert {entry.rule.name for entry in enabled_rules(settings, ignored, rules)} == names


def test_the_package_holds_the_contracted_codes() -> None:
    codes = {entry.rule.name: entry.rule.code for entry in all_rules()}
    contracted = {
        "retained-graph": "TW101",
        "unguarded-eval": "TW102",
        "missing-zero-grad": "TW201",
        "stuck-eval-mode": "TW301",
        "best-state-aliased": "TW311",
        "double-softmax": "TW401",
        "unscaled-accumulation": "TW501",
        "ddp-without-sharding": "TW601",
    }
    assert contracted.items() <= codes.items()


def test_nothing_is_certain_in_what_was_not_followed_to_its_end() -> None:
    spent = "".join(f"    a{i} = b{i} + c{i}\n" for i in range(400))
    text = (
        "import torch\nfrom torch import nn\n\n\ndef train(loader):\n"
        "    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for x, y in loader:\n"
        "        loss = nn.functional.cross_entropy(nn.functional.softmax(model(x), 1), y)\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
    )
    grades = []
    for source, visits in ((text, 50_000), (text + spent, 500)):
        file = SourceFile("a.py", source)
        limits = Limits(visits=visits, entry_visits=visits)
        found = judge(abstract.run(file.module, Project(()), limits=limits), file, Settings()).findings
        grades += [one.confidence for one in found if one.rule == "double-softmax"]
    assert grades == [Confidence.CERTAIN, Confidence.LIKELY]

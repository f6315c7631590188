"""The rules: `judge` turns a trace into findings, `explain` a rule into a page.

One file of this package is one rule: its description, its examples (which are its tests), its detector and
its fix. Helper modules begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torchwise_analysis.findings import Confidence, Finding, Fix, Safety
from torchwise_analysis.fixes import Reanalyse, SourceFile, is_offerable
from torchwise_analysis.interp.abstract.places import settled
from torchwise_analysis.policy import one_weaker
from torchwise_analysis.rules import precedence
from torchwise_analysis.rules._framework import (
    Hit,
    RegisteredRule,
    Rule,
    all_rules,
    built_in_rules,
    rule_named,
    selects,
)
from torchwise_analysis.rules.precedence import Judged
from torchwise_analysis.settings import Settings
from torchwise_analysis.suppressions import apply as apply_suppressions

if TYPE_CHECKING:
    from torchwise_analysis.interp.abstract.trace import Silence, Trace

__all__ = [
    "CheckResult",
    "Rule",
    "RuleFailure",
    "Statistics",
    "all_rules",
    "built_in_rules",
    "enabled_rules",
    "explain",
    "judge",
    "rule_named",
    "selects",
    "verified",
]

# Text that may be analysed again to verify the fixes of one file, and searched to build them:
# out of reach for what people write. A generated file with thousands of findings gets them without fixes.
_VERIFIED_CHARACTERS = 2 << 20
_SEARCHED_CHARACTERS = 16 << 20


@dataclass(frozen=True, slots=True)
class Statistics:
    """What was counted on the way; `silence` is what the interpreter could not analyse."""

    rules_run: int
    hits: int
    folded: int
    suppressed: int
    silence: Silence


@dataclass(frozen=True, slots=True)
class RuleFailure:
    """A rule that raised: contained, so that the other rules still speak."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """All findings of one file in source order, of every grade: what is shown is decided by `policy`.

    Findings may lie in other files that the analysed one calls into.
    """

    findings: tuple[Finding, ...]
    statistics: Statistics
    failures: tuple[RuleFailure, ...] = ()


def judge(
    trace: Trace,
    document: SourceFile,
    settings: Settings,
    *,
    ignored: Collection[str] = (),
    others: Collection[SourceFile] = (),
    rules: Sequence[RegisteredRule] | None = None,
) -> CheckResult:
    """Run the rules that `settings` select on `trace`, the runs of `document`.

    ignored: further names, codes or prefixes not to run (per-file settings). others: files that findings may
    need fixes in. Fixes are built but not yet verified: see `verified`.
    """
    chosen = enabled_rules(settings, ignored, rules)
    # a keystroke that leaves the trace as it was needs no rule again
    name = " ".join(("judged", *(entry.rule.name for entry in chosen)))
    detected = trace.once(name, lambda: _detected(trace, chosen))
    folded, failures = detected.folded, list(detected.failures)
    files = {file.path: file for file in (document, *others)}
    builders = {entry.rule.name: entry for entry in chosen}
    most = _SEARCHED_CHARACTERS // (len(document.text) + 1)
    findings = [
        _finding(one, builders[one.rule.name], files, failures, has_fixes=number < most)
        for number, one in enumerate(folded)
    ]
    findings = [_with_severity(finding, settings) for finding in findings]
    findings.sort(key=lambda finding: (finding.place.path, finding.place.span, finding.code))
    kept, suppressed = apply_suppressions(
        document,
        findings,
        settings,
        _names(),
        {entry.rule.name for entry in chosen},
        is_complete=not trace.silence.fuel_spent and not failures,
        others=others,
    )
    statistics = Statistics(len(chosen), detected.hits, detected.merged, suppressed, trace.silence)
    return CheckResult(kept, statistics, tuple(failures))


@dataclass(frozen=True, slots=True)
class _Detected:
    """What the rules found, one cause once. merged: hits that precedence folded into others."""

    folded: tuple[Judged, ...]
    hits: int
    merged: int
    failures: tuple[RuleFailure, ...]


def _detected(trace: Trace, chosen: Sequence[RegisteredRule]) -> _Detected:
    judged: list[Judged] = []
    failures: list[RuleFailure] = []
    hits = 0
    for entry in chosen:
        try:
            number, merged = trace.recalled(entry.rule.name, partial(_hits, trace, entry))
        except Exception as error:  # a border: one faulty rule must not silence the others
            failures.append(RuleFailure(entry.rule.name, f"{type(error).__name__}: {error}"))
            continue
        hits += number
        judged += (replace(one, hit=_graded(trace, one.hit)) for one in merged)
    folded = precedence.fold(judged)
    return _Detected(folded, hits, len(judged) - len(folded), tuple(failures))


def _hits(trace: Trace, entry: RegisteredRule) -> tuple[int, tuple[Judged, ...]]:
    """How often the rule hit, and its hits with one for each place."""
    found = tuple(entry.detect(trace))
    return len(found), precedence.merge(entry.rule, found)


def _graded(trace: Trace, hit: Hit) -> Hit:
    """Nothing is certain in a part of the code that no run followed to its end: what was not seen there may
    be what the finding misses."""
    if hit.confidence is not Confidence.CERTAIN or not trace.is_followed_in_part(hit.place):
        return hit
    said = " Not certain: this part of the code was too large to follow to its end."
    return replace(hit, confidence=one_weaker(hit.confidence), message=hit.message + said)


def verified(
    file: SourceFile,
    findings: Sequence[Finding],
    reanalyse: Reanalyse,
    before: Sequence[Finding] | None = None,
) -> tuple[Finding, ...]:
    """The findings with only those edits that, applied, leave a file that parses, without this finding and
    without a new one of any rule. An edit that fails becomes advice; so do those that there is no fuel for,
    in files with very much text and very many findings. before: all that `reanalyse` finds without an edit,
    where that is more than `findings`."""
    known = findings if before is None else before
    out: list[Finding] = []
    left = _VERIFIED_CHARACTERS

    def metered(path: str, text: str) -> Sequence[Finding] | None:
        nonlocal left
        left -= len(text)
        return reanalyse(path, text) if left >= 0 else None

    for finding in findings:
        fixes = tuple(
            fix
            if left > 0 and is_offerable(file, finding, fix, known, metered)
            else Fix(fix.title, Safety.ADVICE, ())
            for fix in finding.fixes
        )
        out.append(replace(finding, fixes=fixes))
    return tuple(out)


def enabled_rules(
    settings: Settings, ignored: Collection[str] = (), rules: Sequence[RegisteredRule] | None = None
) -> tuple[RegisteredRule, ...]:
    """The rules that run: selectors are names, codes or code prefixes.

    A preview rule runs when the settings ask for all of them, or select it by its name or whole code.
    """
    everything = all_rules() if rules is None else rules

    def matches(rule: Rule, selectors: Iterable[str]) -> bool:
        return any(selects(selector, rule.name, rule.code) for selector in selectors)

    def is_ready(rule: Rule) -> bool:
        return not rule.preview or settings.preview or bool({rule.name, rule.code} & set(settings.select))

    return tuple(
        entry
        for entry in everything
        if is_ready(entry.rule)
        and (not settings.select or matches(entry.rule, settings.select))
        and not matches(entry.rule, settings.ignore)
        and not matches(entry.rule, ignored)
    )


def explain(name: str) -> str | None:
    """The page of the rule of that name or code as Markdown; None for an unknown one."""
    from torchwise_analysis.rules.pages import render

    rule = rule_named(name)
    return None if rule is None else render(rule)


def _finding(
    judged: Judged,
    entry: RegisteredRule,
    files: dict[str, SourceFile],
    failures: list[RuleFailure],
    *,
    has_fixes: bool,
) -> Finding:
    hit, rule = judged.hit, judged.rule
    # places of a trace move with the text, those of a finding are of this text
    return Finding(
        rule.code,
        rule.name,
        hit.severity,
        hit.confidence,
        hit.message,
        settled(hit.place),
        tuple(replace(link, place=settled(link.place)) for link in hit.evidence),
        tuple(
            replace(fix, edits=tuple(replace(edit, place=settled(edit.place)) for edit in fix.edits))
            for fix in (_fixes(entry, hit, files, failures) if has_fixes else ())
        ),
        tuple(replace(one, place=settled(one.place)) for one in judged.also),
    )


def _with_severity(finding: Finding, settings: Settings) -> Finding:
    """The severity that the settings give: by the rule itself, else by the longest prefix of its code."""
    given = [row for row in settings.severity if selects(row[0], finding.rule, finding.code)]
    if not given:
        return finding
    own = (finding.rule, finding.code)
    return replace(finding, severity=max(given, key=lambda row: (row[0] in own, len(row[0])))[1])


def _fixes(
    entry: RegisteredRule, hit: Hit, files: dict[str, SourceFile], failures: list[RuleFailure]
) -> tuple[Fix, ...]:
    file = files.get(hit.place.path)
    if file is None:
        return ()
    try:
        built = tuple(entry.fixes(hit, file))
    except Exception as error:  # a border, as above: a finding without its fix is still right
        failures.append(RuleFailure(entry.rule.name, f"its fix: {type(error).__name__}: {error}"))
        return ()
    # Condition 1 of docs/policy.md: what is not certain is never changed without a look.
    if hit.confidence is not Confidence.CERTAIN:
        built = tuple(
            replace(fix, safety=Safety.UNSAFE) if fix.safety is Safety.SAFE else fix for fix in built
        )
    return built


def _names() -> dict[str, str]:
    rules = [entry.rule for entry in all_rules()]
    return {rule.name: rule.name for rule in rules} | {rule.code: rule.name for rule in rules}

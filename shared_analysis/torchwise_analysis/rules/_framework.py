"""What a rule is: a page, a detector and a fix in one file, found by walking this package.

A rule module defines `RULE` (the description, which is also its documentation page and its tests) and
`detect(trace)`, which yields `Hit`s; `fixes(hit, file)` is optional. Nothing else is registered anywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, cast

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Severity
from torchwise_analysis.fixes import SourceFile

if TYPE_CHECKING:
    from torchwise_analysis.interp.abstract.trace import Trace


_CODE_PREFIX = re.compile(r"[A-Za-z]{2,8}[0-9]{0,4}")


class Category(Enum):
    """The groups of the rule list; the hundreds digit of a code."""

    AUTOGRAD = "Autograd and memory"
    LOOP = "Optimisation loop"
    MODE = "Modes and checkpoints"
    LOSS = "Loss and activation"
    ACCUMULATION = "Accumulation and mixed precision"
    DISTRIBUTED = "Distributed training"
    DATA = "Data loading"
    PERFORMANCE = "Performance"
    API = "Deprecated and unsafe interfaces"
    OTHER = "Other"  # of rules from outside


@dataclass(frozen=True, slots=True)
class Reference:
    """A public source: a documentation page or a bug report."""

    title: str
    address: str


@dataclass(frozen=True, slots=True)
class Example:
    """A program with all findings that any rule may report on it, marked in the text itself.

    Below a line of code, a line of blanks, carets and a rule's name marks the exact range of one finding:

        history.append(loss)
                       ^^^^ retained-graph warning certain

    Severity and confidence may follow the name; they are then compared too. What is not marked must not be
    reported, so an example without carets is a negative. `fixed` is the text after the first fix of the
    first finding (None: no edit is offered). `files` are further files of the project, by name.
    """

    title: str
    code: str
    fixed: str | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Rule:
    """The description of a rule. Texts are Markdown without headings.

    claim: what is wrong, in one sentence that holds for every finding. cost: why it costs money.
    wrong, right: the two programs of the page. examples: further programs that must come out as marked.
    silent: when nothing is said. grading: how sure it is and how bad. fix: what is offered, how safe.
    """

    code: str
    name: str
    category: Category
    severity: Severity
    claim: str
    cost: str
    wrong: Example
    right: Example
    silent: tuple[str, ...]
    grading: str
    fix: str
    references: tuple[Reference, ...]
    examples: tuple[Example, ...] = ()
    preview: bool = False  # off unless settings ask for it: new in a release, may still change

    @property
    def all_examples(self) -> tuple[Example, ...]:
        return (self.wrong, self.right, *self.examples)


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """What a detector found, before the file is asked for a fix.

    subject: the thing at fault, by identity, for precedence between rules ("these passes", "this optimizer").
    facts: whatever the rule's own `fixes` needs. elsewhere: other places of the same cause, where people may
    look for it.
    """

    place: Place
    severity: Severity
    confidence: Confidence
    message: str
    evidence: tuple[Evidence, ...] = ()
    subject: frozenset[object] = frozenset()
    facts: object = None
    elsewhere: tuple[Evidence, ...] = ()


Detect = Callable[["Trace"], Iterable[Hit]]
BuildFixes = Callable[[Hit, SourceFile], Iterable[Fix]]


@dataclass(frozen=True, slots=True)
class RegisteredRule:
    """A rule with its two functions."""

    rule: Rule
    detect: Detect
    fixes: BuildFixes


def registered(module: ModuleType) -> RegisteredRule | None:
    """The rule that a module defines; None for helper modules.

    Raises:
        TypeError: the module has a `RULE` but no `detect`.
    """
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        return None
    detect = getattr(module, "detect", None)
    if not callable(detect):
        raise TypeError(f"{module.__name__} defines RULE {rule.name} without detect(trace)")
    build = getattr(module, "fixes", None)
    return RegisteredRule(
        rule, cast(Detect, detect), cast(BuildFixes, build) if callable(build) else _no_fixes
    )


def all_rules() -> tuple[RegisteredRule, ...]:
    """All rules, by code: those of this package, then those of plug-ins."""
    from torchwise_analysis.plugins import plugins

    return (*built_in_rules(), *plugins().rules)


def selects(selector: str, name: str, code: str) -> bool:
    """Whether a selector of the settings means a rule: by its name, its code, or a prefix of its code."""
    return selector == name or (
        _CODE_PREFIX.fullmatch(selector) is not None and code.startswith(selector.upper())
    )


@cache
def built_in_rules() -> tuple[RegisteredRule, ...]:
    """The rules of this package, by code."""
    import torchwise_analysis.rules as package

    found = [registered(importlib.import_module(name)) for name in _module_names(package)]
    rules = sorted((entry for entry in found if entry is not None), key=lambda entry: entry.rule.code)
    _require_unique(entry.rule for entry in rules)
    return tuple(rules)


def rule_named(name: str) -> Rule | None:
    """The rule of that name or code (codes in any case)."""
    for entry in all_rules():
        if entry.rule.name == name or entry.rule.code == name.upper():
            return entry.rule
    return None


def _module_names(package: ModuleType) -> Iterator[str]:
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not info.ispkg:
            yield info.name


def _require_unique(rules: Iterable[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        for key in (rule.code, rule.name):
            if key in seen:
                raise ValueError(f"two rules are called {key}")
            seen.add(key)


def _no_fixes(hit: Hit, file: SourceFile) -> tuple[Fix, ...]:  # noqa: ARG001 - the signature of BuildFixes
    return ()

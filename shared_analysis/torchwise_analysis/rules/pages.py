"""The rule pages: rendered from the rule files, checked for drift.

python -m torchwise_analysis.rules.pages          write docs/rules
python -m torchwise_analysis.rules.pages --check  fail when a page differs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchwise_analysis.rules._framework import Category, Example, Rule, built_in_rules
from torchwise_analysis.rules._snippets import parse

_NOTE = (
    "<!-- Written by `python -m torchwise_analysis.rules.pages` from the rule's file; do not edit here. -->\n"
)


def render(rule: Rule) -> str:
    """The page of one rule as Markdown."""
    parts = [
        f"# {rule.name} ({rule.code})",
        f"{rule.category.value} · usually {_article(rule.severity.value)}",
        rule.claim,
        "## Why it costs money",
        rule.cost,
        "## Wrong",
        *_snippet(rule.wrong),
        "## Right",
        *_snippet(rule.right),
        "## When it stays silent",
        "\n".join(f"- {_sentence(line)}" for line in rule.silent),
        "## How sure it is",
        rule.grading,
        "## Fix",
        rule.fix,
        "## Sources",
        "\n".join(f"- [{reference.title}]({reference.address})" for reference in rule.references),
    ]
    return "\n\n".join(parts) + "\n"


def render_index(rules: Iterable[Rule]) -> str:
    """The list of rules, by category."""
    rules = tuple(rules)
    parts = [
        "# Rules",
        "Each page says what a rule finds, why it costs money, when it stays silent, how sure it is and "
        "what its fix changes. The pages are rendered from the rule files, whose examples run as tests.",
    ]
    for category in Category:
        members = [rule for rule in rules if rule.category is category]
        if members:
            rows = [
                f"| {rule.code} | [{rule.name}]({rule.name}.md) | {rule.severity.value} | {rule.claim} |"
                for rule in members
            ]
            table = "\n".join(["| code | rule | severity | finds |", "|---|---|---|---|", *rows])
            parts += [f"## {category.value}", table]
    return "\n\n".join(parts) + "\n"


def pages() -> Mapping[str, str]:
    """All pages by file name."""
    rules = [entry.rule for entry in built_in_rules()]
    rendered = {f"{rule.name}.md": _NOTE + "\n" + render(rule) for rule in rules}
    return {"README.md": _NOTE + "\n" + render_index(rules)} | rendered


def drift(folder: Path) -> tuple[str, ...]:
    """What differs between `folder` and the rules, one sentence for each file."""
    expected = pages()
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    missing = [f"{name} is missing" for name in expected if name not in found]
    stale = [
        f"{name} differs from its rule"
        for name in expected
        if found.get(name, expected[name]) != expected[name]
    ]
    extra = [f"{name} belongs to no rule" for name in found if name not in expected]
    return (*missing, *stale, *extra)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torchwise_analysis.rules.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page differs")
    parser.add_argument("--folder", type=Path, default=Path("docs/rules"))
    options = parser.parse_args(arguments)
    if options.check:
        differences = drift(options.folder)
        for line in differences:
            sys.stderr.write(line + "\n")
        return 1 if differences else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (options.folder / name).write_text(text, encoding="utf-8", newline="\n")
    for stale in options.folder.glob("*.md"):
        if stale.name not in pages():
            stale.unlink()
    return 0


def _snippet(example: Example) -> Iterable[str]:
    yield example.title + ":"
    yield "```python\n" + parse(example.code).text.strip("\n") + "\n```"
    for name, text in example.files.items():
        yield f"with `{name}`:"
        yield "```python\n" + text.strip("\n") + "\n```"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


if __name__ == "__main__":
    sys.exit(main())

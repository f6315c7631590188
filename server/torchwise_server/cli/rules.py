"""`torchwise rules`: the table of all rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchwise_server.cli import Exit
from torchwise_server.cli.console import report_console
from torchwise_server.cli.options import Parser, plugin_problems
from torchwise_server.cli.output import complain, say

if TYPE_CHECKING:
    from torchwise_analysis.rules import Rule

_DESCRIPTION = "List all rules. `torchwise explain RULE` tells everything about one."

_EPILOG = """\
examples:
  torchwise rules
  torchwise rules --format json
  torchwise check --select TW2,retained-graph   by prefix of a code, and by name

Rules of your own: torchwise new-rule --help"""


def run(words: list[str]) -> int:
    """Print the table."""
    options = parser().parse(words)

    from torchwise_analysis.rules import all_rules

    rules = [entry.rule for entry in all_rules()]
    if options.format == "json":
        say(json.dumps({"version": 1, "rules": [_as_dict(rule) for rule in rules]}, indent=1))
    else:
        _print(rules)
    for problem in plugin_problems():
        complain(f"{problem.path}: {problem.message}")
    return Exit.OK


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("rules", _DESCRIPTION, _EPILOG)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    return parser


def _as_dict(rule: Rule) -> dict[str, str]:
    return {
        "code": rule.code,
        "rule": rule.name,
        "category": rule.category.value,
        "severity": rule.severity.value,
        "claim": rule.claim,
    }


def _print(rules: list[Rule]) -> None:
    from rich.table import Table
    from rich.text import Text

    from torchwise_server.reporters.check_text import COLOURS

    console = report_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("code", "rule", "severity"):
        table.add_column(header, no_wrap=True)
    table.add_column("claim")
    for rule in rules:
        severity = Text(rule.severity.value, style=COLOURS[rule.severity])
        table.add_row(rule.code, Text(rule.name, style="bold"), severity, Text(rule.claim))
    console.print(table)

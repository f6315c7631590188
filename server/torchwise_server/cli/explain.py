"""`torchwise explain RULE`: the page of a rule."""

from __future__ import annotations

from torchwise_analysis.settings import suggestion
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.console import report_console
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import say

_DESCRIPTION = "Say what a rule looks for, why it matters, when it is silent, and how sure its fix is."

_EPILOG = """\
examples:
  torchwise explain retained-graph
  torchwise explain TW201 --format markdown"""


def run(words: list[str]) -> int:
    """Print the page."""
    options = parser().parse(words)

    from torchwise_analysis.rules import all_rules, explain

    page = explain(options.rule)
    if page is None:
        names = [entry.rule.name for entry in all_rules()]
        hint = suggestion(options.rule, names) or "; `torchwise rules` lists them"
        raise UsageError(f"no rule is called {options.rule!r}{hint}")
    console = report_console()
    if options.format == "markdown" or not console.is_terminal:
        say(page)
        return Exit.OK
    from rich.markdown import Markdown

    console.print(Markdown(page))
    return Exit.OK


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("explain", _DESCRIPTION, _EPILOG)
    parser.add_argument("rule", metavar="RULE", help="a rule's name or code; `torchwise rules` lists them")
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="default: text on a terminal"
    )
    return parser

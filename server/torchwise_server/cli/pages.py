"""The page of the command line: rendered from the parsers of the commands, checked for drift.

python -m torchwise_server.cli.pages          write docs/cli.md
python -m torchwise_server.cli.pages --check  fail when the page differs
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from torchwise_server.cli import COMMANDS

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_HEAD = """\
<!-- Written by `python -m torchwise_server.cli.pages` from the commands' options; do not edit here. -->

# Command line

What each command does and takes. `torchwise COMMAND --help` prints the same.
"""


def render() -> str:
    """The page as Markdown; the same with every version of Python, whose own help texts differ."""
    commands = "\n".join(
        f"| [{name}](#torchwise-{name}) | {_cell(what)} |" for name, what in COMMANDS.items()
    )
    parts = [_HEAD, f"| command | |\n|---|---|\n{commands}\n"]
    for name in COMMANDS:
        module = importlib.import_module(f"torchwise_server.cli.{name.replace('-', '_')}")
        parser = cast("Callable[[], argparse.ArgumentParser]", module.parser)()
        parts.append("\n".join(_command(name, parser)))
    return "\n".join(parts).rstrip("\n") + "\n"


def main() -> int:
    """Write or check the page."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true", help="write nothing")
    wanted = render()
    if not options.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write(f"{PAGE} differs from the commands; run python -m torchwise_server.cli.pages\n")
    return 1


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## torchwise {name}\n"
    yield f"{_prose(parser.description or '')}\n"
    yield f"```text\n{_usage(name, parser)}\n```\n"
    for group in parser._action_groups:  # argparse has no other way to ask; a test holds it to --help
        actions = [each for each in group._group_actions if not _is_hidden(each)]
        if not actions:
            continue
        title = {"positional arguments": "", "options": "", "optional arguments": ""}.get(
            group.title or "", group.title or ""
        )
        if title:
            words = f" {_prose(group.description)}" if group.description else ""
            yield f"**{title[:1].upper()}{title[1:]}.**{words}\n"
        yield f"| {'option' if actions[0].option_strings else 'argument'} | |\n|---|---|"
        yield from (f"| {_named(each)} | {_meaning(each)} |" for each in actions)
        yield ""
    yield from _sections(parser.epilog or "")


def _is_hidden(action: argparse.Action) -> bool:
    return action.help == argparse.SUPPRESS or "--help" in action.option_strings


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    words = [f"torchwise {name}"]
    if any(each.option_strings and not _is_hidden(each) for each in parser._actions):
        words.append("[options]")
    for each in parser._actions:
        if not each.option_strings:
            shown = str(each.metavar or each.dest)
            many = {"*": f"[{shown} ...]", "+": f"{shown} [{shown} ...]", "?": f"[{shown}]"}
            words.append(many.get(str(each.nargs), shown))
    return " ".join(words)


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or ()))}"
    if action.nargs == "?":
        value = f" [{action.metavar}]"
    # a bar would end the cell; in code it may be written as it is if it is escaped
    return ", ".join(f"`{each}{value}`".replace("|", r"\|") for each in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    words = re.sub(r"\s+", " ", action.help or "").replace("%%", "%")
    choices = [str(each) for each in action.choices or ()]
    unnamed = [each for each in choices if action.metavar and each not in words]
    return _cell(words) + (f": {', '.join(f'`{each}`' for each in unnamed)}" if unnamed else "")


def _sections(epilog: str) -> Iterator[str]:
    """The parts of an epilogue: a title with a colon over indented lines, or a paragraph."""
    for part in re.split(r"\n\s*\n", epilog.strip()):
        title, _, rest = part.partition("\n")
        if title.endswith(":") and rest:
            lines = [line[2:] if line.startswith("  ") else line for line in rest.split("\n")]
            yield f"**{title[:1].upper()}{title[1:-1]}**\n\n```text\n" + "\n".join(lines) + "\n```\n"
        elif part:
            yield f"{part[:1].upper()}{_prose(part[1:])}\n"


def _prose(text: str) -> str:
    """Words that Markdown leaves as they are."""
    joined = re.sub(r"[ \t]*\n(?!\n)[ \t]*", " ", text.strip())
    parts = re.split(r"(`[^`]*`)", joined)
    parts[::2] = [_OPTION.sub(r"`\g<0>`", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def _cell(text: str) -> str:
    return _prose(text).replace("|", r"\|").replace("[", r"\[")


if __name__ == "__main__":
    sys.exit(main())

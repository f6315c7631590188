"""What the commands' argument parsers share."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from torchwise_analysis.settings import LoadedSettings, SettingsProblem, suggestion
from torchwise_server.cli import UsageError

if TYPE_CHECKING:
    from torchwise_analysis.engine import Problem

E = TypeVar("E", bound=Enum)

_MOST_PROBLEMS = 20
_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


class Parser(argparse.ArgumentParser):
    """A parser of one command, with help that keeps its examples as written."""

    def __init__(self, command: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"torchwise {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """A mistake in one line, instead of the whole usage."""
        unknown = message.removeprefix("unrecognized arguments: ").split(" ")[0]
        hint = ""
        if unknown != message and unknown.startswith("--"):
            hint = suggestion(unknown, [name for action in self._actions for name in action.option_strings])
        choice = _CHOICE.search(message)
        if choice is not None:
            hint = suggestion(choice["word"], re.findall(r"[\w.-]+", choice["known"]))
        raise UsageError(f"{message}{hint or f'; `{self.prog} --help` tells more'}")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Options may stand before, between and after files."""
        options = self.parse_intermixed_args(words)
        if getattr(options, "verbose", False):
            logging.basicConfig(stream=sys.stderr, level=logging.DEBUG, format="%(name)s: %(message)s")
        else:
            # contained failures are in the report; their tracebacks are for --verbose
            logging.getLogger("torchwise_analysis").addHandler(logging.NullHandler())
        return options


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """`--verbose`, which shows the log."""
    parser.add_argument("-v", "--verbose", action="store_true", help="write a log to stderr")


def values_of(kind: type[Enum]) -> list[str]:
    """The words for an enum's members."""
    return [str(member.value) for member in kind]


def words_of(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names from a repeatable option with commas; None where it was not given."""
    if given is None:
        return None
    return tuple(word.strip() for text in given for word in text.split(",") if word.strip())


def require_known_rules(selectors: Sequence[str], where: str) -> None:
    """A rule name with a typing error would switch off what it was meant to switch on.

    Raises:
        UsageError: a selector is neither a rule's name nor its code nor a prefix of a code.
    """
    if not selectors:
        return
    from torchwise_analysis.rules import all_rules, selects

    rules = [entry.rule for entry in all_rules()]
    names = [rule.name for rule in rules]
    for selector in selectors:
        if not any(selects(selector, rule.name, rule.code) for rule in rules):
            hint = suggestion(selector, names) or "; `torchwise rules` lists them"
            raise UsageError(f"{where}: no rule is called {selector[:60]!r}{hint}")


def plugin_problems() -> list[Problem]:
    """A problem for each rule from outside that could not be loaded."""
    from torchwise_analysis.engine import Problem, ProblemKind
    from torchwise_analysis.plugins import plugins

    return [
        Problem(
            f"plug-in {failure.name}",
            None,
            f"the rule of the package {failure.distribution} cannot be loaded: {failure.message}; "
            "the other rules ran",
            ProblemKind.FAILURE,
        )
        for failure in plugins().failures
    ]


def require_sound(loaded: LoadedSettings) -> LoadedSettings:
    """The settings, unless their file has mistakes.

    Raises:
        UsageError: naming each mistake.
    """
    if loaded.problems:
        raise UsageError(_settings_message(loaded.path, loaded.problems))
    return loaded


def _settings_message(path: Path | None, problems: Sequence[SettingsProblem]) -> str:
    lines = [f"{path}: {problem.message}" for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "the settings cannot be used\n  " + "\n  ".join(lines)


def shown_path(path: str) -> str:
    """A path as a reader expects it: relative below the current folder, else as it is."""
    try:
        relative = Path(path).relative_to(Path.cwd())
    except ValueError:
        return path
    return str(relative)

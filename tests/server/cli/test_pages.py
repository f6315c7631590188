"""docs/cli.md is what the commands' options say, and says all of it."""

from __future__ import annotations

import re

import pytest

from torchwise_server.cli import COMMANDS, main
from torchwise_server.cli.pages import PAGE, render


def section(command: str) -> str:
    return render().partition(f"\n## torchwise {command}\n")[2].partition("\n## ")[0]


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m torchwise_server.cli.pages"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_s_section_has_every_option_and_example_of_its_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    page = section(command)
    usage, _, rest = said.partition("\n\n")
    named = re.findall(r"`(--[a-z][a-z-]+)[ `]", "\n".join(re.findall(r"^\| `.*", page, re.MULTILINE)))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", usage)) - {"--help"} <= set(named)
    for line in rest.splitlines():
        if line.startswith(f"  torchwise {command}"):
            assert line.strip() in page


def test_tables_are_whole() -> None:
    """A bar within a cell would make one more of it."""
    for line in render().splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3, line


def test_prose_keeps_its_code() -> None:
    outside = re.sub(r"```text\n.*?```", "", render(), flags=re.DOTALL)
    for line in outside.splitlines():
        assert line.count("`") % 2 == 0, line
        assert "``" not in line, line

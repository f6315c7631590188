"""Completion scripts: they hold every command and option, and shells complete with them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.cli.conftest import Cli

from torchwise_server.cli import COMMANDS

SHELLS = ("bash", "zsh", "fish")


def needs(shell: str) -> str:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    return program


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `torchwise` is this one."""
    command = tmp_path / "bin/torchwise"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torchwise_server "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_there(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).out
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", script)
        for option in set(
            re.findall(r"(?<![\w-])--[a-z][a-z-]+(?=[ ,\]])", cli(command, "--help").out.split("\n\n")[0])
        ):
            spelled = f"-l {option[2:]}" if shell == "fish" else option
            assert spelled in script, f"{command} {option}"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_it(cli: Cli, tmp_path: Path, shell: str) -> None:
    (tmp_path / "script").write_text(cli("completion", shell).out)
    subprocess.run([needs(shell), "-n", str(tmp_path / "script")], check=True)


def complete_bash(words: list[str], script: Path, environment: dict[str, str]) -> list[str]:
    listed = " ".join(f"'{word}'" for word in words)
    program = (
        f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _torchwise; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [needs("bash"), "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


COMPLETIONS = [
    (["torchwise", "ch"], ["check"]),
    (["torchwise", "check", "--form"], ["--format"]),
    (["torchwise", "check", "--format", "s"], ["sarif"]),
    (["torchwise", "check", "a.py", "--fail-on", "w"], ["warning"]),
    (["torchwise", "check", "--select", "retained"], ["retained-graph"]),
    (["torchwise", "explain", "double-s"], ["double-softmax"]),
    (["torchwise", "estimate", "--gpu", "a100-80"], ["a100-80gb"]),
    (["torchwise", "completion", "z"], ["zsh"]),
    (["torchwise", "server", "--log-level", "d"], ["debug"]),
    (["torchwise", "profile", "train:make", "--gpu", "h200-"], ["h200-nvl"]),
    (["torchwise", "estimate", "--model", "llama-3-70"], ["llama-3-70b"]),
    (["torchwise", "estimate", "--set", "x"], []),
    (["torchwise", "check", "--baseline", "x"], []),
]


@pytest.mark.parametrize(("words", "wanted"), COMPLETIONS)
def test_bash_completes(
    cli: Cli, tmp_path: Path, path: dict[str, str], words: list[str], wanted: list[str]
) -> None:
    script = tmp_path / "script"
    script.write_text(cli("completion", "bash").out)
    assert complete_bash(words, script, path) == wanted


@pytest.mark.parametrize(("words", "wanted"), [each for each in COMPLETIONS if each[1]])
def test_fish_completes(
    cli: Cli, tmp_path: Path, path: dict[str, str], words: list[str], wanted: list[str]
) -> None:
    script = tmp_path / "script"
    script.write_text(cli("completion", "fish").out)
    program = f"source {script}; complete -C '{' '.join(words)}'"
    done = subprocess.run(
        [needs("fish"), "-c", program], env=path, capture_output=True, text=True, check=True
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()][: len(wanted)] == wanted


def test_zsh_loads_it(cli: Cli, tmp_path: Path, path: dict[str, str]) -> None:
    script = tmp_path / "_torchwise"
    script.write_text(cli("completion", "zsh").out)
    start = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
    program = f"{start}; source {script}; print ${{_comps[torchwise]}}"
    done = subprocess.run(
        [needs("zsh"), "-fc", program], env=path, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("_torchwise", "")


def test_an_unknown_shell_is_a_mistake(cli: Cli) -> None:
    result = cli("completion", "tcsh")
    assert result.status == 2
    assert "invalid choice: 'tcsh'" in result.err

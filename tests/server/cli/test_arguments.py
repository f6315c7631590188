"""Whatever stands on the command line: a documented exit status, and one clear message for a mistake."""

from __future__ import annotations

import argparse
import importlib
import io
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.cli.conftest import FakeEngine
from tests.server.cli.test_check import FAULTY, write

from torchwise_server.cli import COMMANDS, main

TRIED = ("check", "fix", "estimate", "rules", "explain", "gpus", "completion", "merge")
WORDS = st.one_of(
    st.sampled_from(
        ["", ".", "-", "--", "a.py", "nowhere", "*.py", "[", "**", "0", "-1", "1e9", "\x00", "\udc80"]
    ),
    st.just("x" * 300),
    st.text(st.characters(exclude_characters="/\\"), max_size=6),
)  # fmt: skip


def options_of(command: str) -> list[argparse.Action]:
    module = importlib.import_module(f"torchwise_server.cli.{command.replace('-', '_')}")
    return [action for action in module.parser()._actions if action.option_strings]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(TRIED))
    words = [command]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            words.append(draw(WORDS))
            continue
        action = draw(st.sampled_from(options_of(command)))
        words.append(draw(st.sampled_from(action.option_strings)))
        if action.nargs != 0 and draw(st.booleans()):
            choices = st.sampled_from([str(choice) for choice in action.choices or ("x",)])
            words.append(draw(choices) if draw(st.booleans()) else draw(WORDS))
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    write(folder, "a.py", FAULTY)
    return folder


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(words=command_lines())
def test_any_command_line_ends_with_a_status_and_a_sentence(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("torchwise_server.cli.reading.Engine", FakeEngine)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FAULTY.encode())))
        capsys.readouterr()
        status = main(words)
    said = capsys.readouterr()
    assert status in (0, 1, 2, 3), words
    assert "internal error" not in said.err, (words, said.err)
    assert "Traceback" not in said.err, words
    if status == 2:
        assert said.err.startswith("torchwise: "), (words, said.err)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "a.py":
            path.unlink()
    write(folder, "a.py", FAULTY)


def test_a_mistyped_option_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--formt", "json"]) == 2
    assert capsys.readouterr().err == (
        "torchwise: unrecognized arguments: --formt; did you mean '--format'?\n"
    )


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["check", "--format", "jsn"], "json"),
        (["check", "--fail-on", "waring"], "warning"),
        (["check", "--select", "missing-zero-grd"], "missing-zero-grad"),
        (["estimate", "a.py", "--gpu", "rtx-409"], "rtx-4090"),
        (["estimate", "--model", "llama-3-8bb"], "llama-3-8b"),
        (["estimate", "--model", "gpt2", "--quantise", "nf"], "nf4"),
        (["gpus", "h10"], "h100"),
        (["init", "--ci", "gihub"], "github"),
        (["completion", "bsh"], "bash"),
        (["explain", "retained-grpah"], "retained-graph"),
        (["server", "--log-level", "inf"], "info"),
    ],
)
def test_what_is_mistyped_gets_a_suggestion(
    words: list[str],
    meant: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "did you mean" in said
    assert meant in said.partition("did you mean")[2]
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command says in sentences what it does, and shows examples."""
    assert main(["help", command]) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: torchwise ")
    assert "\nexamples:\n" in said or "\ninstall:\n" in said, command
    assert f"torchwise {command}" in said.split("\n\n", 1)[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    module = importlib.import_module(f"torchwise_server.cli.{command.replace('-', '_')}")
    for action in module.parser()._actions:
        assert action.help, f"{command} {action.dest}"

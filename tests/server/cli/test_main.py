from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integrations.test_action import FAULTY
from tests.server.cli.conftest import Cli

from torchwise_server import __version__
from torchwise_server.cli import COMMANDS


def test_the_version(cli: Cli) -> None:
    assert cli("--version").out == f"torchwise {__version__}\n"


def test_help_names_every_command(cli: Cli) -> None:
    result = cli("--help")
    assert result.status == 0
    assert all(f"  {command} " in result.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.status == 0
    assert f"torchwise {command}" in result.out


def test_nothing_to_do_is_bad_usage(cli: Cli) -> None:
    assert cli().status == 2


def test_a_wrong_command_gets_a_suggestion(cli: Cli, tmp_path: Path) -> None:
    assert "did you mean 'check'?" in cli("chek").err
    (tmp_path / "a.py").write_text("")
    assert "torchwise check a.py" in cli("a.py").err


def test_an_interruption_is_quiet(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchwise_server.cli.check.run", interrupt)
    result = cli("check")
    assert (result.status, result.err) == (130, "torchwise: interrupted\n")


def test_an_internal_error_is_a_message(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str]) -> int:
        raise RuntimeError("oh")

    monkeypatch.setattr("torchwise_server.cli.check.run", fail)
    result = cli("check")
    assert result.status == 2
    assert "internal error: RuntimeError: oh" in result.err
    assert "Traceback" not in result.err


def test_a_reader_that_went_away_is_no_error() -> None:
    command = [sys.executable, "-m", "torchwise_server", "gpus", "--format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() in (0, 141)


def test_a_reader_of_a_picture_that_went_away_is_no_verdict(tmp_path: Path) -> None:
    """rich would end with 1, which says that a verdict or a finding fails."""
    (tmp_path / "train.py").write_text(FAULTY)
    command = [sys.executable, "-m", "torchwise_server", "check", "train.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["check train.py", "check train.py --format json", "rules", "--help"])
def test_a_full_disk_is_no_fault_of_ours(tmp_path: Path, words: str) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torchwise_server", *words.split()],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "torchwise: not everything could be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("check train.py >&-", 1),
        ("check - <&-", 0),
        ("check nowhere.py 2>&-", 2),
        ("check nowhere.py 2>/dev/full", 2),
        ("check nowhere.py >&- 2>&- <&-", 2),
    ],
)
def test_streams_that_are_closed_change_nothing_in_the_status(tmp_path: Path, line: str, status: int) -> None:
    (tmp_path / "train.py").write_text(FAULTY)
    shell = ["sh", "-c", f'"$0" -m torchwise_server {line}', sys.executable]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize("name", ["rich", "libcst", "pygls", "argparse", "pathlib"])
def test_the_version_imports_nothing_heavy(name: str) -> None:
    code = (
        "import sys; from torchwise_server.cli import main; main(['--version']); "
        f"print({name!r} in sys.modules)"
    )
    lines = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert lines[-1] == "False"


def test_reading_source_for_json_imports_neither_rich_nor_pygls(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    code = (
        "import sys; from torchwise_server.cli import main; main(['check', 'a.py', '--format', 'json']); "
        "print([name for name in ('rich', 'pygls', 'lsprotocol') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "[]"


def test_rules_and_their_pages(cli: Cli) -> None:
    rules = json.loads(cli("rules", "--format", "json").out)["rules"]
    assert {"TW101", "TW201", "TW301", "TW401"} <= {rule["code"] for rule in rules}
    for rule in rules:
        assert rule["rule"] in cli("rules").out
        assert rule["rule"] in cli("explain", rule["rule"]).out


def test_a_rule_is_explained_by_its_code_too(cli: Cli) -> None:
    assert cli("explain", "tw101").out == cli("explain", "retained-graph").out


def test_an_unknown_rule_gets_a_suggestion(cli: Cli) -> None:
    result = cli("explain", "retained-grph")
    assert result.status == 2
    assert "did you mean 'retained-graph'?" in result.err


def test_gpus(cli: Cli) -> None:
    gpus = json.loads(cli("gpus", "--format", "json").out)["gpus"]
    assert len({gpu["name"] for gpu in gpus}) == len(gpus) > 20
    assert "Tesla T4" in cli("gpus", "t4").out
    assert json.loads(cli("gpus", "A100-SXM4-80GB", "--format", "json").out)["gpus"][0]["name"] == "a100-80gb"
    assert cli("gpus", "no such card").status == 2


def test_cloud_machines(cli: Cli) -> None:
    instances = json.loads(cli("gpus", "--instances", "--format", "json").out)["instances"]
    assert any(instance["name"] == "g5.xlarge" for instance in instances)
    assert "g5.xlarge" in cli("gpus", "--instances").out

"""Ctrl-C at any moment: one line, status 130, no process left, no file half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integrations.test_action import FAULTY

from torchwise_server.cli import Exit, main
from torchwise_server.cli.options import Parser

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows knows no SIGINT for a group of processes")

# says when the command line has begun: what an interpreter does before is not ours
START = """\
import sys
from torchwise_server import __main__ as start

first = start.isolate
def begun():
    print("begun", flush=True)
    first()

start.isolate = begun
sys.exit(start.main())
"""
# no loop of training in it ends soon
LONG = """\
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(400)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(1000):
    for micro in range(50):
        model(torch.randn(8, 64).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DELAYS = (0.0, 0.05, 0.2, 0.6)
COMMANDS = {
    "check": ("check", ".", "--no-cache", "--jobs", "1", "--output-file", "out"),
    "check in processes": ("check", ".", "--no-cache", "--jobs", "2", "--output-file", "out"),
    "fix": ("fix", ".", "--unsafe"),
    "estimate": ("estimate", "long.py", "--format", "html", "--output-file", "out"),
}


def interrupted(folder: Path, delay: float, words: tuple[str, ...]) -> tuple[int, str]:
    """Status and what stderr says of a command that gets a Ctrl-C; it and its children are gone then."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = process.communicate(timeout=60)  # the pipes close when the last child is gone
    return process.returncode, said


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interruption_is_one_line_and_leaves_nothing(tmp_path: Path, command: str) -> None:
    (tmp_path / "long.py").write_text(LONG)
    for number in range(40):
        (tmp_path / f"train_{number}.py").write_text(FAULTY)
    before = {path.name for path in tmp_path.iterdir()}
    statuses = []
    for delay in DELAYS:
        status, said = interrupted(tmp_path, delay, COMMANDS[command])
        statuses.append(status)
        if status == 130:
            assert said == "torchwise: interrupted\n"
            assert {path.name for path in tmp_path.iterdir()} <= before | {"out"}
    assert 130 in statuses  # a machine may be through before the longer delays are over
    assert set(statuses) <= {130, 0, 1, 3}


def test_what_fix_had_done_is_whole(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"train_{number}.py").write_text(FAULTY)
    reference = tmp_path / "reference"
    reference.mkdir()
    (reference / "train.py").write_text(FAULTY)
    main(["fix", "--unsafe", str(reference)])
    fixed = (reference / "train.py").read_text()
    assert fixed != FAULTY
    for delay in DELAYS:
        interrupted(tmp_path, delay, COMMANDS["fix"])
        assert {path.read_text() for path in tmp_path.glob("*.py")} <= {FAULTY, fixed}


# the command line is replaced by one that hears Ctrl-C where Python would drop it, or when all is done
IN_A_FINALIZER = """\
import signal, sys, time
from torchwise_server import __main__ as start, cli

class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run():
    Dying()
    time.sleep(60)
    return 0

cli.main = run
sys.exit(start.main())
"""
WHEN_DONE = """\
import atexit, signal, sys
from torchwise_server import __main__ as start, cli

atexit.register(signal.raise_signal, signal.SIGINT)
cli.main = lambda: 1
sys.exit(start.main())
"""


@pytest.mark.parametrize(
    ("script", "expected"), [(IN_A_FINALIZER, (130, "torchwise: interrupted\n")), (WHEN_DONE, (1, ""))]
)
def test_no_moment_drops_it_or_prints_where_it_was(script: str, expected: tuple[int, str]) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == expected


def test_an_error_of_what_cleans_up_is_still_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_as_argparse_is(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("'_StoreAction' object has no attribute 'save_nargs'")

    monkeypatch.setattr(Parser, "parse_intermixed_args", interrupted_as_argparse_is)
    assert main(["check"]) == Exit.INTERRUPTED
    assert capsys.readouterr().err == "torchwise: interrupted\n"

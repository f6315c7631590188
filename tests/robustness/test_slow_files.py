"""A file that is imported lies on a file system that does not answer: nothing else waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.robustness.slow_files import SlowFiles
from tests.robustness.test_language_server import GOOD, opened
from tests.robustness.wire import Message, Wire

HELPER = "def stepped(optimizer):\n    optimizer.step()\n"
USES_IT = "from remote.helper import stepped\n" + GOOD.replace("optimizer.step()", "stepped(optimizer)")


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[SlowFiles]:
    files = {"__init__.py": "", "helper.py": HELPER}
    with SlowFiles.or_skip(tmp_path / "remote", files, frozenset({"helper.py"})) as mounted:
        yield mounted


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path)
    yield wire
    wire.kill()


def asked_for(wire: Wire, uri: str) -> int:
    return wire.request("textDocument/diagnostic", {"textDocument": {"uri": uri}})


def rules(answer: Message) -> list[str]:
    result = cast("dict[str, object]", answer["result"])
    return [str(item["code"]) for item in cast("list[dict[str, object]]", result["items"])]


def test_the_server_goes_on_while_a_read_stalls(remote: SlowFiles, wire: Wire, tmp_path: Path) -> None:
    uri = (tmp_path / "train.py").as_uri()
    opened(wire, uri, USES_IT)
    waiting = asked_for(wire, uri)
    remote.wait_for_a_read()
    # what needs no analysis is answered, and who gives up is told at once
    listed = wire.ask("workspace/executeCommand", {"command": "torchwise.listRules", "arguments": []})
    assert len(cast("list[object]", listed["result"])) > 50
    given_up = asked_for(wire, uri)
    wire.tell("$/cancelRequest", {"id": given_up})
    assert "error" in wire.answer(given_up)
    assert waiting not in wire.answered
    remote.release()
    assert sorted(rules(wire.answer(waiting))) == ["missing-zero-grad", "retained-graph"]
    assert wire.close() == 0


def test_the_server_ends_while_a_read_stalls(remote: SlowFiles, wire: Wire, tmp_path: Path) -> None:
    uri = (tmp_path / "train.py").as_uri()
    opened(wire, uri, USES_IT)
    asked_for(wire, uri)
    remote.wait_for_a_read()
    assert wire.close() == 0


def test_the_command_can_be_interrupted_while_a_read_stalls(remote: SlowFiles, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(USES_IT)
    words = [sys.executable, "-m", "torchwise_server", "check", "train.py", "--no-cache"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    remote.wait_for_a_read()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "torchwise: interrupted\n")

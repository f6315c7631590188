"""What `check` offers is what `fix` applies, wherever the finding lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchwise_server.cli import main

HELPER = """\
import torch
from torch import nn


def run_epoch(model, optimizer, loader):
    history = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss)
    return history
"""
MAIN = """\
import torch
from torch import nn
from helper import run_epoch

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(8, 12).cuda(), torch.zeros(8, dtype=torch.long).cuda()) for _ in range(4)]
for epoch in range(3):
    run_epoch(model, optimizer, loader)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "main.py").write_text(MAIN)
    return tmp_path


def offered(capsys: pytest.CaptureFixture[str], *words: str) -> set[tuple[str, str, str]]:
    """Path, rule and title of every edit that `check` offers."""
    capsys.readouterr()
    main(["check", *words, "--no-cache", "--jobs", "1", "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {
        (finding["path"], finding["rule"], fix["title"])
        for finding in document["findings"]
        for fix in finding["fixes"]
        if fix["edits"]
    }


def applied(capsys: pytest.CaptureFixture[str], *words: str) -> set[tuple[str, str, str]]:
    capsys.readouterr()
    main(["fix", *words, "--unsafe", "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {(each["path"], each["rule"], each["title"]) for each in document["fixed"]}


@pytest.mark.parametrize("words", [(".",), ("main.py", "helper.py"), ("helper.py", "main.py")])
def test_what_fix_mends_in_a_helper_check_offers(
    project: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    shown = offered(capsys, *words)
    done = applied(capsys, *words)
    assert {(path, rule) for path, rule, _ in done} == {
        ("helper.py", "missing-zero-grad"),
        ("helper.py", "retained-graph"),
    }
    assert done <= shown


def test_a_caller_alone_offers_the_same(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, "main.py") == offered(capsys, "main.py", "helper.py")


def test_standard_input_offers_the_same(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    expected = offered(capsys, "main.py")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MAIN.encode())))
    assert offered(capsys, "-", "--stdin-filename", "main.py") == expected


def test_trying_an_edit_leaves_the_project_as_it_was(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first.py", "second.py"):  # each tries the same edits of one helper
        (project / name).write_text(MAIN)
    assert offered(capsys, ".") == offered(capsys, "main.py")
    assert (project / "helper.py").read_text() == HELPER


def test_an_edit_that_is_worse_for_the_helper_itself_stays_advice(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that does not parse as a whole is not edited, neither by the one nor by the other."""
    (project / "helper.py").write_text(HELPER + "\ndef broken(:\n    pass\n")
    assert offered(capsys, "main.py", "helper.py") == set()
    assert applied(capsys, "main.py", "helper.py") == set()

"""`torchwise fix`: what is applied, what stays as it was, and what is never touched."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchwise_server.cli import main, writing

SAFE = """\
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    history = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss)  # kept, grün
    return sum(h.item() for h in history)
"""
FIXED = SAFE.replace("append(loss)", "append(loss.detach())")

UNSAFE = """\
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""


class Result:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


Fix = Callable[..., Result]


@pytest.fixture
def fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Fix:
    """Run the real command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Result:
        capfdbinary.readouterr()
        status = main(["fix", *arguments])
        captured = capfdbinary.readouterr()
        return Result(status, captured.out.decode(), captured.err.decode())

    return run


def test_safe_fixes_are_applied_and_said(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    result = fix("train.py")
    assert result.status == 0
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == FIXED
    assert result.out.splitlines() == [
        "train.py:15: retained-graph: Keep a detached value: add `.detach()`",
        "1 finding fixed in 1 file",
    ]


def test_running_again_changes_nothing(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    fix()
    before = (tmp_path / "train.py").stat()
    result = fix()
    assert (result.status, result.out) == (0, "nothing to fix\n")
    after = (tmp_path / "train.py").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_changes_training_waits_to_be_asked_for(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNSAFE)
    result = fix()
    assert result.status == 1  # a certain error is left
    assert (tmp_path / "train.py").read_text() == UNSAFE
    assert "1 more with --unsafe" in result.out
    result = fix("--unsafe")
    assert result.status == 0
    assert "zero_grad()" in (tmp_path / "train.py").read_text()
    assert "changes training" in result.out


def test_rules_can_be_chosen(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    fix("--ignore", "retained-graph")
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == SAFE
    fix("--select", "TW1")
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == FIXED


def test_a_suppressed_finding_is_left_alone(fix: Fix, tmp_path: Path) -> None:
    text = SAFE.replace("# kept, grün", "# torchwise: ignore[retained-graph] -- short")
    (tmp_path / "train.py").write_text(text)
    assert fix().status == 0
    assert (tmp_path / "train.py").read_text() == text


FORMS = {
    "plain": SAFE.encode(),
    "crlf": SAFE.replace("\n", "\r\n").encode(),
    "byte order mark": b"\xef\xbb\xbf" + SAFE.encode(),
    "latin-1 cookie": b"# -*- coding: latin-1 -*-\n" + SAFE.encode("latin-1"),
    "no final newline": SAFE.rstrip("\n").encode(),
    "tabs": SAFE.replace("    ", "\t").encode(),
    "form feed": SAFE.replace("def train", "\x0c\ndef train").encode(),
    "odd blanks": SAFE.replace("append(loss)", "append( loss )").replace("lr=0.1", "lr  =  0.1").encode(),
    "line separators": SAFE.replace("# kept", "# \u2028 \x85 kept").encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_other_byte_stays(fix: Fix, tmp_path: Path, form: str) -> None:
    before = FORMS[form]
    (tmp_path / "train.py").write_bytes(before)
    assert fix().status == 0
    after = (tmp_path / "train.py").read_bytes()
    assert after == before.replace(b"append(loss)", b"append(loss.detach())").replace(
        b"append( loss )", b"append( loss.detach() )"
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "tool", [["git", "apply", "-R", "-p1"], ["patch", "-R", "-p1", "--binary", "-s", "-i"]]
)
def test_the_printed_patch_takes_the_fix_back(fix: Fix, tmp_path: Path, form: str, tool: list[str]) -> None:
    (tmp_path / "my train.py").write_bytes(FORMS[form])
    main(["fix", "--diff"])
    # what the command wrote, byte for byte
    printed = subprocess.run(
        [sys.executable, "-m", "torchwise_server", "fix", "--diff"], capture_output=True, cwd=tmp_path
    )
    assert printed.returncode == 1
    assert (tmp_path / "my train.py").read_bytes() == FORMS[form]
    (tmp_path / "fix.patch").write_bytes(printed.stdout)
    assert fix().status == 0
    assert (tmp_path / "my train.py").read_bytes() != FORMS[form]
    subprocess.run([*tool, "fix.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "my train.py").read_bytes() == FORMS[form]


def test_a_preview_writes_nothing(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    result = fix("--diff")
    assert result.status == 1
    assert "+        history.append(loss.detach())  # kept, grün\n" in result.out
    assert "1 finding would be fixed in 1 file" in result.err
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == SAFE
    (tmp_path / "train.py").write_text(FIXED, encoding="utf-8")
    assert fix("--diff").status == 0


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o664])
def test_the_mode_stays(fix: Fix, tmp_path: Path, mode: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(SAFE, encoding="utf-8")
    file.chmod(mode)
    fix()
    assert file.read_text(encoding="utf-8") == FIXED
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_several_fixes_meet_a_fixed_point(fix: Fix, tmp_path: Path) -> None:
    text = UNSAFE.replace("def train(loader):\n", "def train(loader):\n    history = []\n")
    text += "        history.append(loss)\n    return sum(h.item() for h in history)\n"
    (tmp_path / "train.py").write_text(text)
    result = fix("--unsafe")
    assert result.status == 0
    assert "2 findings fixed in 1 file" in result.out.splitlines()
    fixed = (tmp_path / "train.py").read_text()
    compile(fixed, "train.py", "exec")
    assert fix("--unsafe").out == "nothing to fix\n"


def test_what_cannot_be_parsed_is_left_alone(fix: Fix, tmp_path: Path) -> None:
    text = SAFE + "def broken(:\n"
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    result = fix()
    assert result.status == 3
    assert "train.py:17: " in result.out
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == text


def test_what_cannot_be_decoded_is_left_alone(fix: Fix, tmp_path: Path) -> None:
    data = SAFE.encode("latin-1")
    (tmp_path / "train.py").write_bytes(data)
    result = fix("train.py")
    assert result.status == 2
    assert "train.py: not valid utf-8" in result.err
    assert (tmp_path / "train.py").read_bytes() == data


# ---------------------------------------------------------------------------- standard input


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("form", ["plain", "crlf", "byte order mark", "latin-1 cookie", "no final newline"])
def test_standard_input_comes_back_fixed(tmp_path: Path, form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchwise_server", "fix", "-"],
        input=FORMS[form], capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == FORMS[form].replace(b"append(loss)", b"append(loss.detach())")
    assert b"1 finding fixed" in done.stderr


def test_standard_input_with_nothing_to_fix_comes_back_as_it_was(
    fix: Fix, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, b"x = 1\r\n")
    result = fix("-")
    assert (result.status, result.out) == (0, "x = 1\r\n")


def test_standard_input_stands_alone(fix: Fix) -> None:
    assert "stands alone" in fix("-", "train.py").err
    assert "--stdin-filename needs -" in fix("--stdin-filename", "a.py", "b.py").err


# ---------------------------------------------------------------------------- notebooks


def notebook(*cells: list[str] | str, indent: int | None = 1, ascii_: bool = False) -> str:
    content = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Ünï ☃\n", "text"]},
            *(
                {
                    "cell_type": "code", "execution_count": 3, "metadata": {"b": 1, "a": 2}, "outputs": [],
                    "source": cell,
                }
                for cell in cells
            ),
        ],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }  # fmt: skip
    return json.dumps(content, indent=indent, ensure_ascii=ascii_) + "\n"


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


HEAD, BODY = SAFE.split("\n\n\n")
BODY = BODY.rstrip("\n")


@pytest.mark.parametrize("indent", [1, 4, None])
@pytest.mark.parametrize("ascii_", [False, True])
@pytest.mark.parametrize("as_lines", [True, False])
def test_only_the_line_of_a_cell_changes(
    fix: Fix, tmp_path: Path, indent: int | None, ascii_: bool, as_lines: bool
) -> None:
    cells = [lines_of(HEAD), lines_of(BODY)] if as_lines else [HEAD, BODY]
    before = notebook(*cells, indent=indent, ascii_=ascii_)
    (tmp_path / "train.ipynb").write_text(before, encoding="utf-8")
    result = fix("train.ipynb")
    assert result.status == 0, result.err
    assert "train.ipynb:cell 3:8: retained-graph" in result.out
    after = (tmp_path / "train.ipynb").read_text(encoding="utf-8")
    assert after == before.replace("append(loss)", "append(loss.detach())")


def test_a_statement_at_the_end_of_a_cell_stays_in_it(fix: Fix, tmp_path: Path) -> None:
    head, body = UNSAFE.rstrip("\n").split("\n\n\n")
    body = body.replace("        loss = ", "        model.train()\n        loss = ")
    before = notebook(lines_of(head), lines_of(body), ["print('done')"])
    (tmp_path / "train.ipynb").write_text(before, encoding="utf-8")
    result = fix("--unsafe")
    assert result.status == 0, result.out
    after = json.loads((tmp_path / "train.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in after["cells"]]
    assert "zero_grad()" in cells[2]
    compile(cells[2], "cell", "exec")
    assert cells[3] == "print('done')"


def test_magics_stay_where_they_are(fix: Fix, tmp_path: Path) -> None:
    cells = ["%%time\n" + HEAD + "\n%matplotlib inline\nfiles = !ls", "!pip list\n" + BODY]
    before = notebook(*cells)
    (tmp_path / "train.ipynb").write_text(before, encoding="utf-8")
    assert fix("train.ipynb").status == 0
    after = (tmp_path / "train.ipynb").read_text(encoding="utf-8")
    assert after == before.replace("append(loss)", "append(loss.detach())")


# ---------------------------------------------------------------------------- other files


HELPER = """\
import torch


def keep(history, loss):
    history.append(loss)


def train(model, optimizer, loader, history):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        keep(history, loss)
"""
CALLER = """\
import torch
from helper import train

model = torch.nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
train(model, optimizer, torch.utils.data.DataLoader(torch.zeros(4, 12)), history)
"""


@pytest.mark.parametrize("names", [("helper.py", "main.py"), ("main.py", "helper.py"), (".",)])
def test_a_finding_that_a_caller_proves_is_fixed_where_it_lies(
    fix: Fix, tmp_path: Path, names: tuple[str, ...]
) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "main.py").write_text(CALLER)
    assert fix(*names).status == 0
    assert (tmp_path / "helper.py").read_text() == HELPER.replace("append(loss)", "append(loss.detach())")
    assert (tmp_path / "main.py").read_text() == CALLER


def test_what_was_not_named_is_not_written(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "main.py").write_text(CALLER)
    fix("main.py")
    assert (tmp_path / "helper.py").read_text() == HELPER


KEEPER = "import torch\n\n\ndef keep(history, loss):\n    history.append(loss)\n"
KEEPS = """\
import torch
from helper import keep

model = torch.nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for x, y in torch.utils.data.DataLoader(torch.zeros(4, 12)):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    keep(history, loss)
"""
TRAINS = """\
import torch
from helper import keep

model = torch.nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for x, y in torch.utils.data.DataLoader(torch.zeros(4, 12)):
    keep(history, torch.nn.functional.cross_entropy(model(x), y))
optimizer.zero_grad()
torch.stack(history).sum().backward()
optimizer.step()
"""


def test_a_fix_that_one_caller_wants_and_another_suffers_from_is_left_out(fix: Fix, tmp_path: Path) -> None:
    """The second caller trains on what was kept: cut from its graph it would learn nothing."""
    (tmp_path / "helper.py").write_text(KEEPER)
    (tmp_path / "keeps.py").write_text(KEEPS)
    assert "1 finding fixed" in fix("--diff", ".").err.replace("would be ", "")
    (tmp_path / "trains.py").write_text(TRAINS)
    result = fix(".")
    assert (tmp_path / "helper.py").read_text() == KEEPER
    assert "1 fix left out: the result was not better" in result.out


# ---------------------------------------------------------------------------- links, exchange, interruption


def test_a_link_that_leads_out_is_not_followed(fix: Fix, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "train.py").write_text(SAFE, encoding="utf-8")
    (inside / "link.py").symlink_to(outside / "train.py")
    result = fix("inside")
    assert result.status == 2
    assert "a link that leads elsewhere" in result.err
    assert fix("inside/link.py").status == 2
    assert (outside / "train.py").read_text(encoding="utf-8") == SAFE


def test_a_link_that_stays_inside_is_followed_once(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text(SAFE, encoding="utf-8")
    (tmp_path / "link.py").symlink_to("real.py")
    result = fix(".")
    assert "1 finding fixed in 1 file" in result.out
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "real.py").read_text(encoding="utf-8") == FIXED


@pytest.mark.parametrize("exchange", ["link", "folder", "other", "changed", "gone"])
def test_what_is_exchanged_meanwhile_is_not_written(
    fix: Fix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    file = folder / "train.py"
    file.write_text(SAFE, encoding="utf-8")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "train.py").write_text(SAFE, encoding="utf-8")
    real = writing.write

    def racing(original: writing.Original, data: bytes) -> None:
        if exchange == "link":
            file.unlink()
            file.symlink_to(victim / "train.py")
        elif exchange == "folder":
            folder.rename(tmp_path / "moved")
            folder.symlink_to(victim)
        elif exchange == "other":
            (folder / "new.py").write_text(SAFE, encoding="utf-8")
            (folder / "new.py").replace(file)
        elif exchange == "changed":
            file.write_text(SAFE + "# edited meanwhile\n", encoding="utf-8")
        else:
            file.unlink()
        real(original, data)

    monkeypatch.setattr(writing, "write", racing)
    result = fix("src")
    assert result.status == 3
    assert "src/train.py: not written: " in result.out
    assert (victim / "train.py").read_text(encoding="utf-8") == SAFE
    assert not list(tmp_path.rglob("*.torchwise"))
    assert all("detach" not in path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.py"))


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_an_interruption_leaves_the_file_whole(
    fix: Fix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, where, interrupt)
    assert fix().status == 130
    monkeypatch.undo()
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == SAFE
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_killed_process_leaves_the_file_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    program = (
        "import os, signal\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from torchwise_server.cli import main\n"
        "main(['fix', 'train.py'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == SAFE


def test_a_termination_ends_like_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    program = (
        "import os, signal, sys\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from torchwise_server.cli import main\n"
        "sys.exit(main(['fix', 'train.py']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == SAFE


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_named(fix: Fix, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")
    (tmp_path / "train.py").chmod(0o444)
    assert "not written" in fix().out


def test_a_full_disk_is_a_message(fix: Fix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SAFE, encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = fix()
    assert result.status == 3
    assert "train.py: not written: No space left on device\nnothing fixed\n" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


# ---------------------------------------------------------------------------- for programs


def test_the_json_says_what_was_done_and_what_is_left(
    fix: Fix, tmp_path: Path, validate: Callable[[str, object], None]
) -> None:
    (tmp_path / "a.py").write_text(SAFE, encoding="utf-8")
    (tmp_path / "b.py").write_text(UNSAFE)
    result = fix("--format", "json")
    assert result.status == 1
    document = json.loads(result.out)
    validate("fix", document)
    assert [(row["path"], row["line"], row["rule"], row["safety"]) for row in document["fixed"]] == [
        ("a.py", 15, "retained-graph", "safe")
    ]
    assert [(row["path"], row["rule"], row["fix"]) for row in document["left"]] == [
        ("b.py", "missing-zero-grad", "unsafe")
    ]
    assert document["problems"] == []


def test_the_json_of_notebooks_and_problems(
    fix: Fix, tmp_path: Path, validate: Callable[[str, object], None]
) -> None:
    (tmp_path / "a.ipynb").write_text(notebook(lines_of(HEAD), lines_of(BODY)), encoding="utf-8")
    (tmp_path / "b.py").write_text("import torch\ndef broken(:\n")
    result = fix("--format", "json", "--diff")
    document = json.loads(result.out[result.out.index('{\n "version"') :])
    validate("fix", document)
    assert [(row["cell"], row["cell_line"]) for row in document["fixed"]] == [(3, 8)]
    assert [(row["path"], row["line"]) for row in document["problems"]] == [("b.py", 2)]


def test_nothing_to_read_is_an_error(fix: Fix) -> None:
    result = fix("nowhere.py")
    assert result.status == 2
    assert "nowhere.py: no such file or folder" in result.err


def test_a_pattern_limits_where_is_written(fix: Fix, tmp_path: Path) -> None:
    for name in ("a/train.py", "b/train.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(SAFE, encoding="utf-8")
    fix("a/*.py")
    assert (tmp_path / "a/train.py").read_text(encoding="utf-8") == FIXED
    assert (tmp_path / "b/train.py").read_text(encoding="utf-8") == SAFE

"""Checking and estimating a hostile workspace runs nothing of it, starts nothing and writes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.robustness.wire import Wire
from tests.security import hostile

WATCHED = Path(__file__).with_name("watched.py")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    hostile.build(folder, tmp_path / "mark")
    return folder


def environment(workspace: Path) -> dict[str, str]:
    return {
        **os.environ,
        "VIRTUAL_ENV": str(workspace / ".venv"),
        "PATH": f"{workspace / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.mark.parametrize(
    "words",
    [
        ["check", ".", "-j", "1", "--no-cache"],
        ["check", ".", "-j", "1", "--no-cache", "--format", "json", "--min-confidence", "possible"],
        ["estimate", "train.py", "book.ipynb", "--gpu", "t4"],
        ["estimate", ".", "--format", "json", "--site-packages", ".venv/lib/python3.11/site-packages"],
    ],
    ids=" ".join,
)
def test_a_hostile_workspace_is_only_read(workspace: Path, words: list[str]) -> None:
    report = workspace.parent / "report"
    before = listing(workspace)
    done = subprocess.run(
        [sys.executable, "-I", str(WATCHED), str(report), *words],
        cwd=workspace,
        env=environment(workspace),
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "fault of torchwise" not in done.stdout + done.stderr
    assert report.read_text("utf-8") == ""
    assert not (workspace.parent / "mark").exists()
    assert listing(workspace) == before


def test_many_files_start_workers_of_our_own_and_write_the_cache_only(workspace: Path) -> None:
    """Workers are forks of this process or its own interpreter; results go to the cache folder."""
    report, cache = workspace.parent / "report", workspace.parent / "cache"
    before = listing(workspace)
    done = subprocess.run(
        [sys.executable, "-I", str(WATCHED), str(report), "check", ".", "-j", "2", "--cache-dir", str(cache)],
        cwd=workspace,
        env=environment(workspace),
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert not (workspace.parent / "mark").exists()
    assert listing(workspace) == before
    changes = ("writes", "executes", "os.remove", "os.rename", "os.mkdir", "os.link", "os.symlink", "shutil.")
    seen = report.read_text("utf-8").splitlines()
    assert [line for line in seen if line.startswith(changes) and str(cache) not in line] == []
    assert [line for line in seen if str(workspace) in line] == []


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "start", [["-P", "-m", "torchwise_server"], ["-c", "ENTRY"]], ids=["module", "script"]
)
def test_a_python_path_that_leads_to_the_workspace_counts_for_nothing(
    start: list[str], workspace: Path
) -> None:
    """What Python itself imports before us (`sitecustomize`) is in nobody's hands without -I."""
    if sys.version_info < (3, 11) and "-P" in start:
        pytest.skip("-P came with Python 3.11")
    (workspace / "sitecustomize.py").unlink()
    (workspace / "usercustomize.py").unlink()
    entry = "import sys; from torchwise_server.__main__ import main; sys.exit(main())"
    command = [entry if word == "ENTRY" else word for word in start]
    done = subprocess.run(
        [sys.executable, *command, "check", "train.py"],
        cwd=workspace.parent,
        env={**environment(workspace), "PYTHONPATH": str(safe_part(workspace))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr  # no such file here
    assert not (workspace.parent / "mark").exists()


def safe_part(workspace: Path) -> Path:
    """Without what Python's own start, and that of an editable installation, may import."""
    for name in ("re", "enum", "collections", "typing", "string", "codecs", "ast", "logging"):
        (workspace / f"{name}.py").unlink()
    return workspace


CALLS = (
    "execve,execveat,fork,vfork,open,openat,openat2,creat,socket,connect,unlink,unlinkat,rename,renameat,"
    "renameat2,mkdir,mkdirat,link,linkat,symlink,symlinkat,truncate,chmod,fchmod,fchmodat,ptrace"
)
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


def tracer(log: Path) -> tuple[str, ...]:
    if subprocess.run(["strace", "-qq", "-o", str(log), "true"], capture_output=True).returncode:
        pytest.skip("tracing is not permitted here")
    return ("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={CALLS}")


def acts(log: Path) -> list[str]:
    """What the kernel was asked to do beside reading, without the start of the interpreter itself."""
    lines = log.read_text("utf-8", "replace").splitlines()
    assert len([line for line in lines if "execve(" in line]) == 1  # ours
    writing = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")
    return [
        line
        for line in lines
        if "execve(" not in line
        and "/dev/null" not in line
        and "+++" not in line
        and "---" not in line
        and ("open" not in line or any(flag in line for flag in writing))
    ]


@needs_strace
@pytest.mark.parametrize(
    "words",
    [["estimate", "train.py", "book.ipynb"], ["check", ".", "-j", "1", "--no-cache"], ["fix", ".", "--diff"]],
    ids=" ".join,
)
def test_the_kernel_sees_neither_a_process_nor_a_write(words: list[str], workspace: Path) -> None:
    log = workspace.parent / "calls"
    command = [*tracer(log), sys.executable, "-I", "-B", "-m", "torchwise_server", *words]
    done = subprocess.run(command, cwd=workspace, env=environment(workspace), capture_output=True)
    assert done.returncode in (0, 1, 3), done.stderr
    assert acts(log) == []


@needs_strace
def test_the_kernel_sees_what_fix_was_asked_to_write(workspace: Path) -> None:
    """A new file beside each that is fixed takes its mode and its name; nothing else is touched."""
    log = workspace.parent / "calls"
    (workspace / "train.py").write_text(SAFELY_FIXED)
    command = [*tracer(log), sys.executable, "-I", "-B", "-m", "torchwise_server", "fix", "train.py"]
    done = subprocess.run(command, cwd=workspace, env=environment(workspace), capture_output=True)
    assert "detach()" in (workspace / "train.py").read_text(), done.stderr
    seen = acts(log)
    assert seen
    assert [line for line in seen if "fchmod(" not in line and '".train.py.' not in line] == []


@needs_strace
def test_the_kernel_sees_a_server_that_only_reads(workspace: Path) -> None:
    """But for the pages of rules, which lie in the cache folder for editors to show."""
    log, cache = workspace.parent / "calls", workspace.parent / "cache"
    around = {**environment(workspace), "TORCHWISE_CACHE_DIR": str(cache)}
    wire = Wire(workspace, before=tracer(log), environment=around)
    for name in ("train.py", "conftest.py"):
        uri = (workspace / name).as_uri()
        text = (workspace / name).read_text()
        item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        wire.tell("textDocument/didOpen", {"textDocument": item})
        wire.ask("textDocument/diagnostic", {"textDocument": {"uri": uri}})
        wire.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
        place = {"line": 34, "character": 6}
        wire.ask("textDocument/hover", {"textDocument": {"uri": uri}, "position": place})
    assert wire.close() == 0
    assert [line for line in acts(log) if str(cache) not in line and "resumed" not in line] == []
    assert not (workspace.parent / "mark").exists()


SAFELY_FIXED = """\
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(1000):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 2)).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


@pytest.mark.parametrize(
    ("edit", "asks_jedi"),
    [("sys.path.insert(0, {})", False), ("sys.path += [{}]", True)],
    ids=["a usual spelling", "a spelling for jedi"],
)
def test_a_script_that_edits_its_path_runs_nothing(
    workspace: Path, tmp_path: Path, edit: str, asks_jedi: bool
) -> None:
    """The one question that jedi answers. What it parses it keeps in our cache folder, and nowhere else."""
    hidden = workspace / "hidden"
    hidden.mkdir()
    act = f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    for name in ("__init__", "tools", "typing", "os", "sitecustomize", "gi"):
        (hidden / f"{name}.py").write_text(act)
    (hidden / "_fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    (workspace / "scripted.py").write_text(
        "import os, sys\nimport torch\n"
        + edit.format("os.path.join(os.path.dirname(__file__), 'hidden')")
        + "\nsys.path.append('.venv/lib/python3.11/site-packages')\n"
        "from tools import make\nimport _fast, gi, unknown\n"
        "model = make()\nfor x in []:\n    model(x).backward()\n"
    )
    report, cache = tmp_path / "report", tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-I", str(WATCHED), str(report), "check", "scripted.py", "--no-cache"],
        cwd=workspace,
        env={**environment(workspace), "TORCHWISE_CACHE_DIR": str(cache / "torchwise")},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert not (tmp_path / "mark").exists()
    seen = report.read_text("utf-8").splitlines()
    assert [
        line for line in seen if str(cache) not in line and line.split()[0] in ("writes", "executes")
    ] == []
    assert [
        line for line in seen if line.startswith(("os.exec", "os.posix_spawn", "subprocess", "socket"))
    ] == []
    assert (cache / "torchwise" / "jedi").is_dir() == asks_jedi

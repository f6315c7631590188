"""Checking and estimating a hostile workspace runs nothing of it, starts nothing and writes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
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


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_kernel_sees_neither_a_process_nor_a_write(workspace: Path) -> None:
    calls = (
        "execve,execveat,fork,vfork,open,openat,creat,socket,connect,unlink,unlinkat,rename,renameat2,mkdir"
    )
    log = workspace.parent / "calls"
    tracer = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={calls}"]
    command = [sys.executable, "-I", "-B", "-m", "torchwise_server", "estimate", "train.py"]
    done = subprocess.run([*tracer, *command], cwd=workspace, env=environment(workspace), capture_output=True)
    if b"ptrace" in done.stderr:
        pytest.skip("tracing is not permitted here")
    lines = log.read_text("utf-8", "replace").splitlines()
    assert len([line for line in lines if "execve(" in line]) == 1  # ours
    writing = [line for line in lines if any(flag in line for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))]
    assert [line for line in writing if "/dev/null" not in line] == []
    assert [line for line in lines if "open" not in line and "execve(" not in line] == []


def test_a_script_that_edits_its_path_runs_nothing(workspace: Path, tmp_path: Path) -> None:
    """The one question that jedi answers. What it parses it keeps in our cache folder, and nowhere else."""
    hidden = workspace / "hidden"
    hidden.mkdir()
    act = f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    for name in ("__init__", "tools", "typing", "os", "sitecustomize", "gi"):
        (hidden / f"{name}.py").write_text(act)
    (hidden / "_fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    (workspace / "scripted.py").write_text(
        "import os, sys\nimport torch\n"
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'hidden'))\n"
        "sys.path.append('.venv/lib/python3.11/site-packages')\n"
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
    assert (cache / "torchwise" / "jedi").is_dir()

"""What goes wrong around an analysis: disks, permissions, clocks, processes, and files that change."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.robustness.wire import Wire

from torchwise_analysis.names.project import Project
from torchwise_server.batch.store import Store

START = ("-I", "-m", "torchwise_server")
LONG = bool(os.environ.get("TORCHWISE_LONG_TESTS"))
FILES = 10_000 if LONG else 300

DEFECT = """\
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
FIXED = DEFECT.replace("append(loss)", "append(loss.detach())")


def torchwise(*words: str, folder: Path, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *START, *words]
    if cache is not None:
        command += ["--cache-dir", str(cache)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def checked(folder: Path, *words: str, cache: Path | None = None) -> dict[str, list[dict[str, object]]]:
    done = torchwise("check", ".", "--format", "json", *words, folder=folder, cache=cache)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "fault of torchwise" not in done.stdout + done.stderr
    answer: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return answer


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for number in range(12):
        (folder / f"train{number:02}.py").write_text(DEFECT.replace("range(1000)", f"range({number + 1000})"))
    return folder


# --------------------------------------------------------------------------- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "full", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def test_a_full_disk_only_costs_the_cache(workspace: Path, small_disk: Path) -> None:
    fresh = checked(workspace, "--no-cache")
    fill(small_disk)
    assert checked(workspace, cache=small_disk) == fresh
    (small_disk / "full").unlink()
    assert checked(workspace, cache=small_disk) == fresh  # fills up while it is written
    assert checked(workspace, cache=small_disk) == fresh


def test_a_full_disk_leaves_what_is_to_be_fixed(small_disk: Path) -> None:
    file = small_disk / "train.py"
    file.write_text(DEFECT)
    fill(small_disk)
    done = torchwise("fix", "train.py", folder=small_disk)
    assert done.returncode in (1, 3)
    assert "not written" in done.stdout + done.stderr
    assert file.read_text() == DEFECT
    (small_disk / "full").unlink()
    torchwise("fix", "train.py", folder=small_disk)
    assert file.read_text() == FIXED
    assert [path.name for path in small_disk.iterdir()] == ["train.py"]


# --------------------------------------------------------------------------- processes that are killed


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("after_s", [0.4, 0.7, 1.0, 1.4])
def test_a_run_that_was_killed_leaves_a_sound_cache(after_s: float, workspace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    command = [
        sys.executable,
        "-I",
        "-m",
        "torchwise_server",
        "check",
        ".",
        "-j",
        "2",
        "--cache-dir",
        str(cache),
    ]
    process = subprocess.Popen(
        command, cwd=workspace, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    time.sleep(after_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert checked(workspace, cache=cache) == checked(workspace, "--no-cache")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("after_s", [0.6, 1.0, 1.5, 2.2])
def test_a_fix_that_was_killed_leaves_whole_files(after_s: float, workspace: Path) -> None:
    """Whenever it comes: a file is the old one or the new one."""
    before = {path.name: path.read_text() for path in workspace.iterdir()}
    process = subprocess.Popen(
        [sys.executable, *START, "fix", "."],
        cwd=workspace,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(after_s)
    process.kill()
    process.wait()
    for name, text in before.items():
        assert (workspace / name).read_text() in (text, text.replace("append(loss)", "append(loss.detach())"))
    torchwise("fix", ".", folder=workspace)
    assert all("detach" in (workspace / name).read_text() for name in before)


# --------------------------------------------------------------------------- permissions


def nobody(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run without the rights of root, which may do everything."""
    as_nobody: list[str] = []
    if hasattr(os, "getuid") and os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to give up the rights of root")
        # rights go, the user stays: the interpreter may lie where only its owner gets
        as_nobody = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    return subprocess.run([*as_nobody, *command], cwd=folder, capture_output=True, text=True, timeout=600)


def test_what_may_not_be_read_or_written_is_named(workspace: Path) -> None:
    (workspace / "train01.py").chmod(0)
    probe = nobody(sys.executable, "-c", "open('train01.py')", folder=workspace)
    if probe.returncode == 0:
        pytest.skip("this user may read everything")
    done = nobody(sys.executable, *START, "check", ".", "--no-cache", folder=workspace)
    assert done.returncode == 3, done.stderr
    assert "train01.py" in done.stdout
    assert "not read" in done.stdout
    (workspace / "train01.py").chmod(0o600)
    workspace.chmod(0o500)
    try:
        done = nobody(sys.executable, *START, "fix", ".", folder=workspace)
    finally:
        workspace.chmod(0o700)
    assert "not written" in done.stdout + done.stderr
    assert "fault of torchwise" not in done.stdout + done.stderr
    assert all("detach" not in path.read_text() for path in workspace.iterdir())


# --------------------------------------------------------------------------- files that change underneath


def test_files_that_come_and_go_while_they_are_read(workspace: Path) -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            for path in sorted(workspace.glob("train*.py")):
                path.unlink()
                path.with_suffix(".new").write_text(DEFECT)
                path.with_suffix(".new").rename(path)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3):
            answer = checked(workspace, "--no-cache", "-j", "2")
            assert {finding["rule"] for finding in answer["findings"]} <= {"retained-graph"}
    finally:
        over.set()
        thread.join()
    assert len(checked(workspace, "--no-cache")["findings"]) == 12


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_links_in_the_way_block_nobody(workspace: Path) -> None:
    """Opening a pipe without a writer never returns, and reading this device never ends."""
    os.mkfifo(workspace / "pipe.py")
    os.mkfifo(workspace / "helper.py")
    (workspace / "zero.py").symlink_to("/dev/zero")
    (workspace / "loop").symlink_to(workspace)
    (workspace / "uses.py").write_text("import helper, pipe, zero\n" + DEFECT)
    answer = checked(workspace, "--no-cache")
    assert len(answer["findings"]) == 13
    for name in ("uses.py", "train00.py"):
        done = torchwise("estimate", name, "--gpu", "t4", folder=workspace)
        assert done.returncode in (0, 3), done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_settings_that_are_a_pipe_are_refused(workspace: Path) -> None:
    os.mkfifo(workspace / "pyproject.toml")
    done = torchwise("check", ".", folder=workspace)
    assert done.returncode == 2
    assert "not a regular file" in done.stderr


# --------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("jump_s", [-(10**9), 10**9], ids=["past", "future"])
def test_times_of_files_mean_nothing(jump_s: int, workspace: Path, tmp_path: Path) -> None:
    """A change counts also where the file's time stays, goes back, or lies in the future."""
    cache = tmp_path / "cache"
    file = workspace / "train03.py"
    before = file.stat()
    assert len(checked(workspace, cache=cache)["findings"]) == 12
    file.write_text(DEFECT.replace("append(loss)", "append(0.12)"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(checked(workspace, cache=cache)["findings"]) == 11
    for path in (*workspace.iterdir(), *cache.rglob("*")):
        os.utime(path, (time.time() + jump_s, time.time() + jump_s))
    assert len(checked(workspace, cache=cache)["findings"]) == 11
    file.write_text(DEFECT)
    assert len(checked(workspace, cache=cache)["findings"]) == 12


def test_a_clock_that_was_set_back_does_not_keep_the_cache_from_shrinking(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", most_bytes=2000)
    for number in range(40):
        store.put(f"{number:02}{'0' * 38}", "x" * 200)
    mark = tmp_path / "cache" / "pruned"
    mark.touch()
    os.utime(mark, (time.time() + 10**8, time.time() + 10**8))
    store.prune()
    left = [
        path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"
    ]
    assert sum(path.stat().st_size for path in left) <= 2000


def test_a_library_that_was_replaced_with_its_old_time_is_read_again(tmp_path: Path) -> None:
    """As package managers do, who unpack all files with one time."""
    library = tmp_path / "helper.py"
    library.write_text("def of(x):\n    return x       \n")
    before = library.stat()
    assert "item" not in repr(Project([], [str(tmp_path)]).load(str(library)))
    library.write_text("def of(x):\n    return x.item()\n")
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert library.stat().st_size == before.st_size
    assert "item" in repr(Project([], [str(tmp_path)]).load(str(library)))


# --------------------------------------------------------------------------- many, and many at once


def test_a_large_workspace_in_bounded_memory_while_the_server_answers(tmp_path: Path) -> None:
    """`TORCHWISE_LONG_TESTS=1` makes it ten thousand files."""
    for number in range(FILES):
        folder = tmp_path / f"part{number // 100:03}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}.py").write_text(DEFECT if number % 10 == 0 else f"x = {number}\n")
    wire = Wire(tmp_path, options={"workspaceDiagnostics": True})
    try:
        scan = wire.request("workspace/diagnostic", {"previousResultIds": []})
        uri = (tmp_path / "open.py").as_uri()
        item = {"uri": uri, "languageId": "python", "version": 1, "text": DEFECT}
        wire.tell("textDocument/didOpen", {"textDocument": item})
        answer = wire.ask("textDocument/diagnostic", {"textDocument": {"uri": uri}})
        assert "retained-graph" in json.dumps(answer)
        assert scan not in wire.answered or FILES < 1000  # it did not have to wait for the scan
        wire.tell("$/cancelRequest", {"id": scan})
        assert resident_bytes(wire.pid) < 400 << 20
        assert wire.close() == 0
    finally:
        wire.kill()


def resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def test_two_servers_on_one_workspace(tmp_path: Path) -> None:
    """They share the folder of what was parsed, and nothing of one reaches the other."""
    first, second = Wire(tmp_path), Wire(tmp_path)
    try:
        uri = (tmp_path / "train.py").as_uri()
        for version in range(1, 6):
            for wire, text in ((first, DEFECT), (second, FIXED)):
                if version == 1:
                    item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
                    wire.tell("textDocument/didOpen", {"textDocument": item})
                else:
                    wire.tell(
                        "textDocument/didChange",
                        {
                            "textDocument": {"uri": uri, "version": version},
                            "contentChanges": [{"text": text + f"# {version}\n"}],
                        },
                    )
            one, other = (
                json.dumps(wire.ask("textDocument/diagnostic", {"textDocument": {"uri": uri}}))
                for wire in (first, second)
            )
            assert "retained-graph" in one
            assert "retained-graph" not in other
        assert first.close() == second.close() == 0
    finally:
        first.kill()
        second.kill()


def test_a_killed_server_leaves_nothing_that_disturbs_the_next(tmp_path: Path) -> None:
    uri = (tmp_path / "train.py").as_uri()
    item = {"uri": uri, "languageId": "python", "version": 1, "text": DEFECT}
    for _ in range(2):
        wire = Wire(tmp_path)
        wire.tell("textDocument/didOpen", {"textDocument": item})
        assert "retained-graph" in json.dumps(
            wire.ask("textDocument/diagnostic", {"textDocument": {"uri": uri}})
        )
        wire.kill()
    assert list(tmp_path.iterdir()) == []

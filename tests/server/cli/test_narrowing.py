"""Only what is new: changed lines, and the baseline."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.cli.conftest import Cli
from tests.server.cli.test_check import FAULTY, notebook, write

from torchwise_server.cli.changes import changed_lines

LINE = "keep(loss)  # fault: error certain\n"


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    write(tmp_path, "a.py", "import torch\n\n\n\n\n" + LINE)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def lines_found(cli: Cli, *arguments: str) -> list[tuple[object, object]]:
    document = cli("check", "--format", "json", *arguments).json()
    return [(row["path"], row["line"]) for row in document["findings"]]


def test_only_changed_lines_are_reported(cli: Cli, repository: Path) -> None:
    assert lines_found(cli, "--diff", "HEAD") == []
    result = cli("check", "--diff", "HEAD")
    assert result.status == 0
    assert "1 on lines that did not change" in result.out
    write(repository, "a.py", "import torch\n\n\n\n\n" + LINE + LINE)
    assert lines_found(cli, "--diff", "HEAD") == [("a.py", 7)]


def test_a_new_file_is_changed_as_a_whole(cli: Cli, repository: Path) -> None:
    write(repository, "b.py", FAULTY)
    assert lines_found(cli, "--diff", "main") == [("b.py", 3)]


def test_evidence_on_a_changed_line_counts(cli: Cli, repository: Path) -> None:
    write(repository, "a.py", "import torch as t\n\n\n\n\n" + LINE)  # the evidence is on the first line
    assert lines_found(cli, "--diff", "HEAD") == [("a.py", 6)]


def test_the_line_beside_a_removed_one_counts(cli: Cli, repository: Path) -> None:
    write(repository, "a.py", "import torch\n\n\n\nx = 1\n" + LINE)
    git(repository, "commit", "-q", "-a", "-m", "two")
    write(repository, "a.py", "import torch\n\n\n\n" + LINE)
    assert lines_found(cli, "--diff", "HEAD") == [("a.py", 5)]


def test_the_base_is_where_the_branches_parted(cli: Cli, repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "work")
    write(repository, "b.py", FAULTY)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "work")
    git(repository, "checkout", "-q", "main")
    write(repository, "a.py", "import torch\n\n\n\n\nx = 1\n")
    git(repository, "commit", "-q", "-a", "-m", "main goes on")
    git(repository, "checkout", "-q", "work")
    assert lines_found(cli, "--diff", "main") == [("b.py", 3)]


def test_a_moved_file_is_compared_with_its_old_self(cli: Cli, repository: Path) -> None:
    git(repository, "tag", "base")
    git(repository, "mv", "a.py", "moved.py")
    assert lines_found(cli, "--diff", "base") == []
    git(repository, "commit", "-q", "-m", "move")
    assert lines_found(cli, "--diff", "base") == []


def test_from_a_folder_below(cli: Cli, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repository, "src/b.py", FAULTY)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "two")
    write(repository, "src/c.py", FAULTY)
    monkeypatch.chdir(repository / "src")
    assert lines_found(cli, "--diff", "HEAD") == [("c.py", 3)]


def test_cells_of_a_notebook(cli: Cli, repository: Path) -> None:
    write(repository, "n.ipynb", notebook("import torch", LINE))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "two")
    assert lines_found(cli, "n.ipynb", "--diff", "HEAD") == []
    write(repository, "n.ipynb", notebook("import torch", "y = 2\n" + LINE, "z = 1\n" + LINE))
    assert len(lines_found(cli, "n.ipynb", "--diff", "HEAD")) == 1


@pytest.mark.parametrize("base", ["nowhere", "--help", "HEAD~7", "", "-o"])
def test_an_unknown_base_is_a_mistake(cli: Cli, repository: Path, base: str) -> None:
    result = cli("check", f"--diff={base}")
    assert result.status == 2
    assert f"--diff {base}: git knows no such revision here" in result.err


def test_no_repository_is_a_mistake(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write(tmp_path, "a.py", FAULTY)
    result = cli("check", "--diff", "main")
    assert (result.status, result.err) == (2, "torchwise: --diff needs a git repository\n")


def test_no_git_is_a_mistake(cli: Cli, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert "needs git, and there is none" in cli("check", "--diff", "HEAD").err


def test_nothing_of_the_repository_is_run(cli: Cli, repository: Path) -> None:
    """Hooks, filters, monitors and diff programs that the repository configures stay asleep."""
    program = repository / "evil.sh"
    program.write_text("#!/bin/sh\ntouch ran\ncat\n")
    program.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    for key in (
        "core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.external",
        "diff.evil.command", "diff.evil.textconv", "core.pager", "core.sshCommand",
        "core.alternateRefsCommand",
    ):  # fmt: skip
        git(repository, "config", key, str(program))
    write(repository, "a.py", "import torch\n" + LINE)
    result = cli("check", "--diff", "HEAD")
    assert result.status == 1
    assert not (repository / "ran").exists()


TEXTS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=8).map("\n".join)


@given(TEXTS, TEXTS)
def test_what_is_not_changed_stood_there_before(before: str, after: str) -> None:
    changed = changed_lines(before, after)
    kept = [line for number, line in enumerate(after.split("\n")) if number not in changed]
    rest = iter(before.split("\n"))
    assert all(line in rest for line in kept)
    assert (changed == frozenset()) == (before == after)


# ---------------------------------------------------------------------------- the baseline


def test_a_baseline_is_written_and_then_held(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    result = cli("check", "--update-baseline")
    assert (result.status, result.out) == (
        0,
        "torchwise-baseline.json: 1 finding. Check with --baseline torchwise-baseline.json\n",
    )
    result = cli("check", "--baseline", "torchwise-baseline.json")
    assert (result.status, result.out) == (0, "No findings in 1 file; 1 in the baseline.\n")


def test_a_baseline_outlives_edits_above_and_counts(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\n" + LINE)
    cli("check", "--update-baseline", "--baseline", "b.json")
    write(tmp_path, "a.py", "import torch\n\n\n\n" + LINE + LINE)
    result = cli("check", "--baseline", "b.json", "--format", "json")
    assert result.status == 1
    assert [row["line"] for row in result.json()["findings"]] == [6]


def test_what_is_gone_is_said_and_removed(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\n" + LINE)
    cli("check", "--update-baseline")
    write(tmp_path, "a.py", "import torch\nother  # fault: error certain\n")
    result = cli("check", "--baseline", "torchwise-baseline.json")
    assert result.status == 1
    assert "1 of the baseline are gone" in result.out
    assert "1 finding, 1 new, 1 gone" in cli("check", "--update-baseline").out
    document = json.loads((tmp_path / "torchwise-baseline.json").read_text(encoding="utf-8"))
    assert [row["text"] for row in document["findings"]] == ["other # fault: error certain"]


def test_a_baseline_works_from_any_folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "src/a.py", FAULTY)
    cli("check", "--update-baseline")
    monkeypatch.chdir(tmp_path / "src")
    assert cli("check", "--baseline", "../torchwise-baseline.json").status == 0


def test_a_baseline_is_the_same_twice(cli: Cli, tmp_path: Path) -> None:
    for name in "cab":
        write(tmp_path, f"{name}.py", FAULTY)
    cli("check", "--update-baseline", "a.py", "b.py", "c.py")
    first = (tmp_path / "torchwise-baseline.json").read_bytes()
    cli("check", "--update-baseline", "c.py", "b.py", "a.py")
    assert (tmp_path / "torchwise-baseline.json").read_bytes() == first
    assert first.count(b"\n") == len([*first.splitlines()])


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"version": 2, "findings": []}', '{"version": 1, "findings": {}}', "\udc80",
        "[" * 99999,
        '{"version": 1, "findings": [{"path": "a", "rule": "b", "text": "c", "count": -1}]}',
        '{"version": 1, "findings": [1]}',
    ],
)  # fmt: skip
def test_what_is_no_baseline_is_a_mistake(cli: Cli, tmp_path: Path, content: str) -> None:
    write(tmp_path, "a.py", FAULTY)
    (tmp_path / "b.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    result = cli("check", "--baseline", "b.json")
    assert result.status == 2
    assert result.err.startswith("torchwise: --baseline b.json: not a baseline of torchwise")
    assert cli("check", "--baseline", "nowhere.json").err.startswith(
        "torchwise: --baseline nowhere.json: no such"
    )

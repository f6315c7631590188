"""As a new user: the wheel in an empty environment, with the oldest and the newest libraries; pre-commit.

These tests need a package index and take minutes; `make test-packages` runs them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.integrations.test_action import FAULTY, git
from tests.packages.test_artifacts import PROJECT, ROOT, build

from torchwise_server import __version__

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(not os.environ.get("TORCHWISE_TEST_PACKAGES"), reason="needs a package index"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True)


def floors() -> list[str]:
    """The oldest versions that we say we work with."""
    found = []
    for requirement in PROJECT["dependencies"]:
        match = re.match(r"([\w.-]+)>=([\d.]+)", requirement)
        if match and ("python_version" not in requirement or sys.version_info < (3, 11)):
            found.append(f"{match[1]}=={match[2]}")
    return found


@pytest.mark.parametrize("versions", ["newest", "oldest"])
def test_it_works_alone_and_brings_no_torch(wheel: Path, tmp_path: Path, versions: str) -> None:
    python = environment(tmp_path / "env")
    pinned = floors() if versions == "oldest" else []
    done = run(python, "-m", "pip", "install", "--quiet", wheel, *pinned, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = {
        each["name"].lower()
        for each in json.loads(run(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path).stdout)
    }
    assert not listed & {"torch", "numpy", "transformers", "nvidia-cublas-cu12"}
    assert run(python, "-m", "pip", "check", cwd=tmp_path).returncode == 0
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(FAULTY)
    torchwise = python.with_name("torchwise")
    found = json.loads(run(torchwise, "check", "train.py", "--format", "json", cwd=project).stdout)
    assert [each["rule"] for each in found["findings"]] == ["missing-zero-grad"]
    assert run(torchwise, "check", ".", cwd=project).returncode == 1
    answer = json.loads(
        run(torchwise, "estimate", "train.py", "--gpu", "t4", "--format", "json", cwd=project).stdout
    )
    assert answer["estimates"][0]["peak"]["allocated"]["point"] > 0
    assert run(torchwise, "fix", "--unsafe", cwd=project).returncode == 0
    assert run(torchwise, "check", cwd=project).returncode == 0
    asked = "import torchwise_server.lsp.main, torchwise_server.lsp.server"
    done = run(python, "-c", asked, cwd=project)
    assert done.returncode == 0, done.stderr


def test_two_bundles_for_vs_code_are_the_same_files(tmp_path: Path) -> None:
    digests = []
    source = tmp_path / "source"  # a copy: nobody edits it meanwhile
    ignored = shutil.ignore_patterns(".venv*", "node_modules", "__pycache__", ".git", "bundled", ".*_cache")
    shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
    for name in ("one", "two"):
        script = source / "scripts/bundle_server.py"
        done = run(sys.executable, script, "--into", tmp_path / name / "libs", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        digests.append(
            {
                str(path.relative_to(tmp_path / name)): (
                    path.stat().st_mode,
                    hashlib.sha256(path.read_bytes()).hexdigest(),
                )
                for path in files
            }
        )
    assert digests[0] == digests[1]
    assert f"libs/torchwise-{__version__}.dist-info/METADATA" in digests[0]


def test_it_is_typed_for_who_uses_it(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    assert run(python, "-m", "pip", "install", "--quiet", wheel, "mypy", cwd=tmp_path).returncode == 0
    (tmp_path / "use.py").write_text(
        "from torchwise_analysis.api import Severity, Trace\n"
        "reveal_type(Severity.ERROR.value)\n"
        "def f(trace: Trace) -> int:\n    return trace.steps\n"
    )
    said = run(python, "-m", "mypy", "--strict", "use.py", cwd=tmp_path).stdout
    assert "Literal['error']" in said
    assert "Incompatible return value type" in said
    assert "import-untyped" not in said


def test_a_rule_from_outside_is_found_when_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    assert run(python, "-m", "pip", "install", "--quiet", wheel, "pytest", cwd=tmp_path).returncode == 0
    torchwise = python.with_name("torchwise")
    assert run(torchwise, "new-rule", "loss-tracked-raw", "--code", "ACME001", cwd=tmp_path).returncode == 0
    folder = tmp_path / "torchwise-loss-tracked-raw"
    # as documented; torchwise itself is there already
    done = run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(python, "-m", "pytest", "-q", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "ACME001" in run(torchwise, "rules", cwd=tmp_path).stdout
    (folder / "loss_tracked_raw.py").write_text("raise OSError('gone')\n")
    (tmp_path / "train.py").write_text("import torch\n")
    done = run(torchwise, "check", "train.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "plug-in loss-tracked-raw" in done.stdout
    assert "OSError: gone" in done.stdout


def test_pre_commit_runs_the_hooks_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "env")
    assert run(python, "-m", "pip", "install", "--quiet", "pre-commit", cwd=tmp_path).returncode == 0
    hooks = tmp_path / "hooks"
    ignored = shutil.ignore_patterns(".venv*", "node_modules", "__pycache__", ".git", "bundled", ".*_cache")
    shutil.copytree(ROOT, hooks, ignore=ignored, symlinks=True)
    git(hooks, "init", "-q")
    git(hooks, "add", ".")
    git(hooks, "commit", "-q", "-m", "all")
    git(hooks, "tag", "v0.1.0")
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q")
    documented = re.search(
        r"```yaml\n(repos:\n.*?)```", (ROOT / "docs/ci.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert documented is not None
    text = re.sub(r"https://\S+", hooks.as_uri(), documented[1])
    (project / ".pre-commit-config.yaml").write_text(text)
    (project / "train.py").write_text(FAULTY)
    git(project, "add", ".")
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    pre_commit = python.with_name("pre-commit")
    done = run(pre_commit, "run", "--all-files", cwd=project)
    assert done.returncode == 1, done.stderr
    assert "missing-zero-grad" in done.stdout
    (project / "train.py").write_text(
        FAULTY.replace("optimizer.step()", "optimizer.step()\n        optimizer.zero_grad()")
    )
    done = run(pre_commit, "run", "--all-files", cwd=project)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"torchwise (?:check|fix)\.+Passed", done.stdout)) == 2

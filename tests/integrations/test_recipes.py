"""The other ways into a build: GitLab's template, the pre-commit hooks, and the recipes of docs/ci.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.integrations.test_action import FAULTY, ROOT, git, python_without_an_index

CI = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
CLEAN = FAULTY.replace("optimizer.step()", "optimizer.step()\n        optimizer.zero_grad()")


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `torchwise` is this one and `python -m pip` does nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "torchwise": f'exec "{sys.executable}" -m torchwise_server "$@"\n',
        "python": f'[ "$1 $2" = "-m pip" ] && exit 0\nexec "{sys.executable}" "$@"\n',
    }.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text(FAULTY)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    return folder


# ---------------------------------------------------------------------------- GitLab


def run_job(job: dict[str, Any], project: Path, environment: dict[str, str], **variables: str) -> int:
    """The script of a job, in one shell, stopping at the first line that fails."""
    lines = [*job.get("before_script", []), *job["script"]]
    given = {name: str(value) for name, value in job.get("variables", {}).items()}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], cwd=project, env={**environment, **given, **variables}
    )
    return done.returncode


def template() -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((ROOT / "templates/torchwise.yml").read_text(encoding="utf-8"))[
        "torchwise"
    ]
    return job


def test_gitlab_reports_findings_and_memory(project: Path, path: dict[str, str]) -> None:
    job = template()
    assert run_job(job, project, path, TORCHWISE_SCRIPTS="train.py", TORCHWISE_GPU="t4") == 1
    rows = json.loads((project / job["artifacts"]["reports"]["codequality"]).read_text())
    assert [row["check_name"] for row in rows] == ["missing-zero-grad"]
    assert "<svg" in (project / job["artifacts"]["paths"][0]).read_text()


def test_gitlab_reports_changed_lines_of_a_merge_request(project: Path, path: dict[str, str]) -> None:
    base = git(project, "rev-parse", "HEAD")
    assert run_job(template(), project, path, CI_MERGE_REQUEST_DIFF_BASE_SHA=base) == 0
    (project / "new.py").write_text(FAULTY)
    assert run_job(template(), project, path, CI_MERGE_REQUEST_DIFF_BASE_SHA=base) == 1


def test_the_gitlab_job_installs_what_it_runs(project: Path, tmp_path: Path) -> None:
    """The whole job in an environment that has Python and no torchwise, as the image has."""
    wheel_builder = pytest.importorskip("hatchling.builders.wheel")
    (wheel,) = wheel_builder.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    image = tmp_path / "image"
    subprocess.run([python_without_an_index(tmp_path), "-m", "venv", image], check=True)
    bare = {
        **os.environ,
        "PATH": f"{image}/bin:/usr/local/bin:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
    }
    assert not (image / "bin/torchwise").exists()
    assert run_job(template(), project, bare, TORCHWISE_PACKAGE=str(wheel), TORCHWISE_SCRIPTS="train.py") == 1
    assert (image / "bin/torchwise").exists()
    rows = json.loads((project / "gl-code-quality-report.json").read_text())
    assert [row["check_name"] for row in rows] == ["missing-zero-grad"]


def test_gitlab_variables_are_those_of_the_head(project: Path) -> None:
    text = (ROOT / "templates/torchwise.yml").read_text(encoding="utf-8")
    explained = set(re.findall(r"^#   (TORCHWISE_\w+)", text, re.MULTILINE))
    assert explained == {name for name in template()["variables"] if name.startswith("TORCHWISE_")}


# ---------------------------------------------------------------------------- pre-commit


def test_hooks_are_commands_that_exist(project: Path, path: dict[str, str]) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert [hook["id"] for hook in hooks] == ["torchwise-check", "torchwise-fix"]
    for hook in hooks:
        assert hook["language"] == "python"
        # pre-commit appends the names of the files
        done = subprocess.run(
            [*hook["entry"].split(), "train.py"], cwd=project, env=path, capture_output=True
        )
        assert done.returncode == 1


# ---------------------------------------------------------------------------- recipes of docs/ci.md


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", CI, re.DOTALL | re.MULTILINE)


def test_the_pytest_recipe_fails_with_the_findings(project: Path, path: dict[str, str]) -> None:
    (recipe,) = (block for block in blocks("python") if "def test_" in block)
    (project / "src").mkdir()
    (project / "train.py").rename(project / "src/train.py")
    (project / "test_training_code.py").write_text(recipe)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=project, env=path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "missing-zero-grad" in done.stdout
    (project / "src/train.py").write_text(CLEAN)
    done = subprocess.run(command, cwd=project, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_yaml_of_the_documentation_is_yaml(project: Path) -> None:
    assert len(blocks("yaml")) >= 3
    for block in blocks("yaml"):
        yaml.safe_load(block)


def test_inputs_of_the_action_are_documented() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", CI, re.MULTILINE))
    assert documented == set(action["inputs"]) - {"token"}

"""The container recipe, step by step without a container: what it runs, with what it has at each stage.

Needs a package index, as `test_fresh.py` does: `make test-packages`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integrations.test_action import FAULTY
from tests.packages.test_artifacts import ROOT

RECIPE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
STAGES = re.split(r"^FROM ", RECIPE, flags=re.MULTILINE)[1:]


def commands(stage: str) -> list[str]:
    """The shell commands of a stage, without its mounts and without what only makes a user."""
    runs = re.findall(r"^RUN (.*)$", stage, re.MULTILINE)
    parts = [part.strip() for run in runs for part in re.sub(r"--mount=\S+", "", run).split("&&")]
    return [part for part in parts if not part.startswith("useradd")]


def test_the_image_is_small_unprivileged_and_checks_by_itself() -> None:
    build, image = STAGES
    assert re.match(r"python:3\.\d+-slim AS build\n", build)
    assert re.match(r"python:3\.\d+-slim\n", image)
    assert "--mount=type=bind,from=build" in image  # the wheels stay out of the image
    assert image.index("USER torchwise") < image.index("ENTRYPOINT")
    assert json.loads(re.findall(r"^CMD (.*)$", image, re.MULTILINE)[0]) == ["check", "."]
    assert all("--no-index" in each for each in commands(image) if "pip install" in each)


@pytest.mark.packages
@pytest.mark.skipif(not os.environ.get("TORCHWISE_TEST_PACKAGES"), reason="needs a package index")
def test_its_steps_make_a_command_that_works(tmp_path: Path) -> None:
    source, wheels, code = tmp_path / "src", tmp_path / "wheels", tmp_path / "code"
    ignored = shutil.ignore_patterns(".venv*", "node_modules", "__pycache__", ".git", "bundled", ".*_cache")
    shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
    code.mkdir()
    (code / "train.py").write_text(FAULTY)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for number, stage in enumerate(STAGES):
        python = tmp_path / f"stage{number}/bin/python"
        subprocess.run([sys.executable, "-m", "venv", tmp_path / f"stage{number}"], check=True)
        clean["PATH"] = f"{python.parent}:{os.environ['PATH']}"
        if number:
            clean["PIP_NO_INDEX"] = "1"  # the second stage has what the first one made, and nothing else
        for command in commands(stage):
            there = command.replace("/src", str(source)).replace("/wheels", str(wheels))
            done = subprocess.run(["sh", "-ec", there], env=clean, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", STAGES[-1], re.MULTILINE)
    done = subprocess.run(
        [*json.loads(entry), "check", "."], cwd=code, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "missing-zero-grad" in done.stdout

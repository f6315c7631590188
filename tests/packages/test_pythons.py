"""Every Python that is at hand and that we say we work with says the same of the examples.

Needs a package index, as `test_fresh.py` does: `make test-packages`. A version that is not there is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.packages.test_artifacts import PROJECT, ROOT, build

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(not os.environ.get("TORCHWISE_TEST_PACKAGES"), reason="needs a package index"),
]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
IMPORT_ALL = """\
import importlib, pkgutil
for name in ("torchwise_server", "torchwise_analysis", "torchwise_memory"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if ".live" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def interpreter(version: str) -> str | None:
    """A program that is this version: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [
        shutil.which(f"python{version}"),
        *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"))),
    ]
    for path in filter(None, found):
        done = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if done.stdout.strip() == version:
            return path
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def answers(python: str, folder: Path) -> list[Any]:
    """What a person gets: findings, the fixes that would be applied, estimates."""
    found: list[Any] = []
    for words in (
        ("check", "examples", "--no-cache", "--format", "json"),
        ("fix", "examples", "--unsafe", "--diff"),
        ("estimate", "examples/train_gpt.py", "--gpu", "t4", "--format", "json"),
        ("estimate", "--model", "gpt2", "--seq-len", "128", "--format", "json"),
        ("explain", "retained-graph"),
    ):
        done = subprocess.run(
            [python, "-m", "torchwise_server", *words], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode in (0, 1), done.stderr
        found.append(json.loads(done.stdout) if "json" in words else done.stdout)
    return found


def test_the_metadata_names_the_versions() -> None:
    named = {
        each.rpartition(" ")[2] for each in PROJECT["classifiers"] if each.startswith("Programming Language")
    }
    assert {"3.10", "3.11", "3.12", "3.13"} <= named
    assert PROJECT["requires-python"] == ">=3.10"


def installed(program: str, wheel: Path, folder: Path) -> str:
    """An interpreter with the wheel in an environment of its own."""
    subprocess.run([program, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin/python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module")
def expected(wheel: Path, project: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the Python says that runs the tests."""
    return answers(installed(sys.executable, wheel, tmp_path_factory.mktemp("own") / "env"), project)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_python_says_the_same(
    version: str, wheel: Path, project: Path, expected: list[Any], tmp_path: Path
) -> None:
    program = interpreter(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    python = installed(program, wheel, tmp_path / "env")
    # what a next version takes away is a warning before
    strict = [python, "-W", "error::DeprecationWarning:torchwise_", "-W", "error::SyntaxWarning"]
    done = subprocess.run([*strict, "-c", IMPORT_ALL], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answers(python, project) == expected

"""The wheel and the source distribution: what is in them, and that they are the same twice."""

from __future__ import annotations

import email.message
import email.parser
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from torchwise_server import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGES = {"torchwise_analysis", "torchwise_memory", "torchwise_server"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

wheel_builder = pytest.importorskip("hatchling.builders.wheel")
sdist_builder = pytest.importorskip("hatchling.builders.sdist")


def build(kind: str, root: Path, folder: Path) -> Path:
    builder = wheel_builder.WheelBuilder if kind == "wheel" else sdist_builder.SdistBuilder
    (name,) = builder(str(root)).build(directory=str(folder), versions=["standard"])
    return Path(name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(archive.read(name).decode())


def test_the_wheel_brings_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops - PACKAGES == {f"torchwise-{__version__}.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".pyo", ".so", ".orig", "~"))]
    assert not [name for name in names if "/tests/" in name or "conftest" in name]


def test_every_tracked_file_of_a_package_is_in_the_wheel(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for file in listed.stdout.decode().split("\0"):
        _, _, rest = file.partition("/")
        if rest.partition("/")[0] in PACKAGES and (ROOT / file).is_file():
            assert rest in names, file


def test_the_metadata_says_what_a_reader_needs(wheel: Path) -> None:
    said = metadata(wheel)
    assert (said["Name"], said["Version"], said["Requires-Python"]) == ("torchwise", __version__, ">=3.10")
    assert said["License-Expression"] == "MIT"
    assert said["Description-Content-Type"] == "text/markdown"
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"torchwise-{__version__}.dist-info/entry_points.txt").decode()
    assert "torchwise = torchwise_server.__main__:main" in entry_points


def test_no_dependency_is_heavy_and_each_has_a_floor(wheel: Path) -> None:
    required = [each for each in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in each]
    assert required
    for requirement in required:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        assert name[0].lower() not in {"torch", "numpy", "transformers", "tensorflow", "pandas"}
        assert ">=" in requirement, f"{requirement} has no lower bound"


def test_a_library_whose_interface_moves_has_a_ceiling() -> None:
    """pygls changed what we use of it with each major version; the others promise not to."""
    ceilings = {
        re.split(r"[<>=;]", each)[0].strip(): "<" in each.partition(";")[0]
        for each in PROJECT["dependencies"]
    }
    assert ceilings["pygls"]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_are_the_same_bytes(kind: str, tmp_path: Path) -> None:
    digests = set()
    for number in (1, 2):
        # another folder, another time of day: neither may be seen in the result
        copy = tmp_path / f"copy{number}"
        for name in ("server", "shared_analysis", "memory_model"):
            shutil.copytree(
                ROOT / name,
                copy / name,
                ignore=shutil.ignore_patterns("__pycache__"),
                copy_function=shutil.copyfile,
            )
        for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copyfile(ROOT / name, copy / name)
        digests.add(hashlib.sha256(build(kind, copy, tmp_path / f"out{number}").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert build("wheel", source, tmp_path / "out").read_bytes() == wheel.read_bytes()


def test_the_source_distribution_has_the_tests_and_no_clutter(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py"} <= names
    # what tests read
    assert {
        "action.yml",
        ".pre-commit-hooks.yaml",
        "templates/torchwise.yml",
        "Dockerfile",
        "Makefile",
    } <= names
    assert {"benchmarks/accuracy.py", "vscode-extension/package.json", "mkdocs.yml"} <= names
    assert not [
        name for name in names if re.search(r"node_modules|\.venv|__pycache__|\.vsix|/bundled/", name)
    ]

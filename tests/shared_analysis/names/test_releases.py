"""Which releases a project declares: requirement files, locks, environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.releases import release_run, releases

LOCKED = """
[[package]]
name = "torch"
version = "2.6.0+cu124"

[[package]]
name = "torchvision"
version = "0.21.0"
"""
POETRY = "[tool.poetry.dependencies]\n"


@pytest.mark.parametrize(
    ("name", "text", "low", "high"),
    [
        ("requirements.txt", "numpy\ntorch==2.3.1+cu121  # pinned\n", (2, 3, 1), (2, 3, 1)),
        ("requirements/base.txt", "torch~=2.1\n", (2, 1), (2, 1)),
        ("constraints.txt", "torch<=2.4.1\n", None, (2, 4, 1)),
        ("requirements.in", "torch[opt-einsum]>=2.2,!=2.3\n", (2, 2), None),
        ("pyproject.toml", '[project]\ndependencies = ["torch>=2.1,<=2.4"]\n', (2, 1), (2, 4)),
        ("pyproject.toml", POETRY + 'torch = "2.1.2"\n', (2, 1, 2), (2, 1, 2)),
        (
            "pyproject.toml",
            POETRY + 'torch = {version = ">=2.0", source = "cu"}\n',
            (2, 0),
            None,
        ),
        ("poetry.lock", LOCKED, (2, 6, 0), (2, 6, 0)),
        ("uv.lock", LOCKED, (2, 6, 0), (2, 6, 0)),
        ("pdm.lock", LOCKED, (2, 6, 0), (2, 6, 0)),
        ("pylock.toml", LOCKED, (2, 6, 0), (2, 6, 0)),
        (
            "Pipfile.lock",
            '{"default": {"torch": {"hashes": ["sha256:1"], "index": "pypi", "version": "==2.1.2"}}}',
            (2, 1, 2),
            (2, 1, 2),
        ),
        ("Pipfile", '[packages]\ntorch = "==1.13.1"\n', (1, 13, 1), (1, 13, 1)),
        (
            "environment.yml",
            "dependencies:\n  - pytorch=1.12.1\n  - pytorch-cuda=11.8\n",
            (1, 12, 1),
            (1, 12, 1),
        ),
        ("conda-lock.yml", "package:\n- name: pytorch\n  version: 2.4.0\n", (2, 4, 0), (2, 4, 0)),
        ("setup.py", "setup(install_requires=['torch>=1.8'])\n", (1, 8), None),
    ],
)
def test_a_project_says_which_release(
    tmp_path: Path, name: str, text: str, low: tuple[int, ...] | None, high: tuple[int, ...] | None
) -> None:
    _write(tmp_path, name, text)
    found = releases("torch", [str(tmp_path)], [])
    assert found is not None
    assert (found.low, found.high) == (low, high)
    assert name.rpartition("/")[2] in found.where


@pytest.mark.parametrize(
    "text", ["torchvision==0.15\n", "pytorch-lightning>=2.0\n", "torch\n", "# torch==1.0 was too old\n"]
)
def test_other_names_say_nothing_of_it(tmp_path: Path, text: str) -> None:
    _write(tmp_path, "requirements.txt", text)
    assert releases("torch", [str(tmp_path)], []) is None


def test_a_caret_allows_up_to_the_next_major_release(tmp_path: Path) -> None:
    _write(tmp_path, "pyproject.toml", POETRY + 'torch = "^2.1"\n')
    found = releases("torch", [str(tmp_path)], [])
    assert found is not None and found.low == (2, 1)
    assert found.high is not None and (2, 99) < found.high < (3,)


def test_a_lock_says_more_than_a_range(tmp_path: Path) -> None:
    _write(tmp_path, "pyproject.toml", '[project]\ndependencies = ["torch>=2.1"]\n')
    _write(tmp_path, "uv.lock", LOCKED)
    assert release_run("torch", [str(tmp_path)], []) == ((2, 6, 0), "torch 2.6.0 in uv.lock")


def test_what_is_installed_says_more_than_a_range(tmp_path: Path) -> None:
    _write(tmp_path, "requirements.txt", "torch>=2.1,<2.9\n")
    installed = tmp_path / "lib" / "site-packages"
    (installed / "torch-2.5.1.dist-info").mkdir(parents=True)
    assert release_run("torch", [str(tmp_path)], [str(installed)])[0] == (2, 5, 1)
    newest, _ = release_run("torch", [str(tmp_path)], [])
    assert newest is not None and newest[:2] == (2, 8)
    assert release_run("transformers", [str(tmp_path)], [str(installed)]) == (None, "")


def _write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")

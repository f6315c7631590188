from __future__ import annotations

import sys
from pathlib import Path

from torchwise_analysis.names.environment import library_folders


def make_environment(prefix: Path, version: str = "3.12") -> str:
    folder = prefix / "lib" / f"python{version}" / "site-packages"
    folder.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("home = /nowhere\n")
    return str(folder)


def test_the_environment_beside_the_project_comes_first(tmp_path: Path) -> None:
    beside = make_environment(tmp_path / "project" / ".venv")
    active = tmp_path / "active"
    make_environment(active)
    script = tmp_path / "project" / "src" / "train.py"
    assert library_folders(script, {"VIRTUAL_ENV": str(active)}) == (beside,)


def test_the_active_environment_is_next(tmp_path: Path) -> None:
    active = make_environment(tmp_path / "active")
    assert library_folders(tmp_path / "train.py", {"CONDA_PREFIX": str(tmp_path / "active")}) == (active,)


def test_a_folder_called_venv_without_its_mark_is_none(tmp_path: Path) -> None:
    (tmp_path / "venv" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    assert str(tmp_path) not in "".join(library_folders(tmp_path / "train.py", {}))


def test_a_linked_lib64_is_not_listed_twice(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / ".venv")
    (tmp_path / ".venv" / "lib64").symlink_to(tmp_path / ".venv" / "lib")
    assert library_folders(tmp_path / "train.py", {}) == (folder,)


def test_the_environment_of_torchwise_is_the_last_resort(tmp_path: Path) -> None:
    folders = library_folders(tmp_path / "train.py", {})
    assert folders
    assert all(folder.startswith(sys.prefix) for folder in folders)

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.settings import SettingsFinder
from torchwise_server.cli.files import collect


def names(folder: Path, *arguments: str) -> list[str]:
    inputs = collect([str(folder / argument) for argument in arguments], SettingsFinder())
    return [item.path.relative_to(folder).as_posix() for item in inputs.files]


def touch(folder: Path, *files: str) -> None:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_a_folder_gives_python_files_and_notebooks_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.py", "a.py", "n.ipynb", "sub/c.py", "data.txt")
    assert names(tmp_path, ".") == ["a.py", "b.py", "n.ipynb", "sub/c.py"]


@pytest.mark.parametrize("name", [".git", ".venv", "node_modules", "build", "site-packages", "__pycache__"])
def test_usual_folders_are_passed_over(tmp_path: Path, name: str) -> None:
    touch(tmp_path, f"{name}/x.py", "a.py")
    inputs = collect([str(tmp_path)], SettingsFinder())
    assert [item.path.name for item in inputs.files] == ["a.py"]
    assert inputs.excluded[0].why == f"excluded by '{name}'"


@pytest.mark.parametrize(
    "argument", ["lib/site-packages/pkg", "lib/site-packages/pkg/x.py", "lib/site-packages"]
)
def test_what_is_named_is_read_below_site_packages(tmp_path: Path, argument: str) -> None:
    touch(tmp_path, "lib/site-packages/pkg/x.py")
    assert names(tmp_path, argument) == ["lib/site-packages/pkg/x.py"]


def test_a_file_of_any_suffix_is_read_when_named(tmp_path: Path) -> None:
    touch(tmp_path, "train")
    assert names(tmp_path, "train") == ["train"]


def test_a_file_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.py")
    assert names(tmp_path, "a.py", ".", "*.py") == ["a.py"]


def test_patterns_find_files_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.py", "y/b.py", "y/c.txt")
    assert names(tmp_path, "*/*.py") == ["x/a.py", "y/b.py"]
    assert names(tmp_path, "**/b.*") == ["y/b.py"]


def test_a_name_that_looks_like_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].py", "a1.py")
    assert names(tmp_path, "a[1].py") == ["a[1].py"]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.py")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    inputs = collect([str(tmp_path)], SettingsFinder())
    assert [item.path.name for item in inputs.files] == ["x.py"]
    assert inputs.excluded[0].why == "a link to a folder"


def test_a_link_to_a_folder_is_followed_when_named(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.py")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert names(tmp_path, "link") == ["link/x.py"]


def test_folders_called_like_files_are_folders(tmp_path: Path) -> None:
    touch(tmp_path, "pkg.py/inner.py")
    assert names(tmp_path, ".") == ["pkg.py/inner.py"]
    assert names(tmp_path, "pkg.py") == ["pkg.py/inner.py"]


def test_dead_links_are_passed_over_in_folders(tmp_path: Path) -> None:
    (tmp_path / "dead.py").symlink_to(tmp_path / "nowhere.py")
    inputs = collect([str(tmp_path)], SettingsFinder())
    assert inputs.files == ()
    assert inputs.excluded[0].why == "not a regular file"


def test_what_leads_nowhere_is_named(tmp_path: Path) -> None:
    inputs = collect([str(tmp_path / "no.py"), str(tmp_path / "*.zzz")], SettingsFinder())
    assert [item.why for item in inputs.missing] == ["no such file or folder", "no file matches this pattern"]


@pytest.mark.parametrize("old", ["src/old", r"src\\old"])
def test_settings_exclude_by_path(tmp_path: Path, old: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.torchwise]\nextend-exclude = ["{old}", "gen_*"]\n')
    touch(tmp_path, "src/old/a.py", "src/new/a.py", "src/new/gen_b.py")
    assert names(tmp_path, ".") == ["src/new/a.py"]
    assert names(tmp_path, "src/old") == ["src/old/a.py"]

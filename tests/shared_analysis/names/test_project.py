"""Imports are resolved by looking at folders, as CPython's path finder would, and nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.project import Project, module_name, project_roots, shared_roots


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "pyproject.toml": "",
        "train.py": "from pkg.models import Net\n",
        "utils.py": "x = 1\n",
        "src/lib/__init__.py": "",
        "src/lib/core.py": "y = 2\n",
        "pkg/__init__.py": "",
        "pkg/models.py": "class Net: ...\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/deep.py": "from ..models import Net\n",
        "plain/a.py": "from .b import c\n",
        "plain/b.py": "c = 1\n",
        "site/torchlike/__init__.py": "z = 3\n",
        "site/utils.py": "x = 'library'\n",
        "evil.py": "import pathlib; pathlib.Path('executed').write_text('')\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def project(tree: Path) -> Project:
    return Project(project_roots(str(tree / "train.py")), libraries=[str(tree / "site")])


@pytest.mark.parametrize(
    ("name", "expected", "library"),
    [
        ("pkg.models", "pkg/models.py", False),
        ("pkg", "pkg/__init__.py", False),
        ("utils", "utils.py", False),
        ("lib.core", "src/lib/core.py", False),
        ("torchlike", "site/torchlike/__init__.py", True),
    ],
)
def test_absolute_names(tree: Path, name: str, expected: str, library: bool) -> None:
    found = project(tree).find(name, str(tree / "train.py"))
    assert found is not None
    assert found.path == str(tree / expected)
    assert found.is_library is library


def test_what_lies_beside_a_script_of_a_package(tree: Path) -> None:
    (tree / "pkg/helpers.py").write_text("a = 1\n")
    (tree / "pkg/utils.py").write_text("a = 1\n")
    (tree / "pkg/wandb.py").write_text("import wandb\n")
    (tree / "pkg/json.py").write_text("a = 1\n")
    script = str(tree / "pkg/models.py")
    known = {name: project(tree).find(name, script) for name in ("helpers", "utils", "wandb", "json")}
    paths = {name: found.path if found else None for name, found in known.items()}
    assert paths == {
        "helpers": str(tree / "pkg/helpers.py"),
        "utils": str(tree / "utils.py"),  # what the package sees comes first
        "wandb": str(tree / "pkg/wandb.py"),
        "json": None,
    }
    assert project(tree).find("wandb", str(tree / "pkg/wandb.py")) is None


def test_files_of_an_installed_package_are_libraries_to_each_other(tmp_path: Path) -> None:
    package = tmp_path / "env/lib/python3.12/site-packages/thing"
    package.mkdir(parents=True)
    for name in ("__init__", "models", "train"):
        (package / f"{name}.py").write_text("a = 1\n")
    script = str(package / "train.py")
    own = Project(project_roots(script))
    for found in (own.find("thing.models", script), own.find_relative("models", 1, script)):
        assert found is not None
        assert found.path == str(package / "models.py")
        assert found.is_library


def test_relative_names(tree: Path) -> None:
    models = project(tree).find_relative("models", 2, str(tree / "pkg/sub/deep.py"))
    assert models is not None
    assert models.name == "pkg.models"
    without_init = project(tree).find_relative("b", 1, str(tree / "plain/a.py"))
    assert without_init is not None
    assert without_init.path == str(tree / "plain/b.py")


@pytest.mark.parametrize(
    "name", ["missing", "pkg.missing", "..", "pkg..models", "/etc/passwd", "os.system('x')"]
)
def test_what_is_not_there_stays_unresolved(tree: Path, name: str) -> None:
    assert project(tree).find(name, str(tree / "train.py")) is None


def test_loading_reads_and_never_runs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    module = project(tree).load(str(tree / "evil.py"))
    assert module is not None
    assert len(module.body) > 0
    assert not (tree / "executed").exists()


def test_open_documents_win_over_the_disk(tree: Path) -> None:
    path = str(tree / "utils.py")
    unsaved = project(tree).load(str(tree / "train.py"))
    with_overlay = Project([str(tree)], overlay=lambda asked: unsaved if asked == path else None)
    assert with_overlay.load(path) is unsaved


def test_a_new_file_is_seen_after_forget(tree: Path) -> None:
    known = project(tree)
    assert known.find("later") is None
    (tree / "later.py").write_text("")
    known.forget(str(tree / "later.py"))
    assert known.find("later") is not None


def test_what_is_held_for_a_while_leaves_the_version_as_it_was(tree: Path) -> None:
    project, path = Project([str(tree)]), str(tree / "utils.py")
    before, module = project.version, project.load(path)
    seen: list[int] = []
    for text in ("x = 2\n", "x = 3\n"):
        with project.holding(path, text):
            seen.append(project.version)
            assert project.text(path) == text
        assert project.version == before
        assert project.load(path) is module
    project.forget(path)
    assert len({before, *seen, project.version}) == 4


def test_module_names(tree: Path) -> None:
    assert module_name(str(tree / "pkg/sub/deep.py")) == "pkg.sub.deep"
    assert module_name(str(tree / "pkg/__init__.py")) == "pkg"
    assert module_name(str(tree / "train.py")) == "train"


def test_a_project_whose_folder_is_a_package_root_keeps_its_folder(tmp_path: Path) -> None:
    """`src/__init__.py` beside `pyproject.toml`: settings and requirements lie above `src`."""
    (tmp_path / "src").mkdir()
    for name in ("pyproject.toml", "src/__init__.py", "src/train.py"):
        (tmp_path / name).touch()
    path = str(tmp_path / "src" / "train.py")
    assert shared_roots(path) == (str(tmp_path), str(tmp_path / "src"))
    assert project_roots(path) == (str(tmp_path), str(tmp_path / "src"))

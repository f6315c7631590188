"""Imports from folders that a script puts on `sys.path` itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.edited_path import added_folders, folders_by_jedi
from torchwise_analysis.names.project import Project

HEAD = "import os, sys\nfrom pathlib import Path\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    package = tmp_path / "code" / "lib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def build():\n    pass\n")
    (tmp_path / "code" / "flat.py").write_text("x = 1\n")
    (tmp_path / "scripts").mkdir()
    return tmp_path / "scripts" / "train.py"


@pytest.mark.parametrize(
    "edit",
    [
        'sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "code"))',
        'sys.path.append("../code")',
        "sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '../code'))",
    ],
)
def test_what_lies_there_is_found(script: Path, edit: str) -> None:
    script.write_text(f"{HEAD}{edit}\nfrom lib.helpers import build\nimport flat\n")
    project = Project([str(script.parent)])
    for name, file in (("lib.helpers", "lib/helpers.py"), ("lib", "lib/__init__.py"), ("flat", "flat.py")):
        found = project.find(name, str(script))
        assert found is not None and Path(found.path) == script.parents[1] / "code" / file
        assert found.name == name and not found.is_library


def test_jedi_is_asked_once_and_only_about_a_file_that_edits_the_path(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def added_folders(path: str, *_: object) -> tuple[str, ...]:
        asked.append(path)
        return ()

    monkeypatch.setattr("torchwise_analysis.names.project.added_folders", added_folders)
    neighbour = script.with_name("other.py")
    script.write_text(f"{HEAD}sys.path.append('../code')\n")
    neighbour.write_text("import lib\n")
    project = Project([str(script.parent)])
    for name in ("a.x", "b.y", "a.x", "json"):
        assert project.find(name, str(script)) is None
        assert project.find(name, str(neighbour)) is None
    assert asked == [str(script)]


def test_an_edit_that_depends_on_the_run_finds_nothing(script: Path) -> None:
    script.write_text(f"{HEAD}sys.path.append(os.environ['CODE'])\nimport lib\n")
    assert Project([str(script.parent)]).find("lib", str(script)) is None


def test_the_edit_of_one_script_is_not_that_of_its_neighbour(script: Path) -> None:
    script.write_text(f"{HEAD}sys.path.append('../code')\nimport lib\n")
    neighbour = script.with_name("other.py")
    neighbour.write_text("import lib\n")
    project = Project([str(script.parent)])
    assert project.find("lib", str(script)) is not None
    assert project.find("lib", str(neighbour)) is None


def test_a_changed_script_is_asked_again(script: Path) -> None:
    script.write_text(f"{HEAD}sys.path.append('../nowhere')\nimport lib\n")
    project = Project([str(script.parent)])
    assert project.find("lib", str(script)) is None
    script.write_text(f"{HEAD}sys.path.append('../code')\nimport lib\n")
    project.forget(str(script))
    assert project.find("lib", str(script)) is not None


_SPELLINGS = {
    "plain": "sys.path.append('../code')",
    "absolute": "sys.path.insert(0, '/opt/code')",
    "joined": "sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'code'))",
    "named": "HERE = os.path.dirname(__file__)\nROOT = os.path.join(HERE, '..')\nsys.path.append(ROOT)",
    "in a function": "def main():\n    sys.path.append('../code')",
    "under a test": "ROOT = '../code'\nif ROOT not in sys.path:\n    sys.path.append(ROOT)",
    "only a run knows": "sys.path.append(str(Path(__file__).parent))\nsys.path.append(os.getcwd())",
    "first of the path": "sys.path.insert(1, os.path.join(sys.path[0], '..'))",
    "several": "sys.path.append('../b'); sys.path.append('../a')\nsys.path.append('../b')",
}


@pytest.mark.parametrize("edit", _SPELLINGS.values(), ids=_SPELLINGS)
def test_usual_spellings_mean_what_jedi_says_and_do_without_it(
    script: Path, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = folders_by_jedi(str(script), HEAD + edit, ())

    def unasked(*_: object) -> tuple[str, ...]:
        raise AssertionError("jedi was asked")

    monkeypatch.setattr("torchwise_analysis.names.edited_path.folders_by_jedi", unasked)
    assert added_folders(str(script), HEAD + edit, ()) == expected


@pytest.mark.parametrize(
    "edit",
    [
        "sys.path[0:0] = ['../code']",
        "sys.path += ['../code']",
        "for ROOT in ('../code',):\n    sys.path.append(ROOT)",
        "ROOT = '../code'\nROOT = '../other'\nsys.path.append(ROOT)",
        "sys.path.append('..' + '/code')",
        "def dirname(os):\n    sys.path.append(os.path.dirname(os))",
        "from sys import path\nsys.path.append('../code')",
    ],
)
def test_other_spellings_are_left_to_jedi(script: Path, edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ("from jedi",)
    monkeypatch.setattr("torchwise_analysis.names.edited_path.folders_by_jedi", lambda *_: answer)
    assert added_folders(str(script), HEAD + edit, ()) == answer


@pytest.fixture
def jedi_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to jedi can be told."""
    monkeypatch.setattr("torchwise_analysis.names.edited_path.folders_by_jedi", lambda *_: ("from jedi",))


@pytest.mark.usefixtures("jedi_answers")
@pytest.mark.parametrize(
    "edit",
    [
        "def add(path):\n    if path not in sys.path:\n        sys.path.insert(0, path)\nadd('../code')",
        "def add(first, path):\n    sys.path.append(path)\nadd(1, path=os.path.join('..', 'code'))",
        "def main():\n    def add(path):\n        sys.path.append(path)\n    root = '../code'\n    add(root)",
    ],
)
def test_helpers_that_put_on_the_path_what_they_are_given(script: Path, edit: str) -> None:
    assert added_folders(str(script), HEAD + edit, ()) == (str(script.parent.parent / "code"),)


@pytest.mark.usefixtures("jedi_answers")
@pytest.mark.parametrize(
    "edit",
    [
        "def add(path):\n    sys.path.append(path)",
        "def add(path):\n    sys.path.append(path)\ndef main(path):\n    add(path)\nmain('../code')",
        "def add(path):\n    sys.path.append(path)\nadd(*sys.argv)",
    ],
    ids=["no caller", "given to its caller", "spread"],
)
def test_what_no_caller_in_the_file_tells_is_left_out(script: Path, edit: str) -> None:
    assert added_folders(str(script), HEAD + edit, ()) == ()


@pytest.mark.usefixtures("jedi_answers")
@pytest.mark.parametrize(
    "edit",
    [
        "def add(path):\n    path = '../' + path\n    sys.path.append(path)\nadd('code')",
        "def add(path):\n    sys.path.append(path)\nadd = print\nadd('../code')",
    ],
)
def test_parameters_and_helpers_that_change_are_left_to_jedi(script: Path, edit: str) -> None:
    assert added_folders(str(script), HEAD + edit, ()) == ("from jedi",)

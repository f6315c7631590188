from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.findings import Confidence, Severity
from torchwise_analysis.settings import (
    Settings,
    SettingsFinder,
    load_settings,
    matches_any,
    settings_from_table,
)


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [tool.torchwise]
        select = ["retained-graph", "TW2"]
        ignore = ["TW401"]
        min-confidence = "possible"
        fail-on = "warning"
        fail-confidence = "likely"
        exclude = ["old"]
        extend-exclude = ["third_party/*"]
        gpus = ["t4"]
        site-packages = ["/opt/libs"]
        accept-bare-noqa = true
        require-suppression-reason = true
        preview = true
        [tool.torchwise.per-file-ignores]
        "tests/*" = ["missing-zero-grad"]
        [tool.torchwise.severity]
        "TW7" = "hint"
        partial-seeding = "warning"
        """,
    )
    loaded = load_settings(path)
    assert loaded is not None
    assert loaded.problems == ()
    assert loaded.root == tmp_path
    assert loaded.settings == Settings(
        select=("retained-graph", "TW2"),
        ignore=("TW401",),
        per_file_ignores=(("tests/*", ("missing-zero-grad",)),),
        min_confidence=Confidence.POSSIBLE,
        fail_on=Severity.WARNING,
        fail_confidence=Confidence.LIKELY,
        exclude=("old",),
        extend_exclude=("third_party/*",),
        gpus=("t4",),
        site_packages=("/opt/libs",),
        accept_bare_noqa=True,
        require_suppression_reason=True,
        preview=True,
        severity=(("TW7", Severity.HINT), ("partial-seeding", Severity.WARNING)),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"selct": []}, "unknown key 'selct'; did you mean 'select'?"),
        ({"zzz": 1}, "unknown key 'zzz'"),
        ({"select": "retained-graph"}, "select must be a list of strings, not 'retained-graph'"),
        ({"select": ["a", 1]}, "select must hold strings only, not 1"),
        ({"select": {"a": ["b"]}}, "select must be a list of strings, not {'a': ['b']}"),
        ({"min-confidence": "certian"}, "did you mean 'certain'?"),
        ({"fail-on": 3}, "fail-on must be one of error, warning, hint, not 3"),
        ({"accept-bare-noqa": "yes"}, "accept-bare-noqa must be true or false, not 'yes'"),
        ({"per-file-ignores": ["x"]}, "per-file-ignores must be a table"),
        ({"per-file-ignores": {"x": "y"}}, "must be a list of strings"),
        ({"severity": ["x"]}, "severity must be a table from rule to severity, not ['x']"),
        ({"severity": {"x": "eror"}}, "did you mean 'error'?"),
    ],
)
def test_a_mistake_gets_a_message_and_keeps_the_default(table: dict[str, object], message: str) -> None:
    settings, problems = settings_from_table(table)
    assert settings == Settings()
    assert len(problems) == 1
    assert message in problems[0].message


def test_one_mistake_does_not_lose_the_other_keys() -> None:
    settings, problems = settings_from_table({"gpus": ["t4"], "nonsense": 1})
    assert settings.gpus == ("t4",)
    assert [problem.key for problem in problems] == ["nonsense"]


def test_the_nearest_file_with_a_table_counts(tmp_path: Path) -> None:
    write(tmp_path, '[tool.torchwise]\ngpus = ["t4"]\n')
    write(tmp_path / "a", "[tool.other]\nname = 'torchwise'\n")
    write(tmp_path / "a" / "b", '[tool.torchwise]\ngpus = ["l4"]\n')
    finder = SettingsFinder()
    assert finder.find(tmp_path / "a" / "train.py").settings.gpus == ("t4",)
    assert finder.find(tmp_path / "a" / "train.py").root == tmp_path
    assert finder.find(tmp_path / "a" / "b" / "c" / "train.py").settings.gpus == ("l4",)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    loaded = SettingsFinder().find(tmp_path / "train.py")
    assert loaded.settings == Settings()
    assert loaded.path is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[tool.torchwise\n", "is not valid TOML"),
        (b"torchwise = '\xff'\n", "cannot be read"),
        (b"[tool]\ntorchwise = 3\n", "must be a table"),
    ],
)
def test_a_broken_file_is_a_problem(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(content)
    loaded = load_settings(path)
    assert loaded is not None
    assert message in loaded.problems[0].message


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b'\xef\xbb\xbf[tool.torchwise]\nselect = ["TW1"]\n')
    loaded = load_settings(tmp_path / "pyproject.toml")
    assert loaded is not None
    assert (loaded.settings.select, loaded.problems) == (("TW1",), ())


def test_a_broken_file_of_others_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"[tool.black\n")
    assert load_settings(tmp_path / "pyproject.toml") is None


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("tests", "tests/a.py", True),
        ("tests", "src/tests/b/a.py", True),
        ("tests/*", "tests/b/a.py", True),
        ("tests/*", "src/tests/a.py", False),
        ("src/old", "src/old/deep/a.py", True),
        ("**/gen_*.py", "gen_a.py", True),
        ("**/gen_*.py", "a/b/gen_a.py", True),
        ("*.py", "a/b.py", True),
        ("./a.py", "a.py", True),
        ("a.py", "ba.py", False),
        ("tests\\*", "tests/b/a.py", True),
        ("tests\\*", "src/tests/a.py", False),
        (".\\src\\old\\", "src/old/deep/a.py", True),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, path: str, is_match: bool) -> None:
    assert (matches_any(tmp_path / path, tmp_path, (pattern,)) is not None) == is_match


def test_a_file_outside_the_root_is_matched_by_name(tmp_path: Path) -> None:
    assert matches_any(tmp_path / "x.py", tmp_path / "inner", ("x.py",)) == "x.py"

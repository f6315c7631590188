from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.cli.conftest import Cli

Validate = Callable[[str, object], None]

FAULTY = "import torch\nif True:\n    keep(loss)  # fault: error certain\n"
CLEAN = "import torch\n"


def write(folder: Path, name: str, text: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_the_json_is_that_of_the_contract(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    write(tmp_path, "train.py", FAULTY)
    result = cli("check", "train.py", "--format", "json")
    document = result.json()
    validate("check", document)
    assert result.status == 1
    assert document == {
        "version": 1,
        "findings": [
            {
                "path": "train.py",
                "line": 3,
                "column": 5,
                "end_line": 3,
                "end_column": 17,
                "code": "TW101",
                "rule": "retained-graph",
                "severity": "error",
                "confidence": "certain",
                "message": "kept with its graph",
                "evidence": [{"path": "train.py", "line": 1, "column": 1, "message": "imported here"}],
                "also": [],
                "fixes": [
                    {
                        "title": "say it",
                        "safety": "safe",
                        "edits": [
                            {
                                "path": "train.py",
                                "line": 3,
                                "column": 5,
                                "end_line": 3,
                                "end_column": 5,
                                "text": "fixed = ",
                            }
                        ],
                    },
                    {"title": "think", "safety": "advice", "edits": []},
                ],
            }
        ],
        "problems": [],
    }


@pytest.mark.parametrize(
    ("grades", "options", "status", "shown"),
    [
        ("error certain", [], 1, 1),
        ("error likely", [], 0, 1),
        ("error possible", [], 0, 0),
        ("error possible", ["--min-confidence", "possible"], 0, 1),
        ("error possible", ["--fail-confidence", "possible"], 1, 1),
        ("error likely", ["--fail-confidence", "likely"], 1, 1),
        ("error likely", ["--min-confidence", "certain"], 0, 0),
        ("warning certain", [], 0, 1),
        ("warning certain", ["--fail-on", "warning"], 1, 1),
        ("hint certain", ["--fail-on", "warning"], 0, 1),
        ("hint certain", ["--fail-on", "hint"], 1, 1),
    ],
)
def test_what_is_shown_and_what_fails(
    cli: Cli, tmp_path: Path, grades: str, options: list[str], status: int, shown: int
) -> None:
    write(tmp_path, "a.py", f"import torch\nx  # fault: {grades}\n")
    result = cli("check", *options, "a.py", "--format", "json")
    assert (result.status, len(result.json()["findings"])) == (status, shown)


def test_possible_findings_are_counted_in_the_last_line(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\nx  # fault: error possible\n")
    assert cli("check", "a.py").out.startswith("No findings in 1 file; 1 more possible, not shown")


def test_broken_syntax_is_a_status_of_its_own(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    write(tmp_path, "broken.py", "import torch\nx = (1,\n")
    result = cli("check", ".", "--format", "json")
    validate("check", result.json())
    assert result.status == 3
    assert [(item["path"], item["line"]) for item in result.json()["problems"]] == [("broken.py", 2)]
    assert "broken.py:2  not parsed" in cli("check", ".").out


def test_a_finding_outranks_broken_syntax(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "broken.py", "import torch\nx = (1,\n")
    write(tmp_path, "faulty.py", FAULTY)
    assert cli("check", ".").status == 1


def test_broken_syntax_of_a_named_file_is_reported_even_without_torch(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "plain.py", "x = (1,\n")
    assert cli("check", ".").status == 0
    assert cli("check", "plain.py").status == 3


def test_a_contained_crash_is_named_and_the_other_files_stand(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch  # crash\n")
    write(tmp_path, "b.py", CLEAN)
    result = cli("check", ".")
    assert result.status == 3
    assert "a.py  internal error  the analysis failed" in result.out
    write(tmp_path, "c.py", FAULTY)
    assert cli("check", ".").status == 1


@pytest.mark.parametrize("arguments", [["nothing.py"], ["*.zzz"], ["empty"], ["lib"]])
def test_nothing_read_is_an_error_that_says_why(cli: Cli, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path, "lib/site-packages/x.py", FAULTY)
    result = cli("check", *arguments)
    assert result.status == 2
    assert result.out == ""
    assert "nothing was read" in result.err
    assert arguments[0] in result.err


def test_what_was_excluded_is_named_when_nothing_is_left(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "lib/site-packages/x.py", FAULTY)
    assert "lib/site-packages: excluded by 'site-packages'" in cli("check").err


def test_nothing_read_still_gives_a_json_report(cli: Cli, validate: Validate) -> None:
    result = cli("check", "nothing.py", "--format", "json")
    assert result.status == 2
    validate("check", result.json())
    assert result.json()["problems"][0]["message"] == "no such file or folder"


def test_a_missing_file_beside_others_is_a_problem(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", CLEAN)
    result = cli("check", "a.py", "nothing.py", "--format", "json")
    assert result.status == 3
    assert [item["path"] for item in result.json()["problems"]] == ["nothing.py"]


def test_a_named_path_below_site_packages_is_read(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "v/site-packages/pkg/x.py", FAULTY)
    assert cli("check", "v/site-packages/pkg").status == 1
    assert cli("check", "v/site-packages/pkg/x.py").status == 1


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"# -*- coding: latin-1 -*-\nimport torch\nx = '\xe9'  # fault: error certain\n", 1),
        (b"\xef\xbb\xbfimport torch\nx  # fault: error certain\n", 1),
        (b"\xef\xbb\xbfimport torch\n", 0),
        (b"import torch\r\nx  # fault: error certain\r\n", 1),
        (b"import torch\nx = 1\x00\n", 2),  # nothing else was read
        (b"import torch\nx = '\xff'\n", 3),
        (b"# coding: no-such-codec\nimport torch\n", 3),
        (b"", 0),
    ],
    ids=["latin-1", "bom fault", "bom", "crlf", "nul", "invalid utf-8", "unknown codec", "empty"],
)
def test_encodings(cli: Cli, tmp_path: Path, content: bytes, status: int) -> None:
    write(tmp_path, "a.py", content)
    assert cli("check", "a.py").status == status


def test_a_fault_in_a_file_with_invalid_bytes_is_still_found(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", b"import torch  # \xff\nx  # fault: error certain\n")
    result = cli("check", "a.py", "--format", "json")
    assert (result.status, len(result.json()["findings"]), len(result.json()["problems"])) == (1, 1, 1)


def test_folders_called_like_files(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "pkg.py/inner.py", FAULTY)
    assert cli("check", "pkg.py", "--format", "json").json()["findings"][0]["path"] == "pkg.py/inner.py"


def test_a_link_that_loops_does_not_hang(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a/x.py", FAULTY)
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "self.py").symlink_to(tmp_path / "self.py")
    assert len(cli("check", ".", "--format", "json").json()["findings"]) == 1
    assert cli("check", "self.py").status == 2


def test_a_file_that_may_not_be_read(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py", FAULTY)
    real = os.open

    def refuse(path: str | Path, flags: int, *rest: int, **more: int) -> int:
        if Path(path).name == "a.py":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    result = cli("check", "a.py")
    assert result.status == 2
    assert "a.py: Permission denied" in result.err


def notebook(*cells: str, language: str = "python") -> str:
    return json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "source": ["# title"]},
                *({"cell_type": "code", "source": cell} for cell in cells),
            ],
            "metadata": {"kernelspec": {"language": language}},
            "nbformat": 4,
        }
    )


def test_notebooks_are_read_cell_by_cell(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    write(
        tmp_path, "n.ipynb", notebook("%matplotlib inline\nimport torch", "y = 1\nx  # fault: error certain")
    )
    result = cli("check", "n.ipynb", "--format", "json")
    validate("check", result.json())
    (finding,) = result.json()["findings"]
    assert (finding["line"], finding["cell"], finding["cell_line"]) == (4, 3, 2)
    assert cli("check", ".").out.startswith("n.ipynb:cell 3:2:1  error")


def test_broken_cells_are_named(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    write(tmp_path, "n.ipynb", notebook("import torch", "x = )"))
    result = cli("check", "n.ipynb", "--format", "json")
    validate("check", result.json())
    assert [(item["cell"], item["cell_line"]) for item in result.json()["problems"]] == [(3, 1)]


def test_notebooks_of_other_languages_are_a_problem_only_when_named(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "r.ipynb", notebook("library(torch)", language="R"))
    write(tmp_path, "a.py", CLEAN)
    assert cli("check", ".").status == 0
    assert cli("check", "a.py", "r.ipynb").status == 3


def test_what_is_no_notebook_is_a_problem(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "n.ipynb", "{")
    assert cli("check", "n.ipynb").status == 2


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, FAULTY)
    result = cli("check", "-", "--format", "json")
    assert (result.status, result.json()["findings"][0]["path"]) == (1, "<stdin>")


def test_standard_input_with_a_name_uses_its_settings(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "sub/pyproject.toml", '[tool.torchwise]\nmin-confidence = "possible"\n')
    stdin(monkeypatch, "import torch\nx  # fault: error possible\n")
    result = cli("check", "-", "--stdin-filename", "sub/a.py", "--format", "json")
    assert [item["path"] for item in result.json()["findings"]] == ["sub/a.py"]


def test_a_stdin_name_without_stdin_is_a_mistake(cli: Cli) -> None:
    assert cli("check", "--stdin-filename", "a.py").status == 2


def test_the_same_file_from_two_sides_is_reported_once(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    assert len(cli("check", "a.py", "./a.py", ".", "--format", "json").json()["findings"]) == 1


def test_options_may_stand_anywhere(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    write(tmp_path, "b.py", FAULTY)
    assert len(cli("check", "a.py", "--format", "json", "b.py").json()["findings"]) == 2


@pytest.mark.parametrize("options", [["--format", "xml"], ["--min-confidence", "sure"], ["--no-such"]])
def test_bad_usage(cli: Cli, options: list[str]) -> None:
    assert cli("check", *options).status == 2


def test_an_unknown_rule_is_a_mistake_with_a_suggestion(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", CLEAN)
    result = cli("check", "a.py", "--select", "retained-grph")
    assert result.status == 2
    assert "did you mean 'retained-graph'?" in result.err


@pytest.mark.parametrize("selector", ["retained-graph", "TW101", "TW1", "tw", "TW101,missing-zero-grad"])
def test_rules_are_known_by_name_code_and_prefix(cli: Cli, tmp_path: Path, selector: str) -> None:
    write(tmp_path, "a.py", CLEAN)
    assert cli("check", "a.py", "--select", selector).status == 0


def test_settings_with_mistakes_stop_the_run(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", '[tool.torchwise]\nselct = []\nfail-on = "x"\n')
    write(tmp_path, "a.py", CLEAN)
    result = cli("check", "a.py")
    assert result.status == 2
    assert "did you mean 'select'?" in result.err
    assert "fail-on must be one of" in result.err
    assert "Traceback" not in result.err


def test_settings_hold_and_options_win(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", '[tool.torchwise]\nfail-on = "warning"\n')
    write(tmp_path, "a.py", "import torch\nx  # fault: warning certain\n")
    assert cli("check", "a.py").status == 1
    assert cli("check", "a.py", "--fail-on", "error").status == 0


def test_an_unknown_rule_in_settings_names_the_file(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", '[tool.torchwise.per-file-ignores]\n"*" = ["no-such-rule"]\n')
    write(tmp_path, "a.py", CLEAN)
    result = cli("check", "a.py")
    assert result.status == 2
    assert "pyproject.toml: no rule is called 'no-such-rule'" in result.err


def test_statistics(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    write(tmp_path, "plain.py", "x = 1\n")
    out = cli("check", ".", "--statistics").out
    assert "1  retained-graph" in out
    assert "2  read" in out
    assert "1  of them hold nothing to find" in out


def test_text_shows_source_evidence_and_fix(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    assert cli("check", "a.py").out == (
        "a.py:3:5  error  retained-graph TW101\n"
        "  kept with its graph\n"
        "\n"
        "      3 │ keep(loss)  # fault: error certain\n"
        "        │ ^^^^^^^^^^^^\n"
        "  1. line 1: imported here\n"
        "      1 │ import torch\n"
        "        │ ^^^^^^\n"
        "  fix: say it (safe: same values, gradients and updates)\n"
        "    - keep(loss)  # fault: error certain\n"
        "    + fixed = keep(loss)  # fault: error certain\n"
        "  advice: think\n"
        "  more: torchwise explain retained-graph\n"
        "\n"
        "1 error in 1 file; 1 fixable (torchwise fix).\n"
    )


def test_escape_sequences_of_the_source_do_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\nx = '\x1b]0;owned\x07\u202e'  # fault: error certain\n")
    out = cli("check", "a.py").out
    assert "\\x1b]0;owned\\x07\\u202e" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize(
    ("environment", "has_colour"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colour(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    has_colour: bool,
) -> None:
    write(tmp_path, "a.py", FAULTY)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[1;31m" in cli("check", "a.py").out) == has_colour


def test_the_width_is_that_of_the_terminal(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py", f"import torch\nx = '{'y' * 300}'  # fault: error certain\n")
    monkeypatch.setenv("COLUMNS", "60")
    lines = cli("check", "a.py").out.splitlines()
    assert max(len(line) for line in lines) <= 60


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_undecodable_file_names(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    name = os.fsdecode(b"a\xff.py")
    try:
        write(tmp_path, name, FAULTY)
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    assert "a\\udcff.py:3:5" in cli("check", ".").out
    validate("check", cli("check", ".", "--format", "json").json())

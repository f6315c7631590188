"""The formats of `check`: each is read by the kind of program it is for."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from tests.server.cli.conftest import Cli
from tests.server.cli.test_check import FAULTY, notebook, write

DATA = Path(__file__).parents[2] / "data"
HOSTILE = "<!--::error::%0A]]>&\"'|`@team #1 \x1b[31m\u202e.py"


def hostile(tmp_path: Path) -> str:
    write(tmp_path, HOSTILE.replace("/", ""), FAULTY)
    return HOSTILE


def sarif(text: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(text)
    schema = json.loads((DATA / "sarif/sarif-2.1.0-rtm.4.json").read_text(encoding="utf-8"))
    jsonschema.Draft4Validator.check_schema(schema)
    jsonschema.validate(
        log, schema, cls=jsonschema.Draft4Validator, format_checker=jsonschema.FormatChecker()
    )
    for region in re.findall(r'"(?:region|deletedRegion)": (\{[^}]*)', json.dumps(log)):
        assert '"startLine"' in region
    return log


# ---------------------------------------------------------------------------- SARIF


def test_sarif_holds_the_evidence_as_a_flow_and_the_fix(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "src/my train.py", FAULTY)
    result = cli("check", "--format", "sarif")
    assert result.status == 1
    (run,) = sarif(result.out)["runs"]
    (found,) = run["results"]
    assert (found["ruleId"], found["level"], found["properties"]["confidence"]) == (
        "TW101",
        "error",
        "certain",
    )
    assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["name"] == "retained-graph"
    place = found["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "src/my%20train.py", "uriBaseId": "SRCROOT"}
    assert (place["region"]["startLine"], place["region"]["startColumn"]) == (3, 5)
    assert place["region"]["snippet"]["text"].strip().startswith("keep(loss)")
    flow = [
        step["location"]["message"]["text"] for step in found["codeFlows"][0]["threadFlows"][0]["locations"]
    ]
    assert flow == ["imported here", "kept with its graph"]
    (fix,) = found["fixes"]  # advice is none
    (change,) = fix["artifactChanges"]
    assert change["replacements"][0]["insertedContent"] == {"text": "fixed = "}


def test_sarif_of_a_notebook_names_the_cell(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "n.ipynb", notebook("import torch", "x\nkeep(loss)  # fault: error certain"))
    (found,) = sarif(cli("check", "--format", "sarif").out)["runs"][0]["results"]
    assert found["message"]["text"].startswith("cell 3, line 2: ")
    assert found["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "cell 3"
    assert "fixes" not in found


NOTEBOOKS = {
    "as Jupyter writes it": lambda sources: json.dumps(as_notebook(sources), indent=1),
    "on one line": lambda sources: json.dumps(as_notebook(sources)),
    "sources as one string": lambda sources: json.dumps(
        as_notebook(["".join(rows) for rows in sources]), indent=1
    ),
    "strings that end within a line": lambda sources: json.dumps(
        as_notebook([[part for row in rows for part in (row[:1], row[1:], "")] for rows in sources]), indent=2
    ),
    "with a mark and other line ends": lambda sources: "\ufeff" + json.dumps(
        as_notebook(sources), indent=1
    ).replace("\n", "\r\n"),
}  # fmt: skip


def as_notebook(sources: list[Any]) -> dict[str, Any]:
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# A title\n", "text"]}
    cells = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
        for source in sources
    ]
    return {"cells": [cells[0], text, *cells[1:]], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("style", NOTEBOOKS)
def test_a_finding_in_a_notebook_points_into_its_file(
    cli: Cli, tmp_path: Path, style: str, validate: Callable[[str, object], None]
) -> None:
    """The region, the annotation and the JSON name the line of the file that holds the code."""
    sources = [["import torch\n", "x = 1"], ["y = 2\n", "keep(loss)  # fault: error certain\n", "z = 3"]]
    text = NOTEBOOKS[style](sources)
    (tmp_path / "n.ipynb").write_bytes(text.encode())
    (found,) = sarif(cli("check", "--format", "sarif").out)["runs"][0]["results"]
    region = found["locations"][0]["physicalLocation"]["region"]
    row = text.split("\n")[region["startLine"] - 1]
    assert "fault: error certain" in row or "eep(loss)" in row or row.strip().startswith('"k"')
    assert region == {"startLine": region["startLine"], "endLine": region["startLine"]}
    document = cli("check", "--format", "json").json()
    validate("check", document)
    (reported,) = document["findings"]
    assert (reported["cell"], reported["cell_line"]) == (3, 2)
    assert reported["file_line"] == region["startLine"]
    assert f"file=n.ipynb,line={region['startLine']},endLine=" in cli("check", "--format", "github").out
    (issue,) = json.loads(cli("check", "--format", "gitlab").out)
    assert issue["location"]["lines"]["begin"] == region["startLine"]


def test_sarif_says_what_could_not_be_analysed(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "broken.py", "import torch\nx = (1,\n")
    write(tmp_path, "crash.py", "import torch  # crash\n")
    result = cli("check", "--format", "sarif")
    assert result.status == 3
    (invocation,) = sarif(result.out)["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    assert [each["level"] for each in invocation["toolExecutionNotifications"]] == ["warning", "error"]


def test_a_fingerprint_outlives_edits_elsewhere(cli: Cli, tmp_path: Path) -> None:
    def prints(text: str) -> list[str]:
        write(tmp_path, "a.py", text)
        results = sarif(cli("check", "a.py", "--format", "sarif").out)["runs"][0]["results"]
        return [each["partialFingerprints"]["torchwise/v1"] for each in results]

    line = "keep(loss)  # fault: error certain\n"
    one, two = prints("import torch\n" + line + "x = 1\n" + line)
    assert one != two
    assert prints("import torch\n\n\n" + line + line) == [one, two]
    assert prints("import torch\n" + line.replace("loss", "less")) != [one]


@pytest.mark.parametrize("form", ["sarif", "gitlab", "json"])
def test_hostile_names_are_data(cli: Cli, tmp_path: Path, form: str) -> None:
    hostile(tmp_path)
    result = cli("check", "--format", form)
    assert result.status == 1
    json.loads(result.out)
    if form == "sarif":
        sarif(result.out)


# ---------------------------------------------------------------------------- GitHub


def test_github_annotations(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.py",
        "import torch\nx  # fault: error certain\ny  # fault: warning likely\nz  # fault: hint certain\n",
    )
    first, second, third, last = cli("check", "a.py", "--format", "github").out.splitlines()
    assert first == (
        "::error file=a.py,line=2,endLine=2,col=1,endColumn=4,title=retained-graph (certain)"
        "::kept with its graph%0A1. a.py:1: imported here"
    )
    assert second.startswith("::warning ")
    assert third.startswith("::notice ")
    assert last.startswith("1 error, 1 warning, 1 hint in 1 file")


def test_github_annotations_cannot_be_forged(cli: Cli, tmp_path: Path) -> None:
    hostile(tmp_path)
    lines = cli("check", "--format", "github").out.splitlines()
    assert [line.startswith("::") for line in lines] == [True, False]
    fields = lines[0].removeprefix("::error ").split("::", 1)[0]
    assert [field.partition("=")[0] for field in fields.split(",")] == [
        "file", "line", "endLine", "col", "endColumn", "title",
    ]  # fmt: skip


# ---------------------------------------------------------------------------- GitLab and JUnit


def test_gitlab_code_quality(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\nx  # fault: error certain\ny  # fault: warning likely\n")
    rows = json.loads(cli("check", "a.py", "--format", "gitlab").out)
    assert [row["severity"] for row in rows] == ["critical", "minor"]
    assert {row["check_name"] for row in rows} == {"retained-graph"}
    assert rows[0]["location"] == {"path": "a.py", "lines": {"begin": 2, "end": 2}}
    assert len({row["fingerprint"] for row in rows}) == 2


def test_gitlab_of_nothing_is_an_empty_list(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\n")
    assert json.loads(cli("check", "a.py", "--format", "gitlab").out) == []


def test_junit_fails_what_fails_the_run(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\nx  # fault: error certain\ny  # fault: warning likely\n")
    write(tmp_path, "broken.py", "import torch\nx = (1,\n")
    root = ET.fromstring(cli("check", "--format", "junit").out)
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == ("3", "1", "1")
    assert [suite.attrib["name"] for suite in root] == ["a.py", "broken.py"]
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.attrib["message"] == "kept with its graph"
    assert "1. a.py:1: imported here" in (failure.text or "")


def test_junit_of_nothing_is_a_test_that_passes(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\n")
    root = ET.fromstring(cli("check", "--format", "junit").out)
    assert len(root.findall(".//testcase")) == 1
    assert root.find(".//failure") is None


def test_junit_survives_hostile_names(cli: Cli, tmp_path: Path) -> None:
    hostile(tmp_path)
    root = ET.fromstring(cli("check", "--format", "junit").out)
    assert len(root.findall(".//failure")) == 1


# ---------------------------------------------------------------------------- Markdown


def test_a_summary_for_a_pull_request(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    text = cli("check", "--format", "markdown").out
    assert text.startswith(
        "### torchwise\n\n1 error in 1 file; 1 fixable (torchwise fix). **1 of them fail this run.**"
    )
    assert "| 🔴 error | retained-graph | 1 |" in text
    assert "<details><summary>🔴 a.py:3 <b>retained-graph</b>, certain (fails)</summary>" in text
    assert "1. `a.py:1` imported here" in text


def test_hostile_names_are_no_markup(cli: Cli, tmp_path: Path) -> None:
    hostile(tmp_path)
    text = cli("check", "--format", "markdown").out
    summary = re.search(r"<summary>(.*?)</summary>", text)
    assert summary is not None
    assert not set("<`*_[]@#&'\"|") & set(re.sub(r"&#\d+;|</?b>", "", summary[1]))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_summary_fits_a_comment(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\n" + "keep(loss)  # fault: error certain\n" * 2000)
    text = cli("check", "--format", "markdown").out
    assert len(text) < 65_536
    assert re.search(r"… and \d+ more; `torchwise check` shows all\.", text)


# ---------------------------------------------------------------------------- for readers


def test_concise(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    assert cli("check", "--format", "concise").out.splitlines() == [
        "a.py:3:5: error: retained-graph: kept with its graph",
        "1 error in 1 file; 1 fixable (torchwise fix).",
    ]


@pytest.mark.parametrize(
    ("group", "titles"),
    [
        ("file", ["a.py (2)", "b.py (1)"]),
        ("rule", ["retained-graph (3)"]),
        ("severity", ["error (2)", "warning (1)"]),
    ],
)
@pytest.mark.parametrize("form", ["text", "concise"])
def test_groups(cli: Cli, tmp_path: Path, form: str, group: str, titles: list[str]) -> None:
    write(tmp_path, "a.py", "import torch\nx  # fault: error certain\ny  # fault: warning certain\n")
    write(tmp_path, "b.py", "import torch\nx  # fault: error certain\n")
    lines = cli("check", "--format", form, "--group-by", group).out.splitlines()
    assert [title for title in titles if any(title in line for line in lines)] == titles


def test_groups_are_for_readers(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", FAULTY)
    result = cli("check", "--format", "json", "--group-by", "rule")
    assert result.status == 2
    assert "--group-by orders text" in result.err


# ---------------------------------------------------------------------------- where the report goes


@pytest.mark.parametrize(
    "form", ["text", "concise", "json", "sarif", "github", "gitlab", "junit", "markdown"]
)
def test_a_report_in_a_file_is_the_one_on_standard_output(cli: Cli, tmp_path: Path, form: str) -> None:
    write(tmp_path, "a.py", FAULTY)
    shown = cli("check", "a.py", "--format", form)
    result = cli("check", "a.py", "--format", form, "--output-file", "report")
    assert (result.status, result.out) == (shown.status, "")
    assert (tmp_path / "report").read_text(encoding="utf-8") == shown.out
    assert result.err == "torchwise: 1 error in 1 file; 1 fixable (torchwise fix); report in report\n"


def test_colours_do_not_reach_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    write(tmp_path, "a.py", FAULTY)
    cli("check", "a.py", "--output-file", "report.txt")
    assert "\x1b" not in (tmp_path / "report.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["nowhere/report", "."])
def test_a_report_that_cannot_be_written_is_a_mistake(cli: Cli, tmp_path: Path, name: str) -> None:
    write(tmp_path, "a.py", FAULTY)
    result = cli("check", "a.py", "--output-file", name)
    assert result.status == 2
    assert result.err.startswith(f"torchwise: --output-file {name}: ")
    assert not list(tmp_path.glob("*.torchwise"))

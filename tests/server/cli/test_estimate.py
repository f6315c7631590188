from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.cli.conftest import Cli

Validate = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\nfor x in y: pass\n")
    (tmp_path / "b.py").write_text("import torch\nfor x in y: pass  # unanswered\n")


def test_the_json_is_that_of_the_contract(cli: Cli, validate: Validate) -> None:
    result = cli("estimate", "a.py", "--format", "json")
    document = result.json()
    validate("estimate", document)
    assert result.status == 0
    estimate = document["estimates"][0]
    assert (estimate["path"], estimate["line"], estimate["kind"]) == ("a.py", 2, "training")
    assert estimate["plan"] == {
        "micro_batch": {"value": 8, "source": "read", "path": "a.py", "line": 1},
        "image": {"value": [3, 224, 224], "source": "assumed", "why": "nothing says it"},
        "seq_len": {"value": None, "source": "unknown"},
    }
    gib = 1 << 30
    interval = {"low": 9 * gib, "point": 10 * gib, "high": 11 * gib}
    assert estimate["peak"] == {"allocated": interval, "reserved": interval, "device": None}
    assert estimate["gpus"] == [
        {"name": "t4", "title": "Tesla T4", "total_bytes": 15 * gib, "verdict": "probably-oom"},
        {"name": "x", "title": "X", "total_bytes": 80 * gib, "verdict": "fits"},
    ]


def test_jsonl_has_one_object_a_line(cli: Cli) -> None:
    result = cli("estimate", "a.py", "b.py", "--format", "jsonl")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert rows[0]["path"] == "a.py"
    assert rows[1] == {"problem": {"path": "b.py", "line": 2, "message": "`n` is not known"}}


def test_a_file_without_an_answer_is_a_status_of_its_own(cli: Cli, validate: Validate) -> None:
    result = cli("estimate", "a.py", "b.py", "--format", "json")
    validate("estimate", result.json())
    assert result.status == 3
    assert len(result.json()["estimates"]) == 1
    assert "b.py:2  no estimate  `n` is not known" in cli("estimate", "b.py").out


def test_what_was_read_before_a_stop_stands_beside_it(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    (tmp_path / "c.py").write_text("import torch\nfor x in y: pass  # unanswered # plan\n")
    document = cli("estimate", "c.py", "--format", "json").json()
    validate("estimate", document)
    assert document["problems"][0]["plan"] == {
        "optimizer": {"value": "SGD", "source": "read", "path": "c.py", "line": 1}
    }


@pytest.mark.parametrize(
    "arguments",
    [["--gpu", "t4", "a.py", "--gpu", "h100"], ["a.py", "--gpu", "t4"], ["--gpu", "Tesla T4", "a.py"]],
)
def test_gpus_may_stand_before_and_after_files(cli: Cli, arguments: list[str]) -> None:
    assert cli("estimate", *arguments).status == 0


def test_an_unknown_gpu_is_a_mistake(cli: Cli) -> None:
    result = cli("estimate", "a.py", "--gpu", "rtx-409")
    assert result.status == 2
    assert "unknown GPU 'rtx-409'" in result.err


def test_a_missing_library_folder_is_a_mistake(cli: Cli) -> None:
    assert cli("estimate", "a.py", "--site-packages", "nowhere").status == 2


def test_library_folders_may_be_repeated(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    assert cli("estimate", "--site-packages", "x", "a.py", "--site-packages", "y").status == 0


@pytest.mark.parametrize(("floor", "status"), [("borderline", 1), ("probably-oom", 1), ("oom", 0)])
def test_a_verdict_can_fail_the_run(cli: Cli, floor: str, status: int) -> None:
    assert cli("estimate", "a.py", "--gpu", "t4", "--fail-on", floor).status == status


def test_a_verdict_needs_a_card(cli: Cli) -> None:
    for subject in (["a.py"], ["--model", "gpt2"]):
        result = cli("estimate", *subject, "--fail-on", "oom")
        assert result.status == 2
        assert "name one with --gpu" in result.err


def test_standard_input_is_refused_with_a_reason(cli: Cli) -> None:
    result = cli("estimate", "-")
    assert result.status == 2
    assert "not standard input" in result.err


def test_a_described_job_speaks_of_no_source(cli: Cli) -> None:
    out = cli("estimate", "--model", "gpt2", "--seq-len", "64", "--lora", "4").out
    assert "training, by description  gpt2" in out
    assert "read from the source" not in out
    for row in ("the job", "rank 4, on q_proj,v_proj  given", "assumed, no --batch-size was given"):
        assert row in out


def test_models_can_be_listed(cli: Cli) -> None:
    out = cli("estimate", "--model", "list").out
    assert "llama-2-7b" in out
    assert "resnet50" in out
    assert "t5-large" in out
    unknown = cli("estimate", "--model", "no-such-model")
    assert unknown.status == 2
    assert "--model list" in unknown.err


def test_loops_of_notebooks_are_found_by_cell(cli: Cli, tmp_path: Path, validate: Validate) -> None:
    cells = [{"cell_type": "code", "source": source} for source in ("import torch", "for x in y:\n    pass")]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    document = cli("estimate", "n.ipynb", "--format", "json").json()
    validate("estimate", document)
    estimate = document["estimates"][0]
    assert (estimate["line"], estimate["cell"], estimate["cell_line"]) == (2, 2, 1)
    assert "training loop  n.ipynb:cell 2:1" in cli("estimate", "n.ipynb").out


def test_nothing_to_estimate(cli: Cli) -> None:
    assert cli("estimate").status == 2
    assert cli("estimate", "nothing.py").status == 2


def test_the_panel_says_the_answer_and_what_it_rests_on(cli: Cli) -> None:
    out = cli("estimate", "a.py").out
    for words in (
        "training loop  a.py:2",
        "10.0 GiB reserved at the peak, in the backward pass",
        "1,000 parameters, 900 trainable",
        "9.00 – 11.0 GiB",
        "probably out of memory",
        "logits (2 tensors)",
        "3 × 224 × 224  assumed, nothing says it",
        "CUDA is there",
        "−5.00 GiB  to 5.00 GiB  checkpoint (line 1); time",
    ):
        assert words in out


def test_an_unknown_peak_is_said_to_be_unknown(cli: Cli) -> None:
    assert re.search(r"device +unknown", cli("estimate", "a.py").out)


def test_a_workload_is_answered_line_by_line(cli: Cli, tmp_path: Path) -> None:
    rows = [{"id": "one", "model": "x"}, {"id": 2}]
    (tmp_path / "w.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    result = cli("estimate", "--format", "jsonl", "--workload", "w.jsonl")
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert result.status == 0
    assert [answer["id"] for answer in answers] == ["one", 2]
    for answer in answers:
        assert set(answer["peak"]) == {"allocated", "reserved", "device"}
        assert answer["verdict"] in {"fits", "probably-fits", "borderline", "probably-oom", "oom", "unknown"}


def test_a_workload_line_that_is_no_object_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text('{"id": 1}\nnonsense\n[]\n')
    result = cli("estimate", "--workload", "w.jsonl")
    assert result.status == 3
    assert len(result.out.splitlines()) == 1
    assert "w.jsonl:2" in result.err


def test_a_missing_workload_is_a_mistake(cli: Cli) -> None:
    assert cli("estimate", "--workload", "nothing.jsonl").status == 2

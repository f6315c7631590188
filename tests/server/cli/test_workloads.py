"""`torchwise estimate --workload`: one answer a line, in the order of the rows, whoever answers them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.cli.conftest import Cli

from torchwise_server.cli import workload

CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 500,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
}


def rows(count: int) -> list[dict[str, object]]:
    job = {"config": CONFIG, "task": "train", "seq_len": 64, "weights_dtype": "fp32", "optimizer": "AdamW"}
    return [{"id": f"row-{n}", "micro_batch": n, **job} for n in range(1, count + 1)]


def answers(cli: Cli, path: Path, count: int) -> list[dict[str, object]]:
    path.write_text("\n".join(json.dumps(row) for row in rows(count)), encoding="utf-8")
    result = cli("estimate", "--format", "jsonl", "--workload", str(path))
    assert result.status == 0
    return [json.loads(line) for line in result.out.splitlines()]


def test_many_rows_are_answered_in_their_order(cli: Cli, tmp_path: Path) -> None:
    found = answers(cli, tmp_path / "jobs.jsonl", workload.MANY + 2)
    assert [each["id"] for each in found] == [row["id"] for row in rows(workload.MANY + 2)]


def test_without_processes_the_answers_are_the_same(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.jsonl"
    together = answers(cli, path, workload.MANY)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no processes here")

    monkeypatch.setattr(workload, "ProcessPoolExecutor", refuse)
    assert answers(cli, path, workload.MANY) == together


def test_a_row_that_is_none_is_named_and_the_others_answered(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text("not json\n" + json.dumps(rows(1)[0]), encoding="utf-8")
    result = cli("estimate", "--format", "jsonl", "--workload", str(path))
    assert result.status != 0
    assert ":1:" in result.err
    assert json.loads(result.out)["id"] == "row-1"

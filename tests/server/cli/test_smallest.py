"""`torchwise gpus --for`: the smallest number of cards that hold a training."""

from __future__ import annotations

import json

import pytest
from tests.server.cli.conftest import Cli


def test_larger_cards_need_fewer(cli: Cli) -> None:
    result = cli(
        "gpus", "--for", "llama-2-7b", "--checkpointing", "--format", "json", "rtx-4090", "a100-80gb"
    )
    rows = json.loads(result.out)["smallest"]
    assert [row["gpu"] for row in rows] == ["rtx-4090", "a100-80gb"]
    assert rows[0]["count"] > rows[1]["count"] >= 1
    assert all(row["peak_bytes"] > 0 for row in rows)


def test_the_table_names_cards_and_counts(cli: Cli) -> None:
    result = cli("gpus", "--for", "gpt2", "t4")
    assert result.status == 0
    assert "how many" in result.out and "t4" in result.out


@pytest.mark.parametrize(
    "arguments",
    [("--for", "no-such-model"), ("--for", "gpt2", "--batch-size", "0"), ("--for", "gpt2", "no-card")],
)
def test_what_cannot_be_answered_is_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("gpus", *arguments).status == 2


def test_adapters_need_fewer_cards(cli: Cli) -> None:
    def count(*options: str) -> int:
        job = ("--for", "llama-3-8b", "--checkpointing", *options)
        result = cli("gpus", *job, "--format", "json", "rtx-4090")
        return int(json.loads(result.out)["smallest"][0]["count"])

    whole, adapted, packed = count(), count("--lora"), count("--lora", "16", "--quantise", "nf4")
    assert whole > adapted >= packed == 1


def test_a_mistyped_model_gets_a_suggestion(cli: Cli) -> None:
    assert "did you mean llama-3-8b" in cli("gpus", "--for", "llama-3-8bb").err


def test_where_no_number_suffices_it_says_what_would_help(cli: Cli) -> None:
    result = cli("gpus", "--for", "llama-3-70b", "--seq-len", "4096", "t4")
    assert "none suffices" in result.out
    assert "--checkpointing" in result.out

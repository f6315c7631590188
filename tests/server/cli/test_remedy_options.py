"""The options that a remedy of a described job names: added to the command, they lead to its peak."""

from __future__ import annotations

import json
import shlex

import pytest

from torchwise_server.cli import main

JOB = ["estimate", "--model", "gpt2", "--seq-len", "1024", "--format", "json", "--gpu", "t4"]


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main(arguments)
    (found,) = json.loads(capsys.readouterr().out)["estimates"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "job",
    [
        ["--batch-size", "64", "--precision", "fp32"],
        ["--batch-size", "48", "--lora", "8"],
        ["--batch-size", "64", "--gpus", "4", "--parallel", "ddp"],
        ["--task", "generate", "--batch-size", "512", "--precision", "fp32"],
    ],
)
def test_options_of_a_remedy_lead_to_its_peak(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    remedies = answer([*JOB, *job], capsys)["remedies"]
    assert isinstance(remedies, list) and remedies
    told = [remedy for remedy in remedies if "options" in remedy]
    assert told
    for remedy in told:
        changed = answer([*JOB, *job, *shlex.split(remedy["options"])], capsys)
        peak = changed["peak"]
        assert isinstance(peak, dict)
        assert peak["allocated"]["point"] == remedy["peak_bytes"], remedy["options"]

"""The shipped examples through the real engine: what the README promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchwise_server.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"

PLANTED = {
    ("finetune_vision.py", "double-softmax", "return F.softmax(self.fc(self.dropout(x)), dim=1)"),
    ("finetune_vision.py", "stuck-eval-mode", "model.eval()"),
    ("train_gpt.py", "missing-zero-grad", "loss.backward()"),
    ("train_gpt.py", "retained-graph", "history.append(loss)"),
}


def test_check_finds_the_planted_faults_and_nothing_else(
    capsys: pytest.CaptureFixture[str], validate: Callable[[str, object], None]
) -> None:
    status = main(["check", str(EXAMPLES), "--format", "json", "--min-confidence", "possible"])
    document = json.loads(capsys.readouterr().out)
    validate("check", document)
    found = {
        (
            Path(finding["path"]).name,
            finding["rule"],
            Path(finding["path"]).read_text().splitlines()[finding["line"] - 1].strip(),
        )
        for finding in document["findings"]
        if finding["severity"] != "hint"  # reads its loss in every step: not a fault
    }
    assert found == PLANTED
    assert all(
        finding["confidence"] == "certain"
        for finding in document["findings"]
        if finding["severity"] != "hint"
    )
    assert document["problems"] == []
    assert status == 1


@pytest.mark.parametrize("name", ["train_gpt.py", "finetune_vision.py"])
def test_estimate_answers(
    capsys: pytest.CaptureFixture[str], validate: Callable[[str, object], None], name: str
) -> None:
    gpus = ["--gpu", "rtx-4090", "--gpu", "a100-80gb"]
    status = main(["estimate", str(EXAMPLES / name), *gpus, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    validate("estimate", document)
    assert status == 0
    (estimate,) = document["estimates"]
    assert estimate["kind"] == "training"
    assert estimate["peak"]["allocated"]["low"] <= estimate["peak"]["allocated"]["point"]
    assert [gpu["name"] for gpu in estimate["gpus"]] == ["rtx-4090", "a100-80gb"]

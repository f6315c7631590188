"""Adapters and learned prompts of peft: what its own code takes, within 1 %."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.shared_analysis.concrete.measuring import measured

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateReport, EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text

DATA = Path(__file__).parent / "data" / "adapters.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
ALLOWED = 0.01


def estimate(script: str) -> EstimateReport:
    request = EstimateRequest(with_remedies=False, with_alternatives=False)
    return estimate_module(lower_text("train.py", script), Project([], []), request)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_an_adapter_takes_what_peft_takes(row: dict[str, Any]) -> None:
    report = estimate(row["script"])
    assert not report.unanswered, report.unanswered
    found = report.estimates[0]
    assert found.parameters == row["parameters"]
    assert found.peak.allocated is not None
    ours = found.peak.allocated.point - found.breakdown["workspaces"]
    assert ours == pytest.approx(row["allocated"], rel=ALLOWED)


@pytest.mark.torch
@pytest.mark.parametrize("row", ROWS[1::4], ids=lambda row: row["id"])
def test_the_kept_figures_are_those_of_peft(row: dict[str, Any]) -> None:
    pytest.importorskip("peft", reason="peft is not installed in this environment (see `make test-torch`)")
    parameters, peak = measured(row["script"], fake=False)
    assert parameters == row["parameters"]
    # what a library makes when it is first used falls into the first script
    assert peak == pytest.approx(row["allocated"], rel=0.002)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("LoraConfig(use_qalora=True)", "use_qalora"),
        ("AdaLoraConfig()", "AdaLoRA"),
        ("LoraConfig(target_modules=['wte'])", "Embedding"),
    ],
)
def test_other_ways_of_adapting_stop_by_name(options: str, words: str) -> None:
    script = ROWS[0]["script"].replace("'llama'", "'gpt2'")
    start = script.index("LoraConfig(r=")
    end = script.index("))", start) + 1
    script = script[:start] + options + script[end:]
    script = script.replace("import LoraConfig", "import AdaLoraConfig, LoraConfig")
    script = script.replace(
        "hidden_size=512, intermediate_size=1376, num_hidden_layers=2, num_attention_heads=8, "
        "num_key_value_heads=4",
        "n_embd=256, n_layer=2, n_head=4",
    )
    report = estimate(script)
    assert not report.estimates
    assert words in report.unanswered[0].message

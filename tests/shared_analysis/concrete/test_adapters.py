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
from torchwise_memory.workload import Workload, run

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
        ("AdaLoraConfig()", "total_step"),
        ("AdaLoraConfig(total_step=10, rank_pattern={'a': [True]})", "ranks that were allocated"),
        ("AdaLoraConfig(total_step=10, target_modules=['wte'])", "Embedding"),
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


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        ("nn.MultiheadAttention(16, 2)", "LoraConfig(target_modules=['second'])", "MultiheadAttention"),
        ("nn.Conv1d(32, 64, 3)", "AdaLoraConfig(total_step=9, target_modules=['second'])", "Conv1d"),
        (
            "nn.Conv2d(32, 64, 3, groups=4)",
            "LoraConfig(r=6, target_modules=['second'])",
            "divisible by groups",
        ),
    ],
)
def test_layers_that_are_not_adapted_stop_by_name(layer: str, options: str, words: str) -> None:
    script = next(row["script"] for row in ROWS if row["id"] == "lora-conv2d")
    script = script.replace("nn.Conv2d(32, 64, 3, stride=2, padding=1)", layer)
    start = script.index("LoraConfig(r=")
    script = script[:start] + options + script[script.index("])", start) + 2 :]
    script = script.replace("import LoraConfig", "import AdaLoraConfig, LoraConfig")
    report = estimate(script)
    assert not report.estimates
    assert words in report.unanswered[0].message


def test_an_attribute_of_a_models_output_may_be_added_to() -> None:
    plain = "    loss = model(input_ids=ids, labels=ids).loss\n"
    added = "    outputs = model(input_ids=ids, labels=ids)\n    outputs.loss += 1\n    loss = outputs.loss\n"
    before, after = (estimate(ROWS[0]["script"].replace(plain, text)) for text in (plain, added))
    assert not after.unanswered, after.unanswered
    first, second = before.estimates[0].peak.allocated, after.estimates[0].peak.allocated
    assert first is not None and second is not None
    # whose logits are alive until backward
    assert second.point >= first.point


QLORA = """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

packing = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(
    "HuggingFaceTB/SmolLM2-360M", quantization_config=packing, torch_dtype=torch.bfloat16
)
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ids = torch.randint(0, 1000, (4, 512), device="cuda")
for step in range(3):
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
"""


def test_packed_weights_of_a_script_are_those_of_a_description() -> None:
    report = estimate(QLORA)
    assert not report.unanswered, report.unanswered
    found = report.estimates[0]
    described = run(
        Workload(
            model="smollm2-360m",
            micro_batch=4,
            seq_len=512,
            weights="bf16",
            quantisation="bnb nf4",
            peft={"method": "LoRA", "rank": 16, "targets": ["all-linear"]},
            checkpointing="false",
            framework="transformers",
        ),
        calibrated=False,
    )
    assert found.parameters == described.parameters
    assert found.trainable_parameters == described.trainable
    assert found.plan["quantisation"].value == "4 bits"
    assert found.peak.allocated is not None and described.peak.allocated is not None
    # its low end: no dropout
    assert found.peak.allocated.point == pytest.approx(described.peak.allocated.low, rel=0.01)


def test_the_norm_of_dora_unpacks_weights() -> None:
    plain, dora = (
        estimate(QLORA.replace("r=16", f"r=16, use_dora={flag}")).estimates[0] for flag in (False, True)
    )
    assert plain.peak.allocated is not None and dora.peak.allocated is not None
    assert dora.peak.allocated.point > plain.peak.allocated.point


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("HuggingFaceTB/SmolLM2-360M", "gpt2", "no torch.nn.Linear layers"),
        ("BitsAndBytesConfig", "GPTQConfig", "quantised"),
        ("load_in_4bit=True", "load_in_8bit=True, llm_int8_enable_fp32_cpu_offload=True", "host"),
    ],
)
def test_other_packing_stops_by_name(old: str, new: str, words: str) -> None:
    report = estimate(QLORA.replace(old, new))
    assert not report.estimates
    assert words in report.unanswered[0].message

"""A script of DeepSpeed and a described job of the same configuration: the same buffers, the same peak."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import report
from tests.shared_analysis.concrete.test_sharded_frameworks import point

from torchwise_memory.policies.zero import REDUCE_BUCKET, SUB_GROUP, bucket_of_transformers, zero_buffers
from torchwise_memory.report import Estimate
from torchwise_memory.workload import Answer, Workload, run

SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 8000,
}
GPUS = 4
SCRIPT = """
# torchwise: world_size={gpus}
import torch, deepspeed
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("llama", attn_implementation="sdpa", {sizes})
model = AutoModelForCausalLM.from_config(config)
settings = {{
    "train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": True}}, "optimizer": {{"type": "AdamW"}},
    "zero_optimization": {{
        "stage": {stage}, {bucket} "stage3_max_reuse_distance": 1,
        "offload_optimizer": {{"device": {home!r}}},
    }},
}}
engine, _, _, _ = deepspeed.initialize(model=model, config=settings)
ids = torch.randint(0, 8000, (1, 512), device="cuda")
for step in range(3):
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
"""
#: What a script allocates is counted in the allocator's blocks, which it leaves whole up to 1 MiB.
ALLOWED = 0.04
#: By framework, what a description assumes where nothing is stated.
BUCKETS = {
    "transformers": f'"reduce_bucket_size": {bucket_of_transformers(1024)}, "overlap_comm": True,',
    "torch": "",
}


def scripted(folder: Path, stage: int, home: str, framework: str) -> Estimate:
    sizes = ", ".join(f"{name}={value}" for name, value in SIZES.items())
    bucket = BUCKETS[framework]
    found = report(folder, SCRIPT.format(gpus=GPUS, sizes=sizes, stage=stage, bucket=bucket, home=home))
    assert found.estimates, found.unanswered
    return found.estimates[0]


def described(stage: int, home: str, **more: object) -> Answer:
    facts: dict[str, object] = {
        "config": {"model_type": "llama", **SIZES},
        "micro_batch": 1,
        "seq_len": 512,
        "weights": "bf16",
        "optimizer": "AdamW",
        "checkpointing": "false",
        "attention": "sdpa",
        "framework": "transformers",
        "gpus": GPUS,
        "parallel": "ZeRO",
        "parallelism": f"DeepSpeed ZeRO stage {stage}",
        "offload": "optimizer to CPU" if home == "cpu" else "",
    }
    return run(Workload(**{**facts, **more}), calibrated=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", list(BUCKETS))
@pytest.mark.parametrize("home", ["none", "cpu"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_description_is_the_script_of_the_same_settings(
    tmp_path: Path, stage: int, home: str, framework: str
) -> None:
    script, job = scripted(tmp_path, stage, home, framework), described(stage, home, framework=framework)
    assert script.parameters == job.parameters
    assert job.peak.allocated is not None
    assert point(script) == pytest.approx(job.peak.allocated.point, rel=ALLOWED)


def test_a_bucket_is_as_large_as_the_settings_say() -> None:
    small, large = 1_000_000, 3_000_000_000
    for stage in (1, 2):
        for part in (small, large):
            assert zero_buffers(stage, part, part).in_backward == REDUCE_BUCKET
            assert zero_buffers(stage, part, part, overlaps=True).in_backward == 2 * REDUCE_BUCKET
    assert zero_buffers(3, small, small).held == REDUCE_BUCKET
    assert zero_buffers(3, small, small).in_backward == 0


def test_the_step_copies_a_sub_group_at_stage_three_and_nothing_on_the_host() -> None:
    large = 3_000_000_000
    assert zero_buffers(3, large, 1).in_step == SUB_GROUP
    assert zero_buffers(2, large, 1).in_step == large
    for stage in (1, 2, 3):
        assert zero_buffers(stage, large, 1, on_host=True).in_step == 0
    assert zero_buffers(2, large, 7, on_host=True).held == 7


def test_layers_left_out_do_not_enlarge_a_sub_group() -> None:
    deep = {"model_type": "llama", **SIZES, "hidden_size": 4096, "intermediate_size": 11008}
    two, many = (described(3, "none", gpus=2, config={**deep, "num_hidden_layers": n}) for n in (32, 64))
    assert two.peak.allocated is not None and many.peak.allocated is not None
    assert two.parameters is not None and many.parameters is not None
    per_parameter = (many.peak.allocated.point - two.peak.allocated.point) / (
        (many.parameters - two.parameters) / 2
    )
    # weights, gradients, master copy and states; neither flattened gradients nor their copies
    assert per_parameter == pytest.approx(16, abs=0.5)


@pytest.mark.parametrize("checkpointing", ["true", "false"])
def test_stage_three_gathers_frozen_weights_for_adapters(checkpointing: str) -> None:
    lora = {"method": "LoRA", "rank": 64, "targets": ["q_proj", "v_proj"]}
    config = {"model_type": "llama", **SIZES, "hidden_size": 4096, "num_hidden_layers": 32}
    two, three = (
        described(stage, "none", peft=lora, checkpointing=checkpointing, config=config) for stage in (2, 3)
    )
    assert two.peak.allocated is not None and three.peak.allocated is not None
    assert two.parameters is not None
    # all but this process's part of the frozen weights is gone, and few are gathered at a time
    saved = two.peak.allocated.point - three.peak.allocated.point
    assert saved > 0.9 * two.parameters * 2 * (GPUS - 1) / GPUS

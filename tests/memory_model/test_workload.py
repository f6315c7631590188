"""Jobs described by facts: reading, extrapolation over layers, policies, and answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchwise_memory import hardware
from torchwise_memory.jobs import Options, has_family, job_of
from torchwise_memory.presets import presets
from torchwise_memory.report import Phase, Verdict
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.simulation import Simulated, simulate
from torchwise_memory.workload import Workload, WorkloadError, read, run

CARD = hardware.find("a100-80gb")
SMALL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BASE = Workload(
    config=SMALL,
    gpu="a100-80gb",
    micro_batch=2,
    seq_len=128,
    weights="bf16",
    autocast="none",
    optimizer="AdamW",
    checkpointing="false",
    framework="transformers",
    releases={"transformers": (5, 0), "torch": (2, 9)},
)
LORA = {"method": "LoRA", "rank": 8, "targets": ["q_proj", "v_proj"]}


def simulated(workload: Workload, shallow: bool = True) -> Simulated:
    return simulate(job_of(workload, Options(), CARD)[0], shallow)


@pytest.mark.parametrize(
    "workload",
    [
        BASE,
        replace(BASE, checkpointing="true"),
        replace(BASE, checkpointing="selective (per-op)", compiled=True),
        replace(BASE, micro_batch=64),
        replace(BASE, weights="fp32", autocast="bf16", accumulation=4),
        replace(BASE, peft=LORA),
        replace(BASE, peft={"method": "DoRA", "targets": ["all-linear"]}),
        replace(BASE, peft={"method": "IA3"}),
        replace(BASE, peft={"method": "prompt tuning"}),
        replace(BASE, peft={"method": "prefix tuning", "virtual_tokens": 32}),
        replace(BASE, peft=LORA, quantisation="bnb nf4", checkpointing="true"),
        replace(BASE, gpus=8, parallel="FSDP", weights="fp32", autocast="bf16 mixed"),
        replace(BASE, gpus=8, parallel="FSDP", weights="fp32", autocast="bf16 mixed", framework="torchtitan"),
        replace(BASE, gpus=4, parallel="FSDP", checkpointing="true"),
        replace(BASE, gpus=4, parallel="DDP"),
        replace(BASE, gpus=4, parallel="ZeRO", parallelism="ZeRO-2"),
        replace(BASE, optimizer="bnb AdamW 8-bit"),
        replace(BASE, optimizer="SGD momentum 0.9", micro_batch=1, seq_len=16),
        replace(BASE, task="generate"),
    ],
)
def test_two_shallow_models_give_the_peak_of_the_deep_one(workload: Workload) -> None:
    two, deep = simulated(workload), simulated(workload, shallow=False)
    # a partition of all parameters is rounded to a block once, not once a layer
    assert abs(two.allocated - deep.allocated) <= (16 * 1024 if workload.parallel == "ZeRO" else 0)
    plain = [replace(each, allocated=0, optimizer=0, kinds={}) for each in (two, deep)]
    assert plain[0] == plain[1]
    if workload.parallel != "ZeRO":
        assert {k: v for k, v in two.kinds.items() if v} == {k: v for k, v in deep.kinds.items() if v}
    assert sum(two.kinds.values()) == two.allocated


def test_a_copy_that_the_optimizer_makes_is_no_activation() -> None:
    """foreach AdamW takes a temporary as large as the parameters."""
    answer = run(replace(BASE, micro_batch=1, seq_len=16))
    weights = answer.breakdown["weights"]
    assert answer.phase is Phase.OPTIMIZER
    assert answer.breakdown["activations"] == 0
    assert answer.breakdown["temporaries"] == pytest.approx(weights, rel=0.01)
    assert answer.breakdown["gradients"] == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize(
    "change", [{"accumulation": 4}, {"gpus": 4, "parallel": "ZeRO", "parallelism": "ZeRO-2"}]
)
def test_gradients_kept_through_the_backward_pass_are_shown(change: dict[str, Any]) -> None:
    answer = run(replace(BASE, micro_batch=64, **change))
    assert answer.phase is Phase.BACKWARD
    assert answer.breakdown["gradients"] > 0.24 * answer.breakdown["weights"]
    assert answer.peak.allocated is not None
    assert sum(answer.breakdown.values()) == answer.peak.allocated.point


def test_lora_trains_what_it_adds() -> None:
    # q: 256 -> 256, v: 256 -> 128, rank 8, 14 layers
    assert simulated(replace(BASE, peft=LORA)).trainable == 14 * 8 * (256 + 256 + 256 + 128)


def test_packed_weights_count_as_parameters_but_take_a_quarter() -> None:
    plain, packed = (
        simulated(replace(BASE, peft=LORA)),
        simulated(replace(BASE, peft=LORA, quantisation="GPTQ int4")),
    )
    assert packed.parameters == plain.parameters
    assert packed.weights < 0.5 * plain.weights


def test_optimizer_states_follow_their_bits() -> None:
    full = simulated(BASE)
    assert full.optimizer == pytest.approx(2 * full.weights, rel=0.01)
    assert simulated(replace(BASE, optimizer="bnb AdamW 8-bit")).optimizer < 0.55 * full.optimizer
    assert simulated(replace(BASE, optimizer="SGD")).optimizer == 0


def test_sharding_divides_weights_and_states() -> None:
    whole = simulated(replace(BASE, gpus=1))
    shards = simulated(replace(BASE, gpus=8, parallel="FSDP"))
    assert shards.weights == pytest.approx(whole.weights / 8, rel=0.05)
    assert shards.optimizer == pytest.approx(whole.optimizer / 8, rel=0.05)


def test_zero_3_keeps_sixteen_bytes_a_parameter_of_its_part() -> None:
    """bf16 weights and gradients, fp32 master copy and two moments."""
    part = simulated(replace(BASE, gpus=1)).parameters / 4
    answer = simulated(replace(BASE, gpus=4, parallel="ZeRO", parallelism="ZeRO-3", checkpointing="true"))
    assert answer.weights == pytest.approx(2 * part, rel=0.05)
    assert answer.optimizer == pytest.approx(12 * part, rel=0.05)
    assert answer.allocated > 16 * part


def test_a_part_of_a_model_is_not_counted_as_the_model() -> None:
    assert run(replace(BASE, gpus=2, parallel="TP", parallelism="TP")).parameters is None


@pytest.mark.parametrize(
    "change",
    [{"checkpointing": "true"}, {"micro_batch": 1}, {"seq_len": 64}, {"peft": LORA}, {"optimizer": "SGD"}],
)
def test_less_work_needs_less_memory(change: dict[str, Any]) -> None:
    heavy = replace(BASE, micro_batch=8, seq_len=512)
    assert simulated(replace(heavy, **change)).allocated <= simulated(heavy).allocated


def test_a_field_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(WorkloadError, match="micro_batch"):
        read({"model": "llama-2-7b", "micro_batch": "four"})
    with pytest.raises(WorkloadError, match="peft"):
        read({"model": "llama-2-7b", "peft": "LoRA"})
    with pytest.raises(WorkloadError, match="seq_len"):
        read({"model": "llama-2-7b", "seq_len": -1})


@pytest.mark.parametrize(
    "row",
    [
        {"model": "no such model", "micro_batch": 1},
        {"micro_batch": 1},
        {"model": "llama-2-7b", "optimizer": "a new optimizer", "seq_len": 128},
        {"config": {"model_type": "llama"}, "seq_len": 128},
        {"config": {"model_type": "never heard of"}, "seq_len": 128},
        {"model": "llama-2-7b", "quantisation": "3 bit ternary", "seq_len": 128},
    ],
)
def test_what_is_not_known_stays_unknown(row: dict[str, Any]) -> None:
    answer = run(read({"gpu": "A100 80GB", **row}))
    assert answer.peak.allocated is None
    assert answer.verdict is Verdict.UNKNOWN
    assert answer.why


def test_an_unread_field_widens_the_interval() -> None:
    stated, unstated = run(BASE), run(replace(BASE, seq_len=None))
    assert stated.peak.allocated is not None and unstated.peak.allocated is not None
    assert not stated.assumptions
    assert any("length" in sentence for sentence in unstated.assumptions)
    width = [(p.high - p.low) / p.point for p in (stated.peak.allocated, unstated.peak.allocated)]
    assert width[1] > width[0]


def test_verdicts_follow_the_card() -> None:
    job = Workload(
        model="llama-2-7b",
        micro_batch=1,
        seq_len=1024,
        weights="bf16",
        optimizer="AdamW",
        checkpointing="true",
    )
    assert run(replace(job, gpu="T4")).verdict is Verdict.OOM
    assert run(replace(job, gpu="H200")).verdict is Verdict.FITS
    assert run(job).verdict is Verdict.UNKNOWN


def test_seventy_billion_parameters_under_fsdp_run_few_operators() -> None:
    """The cost does not grow with depth: as many operators as two shallow models have."""
    from torchwise_memory.simulation import SHALLOW

    job = job_of(
        Workload(
            model="llama-3.1-70b", gpus=64, parallel="FSDP", micro_batch=1, seq_len=4096, checkpointing="true"
        ),
        Options(),
        CARD,
    )[0]
    assert job.subject.layers == 80
    assert sum(SHALLOW) < 10
    assert simulate(job).parameters == 70_553_706_496


def test_a_model_has_a_family_exactly_if_its_job_is_answered() -> None:
    one_of_each = {preset.config["model_type"]: preset for preset in presets()}
    for kind, preset in one_of_each.items():
        answer = run(Workload(model=preset.name, task="load"))
        assert (answer.peak.allocated is not None) == has_family(preset.config), kind


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"parallelism": "ZeRO-1"}, {"parallelism": "ZeRO-2"}),
        ({"parallelism": "ZeRO-2"}, {"parallelism": "ZeRO-3"}),
        ({"parallelism": "ZeRO-2"}, {"parallelism": "ZeRO-2", "offload": "optimizer to CPU"}),
    ],
)
def test_each_stage_of_zero_holds_less(more: dict[str, Any], less: dict[str, Any]) -> None:
    base = replace(BASE, gpus=8, parallel="ZeRO", micro_batch=1, seq_len=16)
    assert simulated(replace(base, **less)).allocated < simulated(replace(base, **more)).allocated


@pytest.mark.parametrize(
    ("optimizer", "below"),
    [("GaLore AdamW rank 16", "AdamW fused"), ("Lion", "AdamW fused"), ("Adafactor", "Lion")],
)
def test_optimizers_are_ordered_by_their_states(optimizer: str, below: str) -> None:
    sizes = [simulated(replace(BASE, optimizer=each, micro_batch=1)).allocated for each in (optimizer, below)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("optimizer", "bytes_"),
    [("AdamW", 12), ("SGD", 4), ("SGD momentum 0.9", 8), ("Lion", 8), ("AdamW 8-bit", 6)],
)
def test_zero_keeps_a_master_copy_and_the_optimizers_states(optimizer: str, bytes_: int) -> None:
    base = replace(BASE, gpus=4, parallel="ZeRO", parallelism="ZeRO-2", optimizer=optimizer)
    found = simulated(base)
    assert found.optimizer == pytest.approx(bytes_ * found.parameters / 4, rel=0.001)


def test_lbfgs_keeps_two_vectors_a_step_of_its_history() -> None:
    short, long = (simulated(replace(BASE, weights="fp32", optimizer=f"LBFGS history {n}")) for n in (10, 20))
    assert long.optimizer - short.optimizer == pytest.approx(20 * 4 * long.parameters, rel=0.01)


def test_beams_and_length_grow_the_cache_and_a_window_ends_it() -> None:
    base = replace(BASE, task="generate", seq_len=1024)
    one, four = (simulated(replace(base, beams=n)).allocated for n in (1, 4))
    assert four > one
    windowed = {**SMALL, "model_type": "mistral", "sliding_window": 256}
    assert simulated(replace(base, config=windowed)).allocated < one


def test_experts_are_divided_between_processes() -> None:
    mixture = {**SMALL, "model_type": "mixtral", "num_local_experts": 8}
    whole = simulated(replace(BASE, config=mixture))
    part = simulated(replace(BASE, config=mixture, gpus=4, parallel="FSDP", parallelism="FSDP2 4 + EP 4"))
    # once, not by both ways of dividing
    assert part.weights == pytest.approx(whole.weights / 4, rel=0.01)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoders_run_their_whole_depth(kind: str) -> None:
    sizes = {
        "t5": {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "vocab_size": 500},
        "bart": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 500},
    }[kind]
    answered = run(replace(BASE, config={"model_type": kind, **sizes}))
    assert answered.peak.allocated is not None and answered.parameters


def test_a_checkpoint_that_a_family_knows_needs_no_preset() -> None:
    answered = run(Workload(model="openai/whisper-tiny", weights="fp32", optimizer="AdamW", micro_batch=1))
    assert answered.parameters == pytest.approx(37_760_640, rel=0.001)


def test_what_must_fit_lies_between_live_bytes_and_nothing_given_back() -> None:
    answered = run(BASE, calibrated=False)
    assert answered.peak.allocated is not None and answered.peak.reserved is not None
    assert answered.peak.allocated.point <= answered.needed[0] <= answered.peak.reserved.high


def test_the_options_of_the_allocator_change_what_is_reserved() -> None:
    plain, expandable = (
        run(replace(BASE, micro_batch=24, seq_len=1000, allocator=text), calibrated=False).peak.reserved
        for text in ("", "expandable_segments:True")
    )
    assert plain is not None and expandable is not None
    assert expandable.high < plain.high


def test_readings_that_disagree_about_a_card_make_it_borderline() -> None:
    row = {"task": "train", "assumption": "length 128 each", "attention": "eager", "weights_dtype": "fp32"}
    job = read({**row, "model": "t5-large", "micro_batch": 20, "gpu": "TITAN RTX", "optimizer": "AdamW"})
    assert run(job).verdict is Verdict.BORDERLINE


ADAPTERS = Path(__file__).parents[1] / "shared_analysis" / "concrete" / "data" / "adapters.jsonl"
ADAPTED = Workload(
    config={
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4000,
    },
    micro_batch=8,
    seq_len=256,
    weights="fp32",
    attention="eager",
    optimizer="AdamW",
    checkpointing="false",
    framework="transformers",
)


@pytest.mark.parametrize(
    ("row", "weights", "peft"),
    [
        ("lora", "fp32", {"method": "LoRA", "rank": 16}),
        ("dora", "fp32", {"method": "DoRA", "rank": 16, "targets": ["all-linear"]}),
        ("dora-bf16", "bf16", {"method": "DoRA", "rank": 16, "targets": ["q_proj", "v_proj"]}),
        ("ia3", "fp32", {"method": "IA3"}),
        ("ia3-bf16", "bf16", {"method": "(IA)^3"}),
        ("prompt", "fp32", {"method": "prompt tuning", "virtual_tokens": 32}),
        ("ptuning", "fp32", {"method": "P-Tuning", "virtual_tokens": 32, "encoder_hidden_size": 128}),
        ("prefix", "fp32", {"method": "prefix_tuning", "virtual_tokens": 32}),
    ],
)
def test_described_adapters_take_what_peft_takes(row: str, weights: str, peft: dict[str, object]) -> None:
    """Live bytes: unlike the kept figures, without what the allocator's blocks are longer than asked for."""
    rows = map(json.loads, ADAPTERS.read_text(encoding="utf-8").splitlines())
    known = next(each for each in rows if each["id"] == row)
    options = Options({"adapter_dropout": 0.0})
    found = simulate(job_of(replace(ADAPTED, weights=weights, peft=peft), options, None)[0])
    assert found.parameters == known["parameters"]
    ours = found.allocated - found.kinds.get(StorageKind.WORKSPACE, 0)
    assert ours == pytest.approx(known["allocated"], rel=0.013)


def test_packed_weights_are_unpacked_for_the_norm_of_dora() -> None:
    packed = replace(BASE, quantisation="bnb nf4")
    targets = ["all-linear"]
    plain = simulated(replace(packed, peft={"method": "LoRA", "rank": 8, "targets": targets}))
    dora = simulated(replace(packed, peft={"method": "DoRA", "rank": 8, "targets": targets}))
    assert dora.allocated > plain.allocated
    assert dora.trainable > plain.trainable


def test_a_prefix_and_checkpointing_exclude_each_other() -> None:
    answer = run(replace(BASE, peft={"method": "prefix"}, checkpointing="true"))
    assert answer.peak.allocated is None
    assert "prefix tuning" in answer.why


DECODERS = Path(__file__).parent / "data" / "described_decoders.jsonl"
DESCRIBED: list[dict[str, Any]] = [json.loads(line) for line in DECODERS.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("row", DESCRIBED, ids=lambda row: row["id"])
def test_a_described_decoder_takes_what_its_library_takes(row: dict[str, Any]) -> None:
    facts = {key: value for key, value in row.items() if key not in ("id", "parameters", "allocated")}
    stated = {
        "gpu": "a100-80gb",
        "autocast": "none",
        "optimizer": "AdamW",
        "framework": "transformers",
        "version": "transformers 5.24, torch 2.13",
        "metric_asked": "allocated",
    }
    answer = run(read({**stated, **facts}))
    assert answer.parameters == row["parameters"]
    assert answer.peak.allocated is not None
    assert answer.peak.allocated.point == pytest.approx(row["allocated"], rel=0.005)


ALTERNATING: dict[str, Any] = {
    **SMALL,
    "model_type": "deepseek_v3",
    "num_hidden_layers": 15,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 3,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}


@pytest.mark.parametrize(
    "config",
    [
        ALTERNATING,
        {**ALTERNATING, "first_k_dense_replace": 1},
        {**SMALL, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64},
        {**SMALL, "model_type": "gemma3_text", "head_dim": 64, "sliding_window": 64, "num_hidden_layers": 17},
        {
            **SMALL,
            "model_type": "llama4_text",
            "num_local_experts": 4,
            "head_dim": 64,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 16,
        },
    ],
    ids=lambda config: config["model_type"],
)
@pytest.mark.parametrize(
    "change", [{}, {"checkpointing": "true"}, {"checkpointing": "selective (every 2nd)"}]
)
def test_layers_of_several_kinds_repeat(config: dict[str, Any], change: dict[str, Any]) -> None:
    workload = replace(BASE, config=config, **change)
    assert simulated(workload).allocated == simulated(workload, shallow=False).allocated


@pytest.mark.parametrize(
    "model", ["t5-small", "bart-base", "whisper-tiny", "facebook/nllb-200-distilled-600M"]
)
def test_encoder_decoders_generate_with_a_cache(model: str) -> None:
    base = replace(BASE, config=None, model=model, task="generate", micro_batch=4, seq_len=128)
    one, two = run(replace(base, new_tokens=64)), run(replace(base, new_tokens=512))
    training = run(replace(base, task="train"))
    assert one.peak.allocated is not None and two.peak.allocated is not None
    assert training.peak.allocated is not None
    assert one.peak.allocated.point < two.peak.allocated.point < training.peak.allocated.point
    beams = run(replace(base, new_tokens=64, beams=4))
    assert beams.peak.allocated is not None
    assert beams.peak.allocated.point > one.peak.allocated.point


def test_expert_parallelism_takes_its_processes_from_those_that_shard() -> None:
    mixture = {
        **SMALL,
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 1024,
    }
    base = replace(BASE, config=mixture, gpus=4, parallel="FSDP", parallelism="FSDP2 4")
    sharded, parallel = simulated(base), simulated(replace(base, parallelism="FSDP2 4 + EP 4"))
    # a quarter of the experts is here either way, as a part of each or whole
    assert parallel.optimizer == pytest.approx(sharded.optimizer, rel=0.02)

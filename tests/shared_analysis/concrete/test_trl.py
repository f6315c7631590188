"""TRL's trainers beyond fine-tuning: what stands beside the model, and what the step holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import message, report

from torchwise_memory.report import Estimate

MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4))
"""
ONLINE = (
    MODEL
    + """
from trl import %(kind)sConfig, %(kind)sTrainer
arguments = %(kind)sConfig(output_dir="out", per_device_train_batch_size=4, bf16=False,
    gradient_checkpointing=False, %(options)s)
trainer = %(kind)sTrainer(model=model, reward_funcs=%(reward)s, args=arguments, train_dataset=[])
trainer.train()
"""
)
OFFLINE = (
    MODEL
    + """
from %(place)s import %(kind)sConfig, %(kind)sTrainer
arguments = %(kind)sConfig(output_dir="out", per_device_train_batch_size=4, bf16=False,
    gradient_checkpointing=False, max_length=256, %(options)s)
trainer = %(kind)sTrainer(model=model, args=arguments, train_dataset=[])
trainer.train()
"""
)
LENGTHS = "# torchwise: prompt_len=64 completion_len=128 seq_len=256\n"
VOCABULARY = 50257


def online(
    folder: Path, kind: str = "GRPO", options: str = "", reward: str = "lambda **k: 0", stated: str = LENGTHS
) -> Estimate:
    script = stated + ONLINE % {"kind": kind, "options": options, "reward": reward}
    found = report(folder, script)
    assert found.estimates, found.unanswered
    return found.estimates[0]


def offline(folder: Path, kind: str, options: str = "", place: str = "trl") -> Estimate:
    script = LENGTHS + OFFLINE % {"kind": kind, "options": options, "place": place}
    found = report(folder, script)
    assert found.estimates, found.unanswered
    return found.estimates[0]


def point(found: Estimate) -> int:
    assert found.peak.allocated is not None
    return found.peak.allocated.point


def test_grpo_holds_the_logits_of_completions(tmp_path: Path) -> None:
    found = online(tmp_path)
    assert found.parameters is not None
    logits = 4 * 128 * VOCABULARY * 4
    states = found.parameters * 16
    # logits of the completion, their gradient, and what stands between
    assert states + 2 * logits < point(found) < states + 6 * logits
    assert found.plan["micro_batch"].value == 4


def test_a_reference_stands_beside_the_model_only_with_a_divergence(tmp_path: Path) -> None:
    without, beside = online(tmp_path), online(tmp_path, options="beta=0.04")
    assert without.parameters is not None
    grown = beside.breakdown["weights"] - without.breakdown["weights"]
    assert abs(grown - 4 * without.parameters) < 0.02 * grown


def test_generation_holds_the_cache_of_the_whole_batch(tmp_path: Path) -> None:
    server = "use_vllm=True, vllm_mode='server', vllm_importance_sampling_correction=False"
    options = "gradient_accumulation_steps=1, steps_per_generation=256"
    elsewhere, here = online(tmp_path, options=f"{options}, {server}"), online(tmp_path, options=options)
    # 1024 rows of 192 tokens in 4 layers, keys and values of 256 numbers
    cache = 1024 * 192 * 4 * 2 * 256 * 4
    assert point(here) > here.breakdown["weights"] + cache
    assert point(here) > point(elsewhere)


def test_a_reward_model_stands_on_the_card(tmp_path: Path) -> None:
    reward = "GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=256, n_head=4))"
    alone, scored = online(tmp_path), online(tmp_path, reward=reward)
    assert scored.breakdown["weights"] - alone.breakdown["weights"] > 60 << 20


def test_rloo_has_a_reference_by_default(tmp_path: Path) -> None:
    found = online(tmp_path, "RLOO")
    assert found.trainable_parameters is not None
    assert found.breakdown["weights"] >= 2 * 4 * found.trainable_parameters


def test_lengths_that_nothing_says_are_choices(tmp_path: Path) -> None:
    found = online(tmp_path, stated="")
    assert any("prompts are padded to" in one for one in found.assumptions)
    assert any("at most 512" in one for one in found.assumptions)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("use_vllm=True", "colocate"),
        ("use_liger_loss=True", "use_liger_loss"),
        ("use_transformers_paged=True", "use_transformers_paged"),
    ],
)
def test_what_is_not_modelled_stops_by_name(tmp_path: Path, options: str, said: str) -> None:
    script = ONLINE % {"kind": "GRPO", "options": options, "reward": "lambda **k: 0"}
    assert said in message(tmp_path, script)


def test_kto_looks_at_four_batches_a_step(tmp_path: Path) -> None:
    found = offline(tmp_path, "KTO")
    size = found.trainable_parameters
    assert size is not None
    # a reference, and the logits of the policy beside those of the reference
    assert found.breakdown["weights"] >= 2 * 4 * size
    assert point(found) > size * 20 + 2 * 4 * 255 * VOCABULARY * 4
    precomputed = offline(tmp_path, "KTO", "precompute_ref_log_probs=True")
    assert precomputed.breakdown["weights"] < 1.1 * 4 * size


@pytest.mark.parametrize("place", ["trl", "trl.experimental.orpo"])
def test_orpo_trains_pairs_without_a_reference(tmp_path: Path, place: str) -> None:
    found = offline(tmp_path, "ORPO", place=place)
    assert found.parameters is not None
    assert found.breakdown["weights"] < 1.1 * 4 * found.parameters
    assert point(found) > found.parameters * 12 + 2 * 8 * 255 * VOCABULARY * 4


def test_a_trainer_without_a_text_stops_by_name(tmp_path: Path) -> None:
    script = MODEL + "from trl import XPOTrainer\nXPOTrainer(model=model).train()\n"
    assert "XPOTrainer" in message(tmp_path, script)

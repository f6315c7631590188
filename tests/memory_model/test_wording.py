"""Descriptions in other words: the same facts give the same job, and what is not known is refused."""

from __future__ import annotations

from typing import Any

import pytest

from torchwise_memory.adapting import method_of, part_of, places_called
from torchwise_memory.families.projections import Quantised
from torchwise_memory.report import Verdict
from torchwise_memory.runtime.dtypes import DType, bfloat16, float16, float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.wording import (
    Division,
    autocast_of,
    division_of,
    dtype_of,
    offloaded_of,
    quantised_of,
    task_of,
    writes_attention_out,
)
from torchwise_memory.workload import Answer, WorkloadError, read, run

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ROW: dict[str, Any] = {
    "config": SMALL,
    "gpu": "a100-80gb",
    "micro_batch": 2,
    "seq_len": 128,
    "weights_dtype": "bf16",
    "autocast": "none",
    "optimizer": "AdamW",
    "grad_checkpointing": False,
    "framework": "transformers",
    "version": "transformers 5.0, torch 2.9",
    "metric_asked": "allocated",
}


def answered(**changes: Any) -> Answer:
    return run(read({**ROW, **changes}))


def live(**changes: Any) -> int:
    peak = answered(**changes).peak.allocated
    assert peak is not None
    return peak.point


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"weights_dtype": "torch.float16"}, {"weights_dtype": "half"}),
        ({"weights_dtype": "tf32"}, {"weights_dtype": "fp32"}),
        ({"weights_dtype": "mixed", "autocast": "bf16-mixed"}, {"weights_dtype": "fp32", "autocast": "bf16"}),
        ({"weights_dtype": "fp32", "autocast": "16-mixed"}, {"weights_dtype": "fp32", "autocast": "O1"}),
        ({"micro_batch": "2"}, {"micro_batch": 2.0}),
        ({"seq_len": "1k"}, {"seq_len": "1,024"}),
        ({"task": "fine-tuning"}, {"task": "pretrain"}),
        ({"optimizer": "adamw_torch"}, {"optimizer": "torch.optim.Adam"}),
        ({"optimizer": "adamw_bnb_8bit"}, {"optimizer": "8-bit AdamW (bitsandbytes)"}),
        ({"optimizer": "paged_adamw_32bit"}, {"optimizer": "paged AdamW 32-bit"}),
        ({"optimizer": "SGD without momentum"}, {"optimizer": "SGD (no state)"}),
        ({"optimizer": "sgd nesterov"}, {"optimizer": "SGD momentum 0.9"}),
        ({"optimizer": "apex FusedAdam"}, {"optimizer": "torch.optim.AdamW(fused=True)"}),
        ({"optimizer": "not stated"}, {"optimizer": None}),
        (
            {"n_gpus": 8, "parallel_class": "ZeRO", "parallelism": "DeepSpeed ZeRO Stage 3"},
            {"n_gpus": 8, "parallel_class": "ZeRO", "parallelism": "zero3"},
        ),
        (
            {"n_gpus": 8, "parallel_class": "ZeRO", "parallelism": "FairScale OSS"},
            {"n_gpus": 8, "parallel_class": "ZeRO", "parallelism": "ZeRO-1"},
        ),
        (
            {"n_gpus": 16, "parallel_class": "FSDP", "parallelism": "HSDP 2x8"},
            {"n_gpus": 8, "parallel_class": "FSDP", "parallelism": "FSDP full shard"},
        ),
        (
            {"n_gpus": 2, "parallelism": "tensor parallel 2"},
            {"n_gpus": 2, "parallel_class": "model-parallel (TP/PP/layer split)", "parallelism": "TP"},
        ),
        (
            {"n_gpus": 2, "parallelism": "device_map auto"},
            {"n_gpus": 2, "parallelism": "naive layer split"},
        ),
        ({"quantisation": "not quantised"}, {"quantisation": None}),
        ({"quantisation": "bf16"}, {"quantisation": "none"}),
        ({"peft": {"method": "full"}}, {"peft": None}),
        ({"peft": {"method": "lora", "r": 4}}, {"peft": {"method": "rsLoRA", "rank": 4}}),
        (
            {"peft": {"method": "LoRA", "rank": 4, "targets": "all-linear"}},
            {"peft": {"method": "PiSSA", "rank": 4, "targets": ["attention", "mlp"]}},
        ),
        (
            {"peft": {"method": "LoRA", "rank": 4, "targets": ["query_key_value"]}},
            {"peft": {"method": "LoRA", "rank": 4, "targets": "q_proj,k_proj,v_proj"}},
        ),
        ({"attention": "FlashAttention-2"}, {"attention": "xformers"}),
        ({"attention": "vanilla"}, {"attention": "eager"}),
    ],
)
def test_other_words_for_the_same_facts_are_the_same_job(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert live(**one) == live(**other)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"optimizer": "LOMO"}, {"optimizer": "SGD momentum 0.9"}),
        ({"optimizer": "Adam-mini"}, {"optimizer": "AdamW fused"}),
        ({"optimizer": "Lion"}, {"optimizer": "Prodigy"}),
        ({"optimizer": "Sophia"}, {"optimizer": "AdEMAMix"}),
        ({"optimizer": "APOLLO rank 32"}, {"optimizer": "GaLore AdamW rank 32"}),
        ({"optimizer": "GaLore AdamW 8-bit, rank 64"}, {"optimizer": "GaLore AdamW rank 64"}),
        ({"optimizer": "AdamW (bf16 states)"}, {"optimizer": "AdamW, fp32 states"}),
        ({"optimizer": "AdamW, fp32 states"}, {"optimizer": "AdamW, fp32 master weights"}),
        ({"optimizer": "DeepSpeedCPUAdam"}, {"optimizer": "AdamW"}),
        (
            {"n_gpus": 4, "parallel_class": "FSDP", "parallelism": "FSDP full shard"},
            {"n_gpus": 4, "parallel_class": "FSDP", "parallelism": "FSDP SHARD_GRAD_OP"},
        ),
        (
            {"n_gpus": 4, "parallel_class": "FSDP", "parallelism": "FSDP full shard + CPU offload"},
            {"n_gpus": 4, "parallel_class": "FSDP", "parallelism": "FSDP full shard"},
        ),
        (
            {"n_gpus": 4, "parallel_class": "DDP", "parallelism": "DDP, gradient_as_bucket_view"},
            {"n_gpus": 4, "parallel_class": "DDP", "parallelism": "DDP"},
        ),
        ({"framework": "unsloth"}, {"framework": "transformers"}),
        ({"assumption": "Liger kernels"}, {"assumption": ""}),
        (
            {"framework": "unsloth", "grad_checkpointing": "unsloth", "micro_batch": 64},
            {"framework": "unsloth", "grad_checkpointing": "true", "micro_batch": 64},
        ),
        (
            {"n_gpus": 4, "parallelism": "TP=2, PP=2"},
            {"n_gpus": 2, "parallelism": "TP=2"},
        ),
        (
            {"quantisation": "HQQ 2-bit", "task": "generate"},
            {"quantisation": "hqq int4", "task": "generate"},
        ),
        ({"quantisation": "fp8", "task": "generate"}, {"quantisation": None, "task": "generate"}),
        ({"peft": {"method": "LayerNorm tuning"}}, {"peft": {"method": "full"}}),
    ],
)
def test_ways_to_need_less_need_less(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert live(**less) < live(**more)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "MeZO"}, "no backward pass"),
        ({"optimizer": "Wonderful"}, "not known"),
        ({"quantisation": "GGUF Q4_K_M"}, "another program"),
        ({"quantisation": "ternary"}, "not known"),
        ({"weights_dtype": "fp64"}, "not known"),
        ({"autocast": "purple"}, "not known"),
        ({"offload": "CPU"}, "not said"),
        ({"peft": {"method": "VeRA"}}, "not modelled"),
        ({"peft": {"method": "BitFit"}}, "none of the model's parameters"),
    ],
)
def test_words_that_mean_something_else_are_refused(changes: dict[str, Any], words: str) -> None:
    found = answered(**changes)
    assert found.peak.allocated is None
    assert words in found.why


@pytest.mark.parametrize("task", ["DPO", "rlhf", "distillation"])
def test_a_task_of_several_models_is_refused(task: str) -> None:
    with pytest.raises(WorkloadError, match=task):
        read({**ROW, "task": task})


def test_what_is_assumed_is_said() -> None:
    assert any("AdamW assumed" in words for words in answered(optimizer=None).assumptions)
    assert any("rank" in words for words in answered(peft={"method": "LoRA"}).assumptions)
    stage = answered(n_gpus=4, parallel_class="ZeRO", parallelism="DeepSpeed")
    assert any("ZeRO" in words for words in stage.assumptions)


def test_a_card_that_is_not_one_is_named() -> None:
    assert answered(gpu="TPU v4").why == "the card 'TPU v4' is not known"
    assert answered(gpu="not stated").why == "the card is not stated"
    assert answered(gpu="TPU v4").verdict is Verdict.UNKNOWN


def test_a_card_whose_size_is_open_decides_only_where_all_of_them_agree() -> None:
    huge = {**SMALL, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 30}
    small = answered(gpu="A100 (size not stated)")
    between = answered(config={**huge, "num_attention_heads": 32}, gpu="A100 (size not stated)")
    assert small.verdict is Verdict.FITS
    assert between.verdict is Verdict.BORDERLINE


@pytest.mark.parametrize(
    ("kind", "text", "gpus", "division"),
    [
        ("none", "none", 1, Division()),
        ("DDP", "DDP", 4, Division("DDP", group=4)),
        ("FSDP", "FSDP2 4 + EP 4", 4, Division("FSDP", group=4, experts=4)),
        ("FSDP + TP/PP/CP/EP", "FSDP2 8 x TP 8 x PP 8 (1F1B)", 512,
         Division("FSDP", group=64, tensor=8, pipeline=8)),
        ("FSDP + TP/PP/CP/EP", "FSDP2 2 x CP 4", 8, Division("FSDP", group=8, context=4)),
        ("x", "8-way tensor parallelism", 8, Division(group=8, tensor=8)),
        ("x", "Megatron tensor parallel size 4, pipeline parallel (2)", 8,
         Division(group=4, tensor=4, pipeline=2)),
        ("x", "Ulysses SP 4", 4, Division(group=4, context=4)),
        ("x", "EP", 8, Division(group=8, experts=8)),
        ("ZeRO", "ZeRO-2 or DDP (no ZeRO-3)", 8, Division("ZeRO", stage=2, group=8)),
        ("ZeRO", "ZeRO++", 8, Division("ZeRO", stage=3, group=8)),
        ("FSDP", "NO_SHARD", 4, Division("DDP", group=4)),
        ("FSDP", "hybrid shard", 32, Division("FSDP", group=8)),
    ],
)  # fmt: skip
def test_divisions(kind: str, text: str, gpus: int, division: Division) -> None:
    assert division_of(kind, text, gpus) == division


@pytest.mark.parametrize(
    ("offload", "parallelism", "optimizer", "kind", "moved"),
    [
        ("", "ZeRO-3 offload", "", Division("ZeRO", 3), {"optimizer", "params"}),
        ("", "ZeRO-2 offload", "", Division("ZeRO", 2), {"optimizer"}),
        ("optimizer states and gradients to CPU", "", "", Division(), {"optimizer", "gradients"}),
        ("params, grads, optimizer on CPU", "", "", Division(), {"params", "gradients", "optimizer"}),
        ("CPU", "", "", Division("FSDP"), {"params"}),
        ("none", "", "AdamW torchao CPU offload", Division(), {"optimizer"}),
        ("activations", "", "", Division(), {"activations"}),
        ("", "", "", Division(), set[str]()),
    ],
)
def test_what_is_offloaded(
    offload: str, parallelism: str, optimizer: str, kind: Division, moved: set[str]
) -> None:
    assert offloaded_of(offload, parallelism, optimizer, kind) == moved


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("bf16", bfloat16), ("torch.bfloat16", bfloat16), ("fp16", float16), ("16-bit", float16),
        ("float32", float32), ("TF32", float32), ("fp32 (sharded)", float32), ("", None), ("AMP", None),
    ],
)  # fmt: skip
def test_types(text: str, dtype: DType | None) -> None:
    assert dtype_of(text) is dtype


@pytest.mark.parametrize(
    ("text", "sm", "dtype"),
    [
        ("none (bf16-true)", 80, None), ("no", 80, None), ("bf16 mixed", 80, bfloat16),
        ("fp16 (no GradScaler)", 80, float16), ("apex O2", 70, float16), ("true", 80, bfloat16),
        ("yes", 70, float16), ("amp", 80, float16), ("fp8 (TransformerEngine)", 90, bfloat16),
    ],
)  # fmt: skip
def test_autocast(text: str, sm: int, dtype: DType | None) -> None:
    assert autocast_of(text, float32, sm) is dtype


@pytest.mark.parametrize(
    ("text", "training", "packed"),
    [
        ("NF4", True, Quantised(4, 64, 4)),
        ("QLoRA 4-bit", True, Quantised(4, 64, 4)),
        ("nf4 + double quantisation", True, Quantised(4, 64, 1.016)),
        ("8-bit", True, Quantised(8, 1, 0, dequantises=False, row_scales=True)),
        ("bitsandbytes 8-bit", False, Quantised(8, 1, 0, dequantises=False, row_scales=True)),
        ("quanto int8", False, Quantised(8, 1, 0, row_scales=True)),
        ("AWQ 4-bit", False, Quantised(4, 128, 2.5, dequantises=False)),
        ("3-bit GPTQ", False, Quantised(3, 128, 2.5)),
        ("EXL2 4.5bpw", False, Quantised(4.5, 128, 2.5, dequantises=False)),
        ("W4A16", False, Quantised(4, 128, 2.5, dequantises=False)),
        ("HQQ 2-bit", False, Quantised(2, 64, 4)),
        ("mxfp4", False, Quantised(4, 32, 1, dequantises=False)),
        ("float8 rowwise", True, None),
        ("int8 KV cache", False, None),
        ("none", True, None),
    ],
)
def test_packed_weights(text: str, training: bool, packed: Quantised | None) -> None:
    assert quantised_of(text, training=training) == packed


@pytest.mark.parametrize(
    ("text", "eager"),
    [
        ("eager", True), ("manual softmax attention (2022 timm)", True), ("without flash attention", True),
        ("Transformers default (SDPA; Gemma 2: eager)", False), ("flash-attention 2 or eager", False),
        ("xformers", False), ("SDPA", False), ("", False),
    ],
)  # fmt: skip
def test_attention(text: str, eager: bool) -> None:
    assert writes_attention_out(text) is eager


def test_tasks() -> None:
    assert [task_of(t) for t in ("SFT", "Text generation", "evaluate", "load", None)] == [
        "train", "generate", "inference", "load", "train",
    ]  # fmt: skip
    with pytest.raises(Unsupported):
        task_of("dancing")


def test_ways_of_adapting() -> None:
    assert method_of({"method": "Full fine-tuning"}) == ""
    assert method_of({}) == "lora"
    assert part_of({"method": "LoRA"}) is None
    bias = part_of({"method": "BitFit"})
    assert bias is not None and bias("layers.0.q.bias") and not bias("layers.0.q.weight")
    assert "q" in places_called("bert.encoder.layer.0.attention.self.query")


@pytest.mark.parametrize(
    ("model", "targets", "trained"),
    [
        # 12 layers, query and value, rank 4, 768 wide; the head of two labels
        ("bert-base-uncased", ["query", "value"], 12 * 2 * 4 * 2 * 768 + 2 * 768 + 2),
        # 6 layers of the encoder, and 6 with two attentions each of the decoder
        ("t5-small", ["q", "v"], (6 + 2 * 6) * 2 * 4 * 2 * 512),
    ],
)
def test_adapters_in_library_models(model: str, targets: list[str], trained: int) -> None:
    peft = {"method": "LoRA", "rank": 4, "targets": targets}
    found = answered(config=None, model=model, weights_dtype="fp32", peft=peft)
    assert found.trainable == trained
    packed = answered(config=None, model=model, weights_dtype="bf16", peft=peft, quantisation="nf4")
    plain = answered(config=None, model=model, weights_dtype="bf16", peft=peft)
    assert packed.breakdown["weights"] < plain.breakdown["weights"]
    assert packed.parameters == plain.parameters


def test_adapters_of_another_model_are_refused() -> None:
    found = answered(config=None, model="bert-base-uncased", peft={"method": "LoRA", "targets": ["c_attn"]})
    assert "linear layers of these names" in found.why


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("3B causal LM (Transformers)", 3e9), ("Llama-like 350M", 350e6), ("7B Llama", 7e9)],
)
def test_a_size_in_words_is_a_model_of_that_size(name: str, parameters: float) -> None:
    found = answered(config=None, model=name)
    assert found.parameters == pytest.approx(parameters, rel=0.05)
    assert any("no published model" in words for words in found.assumptions)
    assert found.peak.allocated is not None
    assert found.peak.allocated.low < found.peak.allocated.point < found.peak.allocated.high


@pytest.mark.parametrize("name", ["Mamba-2.8B", "Llama MoE 8B", "RWKV-4 7B", "Grok-1", "Jamba 52B"])
def test_a_size_alone_makes_no_model(name: str) -> None:
    assert "unknown model" in answered(config=None, model=name).why


def test_a_model_cut_to_fewer_layers() -> None:
    whole = answered(config=None, model="Llama 2 7B", task="load")
    cut = answered(config=None, model="Llama 2 7B cut to 2 layers", task="load")
    assert whole.parameters is not None and cut.parameters is not None
    tables = 2 * 32000 * 4096 + 4096
    assert cut.parameters - tables == 2 * (whole.parameters - tables) // 32


@pytest.mark.parametrize(
    ("path", "framework"),
    [
        ("hiyouga/LLaMA-Factory README", "transformers"),
        ("axolotl-ai-cloud/axolotl", "transformers"),
        ("unslothai/unsloth README", "unsloth"),
        ("pytorch/torchtitan benchmarks", "torchtitan"),
        ("open-mmlab/mmsegmentation", "openmmlab"),
        ("someone/else", ""),
    ],
)
def test_frameworks_by_their_documents(path: str, framework: str) -> None:
    assert read({"source": {"path": path}}).framework == framework

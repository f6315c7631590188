"""What one layer of each family keeps for backward, against the layer table of real transformers."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchwise_memory import families
from torchwise_memory.families.base import PreTrainedModel
from torchwise_memory.modules.base import call
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.ledger import SummingAllocator
from torchwise_memory.runtime.world import World

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "saved_layers.jsonl").read_text().splitlines()
]
#: Row name -> model type and what the table's model changes of the defaults.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2 no dropout": ("gpt2", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "bert": ("bert", {}),
    "distilbert": ("distilbert", {}),
    "llama": ("llama", {"num_key_value_heads": 16}),
    "llama GQA 16/4": ("llama", {"num_key_value_heads": 4}),
    "qwen3 GQA 16/8": ("qwen3", {"num_key_value_heads": 8, "head_dim": 128}),
}
INNER = {"gpt2": "n_inner", "distilbert": "hidden_dim"}
SIZES = {"gpt2": 4096, "bert": 4096, "distilbert": 4096, "llama": 2816, "qwen3": 3072}


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def model(w: World, row: dict[str, Any], layers: int) -> PreTrainedModel:
    kind, changes = MODELS[row["model"]]
    config = families.config_of(
        kind,
        vocab_size=64,
        max_position_embeddings=4096,
        hidden_size=row["hidden"],
        num_attention_heads=row["heads"],
        num_hidden_layers=layers,
        **{INNER.get(kind, "intermediate_size"): SIZES[kind]},
        **changes,
    )
    dtype = DTYPES["bfloat16"] if row["mode"] == "bf16" else DTYPES["float32"]
    return families.build(w, "AutoModel", config, dtype, row["attn"]).to(w, "cuda")


def kept(row: dict[str, Any], layers: int, length: int) -> int:
    """Bytes alive after forward beyond weights and workspaces."""
    w = World(SummingAllocator())
    network = model(w, row, layers)
    ids = w.new((2, length), DTYPES["int64"], "randint")
    before = w.ledger.allocator.allocated
    autocast = Autocast("cuda", DTYPES["bfloat16"] if row["mode"] == "amp" else None)
    autocast.enter(w)
    output = call(w, network, (), {"input_ids": ids, "use_cache": False})
    autocast.leave(w)
    assert output is not None
    return w.ledger.allocator.allocated - before - sum(s.bytes for s in w.workspaces.values())


def weight_casts(row: dict[str, Any]) -> int:
    """Half copies of the linear weights of one layer, which autocast keeps: the table leaves them out."""
    if row["mode"] != "amp":
        return 0
    w = World(SummingAllocator())
    network = model(w, row, 1)
    names = ("layernorm", "layer_norm", "norm", "ln_", "embed", "wte", "wpe", "pooler")
    return sum(
        parameter.numel * 2
        for name, parameter in network.walk_parameters()
        if not any(part in name.lower() for part in names)
    )


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["model"] in MODELS],
    ids=lambda row: f"{row['model']}-{row['mode']}-{row['attn']}".replace(" ", "-"),
)
def test_bytes_a_token_and_a_pair_of_positions(row: dict[str, Any]) -> None:
    """Two layer counts and two lengths give the linear and the quadratic part of one layer."""
    short, long = 256, 512
    casts = weight_casts(row)
    a = (kept(row, 2, short) - kept(row, 1, short) - casts) / (2 * short)
    b = (kept(row, 2, long) - kept(row, 1, long) - casts) / (2 * long)
    quadratic = (b - a) / (long - short) / row["heads"]
    linear = a - quadratic * row["heads"] * short
    assert quadratic == pytest.approx(row["quadratic_bytes_per_head_and_position_pair"], abs=0.02)
    assert linear / row["hidden"] == pytest.approx(row["in_units_of_hidden"], rel=0.01, abs=0.1)

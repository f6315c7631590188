"""Bytes that autograd keeps, operator by operator, against PyTorch 2.13 (provenance: data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.memory_model.runtime_kit import Kit, graph_bytes
from tests.memory_model.saved_ops_cases import CASES

from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.tensor import Tensor

DATA = Path(__file__).with_name("data") / "saved_ops.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
# Whole layers are modules; their tests are with the modules.
OPERATORS = [row for row in ROWS if not row["op"].startswith("nn.Transformer")]


def test_every_operator_row_has_a_case() -> None:
    assert {row["op"] for row in OPERATORS} == set(CASES)


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: f"{row['op']}-{row['mode']}-sm{row['sm']}")
def test_saved_bytes_are_those_of_torch(row: dict[str, Any]) -> None:
    mode = row["mode"]
    kit = Kit(row["sm"], dtypes.bfloat16 if mode == "bf16" else dtypes.float32)
    half = "half" in row["op"]
    x = kit.hidden(*row["shape"], dtype=dtypes.bfloat16 if half else None)
    if mode == "amp":
        Autocast("cuda", dtypes.bfloat16).enter(kit.w)
    result = CASES[row["op"]](kit, x)
    if mode == "amp":
        kit.w.autocast_cache.clear()
    assert isinstance(result, Tensor)
    assert graph_bytes(result, kit.inputs) == row["saved_bytes"]

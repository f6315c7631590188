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
    if row["op"] == "nn.RMSNorm":
        kit.w.torch_version = (
            2,
            8,
        )  # the recording had no CUDA kernels: it shows the composite of older releases
    half = "half" in row["op"]
    x = kit.hidden(*row["shape"], dtype=dtypes.bfloat16 if half else None)
    if mode == "amp":
        Autocast("cuda", dtypes.bfloat16).enter(kit.w)
    result = CASES[row["op"]](kit, x)
    if mode == "amp":
        kit.w.autocast_cache.clear()
    assert isinstance(result, Tensor)
    assert graph_bytes(result, kit.inputs) == row["saved_bytes"]


def test_the_fused_rms_norm_keeps_its_input_and_one_number_a_row() -> None:
    kit = Kit(dtype=dtypes.bfloat16)
    x = kit.hidden(4, 1024, 1024)
    result = kit.F("rms_norm", x, (1024,), kit.parameter(1024))
    assert graph_bytes(result, kit.inputs) == 4 * 1024 * (1024 * 2 + 4)
    kit.M("backward", kit.T("sum", result))
    assert kit.inputs[0].grad is not None

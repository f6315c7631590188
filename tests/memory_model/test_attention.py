"""Which attention kernel runs: card, type, mask, head size, grouped heads, dropout, and what the program
allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.memory_model.runtime_kit import Kit, graph_bytes

from torchwise_memory.operators.attention import choose_backend
from torchwise_memory.runtime import dtypes
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor


@dataclass(frozen=True)
class Call:
    expected: str
    sm: int = 80
    dtype: DType = dtypes.bfloat16
    head: int = 64
    mask: bool = False
    kv_heads: int = 8
    gqa: bool = False
    causal: bool = True
    keys: int = 128
    dropout: float = 0.0


@pytest.mark.parametrize(
    "call",
    [
        Call("flash"),
        Call("flash", dtype=dtypes.float16),
        Call("flash", dropout=0.1),
        Call("flash", sm=90),
        Call("flash", head=80),
        Call("flash", head=256),
        Call("flash", head=60),
        Call("flash", kv_heads=2, gqa=True),
        Call("flash", causal=False, keys=64),
        Call("efficient", dtype=dtypes.float32),
        Call("efficient", mask=True, causal=False),
        Call("efficient", keys=64),
        Call("efficient", sm=75, dtype=dtypes.float16),
        Call("efficient", sm=75, dtype=dtypes.float32, head=62),
        Call("efficient", sm=86, head=200),
        Call("flash", sm=80, head=200),
        Call("math", sm=75),
        Call("math", dtype=dtypes.float64),
        Call("math", dtype=dtypes.float32, head=62),
        Call("math", dtype=dtypes.float32, kv_heads=2, gqa=True),
        Call("math", mask=True, causal=False, kv_heads=2, gqa=True),
        Call("math", mask=True, causal=False, head=60),
    ],
    ids=repr,
)
def test_the_kernel_is_the_one_torch_would_choose(call: Call) -> None:
    kit = Kit(call.sm)
    q = kit.tensor(2, 8, 128, call.head, dtype=call.dtype, requires_grad=True)
    k = kit.tensor(2, call.kv_heads, call.keys, call.head, dtype=call.dtype)
    mask = kit.tensor(2, 1, 128, call.keys, dtype=dtypes.boolean) if call.mask else None
    assert choose_backend(kit.w, q, k, k, mask, call.dropout, call.causal, call.gqa) == call.expected


def test_sdpa_kernel_restricts_the_choice() -> None:
    kit = Kit()
    q = kit.tensor(2, 8, 128, 64, dtype=dtypes.bfloat16)
    context = kit.T("nn.attention.sdpa_kernel", ["SDPBackend.MATH"])
    context.enter(kit.w)
    assert choose_backend(kit.w, q, q, q, None, 0.0, True, False) == "math"
    context.leave(kit.w)
    assert choose_backend(kit.w, q, q, q, None, 0.0, True, False) == "flash"


def test_no_allowed_kernel_is_an_error() -> None:
    kit = Kit()
    q = kit.tensor(2, 8, 128, 64)
    kit.w.sdpa_backends = frozenset({"flash"})
    with pytest.raises(Unsupported, match="no allowed kernel"):
        choose_backend(kit.w, q, q, q, None, 0.0, True, False)


def test_fused_kernels_keep_nothing_quadratic() -> None:
    sizes = []
    for tokens in (256, 512):
        kit = Kit()
        q = kit.hidden(1, 4, tokens, 64, dtype=dtypes.bfloat16)
        sizes.append(graph_bytes(kit.F("scaled_dot_product_attention", q, q, q, is_causal=True), kit.inputs))
    assert sizes[1] - 24 == 2 * (sizes[0] - 24)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32])
def test_the_result_lies_in_memory_as_the_next_projection_wants_it(fused: bool, dtype: DType) -> None:
    kit = Kit()
    x = kit.hidden(2, 128, 3 * 256 if fused else 256, dtype=dtype)
    projected = kit.M("split", x, 256, 2)[0] if fused else x
    q = kit.M("transpose", kit.M("view", projected, 2, 128, 4, 64), 1, 2)
    out = kit.M("transpose", kit.F("scaled_dot_product_attention", q, q, q), 1, 2)
    assert out.is_contiguous


def test_head_sizes_that_are_no_multiple_of_eight_are_padded_and_cut() -> None:
    kit = Kit()
    q = kit.hidden(2, 4, 128, 60, dtype=dtypes.bfloat16)
    out = kit.F("scaled_dot_product_attention", q, q, q)
    assert out.shape == (2, 4, 128, 60)
    assert out.storage.bytes == 2 * 4 * 128 * 64 * 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_gradients_of_q_k_and_v_have_their_shapes(dtype: DType) -> None:
    kit = Kit()
    q, k, v = (kit.tensor(2, 4, 128, 64, dtype=dtype, requires_grad=True) for _ in range(3))
    kit.M("backward", kit.T("sum", kit.F("scaled_dot_product_attention", q, k, v, is_causal=True)))
    assert all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in (q, k, v))


def test_more_query_than_key_heads_need_enable_gqa() -> None:
    kit = Kit()
    q, k = kit.tensor(2, 8, 16, 64), kit.tensor(2, 2, 16, 64)
    with pytest.raises(Unsupported, match="enable_gqa"):
        kit.F("scaled_dot_product_attention", q, k, k)


def _attended(kit: Kit, apart: bool, weights: bool, batched: bool = True) -> tuple[object, ...]:
    """The function as models call it that bring their own weights (CLIP's pooling, WavLM, HunyuanDiT)."""
    query = kit.hidden(50, 2, 64) if batched else kit.hidden(50, 64)
    bias = kit.T("cat", [kit.parameter(64) for _ in range(3)])
    own = {f"{name}_proj_weight": kit.parameter(64, 64) for name in "qkv"} if apart else {}
    packed = None if apart else kit.parameter(192, 64)
    out = kit.parameter(64, 64), kit.parameter(64)
    found: tuple[object, ...] = kit.F(
        "multi_head_attention_forward",
        *(query, query, query, 64, 4, packed, bias, None, None, False, 0.0, *out),
        need_weights=weights,
        use_separate_proj_weight=apart,
        **own,
    )
    return found


@pytest.mark.parametrize("apart", [True, False])
def test_attention_with_weights_of_the_caller(apart: bool) -> None:
    output, weights = _attended(Kit(), apart, weights=True)
    assert getattr(output, "shape", None) == (50, 2, 64)
    assert getattr(weights, "shape", None) == (2, 50, 50)
    output, weights = _attended(Kit(), apart, weights=False)
    assert getattr(output, "shape", None) == (50, 2, 64) and weights is None
    output, weights = _attended(Kit(), apart, weights=True, batched=False)
    assert getattr(output, "shape", None) == (50, 64)
    assert getattr(weights, "shape", None) == (50, 50)


def test_attention_written_out_keeps_the_shares() -> None:
    held = []
    for weights in (True, False):
        kit = Kit()
        output, _ = _attended(kit, False, weights)
        assert isinstance(output, Tensor)
        held.append(graph_bytes(output))
    shares = 2 * 4 * 50 * 50 * 4
    assert held[0] - held[1] > 0.9 * shares, "of each head, which a fused kernel does not keep"


def test_a_bias_of_keys_stops_by_name() -> None:
    kit = Kit()
    query, bias = kit.hidden(50, 2, 64), kit.parameter(1, 1, 64)
    packed, out = kit.parameter(192, 64), kit.parameter(64, 64)
    with pytest.raises(Unsupported, match="bias of keys"):
        kit.F(
            "multi_head_attention_forward",
            *(query, query, query, 64, 4, packed, None, bias, bias, False, 0.0, out, None),
        )

"""Scaled dot-product attention: which kernel runs, and what each keeps and allocates.

The rules follow `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` of PyTorch 2.x; cuDNN attention, which
some versions prefer on Hopper, is left out (it keeps as much as flash attention).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchwise_memory.runtime.layout import broadcast, elementwise_strides
from torchwise_memory.runtime.sequences import is_sequence

from .registry import operator
from .support import (
    Gradients,
    Saved,
    Shape,
    Tensor,
    Unsupported,
    World,
    cast,
    dtypes,
    low,
    needs_graph,
    record,
)
from .views import expand_to, repeat_interleave, transpose

FLASH, EFFICIENT, MATH = "flash", "efficient", "math"


@operator("torch.nn.functional.scaled_dot_product_attention", "torch._C._nn.scaled_dot_product_attention")
def scaled_dot_product_attention(
    w: World,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Of the autocast class "lower precision"; operands are cast one by one, also where they are views of
    one.
    """
    name = "torch.nn.functional.scaled_dot_product_attention"
    q, k, v = low(w, query), low(w, key), low(w, value)
    _check(name, q, k, v, attn_mask, is_causal, enable_gqa)
    if (
        attn_mask is not None
        and attn_mask.dtype.category >= dtypes.FLOATING
        and attn_mask.dtype is not q.dtype
    ):
        attn_mask = low(w, attn_mask)
    backend = choose_backend(w, q, k, v, attn_mask, dropout_p, is_causal, enable_gqa)
    if attn_mask is not None and attn_mask.dtype is dtypes.boolean:
        attn_mask = _as_float_mask(w, attn_mask, q)
    outer = w.autocast_dtype, w.autocast_cpu_dtype
    w.autocast_dtype = w.autocast_cpu_dtype = None
    try:
        if backend == MATH:
            return _math(w, q, k, v, attn_mask, dropout_p, is_causal, enable_gqa)
        if backend == FLASH:
            return _flash(w, q, k, v)
        return _efficient(w, q, k, v, attn_mask)
    finally:
        w.autocast_dtype, w.autocast_cpu_dtype = outer


def _check(
    name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> None:
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise Unsupported(
            name, f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; torch raises here"
        )
    if not q.dtype is k.dtype is v.dtype:
        raise Unsupported(name, f"q {q.dtype}, k {k.dtype}, v {v.dtype}; torch raises here")
    if mask is not None and is_causal:
        raise Unsupported(name, "attn_mask and is_causal together; torch raises here")
    if not enable_gqa and broadcast(q.shape[:-2], k.shape[:-2]) is None:
        raise Unsupported(
            name, f"{q.shape[-3]} query heads by {k.shape[-3]} without enable_gqa; torch raises here"
        )


def choose_backend(
    w: World,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """One of "flash", "efficient" and "math", in torch's order of preference among what the card and the
    program allow.
    """
    if not q.device.on_card:
        return MATH if dropout_p > 0 else FLASH
    if FLASH in w.sdpa_backends and _flash_can(w, q, k, v, attn_mask, is_causal, enable_gqa):
        return FLASH
    if EFFICIENT in w.sdpa_backends and _efficient_can(w, q, k, v, enable_gqa):
        return EFFICIENT
    if MATH in w.sdpa_backends:
        return MATH
    raise Unsupported(
        "torch.nn.functional.scaled_dot_product_attention", "no allowed kernel fits; torch raises here"
    )


def _flash_can(
    w: World, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> bool:
    head = q.shape[-1]
    return (
        w.sm >= 80
        and attn_mask is None
        and q.ndim == k.ndim == v.ndim == 4
        and q.dtype in dtypes.HALF_TYPES
        and head == v.shape[-1]
        and head <= 256
        and not (head > 192 and w.sm in (86, 89, 120) and needs_graph(w, q, k, v))
        and not (is_causal and q.shape[-2] != k.shape[-2])
        and _heads_fit(q, k, v, enable_gqa)
        and 0 not in (*q.shape, *k.shape)
        and q.strides[-1] == k.strides[-1] == v.strides[-1] == 1
    )


def _heads_fit(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> bool:
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    if q.shape[1] == k.shape[1] == v.shape[1]:
        return True
    return enable_gqa and k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0


def _efficient_can(w: World, q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> bool:
    half = q.dtype in dtypes.HALF_TYPES
    alignment = 8 if half and w.sm >= 75 else 4 if w.sm >= 80 else 1
    return (
        w.sm >= 50
        and q.ndim == k.ndim == v.ndim == 4
        and (half or q.dtype is dtypes.float32)
        and not (q.dtype is dtypes.bfloat16 and w.sm < 80)
        and q.shape[-1] % alignment == 0
        and v.shape[-1] % alignment == 0
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and 0 not in (*q.shape, *k.shape)
        and q.strides[-1] == k.strides[-1] == v.strides[-1] == 1
    )


# --- the fused kernels


def _heads_inside(shape: Shape) -> Shape:
    """Strides of (batch, heads, tokens, size) stored as (batch, tokens, heads, size)."""
    _, heads, tokens, size = shape
    return (tokens * heads * size, size, heads * size, 1)


def _pad_head(w: World, tensor: Tensor, multiple: int) -> Tensor:
    """Flash attention takes head sizes that are multiples of eight; others are padded, and the padded copy is
    kept.
    """
    extra = -tensor.shape[-1] % multiple
    if not extra:
        return tensor
    from .views import pad

    return pad(w, tensor, (0, extra))


@dataclass(frozen=True, slots=True)
class _FusedBack:
    """dq, dk, dv (and the mask's gradient), then what the kernel takes on the way."""

    kind: str
    shapes: tuple[Shape, Shape, Shape]
    layouts: tuple[Shape, Shape, Shape]
    mask: Shape | None
    scratch: tuple[int, ...]

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        device, dtype = gradient.storage.device, gradient.dtype
        if not gradient.is_dense:
            gradient = w.new(gradient.shape, dtype, "clone", device)
        results: Gradients = [
            w.new(shape, dtype, f"{self.kind}_attention_{part}", device, layout)
            for shape, layout, part in zip(self.shapes, self.layouts, ("dq", "dk", "dv"), strict=True)
        ]
        if self.mask is not None:
            results.append(w.new(self.mask, dtype, f"{self.kind}_attention_dmask", device))
        held = [
            w.new((size,), dtypes.uint8, f"{self.kind} attention workspace", device)
            for size in self.scratch
            if size
        ]
        held.clear()
        return results


def _layout_of(tensor: Tensor) -> Shape:
    return elementwise_strides(tensor.shape, [(tensor.shape, tensor.strides)])


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _flash(w: World, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keeps q, k, v, the result, a fp32 log-sum-exp a query and two words of random state."""
    size = query.shape[-1]
    q, k, v = (_pad_head(w, tensor, 8) for tensor in (query, key, value))
    batch, heads, tokens, head = q.shape
    keys, kv_heads, device = k.shape[2], k.shape[1], q.storage.device
    # `empty_like` of each operand: it keeps the order of dimensions.
    layouts = _layout_of(q), _layout_of(k), _layout_of(v)
    result = w.new(q.shape, q.dtype, "flash_attention", device, layouts[0])
    if device.on_card:
        logsumexp = w.new((batch, heads, tokens), dtypes.float32, "logsumexp", device)
        seeds = [w.new((2,), dtypes.int64, "rng_state", device), w.new((), dtypes.int64, "unused", device)]
    else:
        logsumexp, seeds = w.new((batch, tokens, heads), dtypes.float32, "logsumexp", device), []
    width = _up(head, 32) if head <= 128 else _up(head, 64)
    rounded = _up(tokens, 128)
    expanded = 2 * batch * keys * heads * head * q.dtype.itemsize if kv_heads != heads else 0
    scratch = (4 * batch * heads * rounded * width, expanded, 4 * batch * heads * rounded)
    back = _FusedBack(FLASH, (q.shape, k.shape, v.shape), layouts, None, scratch if device.on_card else ())
    record(w, "flash_attention", (q, k, v), (q, k, v, result, logsumexp, *seeds), back, result)
    if head == size:
        return result
    from .views import narrow

    return narrow(w, result, -1, 0, size)


def _efficient(w: World, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Keeps q, k, v, the mask, the result, a fp32 log-sum-exp a query (in blocks of 32) and two words of
    random state.
    """
    batch, heads, tokens, head = q.shape
    device = q.storage.device
    if mask is not None:
        mask = _aligned_mask(w, mask, (batch, heads, tokens, k.shape[2]))
    shape = (batch, heads, tokens, v.shape[-1])
    result = w.new(shape, q.dtype, "efficient_attention", device, _heads_inside(shape))
    keeps = needs_graph(w, q, k, v, mask)
    rows = _up(tokens, 32) if keeps else 0
    logsumexp = w.new((batch, heads, rows), dtypes.float32, "logsumexp", device)
    seeds = [w.new((), dtypes.int64, "philox_seed", device), w.new((), dtypes.int64, "philox_offset", device)]
    half = q.dtype in dtypes.HALF_TYPES
    accumulated = 4 * batch * heads * _up(tokens, 64) * _up(head, 32) if half else 0
    delta = 4 * batch * heads * _up(tokens, 32)
    trained = mask.shape if mask is not None and mask.requires_grad else None
    shapes = (q.shape, k.shape, v.shape)
    layouts = _heads_inside(q.shape), _heads_inside(k.shape), _heads_inside(v.shape)
    back = _FusedBack(EFFICIENT, shapes, layouts, trained, (accumulated, delta))
    record(
        w,
        "efficient_attention",
        (q, k, v, mask)[: 4 if trained else 3],
        (q, k, v, result, logsumexp, mask, *seeds),
        back,
        result,
    )
    return result


def _aligned_mask(w: World, mask: Tensor, shape: Shape) -> Tensor:
    """The kernel wants rows that start at multiples of eight elements and lie dense: other masks become
    padded copies.

    (`preprocess_mask`; a row that is a multiple of eight already gets eight more.) Then a broadcast view.
    """
    aligned = mask.strides[-1:] == (1,) and all(stride % 8 == 0 for stride in mask.strides[:-1])
    if not aligned:
        from .views import narrow, pad

        length = mask.shape[-1]
        mask = narrow(w, pad(w, mask, (0, 8 - length % 8)), -1, 0, length)
    return expand_to(w, mask, shape)


def _as_float_mask(w: World, mask: Tensor, like: Tensor) -> Tensor:
    return w.new(mask.shape, like.dtype, "mask to float", mask.storage.device)


# --- the composite


def _math(
    w: World,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> Tensor:
    """Score-sized tensors, in fp32 also for half inputs (`_scaled_dot_product_attention_math`)."""
    from .matmul import matmul
    from .pointwise import add, add_, mul
    from .random import dropout
    from .reductions import softmax

    origin = q.dtype
    if origin in dtypes.HALF_TYPES:
        q, k, v = (cast(w, tensor, dtypes.float32) for tensor in (q, k, v))
    if is_causal:
        lower = w.new((q.shape[-2], k.shape[-2]), dtypes.boolean, "causal mask", q.storage.device)
        mask = _as_float_mask(w, lower, q)
        del lower
    scaled_q = mul(w, q, 0.5)
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        repeats = q.shape[-3] // k.shape[-3]
        k, v = repeat_interleave(w, k, repeats, -3), repeat_interleave(w, v, repeats, -3)
    scores = matmul(w, scaled_q, mul(w, transpose(w, k, -2, -1), 0.5))
    del scaled_q
    if mask is not None:
        wide = broadcast(scores.shape, mask.shape) != tuple(scores.shape) or mask.requires_grad
        scores = add(w, scores, mask) if wide else add_(w, scores, mask)
    probabilities = softmax(w, scores, -1)
    del scores
    if dropout_p > 0:
        probabilities = dropout(w, probabilities, dropout_p, True)
    return cast(w, matmul(w, probabilities, v), origin)


@operator("torch.nn.attention.sdpa_kernel")
def sdpa_kernel(w: World, backends: object, set_priority: bool = False) -> object:
    """The `with` block that restricts which kernels may run."""
    return SdpaKernels(backends)


@operator("torch.backends.cuda.sdp_kernel")
def sdp_kernel(
    w: World,
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> object:
    """The older `with` block of the same purpose."""
    chosen = [
        name
        for name, enabled in (
            ("FLASH_ATTENTION", enable_flash),
            ("MATH", enable_math),
            ("EFFICIENT_ATTENTION", enable_mem_efficient),
            ("CUDNN_ATTENTION", enable_cudnn),
        )
        if enabled
    ]
    return SdpaKernels(chosen)


class SdpaKernels:
    """Context of `sdpa_kernel`; backends are names or anything whose text ends in one of torch's
    `SDPBackend`.
    """

    def __init__(self, backends: object) -> None:
        listed = list(backends) if is_sequence(backends) else [backends]
        self.allowed = frozenset(
            name for item in listed for key, name in _BACKEND_NAMES.items() if key in str(item)
        )
        self._outer: list[frozenset[str]] = []

    def enter(self, w: World) -> object:
        self._outer.append(w.sdpa_backends)
        w.sdpa_backends = self.allowed
        return None

    def leave(self, w: World) -> None:
        w.sdpa_backends = self._outer.pop()


_BACKEND_NAMES = {
    "FLASH_ATTENTION": FLASH,
    "EFFICIENT_ATTENTION": EFFICIENT,
    "MATH": MATH,
    "CUDNN_ATTENTION": FLASH,
}

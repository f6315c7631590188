"""Operators that a compiler or a kernel library makes of several: one result, and only what is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchwise_memory.runtime.device import CPU, CUDA, Device
from torchwise_memory.runtime.dtypes import DType, float32, uint8
from torchwise_memory.runtime.tape import Gradients, Saved, record
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class _Back:
    """A gradient for each input that needs one, in its shape and type; `scratch` bytes on the way."""

    __slots__ = ("facts", "name", "scratch")

    def __init__(self, name: str, inputs: Sequence[Tensor], scratch: int) -> None:
        self.name = name
        self.facts = [(t.shape, t.dtype, t.requires_grad) for t in inputs]
        self.scratch = scratch

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        working = w.new((self.scratch,), uint8, self.name, gradient.device) if self.scratch else None
        results: Gradients = [
            w.new(shape, dtype, self.name, gradient.device) if needed else None
            for shape, dtype, needed in self.facts
        ]
        del working
        return results


def fused(
    w: World,
    name: str,
    inputs: Sequence[Tensor],
    shape: Iterable[int],
    dtype: DType,
    saved: Sequence[Tensor],
    scratch: int = 0,
) -> Tensor:
    """One operator that keeps `saved` and whose backward takes `scratch` bytes beside the gradients."""
    result = w.new(shape, dtype, name, inputs[0].device)
    record(w, name, inputs, saved, _Back(f"{name} backward", inputs, scratch), result)
    return result


def grouped_linear(w: World, x: Tensor, weight: Tensor) -> Tensor:
    """Rows of `x` by the matrix of their expert; weight (experts, rows, columns)."""
    w.matrix_workspace(x.device)
    if w.autocast_dtype is not None and weight.dtype is not w.autocast_dtype:
        weight = w.like(weight, "to", w.autocast_dtype) if not weight.requires_grad else _cast(w, weight)
    saved = [t for t, other in ((x, weight), (weight, x)) if other.requires_grad]
    return fused(w, "grouped_mm", (x, weight), (x.shape[0], weight.shape[1]), x.dtype, saved)


def _cast(w: World, weight: Tensor) -> Tensor:
    assert w.autocast_dtype is not None
    return fused(w, "to", (weight,), weight.shape, w.autocast_dtype, ())


def cross_entropy_fused(w: World, logits: Tensor, target: Tensor) -> Tensor:
    """Keeps the logits and a normaliser a row; the gradient is written once, in the type of the logits."""
    normaliser = w.new((logits.shape[0],), float32, "log-sum-exp", logits.device)
    return fused(w, "cross_entropy", (logits,), (), float32, (logits, target, normaliser))


class _KeepBack:
    __slots__ = ()

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        return [gradients[0]]


def selective(w: World, x: Tensor, kept_bytes: int) -> Tensor:
    """`x`, with that many bytes more alive until the gradient is back here."""
    kept = w.new((kept_bytes,), uint8, "kept by selective checkpointing", x.device)
    result = Tensor(x.shape, x.dtype, x.storage, x.strides, x.offset)
    record(w, "selective", (x,), (kept,), _KeepBack(), result)
    return result


def to_host(w: World, x: Tensor) -> Tensor:
    """`x` as a copy on the host, for offloaded activations."""
    result = w.new(x.shape, x.dtype, "to host", CPU)
    record(w, "to host", (x,), (), _Moved(x.device), result)
    return result


def to_card(w: World, x: Tensor) -> Tensor:
    """The way back."""
    result = w.new(x.shape, x.dtype, "to card", CUDA)
    record(w, "to card", (x,), (), _Moved(CPU), result)
    return result


class _Moved:
    __slots__ = ("device",)

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(gradient.shape, gradient.dtype, "move", self.device)]

"""Dropout in its forms."""

from __future__ import annotations

from .registry import operator
from .support import Gradients, Saved, Shape, Tensor, World, dtypes, elementwise, record, record_inplace


class _MaskBack:
    """The gradient times the mask."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.like(gradient, self.name)]


_DROPOUT_BACK = _MaskBack("dropout_backward")


@operator("torch.nn.functional.dropout")
def dropout(w: World, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """The fused kernel keeps a bool mask. In place it is noise in the input's type, multiplied in, that is
    kept.
    """
    if not training or p == 0:
        return input
    if inplace:
        noise = w.like(input, "dropout noise")
        return record_inplace(w, "dropout_", input, (), (noise,), _DROPOUT_BACK)
    mask = w.like(input, "dropout mask", dtypes.boolean)
    result = w.like(input, "dropout")
    record(w, "dropout", (input,), (mask,), _DROPOUT_BACK, result)
    return result


@operator("torch.dropout")
def torch_dropout(w: World, input: Tensor, p: float, train: bool) -> Tensor:
    return dropout(w, input, p, train)


@operator("torch.native_dropout")
def native_dropout(w: World, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    mask = w.like(input, "dropout mask", dtypes.boolean)
    result = w.like(input, "dropout")
    record(w, "dropout", (input,), (mask,), _DROPOUT_BACK, result)
    return result, mask


def _feature_dropout(w: World, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    """Whole channels: the noise has one element a channel."""
    if not training or p == 0:
        return input
    shape: Shape = (*input.shape[:2], *(1 for _ in input.shape[2:]))
    noise = w.new(shape, input.dtype, "dropout noise", input.storage.device)
    if inplace:
        return record_inplace(w, "feature_dropout_", input, (), (noise,), _DROPOUT_BACK)
    result = elementwise(w, "feature_dropout", input.dtype, input, noise)
    record(w, "feature_dropout", (input,), (noise,), _DROPOUT_BACK, result)
    return result


@operator("torch.nn.functional.dropout1d")
def dropout1d(
    w: World, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _feature_dropout(w, input, p, training, inplace)


@operator("torch.nn.functional.dropout2d")
def dropout2d(
    w: World, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _feature_dropout(w, input, p, training, inplace)


@operator("torch.nn.functional.dropout3d")
def dropout3d(
    w: World, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _feature_dropout(w, input, p, training, inplace)


@operator("torch.nn.functional.feature_alpha_dropout")
def feature_alpha_dropout(
    w: World, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _feature_dropout(w, input, p, training, inplace)


@operator("torch.nn.functional.alpha_dropout")
def alpha_dropout(
    w: World, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """input * noise + b with full-size noise and b; keeps the noise."""
    if not training or p == 0:
        return input
    noise = w.like(input, "dropout noise")
    shift = w.like(input, "dropout shift")
    if inplace:
        return record_inplace(w, "alpha_dropout_", input, (), (noise,), _DROPOUT_BACK)
    product = w.like(input, "alpha_dropout")
    result = w.like(product, "add")
    del product, shift
    record(w, "alpha_dropout", (input,), (noise,), _DROPOUT_BACK, result)
    return result

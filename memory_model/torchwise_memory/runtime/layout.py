"""Shapes and strides, in elements. Pure functions; they decide which operators are views and which copy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

Shape = tuple[int, ...]
# Layers repeat: a model asks for the same few hundred shapes thousands of times.
_KEPT = 4096


@lru_cache(maxsize=_KEPT)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides."""
    step = 1
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(step)
        if extent > 1:
            step *= extent
    strides.reverse()
    return tuple(strides)


def channels_last_strides(shape: Shape) -> Shape:
    """Strides of the channels-last format of a 4-D (NHWC) or 5-D (NDHWC) shape."""
    order = (1, *range(len(shape) - 1, 1, -1), 0)
    return strides_in_order(shape, order)


def strides_in_order(shape: Shape, order: Shape) -> Shape:
    """Dense strides where `order` lists the dimensions from fastest to slowest."""
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


@lru_cache(maxsize=_KEPT)
def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Row-major, looking past dimensions of extent one; empty tensors are contiguous."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if extent == 0:
            return True
        if stride != step:
            return False
        step *= extent
    return True


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    """Dense in the channels-last order (a shape that is both is contiguous first, as in torch)."""
    if len(shape) not in (4, 5):
        return False
    step = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 1:
            continue
        if strides[dim] != step:
            return False
        step *= shape[dim]
    return True


def prefers_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether torch's `suggest_memory_format` answers channels-last: such strides, and not plainly
    contiguous.
    """
    return is_channels_last(shape, strides) and not is_contiguous(shape, strides)


@lru_cache(maxsize=_KEPT)
def is_dense(shape: Shape, strides: Shape) -> bool:
    """Non-overlapping and dense: some order of the dimensions is row-major."""
    step = 1
    for stride, extent in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e != 1):
        if extent == 0:
            return True
        if stride != step:
            return False
        step *= extent
    return True


@lru_cache(maxsize=_KEPT)
def view_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Strides of a view with `new_shape`, None when the elements would have to be copied."""
    if prod(shape) == 0:
        return contiguous_strides(new_shape)
    chunks = _merged(shape, strides)
    if not chunks:
        return contiguous_strides(new_shape)
    extent, stride = chunks.pop()
    result: list[int] = []
    for wanted in reversed(new_shape):
        if wanted == 1:
            result.append(stride)
            continue
        if extent == 1 and chunks:
            extent, stride = chunks.pop()
        if extent % wanted:
            return None
        result.append(stride)
        extent //= wanted
        stride *= wanted
    result.reverse()
    return tuple(result)


def _merged(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Dimensions that lie next to each other, merged: (extent, stride of the fastest)."""
    chunks: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if chunks and chunks[-1][1] == extent * stride:
            chunks[-1] = (chunks[-1][0] * extent, stride)
        else:
            chunks.append((extent, stride))
    return chunks


@lru_cache(maxsize=_KEPT)
def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The common shape, None when the two do not broadcast."""
    if a == b:
        return a
    if len(a) < len(b):
        a = (1,) * (len(b) - len(a)) + a
    elif len(b) < len(a):
        b = (1,) * (len(a) - len(b)) + b
    result: list[int] = []
    for x, y in zip(a, b, strict=True):
        if x != y and x != 1 and y != 1:
            return None
        result.append(y if x == 1 else x)
    return tuple(result)


def expanded_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape:
    """Strides of the broadcast of a tensor to `new_shape`: zero where it is repeated."""
    lead = len(new_shape) - len(shape)
    tail = (
        0 if old == 1 and new != 1 else stride
        for old, new, stride in zip(shape, new_shape[lead:], strides, strict=True)
    )
    return (0,) * lead + tuple(tail)


def elementwise_strides(shape: Shape, operands: Sequence[tuple[Shape, Shape]]) -> Shape:
    """Layout of the result of an elementwise operator, by TensorIterator's rule.

    operands: (shape, strides) of each tensor operand. Dimensions are ordered by the strides of the first
    operand that distinguishes them; the result is dense in that order.
    """
    full = [expanded_strides(s, t, shape) for s, t in operands]
    if all(s == shape and is_contiguous(s, t) for s, t in operands):
        return contiguous_strides(shape)
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        place = i
        for j in range(i - 1, -1, -1):
            verdict = _faster(order[j], order[place], shape, full)
            if verdict > 0:
                order[j], order[place] = order[place], order[j]
                place = j
            elif verdict < 0:
                break
    return strides_in_order(shape, tuple(order))


def _faster(a: int, b: int, shape: Shape, operands: list[Shape]) -> int:
    """1 when `a` should come after `b` (from fastest to slowest), -1 before, 0 undecided."""
    for strides in operands:
        x, y = strides[a], strides[b]
        if x == 0 or y == 0:
            continue
        if x != y:
            return 1 if x > y else -1
        if shape[a] > shape[b]:
            return 1
    return 0

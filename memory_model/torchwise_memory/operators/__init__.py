"""One entry an autograd operator, by theme. `library.py` gathers them into tables."""

from . import (
    attention,
    autograd,
    convolution,
    embedding,
    factories,
    foreach,
    indexing,
    linalg,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    random,
    reductions,
    views,
)

MODULES = (
    attention,
    autograd,
    convolution,
    embedding,
    factories,
    foreach,
    indexing,
    linalg,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    random,
    reductions,
    views,
)

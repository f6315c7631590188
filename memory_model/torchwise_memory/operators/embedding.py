"""Table look-ups."""

from __future__ import annotations

from .registry import operator
from .support import Gradients, Saved, Shape, Tensor, Unsupported, World, dtypes, extent, record, values_of

#: `embedding_dense_backward` sorts the indices from this many on.
SORTED_FROM = 3072


class _EmbeddingBack:
    """A dense gradient of the whole table; many indices are sorted and summed in segments in fp32 first."""

    __slots__ = ("count", "shape")

    def __init__(self, shape: Shape, count: int) -> None:
        self.shape = shape
        self.count = count

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        device = gradient.storage.device
        result = w.new(self.shape, gradient.dtype, "embedding_dense_backward", device)
        if self.count > SORTED_FROM and device.on_card:
            w.scratch(8 * self.count, "embedding sorted indices")
            w.scratch(8 * self.count, "embedding original positions")
            w.scratch(4 * min(self.count, self.shape[0]) * self.shape[1], "embedding segment sums")
        return [result]


@operator("torch.nn.functional.embedding")
def embedding(
    w: World,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Keeps the indices."""
    if input.dtype.category != dtypes.INTEGER:
        raise Unsupported(
            "torch.nn.functional.embedding", f"indices of type {input.dtype}; torch raises here"
        )
    if weight.ndim != 2:
        raise Unsupported(
            "torch.nn.functional.embedding", f"a table of shape {tuple(weight.shape)}; torch raises here"
        )
    if input.storage.device != weight.storage.device:
        raise Unsupported(
            "torch.nn.functional.embedding",
            f"indices on {input.storage.device}, table on {weight.storage.device}; torch raises here",
        )
    result = w.new((*input.shape, weight.shape[1]), weight.dtype, "embedding", weight.storage.device)
    record(w, "embedding", (weight,), (input,), _back(weight.shape, input.numel, sparse), result)
    return result


def _back(shape: Shape, count: int, sparse: bool) -> _EmbeddingBack | _SparseBack:
    return _SparseBack() if sparse else _EmbeddingBack(shape, count)


class _SparseBack:
    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        raise Unsupported("torch.nn.functional.embedding", "sparse gradients are not modelled")


@operator("torch.embedding")
def torch_embedding(
    w: World,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    return embedding(w, indices, weight, None, None, 2.0, scale_grad_by_freq, sparse)


@operator("torch.nn.functional.embedding_bag")
def embedding_bag(
    w: World,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """One row a bag. Keeps indices, offsets and where each index belongs."""
    if input.ndim == 2:
        bags = input.shape[0]
    elif offsets is not None:
        bags = offsets.shape[0] - include_last_offset
    else:
        raise Unsupported("torch.nn.functional.embedding_bag", "offsets are missing; torch raises here")
    result = w.new((bags, weight.shape[1]), weight.dtype, "embedding_bag", weight.storage.device)
    places = w.new((input.numel,), dtypes.int64, "offset2bag", weight.storage.device)
    sizes = w.new((bags,), dtypes.int64, "bag_size", weight.storage.device)
    saved = (input, offsets, places, sizes)
    record(w, "embedding_bag", (weight,), saved, _back(weight.shape, input.numel, sparse), result)
    return result


@operator("torch.nn.functional.one_hot")
def one_hot(w: World, input: Tensor, num_classes: int = -1) -> Tensor:
    classes = extent(num_classes, "torch.nn.functional.one_hot")
    if classes < 0:
        known = values_of(input)
        if not known:
            raise Unsupported(
                "torch.nn.functional.one_hot", "num_classes is not given and the largest index not known"
            )
        classes = int(max(known)) + 1
    result = w.new((*input.shape, classes), dtypes.int64, "one_hot", input.storage.device)
    result.storage.share = 1 / max(classes, 1)
    return result

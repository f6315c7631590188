"""What encoder-decoders of transformers share: the double cache, and targets shifted into inputs."""

from __future__ import annotations

from typing import Any

from torchwise_memory.families.base import DynamicCache, PreTrainedModel
from torchwise_memory.modules.native import visible
from torchwise_memory.modules.ops import method
from torchwise_memory.runtime.dtypes import boolean
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class CrossCache:
    """`EncoderDecoderCache`: keys and values of the decoder's own tokens, and those of the encoder's."""

    native_name = "transformers.EncoderDecoderCache"

    def __init__(self) -> None:
        self.own, self.cross = DynamicCache(), DynamicCache()

    @visible("get_seq_length")
    def get_seq_length(self, w: World, layer_idx: int = 0) -> int:
        return self.own.get_seq_length(w, layer_idx)


def shifted_right(w: World, labels: Tensor) -> Tensor:
    """`_shift_right`: the targets one place later, as the decoder's input."""
    shifted = w.like(labels, "new_zeros")
    moved = method(w, "clone", method(w, "__getitem__", labels, (Ellipsis, slice(None, -1))))
    del moved
    ignored = w.new(labels.shape, boolean, "eq", labels.device)
    del ignored
    return shifted


def decoded(
    w: World,
    model: PreTrainedModel,
    states: Tensor,
    cache: CrossCache | None,
    use_cache: bool | None,
    source_mask: Tensor | None,
    target: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> tuple[Any, CrossCache | None]:
    """What the decoder makes of the encoder's states, and the cache that it fills.

    target: the decoder's tokens, their mask, and embeddings in place of tokens.
    """
    if cache is None and model.new_cache(use_cache) is not None:
        cache = CrossCache()
    ids, mask, embeds = target
    return model.run(w, "decoder", ids, mask, states, source_mask, embeds, cache), cache


__all__ = ["CrossCache", "decoded", "shifted_right"]

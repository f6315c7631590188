"""Names of what is alive at the peak are words of a person, not of an autograd engine."""

from __future__ import annotations

import pytest

from torchwise_analysis.plan.words import alive_groups
from torchwise_memory.runtime.ledger import Record, StorageKind


class Born(Record):
    """A record of which only what is described counts."""

    def __init__(self, operator: str, kind: StorageKind) -> None:
        self.operator, self.kind = operator, kind
        self.shape, self.dtype, self.origin, self.block_bytes = (4, 8), "float32", None, 128

    def kind_at(self, sequence: int) -> StorageKind:
        return self.kind


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("linear", "outputs of linear layers"),
        ("linear_dw", "weight gradients of linear layers"),
        ("convolution_dx", "input gradients of convolutions"),
        ("gelu_backward", "gradients of GELU"),
        ("layer_norm_backward", "gradients of layer norms"),
        ("_cudnn_rnn_backward", "gradients of cudnn rnn"),
        ("index_select", "index select"),
    ],
)
def test_operators_have_words(operator: str, name: str) -> None:
    (kept,) = alive_groups([Born(operator, StorageKind.ACTIVATION)], 0)
    (passing,) = alive_groups([Born(operator, StorageKind.TEMPORARY)], 0)
    assert kept.what == f"{name}, 4 x 8 float32"
    assert passing.what == f"temporary: {name}, 4 x 8 float32"


def test_weights_are_one_group() -> None:
    (group,) = alive_groups([Born("empty", StorageKind.WEIGHTS), Born("rand", StorageKind.WEIGHTS)], 0)
    assert (group.what, group.count, group.bytes) == ("weights", 2, 256)

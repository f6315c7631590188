"""What is alive at the peak, in words."""

from __future__ import annotations

from collections.abc import Iterable

from torchwise_memory.report import Alive, Origin
from torchwise_memory.runtime.ledger import Record, StorageKind

MAX_GROUPS = 12

_OPERATORS = {
    "log_softmax": "log-probabilities",
    "softmax": "attention or class probabilities",
    "linear": "outputs of linear layers",
    "linear with bias": "outputs of linear layers",
    "addmm": "outputs of linear layers",
    "mm": "outputs of matrix products",
    "bmm": "outputs of batched matrix products",
    "matmul": "outputs of matrix products",
    "conv2d": "outputs of convolutions",
    "convolution": "outputs of convolutions",
    "relu": "outputs of ReLU",
    "gelu": "outputs of GELU",
    "silu": "outputs of SiLU",
    "layer_norm": "outputs of layer norms",
    "batch_norm": "outputs of batch norms",
    "dropout": "outputs and masks of dropout",
    "embedding": "embeddings",
    "to": "copies in another type",
    "cat": "concatenations",
    "scaled_dot_product_attention": "attention outputs",
    "cublas workspace": "workspaces of matrix products",
}
_GRADIENTS = {"dx": "input gradients of", "dw": "weight gradients of", "db": "bias gradients of"}
_KINDS = {
    StorageKind.WEIGHTS: "weights",
    StorageKind.BUFFERS: "buffers",
    StorageKind.GRADIENTS: "gradients",
    StorageKind.OPTIMIZER: "optimizer states",
    StorageKind.INPUT: "inputs",
    StorageKind.WORKSPACE: "workspaces",
}


def alive_groups(records: Iterable[Record], sequence: int) -> tuple[Alive, ...]:
    """Groups by what they are and which line made them, largest first; bytes as the allocator counts."""
    sizes: dict[tuple[str, Origin | None], list[int]] = {}
    for record in records:
        key = _described(record, record.kind_at(sequence))
        sizes.setdefault(key, []).append(record.block_bytes)
    groups = [Alive(sum(found), what, origin, len(found)) for (what, origin), found in sizes.items()]
    groups.sort(key=lambda group: -group.bytes)
    return tuple(groups[:MAX_GROUPS])


def _described(record: Record, kind: StorageKind) -> tuple[str, Origin | None]:
    if kind in _KINDS:
        return _KINDS[kind], None
    name = _name(record.operator)
    shape = " x ".join(str(extent) for extent in record.shape)
    what = f"{name}, {shape or 'scalar'} {record.dtype}"
    if kind is StorageKind.TEMPORARY:
        what = f"temporary: {what}"
    return what, record.origin


def _name(operator: str) -> str:
    """What an operator makes; of `gelu_backward` and `linear_dw`: whose gradients."""
    if operator in _OPERATORS:
        return _OPERATORS[operator]
    of, _, part = operator.rpartition("_")
    if of and part == "backward":
        return f"gradients of {_layers(of)}"
    if of and part in _GRADIENTS:
        return f"{_GRADIENTS[part]} {_layers(of)}"
    return operator.replace("_", " ").strip()


def _layers(operator: str) -> str:
    outputs = _OPERATORS.get(operator, "")
    return outputs.removeprefix("outputs of ") if outputs else operator.replace("_", " ").strip()


def breakdown(by_kind: dict[str, int]) -> dict[str, int]:
    """Bytes by purpose; their sum is the allocated peak."""
    get = by_kind.get
    return {
        "weights": get("weights", 0) + get("buffers", 0),
        "gradients": get("gradients", 0),
        "optimizer": get("optimizer", 0),
        "activations": get("activation", 0),
        "inputs": get("input", 0),
        "temporaries": get("temporary", 0),
        "workspaces": get("workspace", 0),
    }

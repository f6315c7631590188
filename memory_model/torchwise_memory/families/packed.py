"""bitsandbytes: packed weights in the linear layers of a model, as `from_pretrained` makes them."""

from __future__ import annotations

from typing import Any

from torchwise_memory.families.projections import Projection, Quantised
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.linear import Linear
from torchwise_memory.modules.native import visible
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.world import World


class PackedLinear(Projection):
    """A linear layer whose weight is packed; peft asks for the whole weight by `dequantised_weight`."""

    native_name = "bitsandbytes.nn.Linear4bit"

    def take(self, w: World, layer: Linear, quantised: Quantised, compute: DType) -> None:
        """In place of a plain layer."""
        rows, columns = layer.tensor("weight").shape
        self.fields.update(in_features=columns, out_features=rows)
        self.build(w, columns, rows, False, quantised, compute)
        self.parameters["bias"] = layer.parameters.get("bias")
        self.training = layer.training

    @visible("dequantised_weight")
    def dequantised_weight(self, w: World) -> Any:
        return self.whole_weight(w, self.compute or self.tensor("weight").dtype)


class PackedLinear8(PackedLinear):
    native_name = "bitsandbytes.nn.Linear8bitLt"


def pack(w: World, model: Module, quantised: Quantised, compute: DType, kept: frozenset[str]) -> None:
    """Replaces linear layers but those called as in `kept` and the last of the model, which stays as it is.

    Raises Unsupported where the model has none: its layers are of another kind then.
    """
    last = next((name for name, child in reversed(model.children.items()) if child is not None), "")
    skipped = {*kept, "lm_head", last}
    replaced = 0
    for path, parent in list(model.walk()):
        for name, child in list(parent.children.items()):
            full = f"{path}.{name}" if path else name
            if not isinstance(child, Linear) or any(part in skipped for part in (name, full)):
                continue
            layer = PackedLinear8() if quantised.bits == 8 else PackedLinear()
            layer.take(w, child, quantised, compute)
            parent.children[name] = layer
            replaced += 1
    if not replaced:
        raise Unsupported("a quantised model", "it has no torch.nn.Linear layers to pack")

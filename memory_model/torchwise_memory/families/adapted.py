"""Adapters and packed weights in a model that was built plain."""

from __future__ import annotations

from collections.abc import Callable

from torchwise_memory.families.projections import Adapted, Adapter, Projection, Quantised
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.linear import Linear
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.world import World

#: Heads that a task puts on a model: peft trains them, and quantisation leaves them as they are.
HEADS = frozenset({"classifier", "score", "lm_head", "classification_head", "proj_out", "head"})


class _Taken(Projection):
    """A linear layer's weights in a layer that can be packed and adapted."""

    def take(self, w: World, layer: Linear, quantised: Quantised | None, compute: DType) -> None:
        weight = layer.tensor("weight")
        self.rows, self.columns = weight.shape
        self.quantised, self.compute = quantised, compute
        if quantised is not None:
            self.build(w, self.columns, self.rows, False, quantised, compute)
        else:
            self.parameters["weight"] = layer.parameters["weight"]
        self.parameters["bias"] = layer.parameters.get("bias")
        self.training = layer.training


def adapt(
    w: World,
    model: Module,
    adapter: Adapter | None,
    quantised: Quantised | None,
    compute: DType,
    places_called: Callable[[str], frozenset[str]],
) -> None:
    """Replaces linear layers but task heads: packed where asked, with an adapter where their place is meant.

    Raises Unsupported where nothing has the adapter's places: the targets are of another model.
    """
    adapted = 0
    for path, parent in list(model.walk()):
        if set(path.split(".")) & HEADS:
            continue
        for name, child in list(parent.children.items()):
            if not isinstance(child, Linear) or name in HEADS:
                continue
            places = places_called(f"{path}.{name}")
            meant = adapter is not None and bool(places & adapter.targets)
            if not meant and quantised is None:
                continue
            layer = _Taken()
            layer.take(w, child, quantised, compute)
            parent.children[name] = layer
            if meant and adapter is not None:
                beside = Adapted()
                beside.build(w, "down" if "down" in places else name, layer, adapter)
                parent.children[name] = beside
                adapted += 1
    if adapter is not None and not adapted:
        raise Unsupported("peft targets", "the model has no linear layers of these names")

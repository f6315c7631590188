"""A short hand for tests that drive the runtime: one world, operators by name, and what the graph alone
holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchwise_memory.library import FUNCTIONS, METHODS
from torchwise_memory.runtime.device import CUDA, Device
from torchwise_memory.runtime.dtypes import DType, float32
from torchwise_memory.runtime.ledger import SummingAllocator
from torchwise_memory.runtime.storage import Storage
from torchwise_memory.runtime.tape import Accumulator, Node, Packed
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World


class Kit:
    def __init__(self, sm: int = 80, dtype: DType = float32) -> None:
        self.allocator = SummingAllocator()
        self.w = World(self.allocator, sm=sm)
        self.dtype = dtype
        self.inputs: list[Tensor] = []

    def tensor(
        self, *shape: int, dtype: DType | None = None, requires_grad: bool = False, device: Device = CUDA
    ) -> Tensor:
        result = self.w.new(shape, dtype or self.dtype, "test input", device)
        result.requires_grad = requires_grad
        return result

    def hidden(self, *shape: int, dtype: DType | None = None) -> Tensor:
        """A tensor inside a graph, as the input of a layer is; autocast does not take it for a weight."""
        leaf = self.tensor(*shape, dtype=dtype, requires_grad=True)
        self.inputs.append(leaf)
        result = self.M("__mul__", leaf, 1.0)
        assert isinstance(result, Tensor)
        return result

    def parameter(self, *shape: int, requires_grad: bool = True) -> Parameter:
        return Parameter(self.tensor(*shape), requires_grad)

    # Any: tests know what the operator they call returns.
    def F(self, name: str, *args: object, **kwargs: object) -> Any:
        return FUNCTIONS[f"torch.nn.functional.{name}"].invoke(self.w, args, kwargs)

    def T(self, name: str, *args: object, **kwargs: object) -> Any:
        return FUNCTIONS[f"torch.{name}"].invoke(self.w, args, kwargs)

    def M(self, name: str, *args: object, **kwargs: object) -> Any:
        return METHODS[name].invoke(self.w, args, kwargs)

    @property
    def allocated(self) -> int:
        return self.allocator.allocated


def graph_bytes(root: Tensor, besides: Sequence[Tensor] = ()) -> int:
    """Bytes on the card that the graph of `root` keeps alive, parameters and the storages of `besides` left
    out.
    """
    left_out: set[int] = {id(tensor.storage) for tensor in besides}
    kept: dict[int, Storage] = {}
    seen: set[int] = set()
    stack: list[Node | Accumulator] = [root.node] if root.node is not None else []
    while stack:
        vertex = stack.pop()
        if id(vertex) in seen:
            continue
        seen.add(id(vertex))
        if isinstance(vertex, Accumulator):
            if isinstance(vertex.leaf, Parameter):
                left_out.add(id(vertex.leaf.storage))
            kept[id(vertex.leaf.storage)] = vertex.leaf.storage
            continue
        for slot in vertex.saved or ():
            assert not isinstance(slot, Packed)
            if slot is not None and slot.device.on_card:
                kept[id(slot.storage)] = slot.storage
        stack.extend(edge[0] for edge in vertex.edges if edge is not None)
    return sum(storage.bytes for key, storage in kept.items() if key not in left_out)

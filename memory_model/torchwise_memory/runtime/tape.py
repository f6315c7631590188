"""The autograd graph: what each operator saved, and how its gradients flow back.

A node keeps detached aliases of what it saved and edges to the producers of its inputs. Its backward function
may capture shapes, types and flags, never tensors: then the only owners of memory are the saved aliases,
which are released the moment the node has run, and the graph is free of cycles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .dtypes import DType
from .errors import Unsupported
from .tensor import GradientHook, Tensor, alias

if TYPE_CHECKING:
    from .world import World

#: backward(world, saved, gradients of the outputs) -> gradients of the inputs, None where not needed.
Saved = list["Tensor | None"]
Gradients = list["Tensor | None"]
Backward = Callable[["World", Saved, Gradients], "Sequence[Tensor | None]"]


class SavePolicy(Protocol):
    """What happens to tensors that nodes save while the policy is on top of `World.save_policies`."""

    def pack(self, w: World, tensor: Tensor) -> object:
        """Called in forward. What is returned is kept in the place of the tensor."""
        ...

    def unpack(self, w: World, packed: object) -> Tensor:
        """Called in backward with what `pack` returned; at most once unless the graph is retained."""
        ...


class Packed:
    """A saved tensor in the keeping of a policy."""

    __slots__ = ("packed", "policy")

    def __init__(self, policy: SavePolicy, packed: object) -> None:
        self.policy = policy
        self.packed = packed


#: Shape and type of a differentiable input.
InputFact = tuple[tuple[int, ...], DType]
SavedSlot = Tensor | Packed | None


class Accumulator:
    """The end of the graph at a leaf. Nodes hold it, it holds the leaf, and the leaf knows it only weakly."""

    __slots__ = ("__weakref__", "leaf")
    #: Leaves are served at once, before any node that is ready.
    sequence = 1 << 62

    def __init__(self, leaf: Tensor) -> None:
        self.leaf = leaf


class Node:
    """One differentiable operator call.

    sequence: order of creation; the engine runs later ones first. edges: (producer, output of the producer)
    for each input, None where no gradient is needed. inputs: (shape, type) of each, which its gradient is
    reduced and cast to. saved: None once released. hooks: (output index, function) to call with the gradient
    of that output.
    """

    __slots__ = (
        "__weakref__",
        "backward",
        "edges",
        "hooks",
        "inputs",
        "name",
        "outputs",
        "saved",
        "sequence",
    )

    def __init__(
        self,
        name: str,
        sequence: int,
        edges: list[Edge | None],
        inputs: list[InputFact | None],
        saved: list[SavedSlot],
        backward: Backward,
        outputs: int,
    ) -> None:
        self.name = name
        self.sequence = sequence
        self.edges = edges
        self.inputs = inputs
        self.saved: list[SavedSlot] | None = saved
        self.backward = backward
        self.outputs = outputs
        self.hooks: list[tuple[int, GradientHook]] | None = None

    def unpack(self, w: World) -> Saved:
        """The saved tensors, made again where a policy says so."""
        if self.saved is None:
            raise Unsupported(
                "backward",
                f"the graph was already freed when the gradient of {self.name} was asked for a second time; "
                "torch raises here unless the first backward had retain_graph=True",
            )
        return [
            slot.policy.unpack(w, slot.packed) if isinstance(slot, Packed) else slot for slot in self.saved
        ]

    def release(self) -> None:
        """Let the saved tensors go. Nodes that saved nothing may run again, as in torch."""
        if self.saved:
            self.saved = None


Edge = tuple[Node | Accumulator, int]


def record(
    w: World,
    name: str,
    inputs: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
    backward: Backward,
    *outputs: Tensor,
) -> None:
    """Append a node when gradients are on and an input needs one; `outputs` become its outputs.

    inputs: the differentiable ones in the order in which `backward` returns gradients. saved: what the
    backward needs; callers leave out what their conditions say is not needed.
    """
    if not w.grad_enabled:
        return
    for tensor in inputs:
        if tensor is not None and tensor.requires_grad:
            break
    else:
        return
    edges: list[Edge | None] = []
    facts: list[InputFact | None] = []
    for tensor in inputs:
        if tensor is None or not tensor.requires_grad:
            edges.append(None)
            facts.append(None)
        else:
            edges.append(edge_of(tensor))
            facts.append((tensor.shape, tensor.dtype))
    if w.save_policies:
        policy = w.save_policies[-1]
        slots: list[SavedSlot] = [None if t is None else Packed(policy, policy.pack(w, t)) for t in saved]
    else:
        slots = [None if t is None else alias(t) for t in saved]
    w.sequence += 1
    node = Node(name, w.sequence, edges, facts, slots, backward, len(outputs))
    for index, output in enumerate(outputs):
        output.node = node
        output.index = index
        output.requires_grad = True


def edge_of(tensor: Tensor) -> Edge:
    """Where the gradient of a tensor that requires one goes."""
    if tensor.node is not None:
        return tensor.node, tensor.index
    accumulator = tensor.accumulator() if tensor.accumulator is not None else None
    if accumulator is None:
        accumulator = Accumulator(tensor)
        tensor.accumulator = weakref.ref(accumulator)
    return accumulator, 0


def needs_graph(w: World, *tensors: Tensor | None) -> bool:
    """Whether an operator over these inputs will be recorded."""
    return w.grad_enabled and any(t is not None and t.requires_grad for t in tensors)

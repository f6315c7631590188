"""The backward engine: walks the tape the way torch's does, so that memory rises and falls where torch's
does.

Rules taken from `torch/csrc/autograd/{engine,input_buffer}.cpp` and `functions/accumulate_grad.h`:
later operators run first and leaves at once; a gradient is cast to the type of the forward input; saved
tensors and incoming gradients go when the node has run; two gradients of one output are added in place when
one of them has no other owner; a leaf without `.grad` takes a dense, unshared gradient over instead of
copying it.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchwise_memory.report import Phase

from .errors import Unsupported
from .layout import Shape, broadcast, is_contiguous, is_dense
from .ledger import StorageKind
from .tape import Accumulator, Edge, Gradients, Node, edge_of
from .tensor import Tensor, alias

if TYPE_CHECKING:
    from .world import World

_Vertex = Node | Accumulator


def backward(
    w: World,
    tensors: Sequence[Tensor],
    grad_tensors: Sequence[Tensor | None] | None = None,
    retain_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """`torch.autograd.backward`: accumulate into `.grad` of the leaves (of `inputs` only, where given)."""
    only = None if inputs is None else [edge_of(tensor) for tensor in inputs]
    _Run(w, retain_graph, only, capture=False).execute(tensors, grad_tensors)


def grad(
    w: World,
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None] | None = None,
    retain_graph: bool = False,
) -> list[Tensor | None]:
    """`torch.autograd.grad`: the gradients of `inputs`, None for one that the outputs do not depend on."""
    targets = [edge_of(tensor) for tensor in inputs]
    return _Run(w, retain_graph, targets, capture=True).execute(outputs, grad_outputs)


class _Run:
    """One call of the engine. Nothing of it outlives the call."""

    def __init__(self, w: World, retain_graph: bool, targets: list[Edge] | None, capture: bool) -> None:
        self.w = w
        self.retain_graph = retain_graph
        self.targets = targets
        self.capture = capture
        self.captured: dict[Edge, Tensor] = {}
        self.needed: set[_Vertex] = set()
        self.buffers: dict[_Vertex, dict[int, Tensor]] = {}
        self.waiting: dict[_Vertex, int] = {}
        self.ready: list[tuple[int, int, _Vertex]] = []
        self.pushed = 0

    def execute(
        self, roots: Sequence[Tensor], gradients: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        w = self.w
        edges = [_root_edge(root) for root in roots]
        held: list[Tensor] = []
        self._count_dependencies([edge[0] for edge in edges])
        outer = (w.phase, w.grad_enabled, w.autocast_dtype, w.autocast_cpu_dtype)
        w.phase, w.grad_enabled, w.autocast_dtype, w.autocast_cpu_dtype = Phase.BACKWARD, False, None, None
        w.backward_depth += 1
        try:
            for i, edge in enumerate(edges):
                given = None if gradients is None else gradients[i]
                first = w.like(roots[i], "ones_like") if given is None else given
                # The caller of torch's engine holds the first gradients until it returns.
                held.append(first)
                self._send(edge, [first])
                del first
            for vertex in dict.fromkeys(edge[0] for edge in edges):
                if not self.waiting.get(vertex):
                    self._push(vertex)
            del edges
            self._drain()
        finally:
            w.backward_depth -= 1
            w.phase, w.grad_enabled, w.autocast_dtype, w.autocast_cpu_dtype = outer
        if not self.capture or self.targets is None:
            return []
        return [self.captured.get(target) for target in self.targets]

    def _count_dependencies(self, roots: list[_Vertex]) -> None:
        waiting = self.waiting
        seen: set[_Vertex] = set(roots)
        stack: list[_Vertex] = list(seen)
        while stack:
            vertex = stack.pop()
            if isinstance(vertex, Accumulator):
                continue
            for edge in vertex.edges:
                if edge is None:
                    continue
                target = edge[0]
                waiting[target] = waiting.get(target, 0) + 1
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        if self.targets is not None:
            self.needed = _ancestors_of(seen, self.targets)

    def _drain(self) -> None:
        ready = self.ready
        while ready:
            vertex = heapq.heappop(ready)[2]
            buffer = self.buffers.pop(vertex, None)
            if isinstance(vertex, Accumulator):
                self._leaf(vertex, buffer)
            else:
                self._node(vertex, buffer)
            del vertex, buffer

    def _push(self, vertex: _Vertex) -> None:
        self.pushed += 1
        heapq.heappush(self.ready, (-vertex.sequence, self.pushed, vertex))

    def _leaf(self, accumulator: Accumulator, buffer: dict[int, Tensor] | None) -> None:
        if not buffer:
            return
        leaf = accumulator.leaf
        holder = [buffer.pop(0)]
        if leaf.hooks:
            _apply_hooks(self.w, [(0, hook) for hook in leaf.hooks], holder)
        if self.targets is not None:
            key = (accumulator, 0)
            if key not in self.targets:
                return
            if self.capture:
                self.captured[key] = holder.pop()
                return
        accumulate(self.w, leaf, holder)

    def _node(self, node: Node, buffer: dict[int, Tensor] | None) -> None:
        w = self.w
        results: list[Tensor | None] | None = None
        if buffer:
            gradients: Gradients = [buffer.pop(i, None) for i in range(node.outputs)]
            buffer.clear()
            if node.hooks:
                _apply_hooks(w, node.hooks, gradients)
            if self.capture:
                self._capture(node, gradients)
            if self.targets is None or node in self.needed:
                w.burn()
                saved = node.unpack(w)
                results = list(node.backward(w, saved, gradients))
                _validate(w, node, results)
                del saved
            del gradients
        if not self.retain_graph and (self.targets is None or node in self.needed):
            node.release()
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            if results is not None:
                result = results[i]
                if result is not None:
                    results[i] = None
                    holder = [result]
                    del result
                    self._send(edge, holder)
            target = edge[0]
            left = self.waiting[target] - 1
            self.waiting[target] = left
            if left == 0:
                self._push(target)

    def _capture(self, node: Node, gradients: Gradients) -> None:
        for target in self.targets or ():
            if target[0] is node:
                wanted = gradients[target[1]]
                if wanted is not None:
                    self.captured[target] = wanted

    def _send(self, edge: Edge, holder: list[Tensor]) -> None:
        """Move the gradient in `holder` to where the edge leads, adding it to what is there."""
        slots = self.buffers.setdefault(edge[0], {})
        if edge[1] in slots:
            present = [slots.pop(edge[1])]
            slots[edge[1]] = _sum(self.w, present, holder)
        else:
            slots[edge[1]] = holder.pop()


def accumulate(w: World, leaf: Tensor, holder: list[Tensor]) -> None:
    """Add the gradient that `holder` alone holds to `leaf.grad`, then tell hooks and policies."""
    if leaf.grad is None:
        if _is_unshared(holder) and _obeys_layout(holder[0], leaf):
            gradient = alias(holder[0])
        else:
            strides = leaf.strides if is_dense(leaf.shape, leaf.strides) else None
            gradient = w.new(leaf.shape, holder[0].dtype, "grad", leaf.storage.device, strides)
        gradient.storage.mark(StorageKind.GRADIENTS)
        leaf.grad = gradient
        del gradient
    holder.clear()
    for hook in leaf.accumulated_hooks or ():
        hook(w, leaf)
    for policy in w.gradient_ready:
        policy(w, leaf)


def _root_edge(root: Tensor) -> Edge:
    if not root.requires_grad:
        raise Unsupported(
            "backward", "the tensor does not require a gradient and has no graph; torch raises here"
        )
    return edge_of(root)


def _ancestors_of(seen: set[_Vertex], targets: list[Edge]) -> set[_Vertex]:
    """The vertices from which a target can be reached, the targets' own vertices left out."""
    users: dict[_Vertex, list[_Vertex]] = {}
    for vertex in seen:
        if isinstance(vertex, Node):
            for edge in vertex.edges:
                if edge is not None:
                    users.setdefault(edge[0], []).append(vertex)
    needed: set[_Vertex] = set()
    stack = [target[0] for target in targets]
    while stack:
        for user in users.get(stack.pop(), ()):
            if user not in needed:
                needed.add(user)
                stack.append(user)
    return needed


def _validate(w: World, node: Node, results: list[Tensor | None]) -> None:
    """Sum each gradient down to the shape of its input, then cast it to that type; drop those nobody waits
    for.
    """
    for i, fact in enumerate(node.inputs):
        if fact is None:
            results[i] = None
            continue
        result = results[i]
        if result is None:
            continue
        shape, dtype = fact
        if result.shape != shape:
            assert _reduces_to(result.shape, shape), f"{node.name}: gradient {result.shape} for input {shape}"
            result = w.new(shape, result.dtype, "sum_to", result.storage.device)
        if result.dtype is not dtype:
            result = w.like(result, "grad cast", dtype)
        results[i] = result


def _reduces_to(shape: Shape, wanted: Shape) -> bool:
    return broadcast(shape, wanted) == tuple(shape)


def _sum(w: World, present: list[Tensor], incoming: list[Tensor]) -> Tensor:
    """The sum of two gradients, in the place of one that has no other owner if there is one."""
    if _is_writable(present):
        incoming.clear()
        return present.pop()
    if _is_writable(incoming):
        return incoming.pop()
    total = w.like(present[0], "grad sum")
    present.clear()
    incoming.clear()
    return total


# Reference counts are compared with those of an object that is known to be held by exactly one list or slot,
# because how many references the interpreter itself adds differs between versions of Python.
_ALONE = [object()]
_UNSHARED_COUNT = sys.getrefcount(_ALONE[0])


class _Slot:
    __slots__ = ("storage",)

    def __init__(self) -> None:
        self.storage = object()


_KEPT = _Slot()
_UNSHARED_STORAGE_COUNT = sys.getrefcount(_KEPT.storage)


def _is_unshared(holder: list[Tensor]) -> bool:
    return sys.getrefcount(holder[0]) <= _UNSHARED_COUNT


def _is_writable(holder: list[Tensor]) -> bool:
    return (
        sys.getrefcount(holder[0]) <= _UNSHARED_COUNT
        and sys.getrefcount(holder[0].storage) <= _UNSHARED_STORAGE_COUNT
        and is_dense(holder[0].shape, holder[0].strides)
    )


def _obeys_layout(gradient: Tensor, leaf: Tensor) -> bool:
    """`obeys_layout_contract`: a dense leaf wants its own strides, another a row-major gradient; and it is
    dense.
    """
    if not is_dense(gradient.shape, gradient.strides):
        return False
    if is_dense(leaf.shape, leaf.strides):
        return _same_strides(gradient.shape, gradient.strides, leaf.strides)
    return is_contiguous(gradient.shape, gradient.strides)


def _same_strides(shape: Shape, a: Shape, b: Shape) -> bool:
    return all(extent == 1 or x == y for extent, x, y in zip(shape, a, b, strict=True))


def _apply_hooks(w: World, hooks: Sequence[tuple[int, object]], gradients: list[Tensor] | Gradients) -> None:
    for index, hook in hooks:
        gradient = gradients[index]
        if gradient is not None and callable(hook):
            replaced = hook(w, gradient)
            if isinstance(replaced, Tensor):
                gradients[index] = replaced

"""Fully sharded data parallelism: parameters live as shards, whole ones between gather and release.

Follows `torch/distributed/fsdp/_fully_shard/` (FSDP2). A unit is the parameters of one wrapped module that no
inner unit has. On entering forward the unit is gathered: one flat buffer that the collective fills, from
which the parameters are copied out. On leaving it is released; backward gathers it again, one unit ahead of
its use, and when all its gradients are there they are reduced and scattered through two more flat buffers.
The classic wrapper (FSDP1) uses the flat buffer itself, without copying out.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from torchwise_memory.modules.base import Module
from torchwise_memory.runtime.device import CPU
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Parameter, Tensor, set_data
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is sharded.

    processes: over how many. param_dtype: in which parameters are gathered, reduce_dtype: in which gradients
    are reduced; None keeps the parameters' own. reshard_after_forward: False keeps a unit whole from forward
    to backward (ZeRO-2). copies_out: FSDP2's second copy while gathering. prefetches: gather one unit ahead.
    offload: shards of parameters, gradients and states live on the host.
    """

    processes: int
    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    reshard_after_forward: bool = True
    copies_out: bool = True
    prefetches: bool = True
    offload: bool = False


class Order:
    """The unit entered last, so that each knows which one backward reaches after it.

    untrained: the unit in backward that has no gradients to reduce; the next one that begins ends it.
    """

    def __init__(self) -> None:
        self.last: weakref.ref[ShardedUnit] | None = None
        self.untrained: weakref.ref[ShardedUnit] | None = None


class ShardedUnit:
    """The policy of one wrapped module. Parameters show their shard outside, the whole inside."""

    def __init__(self, w: World, parameters: list[Parameter], sharding: Sharding, order: Order) -> None:
        self.sharding = sharding
        self.order = order
        self.parameters = parameters
        self.whole_shapes = [tuple(parameter.shape) for parameter in parameters]
        self.shards: list[Tensor] = []
        self.wholes: list[Tensor] = []
        self.is_whole = False
        self.in_backward = False
        self.is_done = False
        self.holds_units = False
        self.previous: weakref.ref[ShardedUnit] | None = None
        self.accumulated: dict[int, Tensor] = {}
        self.waiting = 0
        for parameter in parameters:
            self._shard(w, parameter)
        ready = _Ready(weakref.ref(self))
        for parameter in parameters:
            parameter.accumulated_hooks = [*(parameter.accumulated_hooks or ()), ready]

    def whole_numel(self, parameter: Tensor) -> int:
        """Elements of one of the unit's parameters when it is gathered."""
        shapes = dict(zip(map(id, self.parameters), self.whole_shapes, strict=True))
        return prod(shapes[id(parameter)])

    def enter(self, w: World, module: Module) -> None:
        if self.in_backward and not w.backward_depth:
            self._end()
        if not w.backward_depth:
            self.is_done = False
        if not self.in_backward:
            last = self.order.last() if self.order.last is not None else None
            if last is not self:
                self.previous = self.order.last
            self.order.last = weakref.ref(self)
        self.gather(w)

    def leave(self, w: World, module: Module, output: object) -> object:
        if self.in_backward:
            return output
        hooked = w.grad_enabled and _hook_outputs(output, _Before(weakref.ref(self)))
        if self.sharding.reshard_after_forward or not hooked:
            self.release()
        return output

    def gather(self, w: World) -> None:
        """Makes the unit whole; nothing when it is."""
        if self.is_whole:
            return
        self._follow(w)
        self.is_whole = True
        flat = self._flat(w, "all_gather", self.wholes) if self.sharding.copies_out else None
        for whole, parameter in zip(self.wholes, self.parameters, strict=True):
            whole.storage.restore(
                "all-gathered parameter", whole.dtype.name, whole.shape, StorageKind.WEIGHTS
            )
            set_data(parameter, whole)
        del flat

    def _follow(self, w: World) -> None:
        """Shards that were moved (`to_empty` of a model made on meta) take their wholes along."""
        for number, parameter in enumerate(self.parameters):
            if parameter.storage is self.shards[number].storage:
                continue
            whole = self.wholes[number]
            self.shards[number] = Tensor(parameter.shape, parameter.dtype, parameter.storage)
            if whole.device != parameter.device:
                self.wholes[number] = w.new(
                    whole.shape, whole.dtype, "all-gathered parameter", parameter.device
                )
                self.wholes[number].storage.release()

    def release(self) -> None:
        """Back to shards. Saved tensors keep pointing at the whole storages, which backward fills again."""
        if not self.is_whole:
            return
        self.is_whole = False
        for whole, shard, parameter in zip(self.wholes, self.shards, self.parameters, strict=True):
            set_data(parameter, shard)
            whole.storage.release()

    def before_backward(self, w: World) -> None:
        if self.in_backward:
            return
        self.in_backward = True
        self.waiting = sum(parameter.requires_grad for parameter in self.parameters)
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.accumulated[id(parameter)] = parameter.grad
                parameter.grad = None
        before = self.order.untrained() if self.order.untrained is not None else None
        if before is not None:
            before._end()
        # what lies around other units is needed until all of them are through, even to run them again
        self.order.untrained = None if self.waiting or self.holds_units else weakref.ref(self)
        self.gather(w)
        ahead = self.previous() if self.previous is not None else None
        if ahead is not None and self.sharding.prefetches and not ahead.is_done:
            ahead.gather(w)

    def _end(self) -> None:
        """Backward is through with a unit that has nothing to reduce."""
        self.in_backward = False
        self.is_done = True
        self.release()

    def gradient_ready(self, w: World) -> None:
        if not self.in_backward:
            return
        self.waiting -= 1
        if self.waiting == 0:
            self._reduce(w)

    def _reduce(self, w: World) -> None:
        """Reduce-scatter of all gradients of the unit, then the unit is released."""
        trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        dtype = self.sharding.reduce_dtype or gradients[0].dtype
        flat = w.new(
            (sum(gradient.numel for gradient in gradients),), dtype, "reduce_scatter", gradients[0].device
        )
        gradients.clear()
        for parameter in trained:
            parameter.grad = None
        shard_of = dict(zip(map(id, self.parameters), self.shards, strict=True))
        count = sum(shard_of[id(parameter)].numel for parameter in trained)
        scattered = w.new((count,), dtype, "reduce_scatter", flat.device)
        del flat
        own = shard_of[id(trained[0])].dtype
        if own is not dtype:
            scattered = w.new((count,), own, "to", scattered.device)
        if self.sharding.offload:
            scattered = w.new((count,), own, "to host", CPU)
        scattered.storage.mark(StorageKind.GRADIENTS)
        self.in_backward = False
        self.is_done = True
        self.release()
        # the next forward begins a new order
        self.order.last = None
        for parameter in trained:
            shard = shard_of[id(parameter)]
            kept = self.accumulated.pop(id(parameter), None)
            parameter.grad = kept if kept is not None else Tensor(shard.shape, own, scattered.storage)

    def _flat(self, w: World, name: str, tensors: list[Tensor]) -> Tensor | None:
        if not tensors:
            return None
        count = sum(tensor.numel for tensor in tensors)
        return w.new((count,), tensors[0].dtype, name, tensors[0].device)

    def _shard(self, w: World, parameter: Parameter) -> None:
        """The first dimension is divided and padded, as FSDP2 does."""
        shape = tuple(parameter.shape)
        rows = -(-(shape[0] if shape else 1) // self.sharding.processes)
        device, dtype = parameter.device, parameter.dtype
        home = CPU if self.sharding.offload else device
        shard = w.new((rows, *shape[1:]), dtype, "shard", home, kind=StorageKind.WEIGHTS)
        whole = w.new(shape, self.sharding.param_dtype or dtype, "all-gathered parameter", device)
        whole.storage.release()
        set_data(parameter, shard)
        self.shards.append(shard)
        self.wholes.append(whole)


class _Ready:
    """Called after the gradient of a parameter was accumulated. Weak: the unit holds its parameters."""

    def __init__(self, unit: weakref.ref[ShardedUnit]) -> None:
        self.unit = unit

    def __call__(self, w: World, leaf: Tensor) -> None:
        unit = self.unit()
        if unit is not None:
            unit.gradient_ready(w)


class _Before:
    """Called with the first gradient that reaches an output of the unit."""

    def __init__(self, unit: weakref.ref[ShardedUnit]) -> None:
        self.unit = unit

    def __call__(self, w: World, gradient: Tensor) -> Tensor | None:
        unit = self.unit()
        if unit is not None:
            unit.before_backward(w)
        return None


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter belongs to a unit that was sharded."""
    return any(isinstance(hook, _Ready) for hook in parameter.accumulated_hooks or ())


class Divided:
    """Marks a parameter of which this process holds a part for good (tensor parallelism)."""

    def __init__(self, whole_numel: int) -> None:
        self.whole_numel = whole_numel

    def __call__(self, w: World, leaf: Tensor) -> None:
        """Its gradient is that of the part."""


def whole_numel(parameter: Tensor) -> int:
    """Elements of a parameter before it was divided."""
    for hook in parameter.accumulated_hooks or ():
        if isinstance(hook, Divided):
            return hook.whole_numel
    for hook in parameter.accumulated_hooks or ():
        unit = hook.unit() if isinstance(hook, _Ready) else None
        if unit is not None:
            return unit.whole_numel(parameter)
    return parameter.numel


def shard(w: World, module: Module, sharding: Sharding, order: Order | None = None) -> ShardedUnit | None:
    """`fully_shard(module)`: what no inner unit has becomes a unit; None where nothing is left.

    Shard inner modules first, the root last, with one `order` for all.
    """
    taken = {
        id(parameter)
        for _, inner in module.walk()
        for policy in inner.policies
        if isinstance(policy, ShardedUnit)
        for parameter in policy.parameters
    }
    parameters = [parameter for _, parameter in module.walk_parameters() if id(parameter) not in taken]
    if not parameters:
        return None
    unit = ShardedUnit(w, parameters, sharding, order or _order_of(module) or Order())
    unit.holds_units = bool(taken)
    module.policies.append(unit)
    return unit


def _order_of(module: Module) -> Order | None:
    """Units of one model share an order: that of the first unit found inside, given on to all others."""
    found: Order | None = None
    for _, inner in module.walk():
        for policy in inner.policies:
            if isinstance(policy, ShardedUnit):
                found = found or policy.order
                policy.order = found
    return found


def _hook_outputs(output: object, hook: _Before) -> bool:
    """Hooks every differentiable tensor of a module's output; whether there was one."""
    hooked = False
    for tensor in _tensors(output):
        if tensor.node is not None:
            tensor.node.hooks = [*(tensor.node.hooks or ()), (tensor.index, hook)]
            hooked = True
    return hooked


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items: list[Any] = []
    if isinstance(value, list | tuple):
        items = list(cast("list[Any]", value))
    elif isinstance(value, dict):
        items = list(cast("dict[object, object]", value).values())
    elif hasattr(value, "fields") and not isinstance(value, Module):
        items = list(value.fields.values())
    return [tensor for item in items for tensor in _tensors(item)]

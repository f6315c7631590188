"""Wrappers for several devices and averaged copies of a model."""

from __future__ import annotations

from typing import Any

from torchwise_memory.modules.base import MISSING, Module
from torchwise_memory.modules.copying import copy_module
from torchwise_memory.modules.native import visible
from torchwise_memory.runtime.dtypes import int64
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.storage import Storage
from torchwise_memory.runtime.tensor import Parameter, Tensor, alias
from torchwise_memory.runtime.world import World

MIB = 1 << 20


class Wrapper(Module):
    """Forward is that of the wrapped module."""

    def wrap(self, module: Module) -> None:
        self.children["module"] = module

    def forward(self, w: World, *inputs: Any, **kwargs: Any) -> Any:
        return self.run(w, "module", *inputs, **kwargs)


class DataParallel(Wrapper):
    """On one card the module itself; on several, replicas per step, which only the first card's peak sees."""

    native_name = "torch.nn.DataParallel"

    def init(
        self, w: World, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        self.wrap(module)
        w.assume("DataParallel on one card: no replicas, no gathered outputs")


class DistributedDataParallel(Wrapper):
    """Gradients are reduced in flat buckets: the first 1 MiB, the others `bucket_cap_mb`, in reverse order.

    Buckets stay allocated. With `gradient_as_bucket_view` they are where gradients live; otherwise gradients
    are copied into them.
    """

    native_name = "torch.nn.parallel.DistributedDataParallel"

    def init(
        self,
        w: World,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: Any = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
    ) -> None:
        self.wrap(module)
        trainable = [value for _, value in module.walk_parameters() if value.requires_grad]
        cap = int((bucket_cap_mb or 25) * MIB)
        self.buckets = _buckets(w, trainable, cap)
        self.fields["gradient_as_bucket_view"] = gradient_as_bucket_view
        if gradient_as_bucket_view:
            w.gradient_ready.append(_BucketViews(self.buckets))

    @visible("no_sync")
    def no_sync(self, w: World) -> _NoSync:
        return _NoSync()

    @visible("join")
    def join(self, w: World, *args: object, **kwargs: object) -> _NoSync:
        return _NoSync()


class _NoSync:
    """A context that changes nothing in memory: buckets stay."""

    def enter(self, w: World) -> object:
        return self

    def leave(self, w: World) -> None:
        return None


def _buckets(w: World, parameters: list[Parameter], cap_bytes: int) -> list[tuple[Storage, list[Parameter]]]:
    groups: list[list[Parameter]] = [[]]
    filled, limit = 0, MIB
    for parameter in reversed(parameters):
        groups[-1].append(parameter)
        filled += parameter.bytes
        if filled >= limit:
            groups.append([])
            filled, limit = 0, cap_bytes
    made: list[tuple[Storage, list[Parameter]]] = []
    for group in groups:
        if group:
            size = sum(parameter.bytes for parameter in group)
            first = group[0]
            bucket = w.new(
                (size // first.dtype.itemsize,),
                first.dtype,
                "gradient bucket",
                first.device,
                kind=StorageKind.GRADIENTS,
            )
            made.append((bucket.storage, group))
    return made


class _BucketViews:
    """When a gradient is ready it moves into its bucket."""

    def __init__(self, buckets: list[tuple[Storage, list[Parameter]]]) -> None:
        self.places = {id(parameter): storage for storage, group in buckets for parameter in group}

    def __call__(self, w: World, leaf: Tensor) -> None:
        storage = self.places.get(id(leaf))
        if storage is not None and leaf.grad is not None and leaf.grad.storage is not storage:
            moved = alias(leaf.grad)
            moved.storage = storage
            leaf.grad = moved


class AveragedModel(Wrapper):
    """`torch.optim.swa_utils.AveragedModel`: a deep copy, averaged in place."""

    native_name = "torch.optim.swa_utils.AveragedModel"

    def init(
        self,
        w: World,
        model: Module,
        device: Any = None,
        avg_fn: Any = None,
        multi_avg_fn: Any = None,
        use_buffers: bool = False,
    ) -> None:
        twin = copy_module(w, model)
        if device is not None:
            twin.to(w, device)
        self.wrap(twin)
        self.buffers["n_averaged"] = w.new((), int64, "n_averaged", kind=StorageKind.BUFFERS)

    @visible("update_parameters")
    def update_parameters(self, w: World, model: Module) -> None:
        """Interpolates in place."""


def unwrapped(module: Module) -> Module:
    """The module below any wrappers."""
    while isinstance(module, Wrapper) and module.lookup("module") is not MISSING:
        module = module.child("module")
    return module


PARALLEL = (DataParallel, DistributedDataParallel, AveragedModel)

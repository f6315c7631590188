"""torch.distributed.fsdp as a program calls it. `World.world_size` says over how many processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from torchwise_memory.modules.base import Module
from torchwise_memory.modules.native import attribute, visible
from torchwise_memory.modules.parallel import Wrapper
from torchwise_memory.operators.registry import Function, function_of, operator, registrations
from torchwise_memory.policies.sharding import Order, Sharding, shard
from torchwise_memory.policies.tensor_parallel import DeviceMesh
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.world import World

#: Among which hybrid strategies shard; between machines they replicate.
CARDS_OF_A_MACHINE = 8
#: auto_wrap_policy(module=, recurse=, nonwrapped_numel=) -> whether to go into it, or to wrap it
WrapPolicy = Callable[..., object]


class MixedPrecision:
    """`MixedPrecision` (FSDP1) and `MixedPrecisionPolicy` (FSDP2): the types that decide sizes."""

    native_name = "torch.distributed.fsdp.MixedPrecision"

    def __init__(self) -> None:
        self.fields: dict[str, object] = {}

    def init(
        self,
        w: World,
        param_dtype: DType | None = None,
        reduce_dtype: DType | None = None,
        buffer_dtype: DType | None = None,
        keep_low_precision_grads: bool = False,
        cast_forward_inputs: bool = False,
        cast_root_forward_inputs: bool = True,
    ) -> None:
        self.fields.update(param_dtype=param_dtype, reduce_dtype=reduce_dtype)

    @property
    def types(self) -> tuple[DType | None, DType | None]:
        """Of gathered parameters and of reduced gradients, which default to the first."""
        param, reduce = self.fields.get("param_dtype"), self.fields.get("reduce_dtype")
        gathered = param if isinstance(param, DType) else None
        return gathered, reduce if isinstance(reduce, DType) else gathered


class MixedPrecisionPolicy(MixedPrecision):
    native_name = "torch.distributed.fsdp.MixedPrecisionPolicy"

    def init(  # type: ignore[override]
        self,
        w: World,
        param_dtype: DType | None = None,
        reduce_dtype: DType | None = None,
        output_dtype: DType | None = None,
        cast_forward_inputs: bool = True,
    ) -> None:
        super().init(w, param_dtype, reduce_dtype)


class Offload:
    """Shards of parameters, and with them gradients and states, live on the host."""

    def __init__(self) -> None:
        self.is_on = False

    @attribute("offload_params")
    def offload_params(self, w: World) -> bool:
        return self.is_on


class CPUOffload(Offload):
    """FSDP1's setting."""

    native_name = "torch.distributed.fsdp.CPUOffload"

    def init(self, w: World, offload_params: bool = False) -> None:
        self.is_on = bool(offload_params)


class CPUOffloadPolicy(Offload):
    """FSDP2's."""

    native_name = "torch.distributed.fsdp.CPUOffloadPolicy"

    def init(self, w: World, pin_memory: bool = True) -> None:
        self.is_on = True


class ModuleWrapPolicy:
    """Wraps modules of the given classes."""

    native_name = "torch.distributed.fsdp.wrap.ModuleWrapPolicy"

    def __init__(self) -> None:
        self.classes: list[object] = []

    def init(self, w: World, module_classes: Iterable[object]) -> None:
        self.classes = list(module_classes)

    @visible("__call__")
    def decide(self, w: World, module: Module, recurse: bool, *args: object, **kwargs: object) -> bool:
        return recurse or _is_one_of(module, self.classes)


class FullyShardedDataParallel(Wrapper):
    native_name = "torch.distributed.fsdp.FullyShardedDataParallel"

    def init(
        self,
        w: World,
        module: Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: Any = "BACKWARD_PRE",
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Any = None,
        param_init_fn: Any = None,
        device_id: Any = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Any = None,
        device_mesh: Any = None,
    ) -> None:
        if device_id is not None:
            module.to(w, device_id)
        self.wrap(module)
        strategy = str(sharding_strategy)
        if "NO_SHARD" in strategy:
            return
        param_dtype, reduce_dtype = (None, None) if mixed_precision is None else mixed_precision.types
        processes = _processes(w, device_mesh)
        if "HYBRID" in strategy and processes > CARDS_OF_A_MACHINE:
            w.assume(f"hybrid sharding divides among the {CARDS_OF_A_MACHINE} cards of a machine")
            processes = CARDS_OF_A_MACHINE
        sharding = Sharding(
            processes,
            param_dtype,
            reduce_dtype,
            reshard_after_forward="GRAD_OP" not in strategy,
            copies_out=False,
            prefetches=backward_prefetch is not None,
            offload=isinstance(cpu_offload, Offload) and cpu_offload.is_on,
        )
        if auto_wrap_policy is not None:
            _wrap(w, module, _decider(w, auto_wrap_policy), sharding, Order(), only_children=True)
        # units that were wrapped by hand before come into the root's order
        shard(w, module, sharding)

    @visible("clip_grad_norm_")
    def clip_grad_norm_(self, w: World, max_norm: Any, norm_type: float = 2.0) -> Any:
        """Scales shards in place."""
        return w.new((), w.default_dtype, "total_norm")


@operator("torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fsdp.fully_shard")
def fully_shard(
    w: World,
    module: Any,
    *,
    mesh: Any = None,
    reshard_after_forward: Any = None,
    shard_placement_fn: Any = None,
    mp_policy: MixedPrecision | None = None,
    offload_policy: Any = None,
    ignored_params: Any = None,
) -> Any:
    """Shards what no inner call has sharded. A root, called last, stays whole after forward by default."""
    param_dtype, reduce_dtype = (None, None) if mp_policy is None else mp_policy.types
    modules = cast("list[Module]", module if isinstance(module, list | tuple) else [module])
    for item in modules:
        is_root = any(inner.policies for _, inner in item.walk() if inner is not item)
        reshard = not is_root if reshard_after_forward is None else bool(reshard_after_forward)
        offload = isinstance(offload_policy, Offload) and offload_policy.is_on
        processes = _processes(w, mesh)
        shard(w, item, Sharding(processes, param_dtype, reduce_dtype, reshard, offload=offload))
    return cast(object, module)


def _processes(w: World, mesh: Any) -> int:
    """Those that share parameters: a mesh's last dimension, of two the first replicates."""
    return mesh.sizes[-1] if isinstance(mesh, DeviceMesh) and mesh.sizes else w.world_size


@operator("torch.distributed.fsdp.wrap.transformer_auto_wrap_policy")
def transformer_auto_wrap_policy(
    w: World,
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    transformer_layer_cls: Iterable[object] = (),
) -> bool:
    return recurse or _is_one_of(module, list(transformer_layer_cls))


@operator("torch.distributed.fsdp.wrap.size_based_auto_wrap_policy")
def size_based_auto_wrap_policy(
    w: World,
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = 100_000_000,
    force_leaf_modules: Any = None,
    exclude_wrap_modules: Any = None,
) -> bool:
    """Large modules; lists and dictionaries of modules are never wrapped, attention never entered."""
    kind = module.native_name.rpartition(".")[2]
    large = nonwrapped_numel >= min_num_params
    if recurse:
        return large and kind != "MultiheadAttention"
    return large and kind not in ("ModuleList", "ModuleDict")


@operator("torch.distributed.fsdp.wrap.always_wrap_policy")
def always_wrap_policy(w: World, *args: object, **kwargs: object) -> bool:
    return True


def fsdp_functions() -> dict[str, Function]:
    """Qualified name -> function."""
    return {name: function_of(name, entry.call) for entry in registrations(globals()) for name in entry.names}


def _decider(w: World, policy: Any) -> WrapPolicy:
    if isinstance(policy, ModuleWrapPolicy):
        return partial(_decide, w, policy)
    return cast(WrapPolicy, policy)


def _decide(w: World, policy: ModuleWrapPolicy, module: Module, recurse: bool, nonwrapped_numel: int) -> bool:
    return policy.decide(w, module, recurse)


def _wrap(
    w: World, module: Module, policy: WrapPolicy, sharding: Sharding, order: Order, only_children: bool
) -> int:
    """`_recursive_wrap`: inner modules first; how many parameters were wrapped."""
    count = sum(parameter.numel for _, parameter in module.walk_parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=count):
        return 0
    wrapped = 0
    for child in module.children.values():
        if child is not None:
            wrapped += _wrap(w, child, policy, sharding, order, only_children=False)
    if not only_children and policy(module=module, recurse=False, nonwrapped_numel=count - wrapped):
        shard(w, module, sharding, order)
        return count
    return wrapped


def _is_one_of(module: Module, classes: list[object]) -> bool:
    """Classes are those of the program, or our own by their qualified name."""
    if any(cls is module.program_class for cls in classes if cls is not None):
        return True
    names = {getattr(cls, "tag", None) or getattr(cls, "native_name", None) for cls in classes}
    return module.native_name in names


FSDP = (
    MixedPrecision,
    MixedPrecisionPolicy,
    CPUOffload,
    CPUOffloadPolicy,
    ModuleWrapPolicy,
    FullyShardedDataParallel,
)

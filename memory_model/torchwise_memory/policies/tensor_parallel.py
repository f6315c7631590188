"""torch.distributed.tensor.parallel as a program calls it: layers hold their part of the weights.

Follows `torch/distributed/tensor/parallel/style.py`. A process sees its local tensors: a layer divided by
columns gives its part of the features, one divided by rows a part of the sum, which is reduced; a sequence is
divided between layers and gathered before products. What each style converts it does in new tensors, whose
gradients are converted back. No value depends on another process here, so that one process is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any, TypeGuard, cast

from torchwise_memory.modules.base import Module
from torchwise_memory.modules.linear import Embedding, Linear
from torchwise_memory.modules.native import attribute, visible
from torchwise_memory.operators.registry import Function, function_of, operator, registrations
from torchwise_memory.policies.sharding import Divided
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tape import Gradients, Saved, record
from torchwise_memory.runtime.tensor import Tensor, set_data
from torchwise_memory.runtime.world import World


class DeviceMesh:
    """Processes in a grid; a part of it is one of its dimensions by name."""

    native_name = "torch.distributed.device_mesh.DeviceMesh"

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self.names: tuple[str, ...] = ()

    def init(
        self, w: World, device_type: str, mesh: Any = None, mesh_dim_names: Any = None, **kwargs: Any
    ) -> None:
        self.sizes = _shape_of(mesh)
        self.names = tuple(mesh_dim_names or ())
        w.world_size = max(w.world_size, prod(self.sizes))

    @visible("__getitem__")
    def part(self, w: World, key: Any) -> DeviceMesh:
        names = cast("tuple[object, ...]", key if isinstance(key, tuple) else (key,))
        wanted = tuple(str(name) for name in names)
        if any(name not in self.names for name in wanted):
            raise Unsupported(f"mesh[{key!r}]", "the mesh has no dimension of this name")
        found = DeviceMesh()
        found.names = wanted
        found.sizes = tuple(self.sizes[self.names.index(name)] for name in wanted)
        return found

    @visible("size")
    def size(self, w: World, mesh_dim: Any = None) -> int:
        if mesh_dim is None:
            return prod(self.sizes)
        return self.sizes[self.names.index(mesh_dim) if isinstance(mesh_dim, str) else int(mesh_dim)]

    @visible("get_local_rank", "get_rank")
    def rank(self, w: World, mesh_dim: Any = None) -> int:
        return 0

    @visible("get_group", "get_all_groups", "get_coordinate", "_flatten")
    def group(self, w: World, *args: Any, **kwargs: Any) -> Any:
        return self

    @attribute("ndim")
    def ndim(self, w: World) -> int:
        return len(self.sizes)

    @attribute("shape")
    def shape(self, w: World) -> tuple[int, ...]:
        return self.sizes

    @attribute("mesh_dim_names")
    def dim_names(self, w: World) -> tuple[str, ...] | None:
        return self.names or None

    @attribute("device_type")
    def device_type(self, w: World) -> str:
        return "cuda"


def _shape_of(mesh: Any) -> tuple[int, ...]:
    """Of nested lists of ranks, or of a tensor of them."""
    if isinstance(mesh, Tensor):
        return tuple(mesh.shape)
    sizes: list[int] = []
    while isinstance(mesh, list | tuple):
        ranks = cast("Sequence[Any]", mesh)
        sizes.append(len(ranks))
        mesh = ranks[0] if ranks else None
    return tuple(sizes)


@operator(
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
)
def init_device_mesh(
    w: World, device_type: str, mesh_shape: Any, *, mesh_dim_names: Any = None, backend_override: Any = None
) -> Any:
    sizes = cast("Sequence[Any]", mesh_shape if isinstance(mesh_shape, list | tuple) else (mesh_shape,))
    if not _are_sizes(sizes):
        raise Unsupported("init_device_mesh", f"the shape {mesh_shape!r} of the mesh is not known")
    mesh = DeviceMesh()
    mesh.sizes = tuple(sizes)
    mesh.names = tuple(mesh_dim_names or ())
    w.world_size = max(w.world_size, prod(mesh.sizes))
    return mesh


def _are_sizes(sizes: Sequence[Any]) -> TypeGuard[Sequence[int]]:
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)


class Replicate:
    """Every process has all of it."""

    native_name = "torch.distributed.tensor.Replicate"

    def init(self, w: World) -> None:
        """Nothing to set."""


class Partial:
    """Every process has a part of the sum."""

    native_name = "torch.distributed.tensor.Partial"

    def init(self, w: World, reduce_op: str = "sum") -> None:
        """Nothing to set."""


class Shard:
    """Divided along a dimension."""

    native_name = "torch.distributed.tensor.Shard"

    def __init__(self) -> None:
        self.dim = 0

    def init(self, w: World, dim: int) -> None:
        self.dim = int(dim)


def _shard(dim: int) -> Shard:
    layout = Shard()
    layout.dim = dim
    return layout


class _Style:
    """What is done to a module: its parameters divided, its inputs and outputs converted."""

    native_name = "torch.distributed.tensor.parallel.ParallelStyle"

    def __init__(self) -> None:
        self.inputs: Any = None
        self.outputs: Any = None

    def init(self, w: World, *, input_layouts: Any = None, output_layouts: Any = None, **kwargs: Any) -> None:
        self.inputs, self.outputs = input_layouts, output_layouts

    def apply(self, w: World, module: Module, ways: int) -> None:
        raise Unsupported(self.native_name, "this style of parallelism is not modelled")


class _LinearStyle(_Style):
    def init(  # type: ignore[override]
        self,
        w: World,
        *,
        input_layouts: Any = None,
        output_layouts: Any = None,
        use_local_output: bool = True,
    ) -> None:
        super().init(w, input_layouts=input_layouts, output_layouts=output_layouts)


class ColwiseParallel(_LinearStyle):
    native_name = "torch.distributed.tensor.parallel.ColwiseParallel"

    def apply(self, w: World, module: Module, ways: int) -> None:
        if isinstance(module, Embedding):
            _divide(w, module, {"weight": 1}, ways)
        elif isinstance(module, Linear):
            _divide(w, module, {"weight": 0, "bias": 0}, ways)
        else:
            raise Unsupported(f"ColwiseParallel of {module.native_name}", "torch knows Linear and Embedding")
        _hook(
            w, module, ways, self.inputs or Replicate(), Replicate(), _shard(-1), self.outputs or _shard(-1)
        )


class RowwiseParallel(_LinearStyle):
    native_name = "torch.distributed.tensor.parallel.RowwiseParallel"

    def apply(self, w: World, module: Module, ways: int) -> None:
        if isinstance(module, Embedding):
            _divide(w, module, {"weight": 0}, ways)
            wanted: Any = Replicate()
        elif isinstance(module, Linear):
            _divide(w, module, {"weight": 1}, ways)
            wanted = _shard(-1)
        else:
            raise Unsupported(f"RowwiseParallel of {module.native_name}", "torch knows Linear and Embedding")
        _hook(w, module, ways, self.inputs or wanted, wanted, Partial(), self.outputs or Replicate())


class SequenceParallel(_Style):
    """Norms and dropout on the part of the sequence that this process has."""

    native_name = "torch.distributed.tensor.parallel.SequenceParallel"

    def init(  # type: ignore[override]
        self, w: World, *, sequence_dim: int = 1, use_local_output: bool = False
    ) -> None:
        super().init(w)

    def apply(self, w: World, module: Module, ways: int) -> None:
        """Parameters are everywhere, inputs arrive divided."""


class PrepareModuleInput(_Style):
    native_name = "torch.distributed.tensor.parallel.PrepareModuleInput"

    def __init__(self) -> None:
        super().__init__()
        self.desired: Any = None
        self.named: tuple[Any, Any] = (None, None)

    def init(  # type: ignore[override]
        self,
        w: World,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: Any = None,
        desired_input_kwarg_layouts: Any = None,
        use_local_output: bool = False,
    ) -> None:
        super().init(w, input_layouts=input_layouts)
        self.desired = desired_input_layouts
        self.named = (input_kwarg_layouts, desired_input_kwarg_layouts)

    def apply(self, w: World, module: Module, ways: int) -> None:
        given, wanted = _layouts(self.inputs), _layouts(self.desired)
        named, named_wanted = (cast("Mapping[str, Any]", each or {}) for each in self.named)

        def prepare(_: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            changed = [
                _converted(w, arg, given[i], wanted[i], ways) if i < len(given) and i < len(wanted) else arg
                for i, arg in enumerate(args)
            ]
            more = {
                name: _converted(w, arg, named.get(name), named_wanted.get(name), ways)
                for name, arg in kwargs.items()
            }
            return tuple(changed), more

        module.pre_hooks[_key(module.pre_hooks)] = (prepare, True)


class PrepareModuleOutput(_Style):
    native_name = "torch.distributed.tensor.parallel.PrepareModuleOutput"

    def __init__(self) -> None:
        super().__init__()
        self.desired: Any = None

    def init(  # type: ignore[override]
        self,
        w: World,
        *,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> None:
        super().init(w, output_layouts=output_layouts)
        self.desired = desired_output_layouts

    def apply(self, w: World, module: Module, ways: int) -> None:
        _hook(w, module, ways, None, None, _layouts(self.outputs)[0], _layouts(self.desired)[0])


def _layouts(given: Any) -> list[Any]:
    return list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else [given]


def _divide(w: World, module: Module, dims: Mapping[str, int], ways: int) -> None:
    """This process's part of each parameter, in place of the whole one."""
    for name, dim in dims.items():
        whole = module.parameters.get(name)
        if whole is None:
            continue
        shape = list(whole.shape)
        shape[dim] = -(-shape[dim] // ways)
        part = w.new(tuple(shape), whole.dtype, "parameter", whole.device, kind=StorageKind.WEIGHTS)
        whole.accumulated_hooks = [*(whole.accumulated_hooks or ()), Divided(whole.numel)]
        # whoever holds the parameter (a tied layer) sees its part too
        set_data(whole, part)


def _hook(w: World, module: Module, ways: int, given: Any, wanted: Any, made: Any, desired: Any) -> None:
    """Converts the first input from `given` to `wanted`, and the output from `made` to `desired`."""

    def before(_: Module, args: tuple[Any, ...]) -> Any:
        return (_converted(w, args[0], given, wanted, ways), *args[1:]) if args else None

    def after(_: Module, args: tuple[Any, ...], output: Any) -> Any:
        return _converted(w, output, made, desired, ways)

    if _differ(given, wanted):
        module.pre_hooks[_key(module.pre_hooks)] = (before, False)
    if _differ(made, desired):
        module.hooks[_key(module.hooks)] = (after, False)


def _key(hooks: Mapping[int, Any]) -> int:
    return max(hooks, default=0) + 1


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, Shard) and isinstance(other, Shard):
        return one.dim != other.dim
    return type(one) is not type(other)


def _converted(w: World, x: Any, given: Any, wanted: Any, ways: int) -> Any:
    """A tensor in another layout: gathered, divided, or reduced; a list of outputs item by item."""
    if isinstance(given, tuple | list):
        given = cast("Sequence[Any]", given)[0]
    if isinstance(wanted, tuple | list):
        wanted = cast("Sequence[Any]", wanted)[0]
    if not isinstance(x, Tensor) or given is None or wanted is None or not _differ(given, wanted):
        return x
    shape = list(x.shape)
    if isinstance(given, Shard):
        shape[given.dim] *= ways
    if isinstance(wanted, Shard):
        shape[wanted.dim] = -(-shape[wanted.dim] // ways)
    name = "all_gather" if isinstance(given, Shard) else "reduce" if isinstance(given, Partial) else "chunk"
    result = w.new(tuple(shape), x.dtype, name, x.device)
    record(w, name, (x,), (), _Back(x), result)
    return result


class _Back:
    """The gradient in the layout of the input."""

    __slots__ = ("dtype", "shape")

    def __init__(self, x: Tensor) -> None:
        self.shape, self.dtype = x.shape, x.dtype

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        if gradient.shape == self.shape:
            # a sum over processes has the gradient itself
            return [gradient]
        return [w.new(self.shape, self.dtype, "redistributed gradient", gradient.device)]


@operator(
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.parallel.api.parallelize_module",
)
def parallelize_module(
    w: World,
    module: Any,
    device_mesh: Any = None,
    parallelize_plan: Any = None,
    *,
    src_data_rank: Any = 0,
) -> Any:
    """Applies a style, or those of a plan by the paths of its patterns."""
    if not isinstance(device_mesh, DeviceMesh):
        raise Unsupported("parallelize_module", "over how many processes is not known")
    if len(device_mesh.sizes) != 1:
        raise Unsupported("parallelize_module", "a mesh of more than one dimension; torch raises here")
    ways = device_mesh.sizes[0]
    if isinstance(parallelize_plan, dict):
        plan = cast("Mapping[str, Any]", parallelize_plan)
        for pattern, style in plan.items():
            for found in _matching(module, pattern):
                _apply(w, found, style, ways)
    elif parallelize_plan is not None:
        _apply(w, module, parallelize_plan, ways)
    return module


def _apply(w: World, module: Module, style: Any, ways: int) -> None:
    if not isinstance(style, _Style):
        raise Unsupported("parallelize_module", "a style of parallelism that is not known")
    if ways > 1:
        style.apply(w, module, ways)


def _matching(module: Module, pattern: str) -> list[Module]:
    """Modules whose path fits the pattern, atom by atom."""
    found = [module]
    for atom in pattern.split(".") if pattern else []:
        found = [
            child
            for each in found
            for name, child in each.children.items()
            if child is not None and fnmatchcase(name, atom)
        ]
    return found


class ContextParallel:
    """`context_parallel`: tensors are this process's part of the sequence within the block.

    Keys and values of the others pass by one part at a time.
    """

    native_name = "torch.distributed.tensor.experimental.context_parallel"

    def __init__(self) -> None:
        self.mesh: DeviceMesh | None = None
        self.buffers: list[tuple[Tensor, int]] = []
        self.wholes: list[Tensor] = []

    def init(
        self,
        w: World,
        mesh: Any,
        *,
        buffers: Any = None,
        buffer_seq_dims: Any = None,
        no_restore_buffers: Any = None,
    ) -> None:
        if not isinstance(mesh, DeviceMesh):
            raise Unsupported(self.native_name, "over how many processes is not known")
        self.mesh = mesh
        tensors = [each for each in cast("Sequence[Any]", buffers or ()) if isinstance(each, Tensor)]
        dims = [int(dim) for dim in cast("Sequence[Any]", buffer_seq_dims or ())]
        self.buffers = list(zip(tensors, dims, strict=False))
        w.assume("context parallelism: keys and values of other processes pass by one part at a time")

    @visible("__enter__")
    def enter(self, w: World) -> None:
        assert self.mesh is not None
        ways = prod(self.mesh.sizes)
        self.wholes = []
        for tensor, dim in self.buffers:
            self.wholes.append(
                Tensor(tensor.shape, tensor.dtype, tensor.storage, tensor.strides, tensor.offset)
            )
            shape = list(tensor.shape)
            shape[dim] = -(-shape[dim] // ways)
            set_data(tensor, w.new(tuple(shape), tensor.dtype, "part of the sequence", tensor.device))

    @visible("__exit__")
    def leave(self, w: World, *args: Any) -> None:
        for (tensor, _), whole in zip(self.buffers, self.wholes, strict=True):
            set_data(tensor, whole)
        self.wholes = []


def tensor_parallel_functions() -> dict[str, Function]:
    """Qualified name -> function."""
    return {name: function_of(name, entry.call) for entry in registrations(globals()) for name in entry.names}


TENSOR_PARALLEL = (
    DeviceMesh,
    Replicate,
    Partial,
    Shard,
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    ContextParallel,
)
#: Other spellings of the classes' names.
TENSOR_PARALLEL_ALIASES: Mapping[str, tuple[str, ...]] = {
    **{
        f"torch.distributed.tensor.{name}": (
            f"torch.distributed._tensor.{name}",
            f"torch.distributed.tensor.placement_types.{name}",
            f"torch.distributed._tensor.placement_types.{name}",
        )
        for name in ("Replicate", "Partial", "Shard")
    },
    **{
        cls.native_name: (cls.native_name.replace("parallel.", "parallel.style."),)
        for cls in (
            ColwiseParallel,
            RowwiseParallel,
            SequenceParallel,
            PrepareModuleInput,
            PrepareModuleOutput,
        )
    },
    DeviceMesh.native_name: ("torch.distributed.DeviceMesh", "torch.distributed.tensor.DeviceMesh"),
}

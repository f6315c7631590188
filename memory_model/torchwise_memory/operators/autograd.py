"""Backward, gradient modes, autocast and checkpointing as the program calls them.

Functions of the program that are handed in (hooks, checkpointed bodies) are Python callables here: whoever
drives the runtime wraps them. Hooks are called with the world and the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import ref

from torchwise_memory.runtime import engine
from torchwise_memory.runtime.checkpoint import checkpoint as run_checkpointed
from torchwise_memory.runtime.contexts import Autocast, GradMode, NullContext
from torchwise_memory.runtime.sequences import is_sequence
from torchwise_memory.runtime.tape import SavePolicy
from torchwise_memory.runtime.tensor import Parameter

from .registry import method, operator
from .support import CPU, CUDA, DType, Tensor, Unsupported, World, alias, dtypes, extent, values_of

# --- backward


def _tensors(value: object, name: str) -> list[Tensor]:
    items = list(value) if is_sequence(value) else [value]
    tensors = [item for item in items if isinstance(item, Tensor)]
    if len(tensors) != len(items):
        raise Unsupported(name, "something that is not a tensor")
    return tensors


def _gradients(value: object, count: int, name: str) -> list[Tensor | None] | None:
    if value is None:
        return None
    items = list(value) if is_sequence(value) else [value]
    if len(items) != count:
        raise Unsupported(name, f"{len(items)} gradients for {count} tensors; torch raises here")
    return [item if isinstance(item, Tensor) else None for item in items]


def _refuse_create_graph(name: str, create_graph: bool) -> None:
    if create_graph:
        raise Unsupported(name, "create_graph=True (gradients of gradients) is not modelled")


def _check_scalar(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None] | None, name: str) -> None:
    for i, tensor in enumerate(tensors):
        if (gradients is None or gradients[i] is None) and tensor.numel != 1:
            raise Unsupported(
                name, f"no gradient given for a tensor of shape {tuple(tensor.shape)}; torch raises here"
            )


@method("backward")
def backward(
    w: World,
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: object = None,
) -> None:
    _refuse_create_graph("Tensor.backward", create_graph)
    _check_scalar([self], [gradient], "Tensor.backward")
    only = None if inputs is None else _tensors(inputs, "Tensor.backward")
    engine.backward(w, [self], None if gradient is None else [gradient], bool(retain_graph), only)


@operator("torch.autograd.backward")
def autograd_backward(
    w: World,
    tensors: object,
    grad_tensors: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: object = None,
    inputs: object = None,
) -> None:
    name = "torch.autograd.backward"
    _refuse_create_graph(name, create_graph)
    roots = _tensors(tensors, name)
    gradients = _gradients(grad_tensors, len(roots), name)
    _check_scalar(roots, gradients, name)
    engine.backward(
        w, roots, gradients, bool(retain_graph), None if inputs is None else _tensors(inputs, name)
    )


@operator("torch.autograd.grad")
def autograd_grad(
    w: World,
    outputs: object,
    inputs: object,
    grad_outputs: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    name = "torch.autograd.grad"
    _refuse_create_graph(name, create_graph)
    roots = _tensors(outputs, name)
    gradients = _gradients(grad_outputs, len(roots), name)
    _check_scalar(roots, gradients, name)
    wanted = _tensors(inputs, name)
    for tensor in wanted:
        if not tensor.requires_grad:
            raise Unsupported(name, "an input does not require a gradient; torch raises here")
    results = engine.grad(w, roots, wanted, gradients, bool(retain_graph))
    if materialize_grads:
        return tuple(
            w.like(t, "zeros_like") if g is None else g for g, t in zip(results, wanted, strict=True)
        )
    if not allow_unused and any(result is None for result in results):
        raise Unsupported(
            name, "an input was not used in the graph; torch raises here without allow_unused=True"
        )
    return tuple(results)


@method("requires_grad_")
def requires_grad_(w: World, self: Tensor, requires_grad: bool = True) -> Tensor:
    from .attributes import TENSOR_ATTRIBUTES

    assign = TENSOR_ATTRIBUTES["requires_grad"].set
    assert assign is not None
    assign(w, self, requires_grad)
    return self


@method("retain_grad")
def retain_grad(w: World, self: Tensor) -> None:
    """Keep the gradient of a tensor inside the graph. The hook knows the tensor weakly, as in torch."""
    if self.node is None:
        return
    target = ref(self)

    def keep(w: World, gradient: Tensor) -> None:
        tensor = target()
        if tensor is not None:
            tensor.grad = gradient if tensor.grad is None else tensor.grad

    _add_node_hook(self, keep)


@method("register_hook")
def register_hook(w: World, self: Tensor, hook: Callable[..., Tensor | None]) -> NullContext:
    """hook(world, gradient) -> another gradient or None. What is returned stands for the removable handle."""
    if not self.requires_grad:
        raise Unsupported("Tensor.register_hook", "the tensor does not require a gradient; torch raises here")
    if self.node is None:
        self.hooks = [*(self.hooks or ()), hook]
    else:
        _add_node_hook(self, hook)
    return NullContext()


@method("register_post_accumulate_grad_hook")
def register_post_accumulate_grad_hook(w: World, self: Tensor, hook: Callable[..., None]) -> NullContext:
    """hook(world, parameter), after its `.grad` was updated."""
    if self.node is not None:
        raise Unsupported(
            "Tensor.register_post_accumulate_grad_hook", "the tensor is not a leaf; torch raises here"
        )
    self.accumulated_hooks = [*(self.accumulated_hooks or ()), hook]
    return NullContext()


def _add_node_hook(tensor: Tensor, hook: Callable[..., Tensor | None]) -> None:
    assert tensor.node is not None
    tensor.node.hooks = [*(tensor.node.hooks or ()), (tensor.index, hook)]


# --- gradient modes


@operator("torch.no_grad", "torch.autograd.no_grad")
def no_grad(w: World) -> GradMode:
    return GradMode(False)


@operator("torch.enable_grad", "torch.autograd.enable_grad")
def enable_grad(w: World) -> GradMode:
    return GradMode(True)


@operator("torch.inference_mode", "torch.autograd.inference_mode")
def inference_mode(w: World, mode: bool = True) -> GradMode:
    return GradMode(False, True) if mode else GradMode(w.grad_enabled, False)


@operator("torch.set_grad_enabled", "torch.autograd.set_grad_enabled")
def set_grad_enabled(w: World, mode: bool) -> GradMode:
    """Acts at once; as a `with` block it also puts the old mode back."""
    context = _SetGrad(bool(mode), w.grad_enabled)
    w.grad_enabled = bool(mode)
    return context


class _SetGrad(GradMode):
    """Leaving restores the mode from before the call, not from before `enter`."""

    def __init__(self, enabled: bool, outer: bool) -> None:
        super().__init__(enabled)
        self.outer = outer

    def leave(self, w: World) -> None:
        super().leave(w)
        w.grad_enabled = self.outer


@operator("torch.is_grad_enabled")
def is_grad_enabled(w: World) -> bool:
    return w.grad_enabled


@operator("torch.is_inference_mode_enabled")
def is_inference_mode_enabled(w: World) -> bool:
    return w.inference_mode


# --- autocast


@operator("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
def autocast(
    w: World,
    device_type: str,
    dtype: DType | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> Autocast:
    default = dtypes.bfloat16 if device_type == "cpu" else dtypes.float16
    kept = w.autocast_cache_enabled if cache_enabled is None else cache_enabled
    return Autocast(str(device_type).partition(":")[0], (dtype or default) if enabled else None, kept)


@operator("torch.cuda.amp.autocast")
def cuda_autocast(
    w: World, enabled: bool = True, dtype: DType = dtypes.float16, cache_enabled: bool = True
) -> Autocast:
    return Autocast("cuda", dtype if enabled else None, cache_enabled)


@operator("torch.cpu.amp.autocast")
def cpu_autocast(
    w: World, enabled: bool = True, dtype: DType = dtypes.bfloat16, cache_enabled: bool = True
) -> Autocast:
    return Autocast("cpu", dtype if enabled else None, cache_enabled)


@operator("torch.is_autocast_enabled")
def is_autocast_enabled(w: World, device_type: str = "cuda") -> bool:
    return (w.autocast_cpu_dtype if device_type == "cpu" else w.autocast_dtype) is not None


@operator("torch.get_autocast_dtype", "torch.get_autocast_gpu_dtype")
def get_autocast_dtype(w: World, device_type: str = "cuda") -> DType:
    if device_type == "cpu":
        return w.autocast_cpu_dtype or dtypes.bfloat16
    return w.autocast_dtype or dtypes.float16


@operator("torch.clear_autocast_cache")
def clear_autocast_cache(w: World) -> None:
    w.autocast_cache.clear()


# --- checkpointing


@operator("torch.utils.checkpoint.checkpoint")
def checkpoint(
    w: World,
    function: Callable[..., object],
    *args: object,
    use_reentrant: bool | None = None,
    context_fn: object = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: object,
) -> object:
    """`function` is called with args and kwargs, and again when the backward reaches the region."""
    if context_fn is not None:
        raise Unsupported(
            "torch.utils.checkpoint.checkpoint", "context_fn (selective checkpointing) is not modelled"
        )
    # None still means reentrant in every released version that accepts it without an error.
    return run_checkpointed(w, function, args, kwargs, reentrant=use_reentrant is None or bool(use_reentrant))


@operator("torch.utils.checkpoint.checkpoint_sequential")
def checkpoint_sequential(
    w: World,
    functions: object,
    segments: int,
    input: object,
    use_reentrant: bool | None = None,
    **kwargs: object,
) -> object:
    """`functions` are callables in order; all segments but the last are checkpointed."""
    name = "torch.utils.checkpoint.checkpoint_sequential"
    if not is_sequence(functions):
        raise Unsupported(name, "the functions are not known")
    bodies = [function for function in functions if callable(function)]
    if len(bodies) != len(functions):
        raise Unsupported(name, "a function is not known")
    size = len(bodies) // extent(segments, name)
    reentrant = use_reentrant is None or bool(use_reentrant)
    done = 0
    for start in range(0, size * (extent(segments) - 1), size):
        done = start + size
        input = run_checkpointed(w, _chain(bodies[start:done]), (input,), {}, reentrant=reentrant)
    return _chain(bodies[done:])(input)


def _chain(functions: Sequence[Callable[..., object]]) -> Callable[..., object]:
    def run(value: object) -> object:
        for function in functions:
            value = function(value)
        return value

    return run


# --- saved tensors elsewhere


class _SavePolicyContext:
    """A policy that acts on what is saved inside a `with` block; graphs remember it afterwards."""

    def __init__(self, policy: SavePolicy) -> None:
        self.policy = policy

    def enter(self, w: World) -> object:
        w.save_policies.append(self.policy)
        return self

    def leave(self, w: World) -> None:
        w.save_policies.pop()


class _Kept:
    """A saved tensor that was on the host already."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = alias(tensor)


class _OnCpu:
    """Saved tensors of the card, weights too, are copied to the host, and back when their node runs."""

    def pack(self, w: World, tensor: Tensor) -> object:
        if not tensor.storage.device.on_card:
            return _Kept(tensor)
        return w.new(tensor.shape, tensor.dtype, "saved on the host", CPU)

    def unpack(self, w: World, packed: object) -> Tensor:
        if isinstance(packed, _Kept):
            return packed.tensor
        assert isinstance(packed, Tensor)
        return w.new(packed.shape, packed.dtype, "brought back from the host", CUDA)


class _ProgramHooks:
    """pack(tensor) and unpack(what pack returned) of the program, as Python callables."""

    def __init__(self, pack: Callable[[Tensor], object], unpack: Callable[[object], object]) -> None:
        self.pack_hook = pack
        self.unpack_hook = unpack

    def pack(self, w: World, tensor: Tensor) -> object:
        return self.pack_hook(alias(tensor))

    def unpack(self, w: World, packed: object) -> Tensor:
        result = self.unpack_hook(packed)
        if not isinstance(result, Tensor):
            raise Unsupported("torch.autograd.graph.saved_tensors_hooks", "unpack did not return a tensor")
        return result


@operator("torch.autograd.graph.save_on_cpu")
def save_on_cpu(w: World, pin_memory: bool = False, device_type: str = "cuda") -> _SavePolicyContext:
    return _SavePolicyContext(_OnCpu())


@operator("torch.autograd.graph.saved_tensors_hooks")
def saved_tensors_hooks(
    w: World, pack_hook: Callable[[Tensor], object], unpack_hook: Callable[[object], object]
) -> _SavePolicyContext:
    return _SavePolicyContext(_ProgramHooks(pack_hook, unpack_hook))


@operator("torch.autograd.set_detect_anomaly")
def set_detect_anomaly(w: World, mode: bool, check_nan: bool = True) -> NullContext:
    """Checks results; keeps no tensor longer."""
    return NullContext()


@operator("torch.autograd.detect_anomaly")
def detect_anomaly(w: World, check_nan: bool = True) -> NullContext:
    return NullContext()


# --- leaves


@operator("torch.nn.Parameter", "torch.nn.parameter.Parameter")
def parameter(w: World, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
    """A leaf on the storage of `data`."""
    if data is None:
        data = w.new((0,), w.default_dtype, "parameter", w.default_device or CUDA)
    if requires_grad and not data.dtype.is_differentiable:
        raise Unsupported("torch.nn.Parameter", f"{data.dtype} tensors have no gradient; torch raises here")
    return Parameter(alias(data), requires_grad)


# --- facts about tensors


@method("size")
def size(w: World, self: Tensor, dim: int | None = None) -> object:
    if dim is None:
        return self.shape
    at = extent(dim, "Tensor.size")
    if not -self.ndim <= at < self.ndim:
        raise Unsupported("Tensor.size", f"dimension {at} of {self.ndim}; torch raises here")
    return self.shape[at]


@method("stride")
def stride(w: World, self: Tensor, dim: int | None = None) -> object:
    return tuple(self.strides) if dim is None else self.strides[extent(dim)]


@method("dim", "ndimension")
def dim(w: World, self: Tensor) -> int:
    return self.ndim


@operator("torch.numel", method=("numel", "nelement"))
def numel(w: World, input: Tensor) -> int:
    return input.numel


@method("element_size")
def element_size(w: World, self: Tensor) -> int:
    return self.dtype.itemsize


@method("storage_offset")
def storage_offset(w: World, self: Tensor) -> int:
    return self.offset


@method("data_ptr")
def data_ptr(w: World, self: Tensor) -> int:
    """Equal for tensors that start at the same place of one storage, which is all programs use it for."""
    return (id(self.storage) << 8) + self.offset * self.dtype.itemsize


@method("get_device")
def get_device(w: World, self: Tensor) -> int:
    return 0 if self.storage.device.on_card else -1


@operator("torch.is_floating_point", method="is_floating_point")
def is_floating_point(w: World, input: Tensor) -> bool:
    return input.dtype.is_floating_point


@operator("torch.is_complex", method="is_complex")
def is_complex(w: World, input: Tensor) -> bool:
    return input.dtype.is_complex


@operator("torch.is_nonzero", method="is_nonzero")
def is_nonzero(w: World, input: Tensor) -> object:
    from .reductions import item

    known = values_of(input)
    return item(w, input) if known is None else bool(known[0])


@method("is_signed")
def is_signed(w: World, self: Tensor) -> bool:
    return self.dtype.is_signed


@method("is_pinned", "is_shared", "is_inference")
def is_pinned(w: World, self: Tensor) -> bool:
    return False


@method("pin_memory", "share_memory_", "resolve_neg", "coalesce")
def unchanged(w: World, self: Tensor, *args: object) -> Tensor:
    return self


@method("record_stream")
def record_stream(w: World, self: Tensor, stream: object) -> None:
    return None


@operator("torch.is_tensor")
def is_tensor(w: World, obj: object) -> bool:
    return isinstance(obj, Tensor)


@operator("torch.get_default_dtype")
def get_default_dtype(w: World) -> DType:
    return w.default_dtype


@operator("torch.set_default_dtype")
def set_default_dtype(w: World, d: DType, /) -> None:
    w.default_dtype = d


@operator("torch.set_default_device")
def set_default_device(w: World, device: object) -> None:
    from torchwise_memory.runtime.device import device_of

    w.default_device = None if device is None else device_of(device)


@operator("torch.promote_types")
def promote_types(w: World, type1: DType, type2: DType) -> DType:
    return dtypes.promote(type1, type2)


@operator("torch.result_type")
def torch_result_type(w: World, tensor: object, other: object) -> DType:
    from .support import result_type

    return result_type(w, tensor, other)  # type: ignore[arg-type]


@operator("torch.broadcast_shapes")
def broadcast_shapes(w: World, *shapes: object) -> object:
    from torchwise_memory.runtime.layout import broadcast
    from torchwise_memory.runtime.tensor import Size

    from .support import integers

    result: tuple[int, ...] = ()
    for shape in shapes:
        common = broadcast(result, integers(shape))
        if common is None:
            raise Unsupported("torch.broadcast_shapes", "shapes do not broadcast; torch raises here")
        result = common
    return Size(result)

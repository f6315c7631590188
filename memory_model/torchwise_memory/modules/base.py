"""torch.nn.Module: registries, the call protocol, and what a program does to whole modules.

Registries hold what torch's hold, in the same order. The driver sets attributes through `assign`, reads them
through `lookup`, and runs every module through `call`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from torchwise_memory.modules.native import visible
from torchwise_memory.runtime.device import Device, device_of
from torchwise_memory.runtime.dtypes import DTYPES, DType
from torchwise_memory.runtime.errors import RuntimeStop, Unsupported
from torchwise_memory.runtime.layout import channels_last_strides
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Parameter, Tensor, alias, set_data
from torchwise_memory.runtime.world import World

#: forward of a class written in the program: (world, module, args, kwargs) -> output
ForwardOverride = Callable[[World, "Module", Sequence[object], Mapping[str, object]], object]
#: A callable of the program, made callable for us by the driver.
Hook = Callable[..., object]

_M = TypeVar("_M", bound="Module")


class Missing:
    """The type of MISSING: no such attribute."""

    __slots__ = ()


MISSING = Missing()

#: Of modules by all their names, and of names one in another; torch ends with its stack.
MAX_NAMES = 100_000
MAX_DEPTH = 900


class ModulePolicy(Protocol):
    """What happens around the forward of the module it is attached to (gathering shards, say)."""

    def enter(self, w: World, module: Module) -> None: ...

    def leave(self, w: World, module: Module, output: object) -> object:
        """The output, possibly another one."""
        ...


class Buffer(Tensor):
    """`torch.nn.Buffer`: a tensor that assignment to a module registers as a buffer."""

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor, persistent: bool = True) -> None:
        super().__init__(data.shape, data.dtype, data.storage, data.strides, data.offset)
        self.persistent = persistent


class Handle:
    """What registering a hook returns; `remove` takes the hook out again."""

    native_name = "torch.utils.hooks.RemovableHandle"

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def init(self, w: World) -> None:
        raise Unsupported(self.native_name, "only hooks make handles")

    @visible("remove")
    def remove(self, w: World) -> None:
        self._hooks.pop(self._key, None)


class Module:
    """A module. `fields` holds every other attribute the program may see; nothing else is visible to it.

    `path` is the qualified name below the module that was called from outside, for attribution. `policies`
    run around forward. `forward_override` is forward as the program wrote it; `program_class` is the driver's
    class object. `transient` names the buffers that are not persistent.
    """

    native_name = "torch.nn.Module"

    parameters: dict[str, Parameter | None]
    buffers: dict[str, Tensor | None]
    children: dict[str, Module | None]
    fields: dict[str, object]
    training: bool
    path: str
    transient: frozenset[str]
    policies: list[ModulePolicy]
    pre_hooks: dict[int, tuple[Hook, bool]]
    hooks: dict[int, tuple[Hook, bool]]
    forward_override: ForwardOverride | None
    program_class: object

    def __init__(self) -> None:
        self.parameters = {}
        self.buffers = {}
        self.children = {}
        self.fields = {}
        self.training = True
        self.path = ""
        self.transient = frozenset()
        self.policies = []
        self.pre_hooks = {}
        self.hooks = {}
        self.forward_override = None
        self.program_class = None

    def init(self, w: World, *args: Any, **kwargs: Any) -> None:
        """`__init__`. Subclasses have torch's parameters after the world."""

    @visible("forward")
    def forward(self, w: World, *args: Any, **kwargs: Any) -> Any:
        """Subclasses have torch's parameters after the world."""
        raise Unsupported(self.native_name, "this module has no forward")

    # -- attributes, as the program sees them

    def lookup(self, name: str) -> object:
        """`module.name`: a registered object, a field, or MISSING. Methods are found in the class's table."""
        for registry in (self.fields, self.parameters, self.buffers, self.children):
            if name in registry:
                return registry[name]
        if name == "training":
            return self.training
        return MISSING

    def assign(self, name: str, value: object) -> None:
        """`module.name = value`, sorted into the registries as torch does."""
        if name == "training":
            self.training = bool(value)
        elif isinstance(value, Parameter):
            self._forget_elsewhere(name, self.parameters)
            self._register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget_elsewhere(name, self.children)
            self.children[name] = value
        elif isinstance(value, Buffer):
            self._forget_elsewhere(name, self.buffers)
            self._register_buffer(name, value, value.persistent)
        elif value is None and name in self.parameters:
            self.parameters[name] = None
        elif value is None and name in self.children:
            self.children[name] = None
        elif name in self.buffers and (value is None or isinstance(value, Tensor)):
            self._register_buffer(name, value, name not in self.transient)
        else:
            self.fields[name] = value

    def remove(self, name: str) -> bool:
        """`del module.name`; whether there was one."""
        return self._forget(name)

    def _forget_elsewhere(self, name: str, kept: object) -> None:
        """A name that is set again keeps its place in the order of its registry, as in torch."""
        for registry in (self.fields, self.parameters, self.buffers, self.children):
            if registry is not kept and name in registry:
                del registry[name]

    def _forget(self, name: str) -> bool:
        found = False
        for registry in (self.fields, self.parameters, self.buffers, self.children):
            if name in registry:
                del registry[name]
                found = True
        return found

    # -- what subclasses use

    def parameter(self, name: str) -> Parameter | None:
        """A parameter of ours, or what the program put in its place."""
        value = self.lookup(name)
        if value is None or isinstance(value, Parameter):
            return value
        if isinstance(value, Tensor):
            # a plain tensor in the place of a parameter: weight normalisation, functional calls
            return value  # type: ignore[return-value]
        raise Unsupported(f"{self.native_name}.{name}", "the parameter is not known")

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer that must be there."""
        value = self.lookup(name)
        if isinstance(value, Tensor):
            return value
        raise Unsupported(f"{self.native_name}.{name}", "the tensor is not known")

    def buffer(self, name: str) -> Tensor | None:
        return self.buffers.get(name)

    def integer(self, name: str) -> int:
        value = self.fields.get(name)
        if isinstance(value, int):
            return value
        raise Unsupported(f"{self.native_name}.{name}", "a number that is not known")

    def number(self, name: str) -> float:
        value = self.fields.get(name)
        if isinstance(value, int | float):
            return value
        raise Unsupported(f"{self.native_name}.{name}", "a number that is not known")

    def flag(self, name: str) -> bool:
        value = self.fields.get(name)
        if isinstance(value, bool | int):
            return bool(value)
        raise Unsupported(f"{self.native_name}.{name}", "a switch whose position is not known")

    def child(self, name: str) -> Module:
        value = self.children.get(name)
        if value is None:
            raise Unsupported(f"{self.native_name}.{name}", "no such submodule")
        return value

    def run(self, w: World, name: str, *args: object, **kwargs: object) -> Any:
        """Call a child."""
        return call(w, self.child(name), args, kwargs)

    def new_parameter(
        self, w: World, name: str, shape: Sequence[int], device: object, dtype: object
    ) -> Parameter:
        """Registers `torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))`."""
        made = Parameter(new_tensor(w, shape, device, dtype, StorageKind.WEIGHTS))
        self.parameters[name] = made
        return made

    def adopt_parameter(self, name: str, tensor: object) -> Parameter:
        """Registers a tensor that the program made, wrapped if need be."""
        if not isinstance(tensor, Tensor):
            raise Unsupported(self.native_name, f"{name} is not known")
        made = tensor if isinstance(tensor, Parameter) else Parameter(tensor)
        self._register_parameter(name, made)
        return made

    def _register_parameter(self, name: str, parameter: Parameter | None) -> None:
        if parameter is not None:
            parameter.storage.mark(StorageKind.WEIGHTS)
        self.parameters[name] = parameter

    def _register_buffer(self, name: str, tensor: Tensor | None, persistent: bool) -> None:
        if tensor is not None:
            tensor.storage.mark(StorageKind.BUFFERS)
        self.buffers[name] = tensor
        self.transient = self.transient - {name} if persistent else self.transient | {name}

    # -- walks

    def walk(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """(qualified name, module), itself first, in torch's order.

        Raises Unsupported without `remove_duplicate` where modules contain themselves or each other so often
        that there is no end of names.
        """
        if remove_duplicate:
            yield from _walk(self, prefix, set())
            return
        for count, named in enumerate(_walk(self, prefix, None)):
            if count > MAX_NAMES or named[0].count(".") > MAX_DEPTH:
                raise Unsupported("torch.nn.Module", "its modules contain each other without an end of names")
            yield named

    def walk_parameters(
        self, recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(qualified name, parameter); one that is shared appears once, under its first name."""
        seen: set[int] = set()
        for prefix, module in self.walk() if recurse else [("", self)]:
            for name, parameter in module.parameters.items():
                if parameter is None or (remove_duplicate and id(parameter) in seen):
                    continue
                seen.add(id(parameter))
                yield (f"{prefix}.{name}" if prefix else name), parameter

    def walk_buffers(self, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for prefix, module in self.walk() if recurse else [("", self)]:
            for name, tensor in module.buffers.items():
                if tensor is None or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                yield (f"{prefix}.{name}" if prefix else name), tensor

    # -- torch.nn.Module, as the program calls it. What torch returns as a generator is a host iterator here.

    @visible("__call__")
    def call_from_program(self, w: World, *args: object, **kwargs: object) -> object:
        return call(w, self, args, kwargs)

    @visible("parameters")
    def list_parameters(self, w: World, recurse: bool = True) -> Iterator[Parameter]:
        return iter([parameter for _, parameter in self.walk_parameters(recurse)])

    @visible("named_parameters")
    def list_named_parameters(
        self, w: World, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        head = f"{prefix}." if prefix else ""
        return iter([(head + name, value) for name, value in self.walk_parameters(recurse, remove_duplicate)])

    @visible("buffers")
    def list_buffers(self, w: World, recurse: bool = True) -> Iterator[Tensor]:
        return iter([tensor for _, tensor in self.walk_buffers(recurse)])

    @visible("named_buffers")
    def list_named_buffers(
        self, w: World, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        head = f"{prefix}." if prefix else ""
        return iter([(head + name, tensor) for name, tensor in self.walk_buffers(recurse)])

    @visible("children")
    def list_children(self, w: World) -> Iterator[Module]:
        return iter([module for _, module in self._named_children()])

    @visible("named_children")
    def list_named_children(self, w: World) -> Iterator[tuple[str, Module]]:
        return iter(self._named_children())

    def _named_children(self) -> list[tuple[str, Module]]:
        seen: dict[int, tuple[str, Module]] = {}
        for name, module in self.children.items():
            if module is not None:
                seen.setdefault(id(module), (name, module))
        return list(seen.values())

    @visible("modules")
    def list_modules(self, w: World) -> Iterator[Module]:
        return iter([module for _, module in self.walk()])

    @visible("named_modules")
    def list_named_modules(
        self, w: World, memo: object = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        return iter(list(self.walk(prefix, remove_duplicate)))

    @visible("get_submodule")
    def get_submodule(self, w: World, target: str) -> Module:
        module = self
        for name in target.split(".") if target else ():
            module = module.child(name)
        return module

    @visible("set_submodule")
    def set_submodule(self, w: World, target: str, module: Module, strict: bool = False) -> None:
        parent, _, name = target.rpartition(".")
        self.get_submodule(w, parent).assign(name, module)

    @visible("get_parameter")
    def get_parameter(self, w: World, target: str) -> Tensor:
        parent, _, name = target.rpartition(".")
        return self.get_submodule(w, parent).tensor(name)

    @visible("get_buffer")
    def get_buffer(self, w: World, target: str) -> Tensor:
        return self.get_parameter(w, target)

    @visible("add_module", "register_module")
    def add_module(self, w: World, name: str, module: Module | None) -> None:
        self.children[name] = module

    @visible("register_parameter")
    def register_parameter(self, w: World, name: str, param: Parameter | None) -> None:
        self._register_parameter(name, param)

    @visible("register_buffer")
    def register_buffer(self, w: World, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        self.fields.pop(name, None)
        self._register_buffer(name, tensor, persistent)

    @visible("train")
    def train(self: _M, w: World, mode: bool = True) -> _M:
        for _, module in self.walk():
            module.training = mode
        return self

    @visible("eval")
    def eval(self: _M, w: World) -> _M:
        return self.train(w, False)

    @visible("requires_grad_")
    def requires_grad_(self: _M, w: World, requires_grad: bool = True) -> _M:
        for _, parameter in self.walk_parameters():
            parameter.requires_grad = requires_grad
        return self

    @visible("zero_grad")
    def zero_grad(self, w: World, set_to_none: bool = True) -> None:
        if set_to_none:
            for _, parameter in self.walk_parameters():
                parameter.grad = None

    @visible("apply")
    def apply(self: _M, w: World, fn: Hook) -> _M:
        for module in self.children.values():
            if module is not None:
                module.apply(w, fn)
        fn(self)
        return self

    @visible("to")
    def to(self: _M, w: World, *args: object, **kwargs: object) -> _M:
        return convert(w, self, *_target(args, kwargs))

    @visible("to_empty")
    def to_empty(self: _M, w: World, *, device: object, recurse: bool = True) -> _M:
        return convert(w, self, device_of(device), None, False)

    @visible("cuda")
    def cuda(self: _M, w: World, device: object = None) -> _M:
        return convert(w, self, device_of("cuda"), None, False)

    @visible("cpu")
    def cpu(self: _M, w: World) -> _M:
        return convert(w, self, device_of("cpu"), None, False)

    @visible("half")
    def half(self: _M, w: World) -> _M:
        return convert(w, self, None, DTYPES["float16"], False)

    @visible("bfloat16")
    def bfloat16(self: _M, w: World) -> _M:
        return convert(w, self, None, DTYPES["bfloat16"], False)

    @visible("float")
    def to_float(self: _M, w: World) -> _M:
        return convert(w, self, None, DTYPES["float32"], False)

    @visible("double")
    def double(self: _M, w: World) -> _M:
        return convert(w, self, None, DTYPES["float64"], False)

    @visible("type")
    def to_type(self: _M, w: World, dst_type: object) -> _M:
        return convert(w, self, *_target((dst_type,), {}))

    @visible("state_dict")
    def state_dict(
        self, w: World, *args: object, destination: object = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """Tensors that share storage with the module's, as torch's do."""
        entries: dict[str, Tensor] = {}
        for path, module in self.walk(remove_duplicate=False):
            head = f"{prefix}{path}." if path else prefix
            tensors: list[tuple[str, Tensor | None]] = [*module.parameters.items(), *module.buffers.items()]
            for name, tensor in tensors:
                if tensor is not None and name not in module.transient:
                    entries[head + name] = tensor if keep_vars else alias(tensor)
        return entries

    @visible("load_state_dict")
    def load_state_dict(
        self, w: World, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> tuple[list[str], list[str]]:
        """Copies values: memory changes with `assign=True` only. Returns (missing, unexpected), empty."""
        if assign:
            for name, parameter in list(self.walk_parameters()):
                loaded = state_dict.get(name)
                if isinstance(loaded, Tensor):
                    set_data(parameter, loaded)
        return [], []

    @visible("register_forward_pre_hook")
    def register_forward_pre_hook(
        self, w: World, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        return _add_hook(self.pre_hooks, hook, with_kwargs)

    @visible("register_forward_hook")
    def register_forward_hook(
        self,
        w: World,
        hook: Hook,
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> Handle:
        return _add_hook(self.hooks, hook, with_kwargs)

    @visible("register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook")
    def register_full_backward_hook(self, w: World, hook: Hook, prepend: bool = False) -> Handle:
        w.assume("backward hooks of modules allocate nothing")
        return Handle({}, 0)

    @visible(
        "register_state_dict_pre_hook",
        "register_load_state_dict_pre_hook",
        "_register_load_state_dict_pre_hook",
        "_register_state_dict_hook",
        "register_load_state_dict_post_hook",
    )
    def register_state_dict_hook(self, w: World, hook: Hook, with_module: bool = False) -> Handle:
        return Handle({}, 0)

    @visible("compile")
    def compile_(self, w: World, *args: object, **kwargs: object) -> None:
        w.assume("torch.compile keeps what eager code keeps")

    @visible("share_memory")
    def share_memory(self: _M, w: World) -> _M:
        return self

    @visible("_get_name")
    def get_name(self, w: World) -> str:
        return self.native_name.rpartition(".")[2]

    @visible("extra_repr")
    def extra_repr(self, w: World) -> str:
        return ""


class Resettable(Module):
    """Modules that can draw their parameters anew: that changes values only."""

    @visible("reset_parameters", "_reset_parameters")
    def reset_parameters(self, w: World) -> None:
        return None


def call(w: World, module: Module, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """`module(*args, **kwargs)`: policies and hooks around forward. The only way a module runs.

    Like CPython, it holds the arguments until forward has returned. Raises Unsupported where a native forward
    does not understand them.
    """
    outer_path = w.module_path
    # a recomputation in backward calls inner modules from outside; their names are known by then
    if w.module_depth == 0 and w.backward_depth == 0:
        _name_modules(module)
    w.module_path = module.path
    w.module_depth += 1
    try:
        for policy in module.policies:
            policy.enter(w, module)
        if module.pre_hooks:
            args, kwargs = _run_pre_hooks(module, args, kwargs)
        if module.forward_override is not None:
            output = module.forward_override(w, module, args, kwargs)
        else:
            output = _native_forward(w, module, args, kwargs)
        if module.hooks:
            output = _run_hooks(module, args, kwargs, output)
        for policy in reversed(module.policies):
            output = policy.leave(w, module, output)
        return output
    finally:
        w.module_depth -= 1
        w.module_path = outer_path


def _native_forward(w: World, module: Module, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    try:
        return module.forward(w, *args, **kwargs)
    except RuntimeStop:
        raise
    except (TypeError, AttributeError, ValueError, IndexError, KeyError, ZeroDivisionError) as error:
        raise Unsupported(module.native_name, f"arguments not understood ({error})") from None


def _run_pre_hooks(
    module: Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Sequence[object], Mapping[str, object]]:
    for hook, with_kwargs in list(module.pre_hooks.values()):
        if with_kwargs:
            answer: Any = hook(module, tuple(args), dict(kwargs))
            if isinstance(answer, tuple):
                args, kwargs = cast("tuple[Sequence[object], Mapping[str, object]]", answer)
        else:
            answer = hook(module, tuple(args))
            if answer is not None:
                args = cast("tuple[object, ...]", answer) if isinstance(answer, tuple) else (answer,)
    return args, kwargs


def _run_hooks(
    module: Module, args: Sequence[object], kwargs: Mapping[str, object], output: object
) -> object:
    for hook, with_kwargs in list(module.hooks.values()):
        answer = (
            hook(module, tuple(args), dict(kwargs), output)
            if with_kwargs
            else hook(module, tuple(args), output)
        )
        if answer is not None:
            output = answer
    return output


def _add_hook(hooks: dict[int, tuple[Hook, bool]], hook: Hook, with_kwargs: bool) -> Handle:
    key = max(hooks, default=0) + 1
    hooks[key] = (hook, with_kwargs)
    return Handle(hooks, key)


def _walk(module: Module, prefix: str, seen: set[int] | None) -> Iterator[tuple[str, Module]]:
    """Depth first, on a stack of its own: each name is handed out once, however deep it lies."""
    waiting = [(prefix, module)]
    while waiting:
        prefix, module = waiting.pop()
        if seen is not None:
            if id(module) in seen:
                continue
            seen.add(id(module))
        yield prefix, module
        head = f"{prefix}." if prefix else ""
        children = [(head + name, child) for name, child in module.children.items() if child is not None]
        waiting.extend(reversed(children))


def _name_modules(root: Module) -> None:
    for path, module in root.walk():
        module.path = path


def new_tensor(
    w: World,
    shape: Sequence[int],
    device: object = None,
    dtype: object = None,
    kind: StorageKind | None = None,
) -> Tensor:
    """`torch.empty(shape, device=device, dtype=dtype)` with the defaults of the moment."""
    for extent in cast("Sequence[object]", shape):
        if not isinstance(extent, int):
            raise Unsupported("torch.empty", "a dimension that is not known")
    if dtype is not None and not isinstance(dtype, DType):
        raise Unsupported("torch.empty", "a type that is not known")
    where = device_of(device if device is not None else w.default_device or "cpu")
    return w.new(shape, dtype or w.default_dtype, "parameter", where, kind=kind)


def convert(w: World, module: _M, device: Device | None, dtype: DType | None, channels_last: bool) -> _M:
    """`module.to(...)`: parameters and buffers keep their identity and get another storage, one at a time."""
    for child in module.children.values():
        if child is not None:
            convert(w, child, device, dtype, channels_last)
    for parameter in module.parameters.values():
        if parameter is not None:
            _convert_tensor(w, parameter, device, dtype, channels_last, StorageKind.WEIGHTS)
            if parameter.grad is not None:
                _convert_tensor(w, parameter.grad, device, dtype, channels_last, StorageKind.GRADIENTS)
    for tensor in module.buffers.values():
        if tensor is not None:
            _convert_tensor(w, tensor, device, dtype, channels_last, StorageKind.BUFFERS)
    return module


def _convert_tensor(
    w: World,
    tensor: Tensor,
    device: Device | None,
    dtype: DType | None,
    channels_last: bool,
    kind: StorageKind,
) -> None:
    new_device = device or tensor.device
    new_dtype = dtype if dtype is not None and tensor.dtype.is_differentiable else tensor.dtype
    strides = tensor.strides if tensor.is_dense else None
    if channels_last and tensor.ndim in (4, 5):
        strides = channels_last_strides(tensor.shape)
    if new_device == tensor.device and new_dtype is tensor.dtype and strides in (None, tensor.strides):
        return
    set_data(tensor, w.new(tensor.shape, new_dtype, "parameter", new_device, strides, kind))


def _target(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Device | None, DType | None, bool]:
    """Device, dtype and "channels last" of the arguments of `Module.to`."""
    device: Device | None = None
    dtype: DType | None = None
    channels_last = False
    for key, value in [*(("", value) for value in args), *kwargs.items()]:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, DType):
            dtype = value
        elif key in ("non_blocking", "copy") or value is None or isinstance(value, bool):
            continue
        elif key == "memory_format" or "channels_last" in str(value):
            channels_last = "channels_last" in str(value)
        else:
            device = device_of(value)
    return device, dtype, channels_last

"""torch.optim.Optimizer: groups, states made on the first step, and the step itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, cast

from torchwise_memory.modules.native import attribute, visible
from torchwise_memory.report import Phase
from torchwise_memory.runtime.device import CPU
from torchwise_memory.runtime.dtypes import DType, float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: What an optimizer keeps for one parameter.
State = dict[str, Tensor]
Group = dict[str, Any]


class Optimizer:
    """Base of all. Subclasses say what a parameter's state is and what a step allocates on the way.

    `param_groups` and `state` are shown to the program as they are. `fields` holds what it sets itself.
    """

    native_name: ClassVar[str] = "torch.optim.Optimizer"

    def __init__(self) -> None:
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, State] = {}
        self.defaults: dict[str, Any] = {}
        self.fields: dict[str, object] = {}
        self.step_override: Callable[..., object] | None = None

    def init(self, w: World, params: Any, *args: Any, **kwargs: Any) -> None:
        """torch's own takes `defaults`; subclasses have torch's parameters after `params`."""
        defaults = args[0] if args else kwargs.get("defaults")
        self.setup(w, params, **dict(defaults or {}))

    def setup(self, w: World, params: Any, **defaults: Any) -> None:
        """Groups from tensors, (name, tensor) pairs or dictionaries, as torch takes them."""
        self.defaults = defaults
        entries = [params] if isinstance(params, Tensor) else list(params)
        if not entries:
            raise Unsupported(self.native_name, "optimizer got an empty parameter list")
        if any(isinstance(entry, Mapping) for entry in entries):
            for entry in entries:
                self.add_param_group(w, entry)
        else:
            self.add_param_group(w, {"params": entries})

    # -- what subclasses say

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        """The tensors that the first step with a gradient makes for a parameter."""
        return {}

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        """Allocates and drops what one group's update needs; parameters have gradients and states."""

    # -- torch's interface

    @attribute("param_groups")
    def get_param_groups(self, w: World) -> list[Group]:
        return self.param_groups

    @attribute("state")
    def get_state(self, w: World) -> dict[Tensor, State]:
        return self.state

    @attribute("defaults")
    def get_defaults(self, w: World) -> dict[str, Any]:
        return self.defaults

    @visible("add_param_group")
    def add_param_group(self, w: World, param_group: Any) -> None:
        params = param_group["params"]
        entries = [params] if isinstance(params, Tensor) else list(params)
        tensors: list[Any] = [_named(entry) for entry in entries]
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise Unsupported(self.native_name, "a parameter that is not known")
        self.param_groups.append({**self.defaults, **param_group, "params": tensors})

    @visible("zero_grad")
    def zero_grad(self, w: World, set_to_none: bool = True) -> None:
        if set_to_none:
            for tensor in self.tensors():
                tensor.grad = None

    @visible("step")
    def step(self, w: World, closure: Any = None) -> object:
        loss = None
        if closure is not None:
            grad_enabled, w.grad_enabled = w.grad_enabled, True
            try:
                loss = closure()
            finally:
                w.grad_enabled = grad_enabled
        phase, grad_enabled = w.phase, w.grad_enabled
        w.phase, w.grad_enabled = Phase.OPTIMIZER, False
        try:
            for group in self.param_groups:
                ready = [tensor for tensor in group["params"] if tensor.grad is not None]
                for tensor in ready:
                    if tensor not in self.state:
                        self.state[tensor] = self.new_state(w, group, tensor)
                if ready:
                    self.update(w, group, ready)
        finally:
            w.phase, w.grad_enabled = phase, grad_enabled
        return loss

    @visible("state_dict")
    def state_dict(self, w: World) -> dict[str, object]:
        """Holds the state tensors themselves, as torch's does."""
        positions = {tensor: index for index, tensor in enumerate(self.tensors())}
        groups = [
            {
                key: [positions[tensor] for tensor in value] if key == "params" else value
                for key, value in group.items()
            }
            for group in self.param_groups
        ]
        state = {
            positions[tensor]: dict(entry) for tensor, entry in self.state.items() if tensor in positions
        }
        return {"state": state, "param_groups": groups}

    @visible("load_state_dict")
    def load_state_dict(self, w: World, state_dict: object) -> None:
        """The loaded states take the place of those the first step would make; same sizes."""

    @visible("register_step_pre_hook", "register_step_post_hook", "register_state_dict_post_hook")
    def register_hook(self, w: World, hook: object) -> None:
        pass

    @visible("train", "eval")
    def set_mode(self, w: World) -> None:
        """Schedule-free optimizers swap values in place."""

    # -- helpers

    def tensors(self) -> Iterable[Tensor]:
        for group in self.param_groups:
            yield from group["params"]


def _named(entry: Any) -> Any:
    """A tensor, or the tensor of a (name, tensor) pair."""
    return cast("tuple[str, Any]", entry)[1] if isinstance(entry, tuple) else entry


def state_like(w: World, parameter: Tensor, dtype: DType | None = None) -> Tensor:
    """`torch.zeros_like(parameter, memory_format=torch.preserve_format)`."""
    strides = parameter.strides if parameter.is_dense else None
    return w.new(
        parameter.shape,
        dtype or parameter.dtype,
        "optimizer state",
        parameter.device,
        strides,
        StorageKind.OPTIMIZER,
    )


def state_of(w: World, shape: Iterable[int], dtype: DType, parameter: Tensor) -> Tensor:
    return w.new(shape, dtype, "optimizer state", parameter.device, kind=StorageKind.OPTIMIZER)


def step_counter(w: World, parameter: Tensor, on_device: bool) -> Tensor:
    """A scalar; on the CPU unless fused or capturable."""
    device = parameter.device if on_device else CPU
    return w.new((), float32, "optimizer step counter", device, kind=StorageKind.OPTIMIZER)


def buffers_like(w: World, tensors: Iterable[Tensor], operator: str) -> list[Tensor]:
    """What a foreach operator that is not in place returns."""
    return [w.like(tensor, operator) for tensor in tensors]


def by_type(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups of one device and type: foreach implementations finish one before they begin the next."""
    groups: dict[tuple[object, object], list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(groups.values())


def uses_foreach(group: Group, parameters: Iterable[Tensor], default: bool = True) -> bool:
    """torch's choice: foreach by default when every parameter is on the card, unless told otherwise."""
    if group.get("fused"):
        return False
    chosen = group.get("foreach")
    if chosen is not None:
        return bool(chosen)
    return default and not group.get("differentiable") and all(p.device.on_card for p in parameters)

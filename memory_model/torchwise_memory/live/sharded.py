"""Models that are divided among processes, made whole for a step on fake tensors.

`fully_shard` (FSDP2) keeps each parameter as a DTensor and gathers by hooks. The older wrapper
`FullyShardedDataParallel` keeps the parameters of a unit as one flat one and gathers in its `forward`.
"""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

_MODULE_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
#: Beside the root, whose parameters stay: the unit at hand and the one that is gathered ahead of it.
_UNITS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class FlatUnit:
    """One `FullyShardedDataParallel` and what it holds flat; sizes in bytes.

    places: module and name of each parameter, ties included, with the number of the parameter they mean.
    dtype: what it computes in. casts: its forward gets floating-point inputs in that type. is_divided: over
    processes, and so gathered for its forward and backward.
    """

    wrapper: Any
    flat: Any
    places: tuple[tuple[Any, str, int], ...]
    shapes: tuple[Any, ...]
    originals: tuple[Any, ...] | None
    dtype: Any
    casts: bool
    is_divided: bool

    @property
    def whole_bytes(self) -> int:
        return int(sum(math.prod(shape) for shape in self.shapes) * self.dtype.itemsize)

    @property
    def share(self) -> float:
        """Of the bytes in the type of computation, what this process holds in the type of storage."""
        held = int(self.flat.numel()) * int(self.flat.element_size())
        return held / max(self.whole_bytes, 1)


def flat_units(model: Any) -> list[FlatUnit]:
    """The units of the older wrapper in `model`, itself included."""
    return [
        _flat_unit(module, module._handle)
        for module in model.modules()
        if type(module).__name__ == "FullyShardedDataParallel" and module._handle is not None
    ]


def gathered_bytes(model: Any) -> int:
    """Whole parameters that are there for a while beside the shares: the root's, and of two units more."""
    sizes = [(unit.wrapper is model, unit.whole_bytes) for unit in flat_units(model) if unit.is_divided]
    sizes += [(module is model, size) for module in model.modules() if (size := _of_fully_shard(module))]
    if not sizes:
        return 0
    root = sum(size for is_root, size in sizes if is_root)
    return root + sum(sorted((size for is_root, size in sizes if not is_root), reverse=True)[:_UNITS_AT_ONCE])


def is_flat(parameter: Any) -> bool:
    """Whether it stands for all parameters of a unit of the older wrapper."""
    return bool(getattr(parameter, "_is_flat_param", False))


@contextmanager
def without_gathering(model: Any) -> Generator[None]:
    """Hooks and forwards that gather are off: parameters are whole already."""
    with _without_hooks(model), _without_wrappers(flat_units(model)):
        yield


@contextmanager
def _without_hooks(model: Any) -> Generator[None]:
    kept: list[tuple[dict[int, Any], dict[int, Any]]] = []
    try:
        for module in model.modules():
            for name in _MODULE_HOOKS:
                hooks = getattr(module, name)
                gathering = [key for key, hook in hooks.items() if _is_of_fully_shard(hook)]
                if gathering:
                    kept.append((hooks, dict(hooks)))
                for key in gathering:
                    del hooks[key]
        yield
    finally:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)


@contextmanager
def _without_wrappers(units: list[FlatUnit]) -> Generator[None]:
    try:
        for unit in units:
            unit.wrapper.__dict__["forward"] = _forward_of(unit)
        yield
    finally:
        for unit in units:
            unit.wrapper.__dict__.pop("forward", None)


def _forward_of(unit: FlatUnit) -> Callable[..., Any]:
    inner = unit.wrapper._fsdp_wrapped_module

    def forward(*args: Any, **kwargs: Any) -> Any:
        if unit.casts:
            args, kwargs = tree_map(cast, args), tree_map(cast, kwargs)
        return inner(*args, **kwargs)

    def cast(value: Any) -> Any:
        is_cast = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(unit.dtype) if is_cast else value

    return forward


def _flat_unit(wrapper: Any, handle: Any) -> FlatUnit:
    flat = handle.flat_param
    infos = flat._param_infos
    numbers = {(id(info.module), info.param_name): number for number, info in enumerate(infos)}
    places = [(info.module, info.param_name, number) for number, info in enumerate(infos)]
    for tie in flat._shared_param_infos:
        number = numbers[id(tie.prim_module), tie.prim_param_name]
        places.append((tie.module, tie.param_name, number))
    policy = wrapper.mixed_precision
    narrow = getattr(policy, "param_dtype", None)
    is_root_cast = getattr(policy, "cast_root_forward_inputs", True) or getattr(
        policy, "cast_forward_inputs", False
    )
    originals = None if flat._params is None else tuple(flat._params)
    return FlatUnit(
        wrapper,
        flat,
        tuple(places),
        tuple(flat._shapes),
        originals,
        narrow or flat.dtype,
        narrow is not None and bool(is_root_cast),
        bool(handle.uses_sharded_strategy),
    )


def _of_fully_shard(module: Any) -> int:
    """Bytes of the whole parameters that `fully_shard` of this module gathers together."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    group = getattr(state, "_fsdp_param_group", None)
    if group is None:
        return 0
    narrow = getattr(group.mp_policy, "param_dtype", None)
    return sum(
        int(math.prod(each._orig_size) * (narrow or each.sharded_param.dtype).itemsize)
        for each in group.fsdp_params
    )


def _is_of_fully_shard(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__name__ == "FSDPState"

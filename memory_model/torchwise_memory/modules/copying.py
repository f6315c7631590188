"""`copy.deepcopy` of modules: new storages, shared parameters stay shared."""

from __future__ import annotations

from typing import TypeVar, cast

from torchwise_memory.modules.base import Buffer, Module
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World

_M = TypeVar("_M", bound=Module)
_T = TypeVar("_T", bound=Tensor)


def copy_module(w: World, module: _M) -> _M:
    """A deep copy. Fields that are no tensors, modules or containers of them are shared."""
    copies: dict[int, object] = {}
    return _copy_module(w, module, copies)


def copy_tensor(w: World, tensor: _T, kind: StorageKind | None = None) -> _T:
    """`copy.deepcopy(tensor)` of a leaf: same type, layout and `requires_grad`, own storage and gradient."""
    strides = tensor.strides if tensor.is_dense else None
    data = w.new(tensor.shape, tensor.dtype, "deepcopy", tensor.device, strides, kind)
    data.storage.values = None if tensor.storage.values is None else list(tensor.storage.values)
    made: Tensor = data
    if isinstance(tensor, Parameter):
        made = Parameter(data, tensor.requires_grad)
    elif isinstance(tensor, Buffer):
        made = Buffer(data, tensor.persistent)
    else:
        made.requires_grad = tensor.requires_grad
    if tensor.grad is not None:
        made.grad = copy_tensor(w, tensor.grad, StorageKind.GRADIENTS)
    return made  # type: ignore[return-value]


def _copy_module(w: World, module: _M, copies: dict[int, object]) -> _M:
    known = copies.get(id(module))
    if isinstance(known, Module):
        return known  # type: ignore[return-value]
    twin = type(module)()
    copies[id(module)] = twin
    for name, value in vars(module).items():
        if name not in ("parameters", "buffers", "children", "fields", "pre_hooks", "hooks", "policies"):
            setattr(twin, name, value)
    twin.pre_hooks, twin.hooks, twin.policies = (
        dict(module.pre_hooks),
        dict(module.hooks),
        list(module.policies),
    )
    for name, parameter in module.parameters.items():
        twin.parameters[name] = (
            None if parameter is None else _copy_once(w, parameter, copies, StorageKind.WEIGHTS)
        )
    for name, tensor in module.buffers.items():
        twin.buffers[name] = None if tensor is None else _copy_once(w, tensor, copies, StorageKind.BUFFERS)
    for name, child in module.children.items():
        twin.children[name] = None if child is None else _copy_module(w, child, copies)
    for name, value in module.fields.items():
        twin.fields[name] = _copy_value(w, value, copies)
    return twin


def _copy_once(w: World, tensor: _T, copies: dict[int, object], kind: StorageKind | None) -> _T:
    known = copies.get(id(tensor))
    if known is None:
        known = copies[id(tensor)] = copy_tensor(w, tensor, kind)
    return known  # type: ignore[return-value]


def _copy_value(w: World, value: object, copies: dict[int, object]) -> object:
    if isinstance(value, Tensor):
        return _copy_once(w, value, copies, None)
    if isinstance(value, Module):
        return _copy_module(w, value, copies)
    if isinstance(value, list):
        return [_copy_value(w, item, copies) for item in cast("list[object]", value)]
    if value.__class__ is tuple:
        return tuple(_copy_value(w, item, copies) for item in cast("tuple[object, ...]", value))
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value)
        return {key: _copy_value(w, item, copies) for key, item in entries.items()}
    return value

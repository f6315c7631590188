"""Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.native import visible
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World


class _Numbered(Module):
    """Children under "0", "1", ..."""

    def items_in_order(self) -> list[Module]:
        return [module for module in self.children.values() if module is not None]

    def places(self) -> list[Module | None]:
        """All places, those that were left empty with None too."""
        return list(self.children.values())

    def renumber(self, modules: Iterable[Module | None]) -> None:
        self.children = {str(index): module for index, module in enumerate(modules)}

    def like_self(self) -> _Numbered:
        twin = type(self)()
        twin.training = self.training
        return twin

    @visible("__len__")
    def length(self, w: World) -> int:
        return len(self.children)

    @visible("__iter__")
    def iterate(self, w: World) -> Iterator[Module | None]:
        return iter(self.places())

    @visible("__getitem__")
    def get_item(self, w: World, idx: Any) -> Module | None:
        if isinstance(idx, slice):
            part = self.like_self()
            part.children = dict(list(self.children.items())[idx])
            if isinstance(self, ModuleList):
                part.renumber(part.places())
            return part
        index: int = idx
        return self.places()[index]

    @visible("__setitem__")
    def set_item(self, w: World, idx: Any, module: Module) -> None:
        self.children[list(self.children)[idx]] = module

    @visible("__delitem__")
    def delete_item(self, w: World, idx: Any) -> None:
        modules = self.places()
        del modules[idx]
        self.renumber(modules)

    @visible("__contains__")
    def contains(self, w: World, module: object) -> bool:
        return any(module is child for child in self.children.values())

    @visible("append")
    def append(self, w: World, module: Module) -> _Numbered:
        self.children[str(len(self.children))] = module
        return self

    @visible("extend", "__iadd__")
    def extend(self, w: World, modules: Iterable[Module]) -> _Numbered:
        for module in list(_members(w, modules)):
            self.children[str(len(self.children))] = module
        return self

    @visible("__add__")
    def add(self, w: World, other: Iterable[Module]) -> _Numbered:
        twin = self.like_self()
        twin.renumber([*self.items_in_order(), *_members(w, other)])
        return twin

    @visible("insert")
    def insert(self, w: World, index: int, module: Module) -> _Numbered:
        modules = self.items_in_order()
        modules.insert(index, module)
        self.renumber(modules)
        return self

    @visible("pop")
    def pop(self, w: World, key: Any = -1) -> Module:
        modules = self.items_in_order()
        taken = modules.pop(key)
        self.renumber(modules)
        return taken


class Sequential(_Numbered):
    native_name = "torch.nn.Sequential"

    def init(self, w: World, *args: Any) -> None:
        if len(args) == 1 and isinstance(args[0], Mapping):
            self.children.update(cast("Mapping[str, Module]", args[0]))
        else:
            self.renumber(args)
        if not all(isinstance(module, Module) for module in self.children.values()):
            raise Unsupported(self.native_name, "an element that is not a module we know")

    def forward(self, w: World, input: Any) -> Any:
        for module in self.items_in_order():
            input = call(w, module, (input,), {})
        return input


class ModuleList(_Numbered):
    native_name = "torch.nn.ModuleList"

    def init(self, w: World, modules: Any = None) -> None:
        if modules is not None:
            self.renumber(_members(w, modules))


class ModuleDict(Module):
    native_name = "torch.nn.ModuleDict"

    def init(self, w: World, modules: Any = None) -> None:
        if modules is not None:
            self.update(w, modules)

    @visible("__len__")
    def length(self, w: World) -> int:
        return len(self.children)

    @visible("__iter__", "keys")
    def keys(self, w: World) -> Iterator[str]:
        return iter(list(self.children))

    @visible("values")
    def values(self, w: World) -> Iterator[Module | None]:
        return iter(list(self.children.values()))

    @visible("items")
    def items(self, w: World) -> Iterator[tuple[str, Module | None]]:
        return iter(list(self.children.items()))

    @visible("__getitem__")
    def get_item(self, w: World, key: str) -> Module:
        return self.child(key)

    @visible("__setitem__")
    def set_item(self, w: World, key: str, module: Module) -> None:
        self.children[key] = module

    @visible("__delitem__")
    def delete_item(self, w: World, key: str) -> None:
        del self.children[key]

    @visible("__contains__")
    def contains(self, w: World, key: object) -> bool:
        return key in self.children

    @visible("pop")
    def pop(self, w: World, key: str) -> Module:
        taken = self.child(key)
        del self.children[key]
        return taken

    @visible("clear")
    def clear(self, w: World) -> None:
        self.children.clear()

    @visible("update")
    def update(self, w: World, modules: Any) -> None:
        if isinstance(modules, ModuleDict):
            self.children.update(modules.children)
        else:
            self.children.update(dict(modules))


class ParameterList(Module):
    native_name = "torch.nn.ParameterList"

    def init(self, w: World, values: Any = None) -> None:
        for value in [] if values is None else list(values):
            self.append(w, value)

    def entries(self) -> list[Tensor]:
        return [value for value in self.parameters.values() if value is not None]

    @visible("__len__")
    def length(self, w: World) -> int:
        return len(self.parameters)

    @visible("__iter__")
    def iterate(self, w: World) -> Iterator[Tensor]:
        return iter(self.entries())

    @visible("__getitem__")
    def get_item(self, w: World, idx: int) -> Tensor:
        return self.entries()[idx]

    @visible("__setitem__")
    def set_item(self, w: World, idx: int, param: Any) -> None:
        self.adopt_parameter(list(self.parameters)[idx], param)

    @visible("append")
    def append(self, w: World, value: Any) -> ParameterList:
        self.adopt_parameter(str(len(self.parameters)), value)
        return self

    @visible("extend", "__iadd__")
    def extend(self, w: World, values: Any) -> ParameterList:
        for value in list(values):
            self.append(w, value)
        return self


class ParameterDict(Module):
    native_name = "torch.nn.ParameterDict"

    def init(self, w: World, parameters: Any = None) -> None:
        if parameters is not None:
            self.update(w, parameters)

    @visible("__len__")
    def length(self, w: World) -> int:
        return len(self.parameters)

    @visible("__iter__", "keys")
    def keys(self, w: World) -> Iterator[str]:
        return iter(list(self.parameters))

    @visible("values")
    def values(self, w: World) -> Iterator[Parameter | None]:
        return iter(list(self.parameters.values()))

    @visible("items")
    def items(self, w: World) -> Iterator[tuple[str, Parameter | None]]:
        return iter(list(self.parameters.items()))

    @visible("__getitem__")
    def get_item(self, w: World, key: str) -> Tensor:
        return self.tensor(key)

    @visible("__setitem__")
    def set_item(self, w: World, key: str, value: Any) -> None:
        self.adopt_parameter(key, value)

    @visible("__contains__")
    def contains(self, w: World, key: object) -> bool:
        return key in self.parameters

    @visible("update")
    def update(self, w: World, parameters: Any) -> None:
        pairs = parameters.parameters if isinstance(parameters, ParameterDict) else dict(parameters)
        for key, value in pairs.items():
            self.adopt_parameter(key, value)


def _members(w: World, modules: Any) -> list[Module | None]:
    members: list[Any] = modules.places() if isinstance(modules, _Numbered) else list(modules)
    if not all(module is None or isinstance(module, Module) for module in members):
        raise Unsupported("torch.nn.ModuleList", "an element that is not a module we know")
    return members


CONTAINERS = (Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict)

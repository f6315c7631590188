"""Modules that remember options and hand them to one function: activations, dropout, pooling, losses ..."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional
from torchwise_memory.operators.registry import REQUIRED, Param
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class Declared(Module):
    """`forward(*inputs)` is `torch.nn.functional.<function>(*inputs, **options)`.

    passed: option -> parameter of the function. buffers_of: options that are registered as buffers.
    """

    function: ClassVar[str] = ""
    signature: ClassVar[tuple[Param, ...]] = ()
    passed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    buffers_of: ClassVar[tuple[str, ...]] = ()
    passes_training: ClassVar[bool] = False
    fixed: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def init(self, w: World, *args: object, **kwargs: object) -> None:
        names = [param.name for param in self.signature]
        if len(args) > len(names) or not set(kwargs) <= set(names):
            raise Unsupported(self.native_name, "the constructor does not take these arguments")
        given = dict(zip(names, args, strict=False)) | kwargs
        for param in self.signature:
            value = given.get(param.name, param.default)
            if value is REQUIRED:
                raise Unsupported(self.native_name, f"missing argument {param.name!r}")
            if param.name in self.buffers_of:
                if value is not None and not isinstance(value, Tensor):
                    raise Unsupported(self.native_name, f"{param.name} is not known")
                self.buffers[param.name] = value
            else:
                self.fields[param.name] = value

    def forward(self, w: World, *inputs: Any, **named: Any) -> Any:
        options: dict[str, object] = dict(self.fixed)
        for name, parameter in self.passed.items():
            options[parameter] = self.buffers[name] if name in self.buffers_of else self.fields[name]
        if self.passes_training:
            options["training"] = self.training
        return functional(w, self.function, *inputs, **named, **options)


def declared(
    name: str,
    function: str,
    options: Mapping[str, object],
    *,
    not_passed: tuple[str, ...] = (),
    renamed: Mapping[str, str] | None = None,
    buffers: tuple[str, ...] = (),
    training: bool = False,
    fixed: Mapping[str, object] | None = None,
) -> type[Declared]:
    """A module class `torch.nn.<name>` whose constructor takes `options` with these defaults, in order."""
    renames = renamed or {}
    return type(
        name,
        (Declared,),
        {
            "native_name": f"torch.nn.{name}",
            "function": function,
            "signature": tuple(Param(option, default) for option, default in options.items()),
            "passed": {option: renames.get(option, option) for option in options if option not in not_passed},
            "buffers_of": buffers,
            "passes_training": training,
            "fixed": fixed or {},
        },
    )

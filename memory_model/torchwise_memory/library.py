"""What the program can reach: functions, Tensor methods and Tensor attributes by name. Closed tables."""

from __future__ import annotations

from types import MappingProxyType

from .operators import MODULES
from .operators.attributes import TENSOR_ATTRIBUTES, Attribute
from .operators.registry import Function, Param, function_of, registrations

__all__ = ["FUNCTIONS", "METHODS", "TENSOR_ATTRIBUTES", "Attribute", "Function", "Param"]


def _tables() -> tuple[dict[str, Function], dict[str, Function]]:
    functions: dict[str, Function] = {}
    methods: dict[str, Function] = {}
    for module in MODULES:
        for registration in registrations(vars(module)):
            for name in registration.names:
                functions[name] = function_of(name, registration.call)
            for name in registration.methods:
                methods[name] = function_of(f"torch.Tensor.{name}", registration.call)
    return functions, methods


_functions, _methods = _tables()

#: "torch.nn.functional.linear" -> Function
FUNCTIONS = MappingProxyType(_functions)
#: "view" -> Function whose first parameter is the tensor; operators of the language under "__add__" and so on
METHODS = MappingProxyType(_methods)

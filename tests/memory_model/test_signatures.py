"""Parameter names and defaults are PyTorch's own, wherever PyTorch says what they are."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

from torchwise_memory.library import FUNCTIONS, METHODS
from torchwise_memory.operators.registry import REQUIRED, Function
from torchwise_memory.runtime.dtypes import DType

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
)
pytestmark = pytest.mark.torch

# Functions written in C++ carry no signature; their overloads are in the operator registry under the same
# name.
_OVERLOADED = re.compile(r"^torch(\.nn\.functional|\.special|\.linalg|\.fft|)\.(\w+)$")


def _resolve(name: str) -> object:
    module_name, _, attribute = name.rpartition(".")
    parts = module_name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            target: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in [*parts[end:], attribute]:
            target = getattr(target, part)
        return target
    raise AssertionError(name)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_exists(name: str) -> None:
    assert callable(_resolve(name))


@pytest.mark.parametrize("name", sorted(name for name in METHODS if name != "__index__"))
def test_method_exists(name: str) -> None:
    assert hasattr(torch.Tensor, name)


def _python_signature(name: str) -> inspect.Signature | None:
    try:
        target: Any = _resolve(name)
    except AttributeError:
        return None  # `test_function_exists` says so
    target = target.__init__ if inspect.isclass(target) else target
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


WRITTEN_IN_PYTHON = sorted(
    name for name in FUNCTIONS
    if (found := _python_signature(name)) is not None
    and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in found.parameters.values())
)  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN_IN_PYTHON)
def test_python_functions_take_the_same_parameters(name: str) -> None:
    signature = _python_signature(name)
    assert signature is not None
    theirs = [p for p in signature.parameters.values() if p.name != "self"]
    ours = FUNCTIONS[name].params
    assert [p.name for p in ours] == [p.name for p in theirs]
    for mine, real in zip(ours, theirs, strict=True):
        assert _same_default(mine.default, real.default), (
            f"{name}({mine.name}={mine.default!r}): {real.default!r}"
        )


def _same_default(mine: object, real: object) -> bool:
    if real is inspect.Parameter.empty:
        return mine is REQUIRED
    if isinstance(mine, DType):
        return str(real) == repr(mine)
    return bool(mine == real)


def _schemas(name: str) -> list[Any]:
    """Overloads of a C++ function, those that write to `out` left out."""
    matched = _OVERLOADED.match(name)
    if matched is None:
        return []
    prefix = {".special": "special_", ".linalg": "linalg_", ".fft": "fft_"}.get(matched[1], "")
    found = torch._C._jit_get_schemas_for_operator(f"aten::{prefix}{matched[2]}")
    return [schema for schema in found if not any(a.is_out for a in schema.arguments)]


def _takes_anything(name: str) -> bool:
    """`_foreach_*`: only the list of tensors matters, whatever stands beside it is accepted."""
    return any(param.kind == "VAR_KEYWORD" for param in FUNCTIONS[name].params)


WRITTEN_IN_CPP = sorted(
    name for name in FUNCTIONS
    if _python_signature(name) is None and not _takes_anything(name) and _schemas(name)
)  # fmt: skip
# The schema is not what a program writes: `tensor_split` has a keyword for each kind of argument, `to`,
# `split` and `record_stream` are parsed by hand, `expand` has a parameter for the compiler only, `from` is a
# keyword of Python.
_OTHERWISE = {
    "torch._foreach_norm",
    "tensor_split",
    "torch.tensor_split",
    "to",
    "split",
    "record_stream",
    "expand",
    "uniform_",
    "random_",
}
# Parameters that torch's Python binding adds to every factory, or that only exist for TorchScript and named
# tensors.
_BINDING = {
    "out",
    "dtype",
    "layout",
    "device",
    "requires_grad",
    "pin_memory",
    "memory_format",
    "generator",
    "names",
}


@pytest.mark.parametrize("name", [name for name in WRITTEN_IN_CPP if name not in _OTHERWISE])
def test_cpp_functions_accept_what_an_overload_accepts(name: str) -> None:
    """Some overload's parameters, by name and in order, are ours; further ones of ours come from other
    overloads.
    """
    ours = [param.name for param in FUNCTIONS[name].params if param.name not in _BINDING]
    problems = [_difference(schema, ours) for schema in _schemas(name)]
    assert None in problems, problems


@pytest.mark.parametrize("name", sorted(m for m in METHODS if not m.startswith("__") and m not in _OTHERWISE))
def test_cpp_methods_accept_what_an_overload_accepts(name: str) -> None:
    found = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    schemas = [
        s
        for s in found
        if s.arguments and s.arguments[0].name == "self" and not any(a.is_out for a in s.arguments)
    ]
    if not schemas:
        pytest.skip("written in Python, or a fact rather than an operator")
    function: Function = METHODS[name]
    ours = [param.name for param in function.params[1:] if param.name not in _BINDING]
    problems = [_difference(schema, ours, skip_self=True) for schema in schemas]
    assert None in problems, problems


def _difference(schema: Any, ours: list[str], skip_self: bool = False) -> str | None:
    arguments = schema.arguments[1:] if skip_self else schema.arguments
    theirs = [_spelled(argument.name) for argument in arguments if argument.name not in _BINDING]
    shared = [name for name in ours if name in theirs]
    if [name for name in theirs if name not in ours]:
        missing = [name for name in theirs if name not in ours]
        return f"missing {missing}"
    return None if shared == theirs else f"order {shared} instead of {theirs}"


def _spelled(name: str) -> str:
    return "input" if name in ("self", "A") else name  # `Function.invoke` takes A for input

"""Texts of values: `str`, `repr`, `%` and `format` without the host's formatting of objects."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Function,
    Instance,
    ModuleValue,
    Namespace,
    Opaque,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core.constants import MAX_TEXT_LENGTH, TooLarge
from torchwise_memory.runtime.device import Device
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

MAX_DEPTH = 8
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}!:]*)(?:!([rsa]))?(?::((?:[^{}]|\{[^{}]*\})*))?\}")
_SPEC = re.compile(r"(?:[^\d{}]?[<>=^])?[+\- ]?z?#?0?\d{0,3}[,_]?(?:\.\d{1,3})?[a-zA-Z%]?")


def bounded(text: str) -> str:
    if len(text) > MAX_TEXT_LENGTH:
        raise TooLarge
    return text


def text_of(it: Interpreter, value: Value, depth: int = 0) -> str:
    """`str(value)`."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Opaque) and value.kind == "pathlib.Path" and isinstance(value.payload, str):
        return value.payload
    if isinstance(value, Instance):
        if isinstance(value.payload, str):
            return value.payload
        method = value.cls.find("__str__")
        if isinstance(method, (Function, Builtin)):
            got = it.call(method, [value], {})
            return got if isinstance(got, str) else "?"
        if "args" in value.attributes and value.cls.trait("exception"):
            args = cast("tuple[Value, ...]", value.attributes["args"])
            if value.cls.name == "KeyError" and len(args) == 1:
                return repr_of(it, args[0], depth)
            return "" if not args else text_of(it, args[0]) if len(args) == 1 else repr_of(it, args)
    return repr_of(it, value, depth)


def repr_of(it: Interpreter, value: Value, depth: int = 0) -> str:
    """`repr(value)`, cut off at a depth that no honest program reaches."""
    if depth > MAX_DEPTH:
        return "..."
    if (
        value is None
        or value is Ellipsis
        or isinstance(value, (bool, int, float, complex, str, bytes, range))
    ):
        return _plain(value)
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        return bounded(_container(it, value, depth))
    if isinstance(value, Instance):
        return _instance(it, value, depth)
    if isinstance(value, Class):
        where = "" if value.module == "builtins" else value.module + "."
        return f"<class '{where}{value.name}'>"
    if isinstance(value, Function):
        return f"<function {value.name}>"
    if isinstance(value, (ModuleValue, Namespace)):
        return f"<module '{value.name}'>"
    if isinstance(value, DType):
        return f"torch.{value.name}"
    if isinstance(value, Device):
        return str(value)
    if isinstance(value, (Unknown, Symbol)):
        return "?"
    return f"<{it.class_of(value).name} object>"


def _plain(value: Value) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 10_000:
            raise TooLarge
        return int.__repr__(value)
    return repr(value)


def _container(it: Interpreter, value: Value, depth: int) -> str:
    if isinstance(value, dict):
        pairs = (
            f"{repr_of(it, k, depth + 1)}: {repr_of(it, v, depth + 1)}"
            for k, v in cast("dict[Value, Value]", value).items()
        )
        return "{" + ", ".join(pairs) + "}"
    inner = [repr_of(it, v, depth + 1) for v in cast("list[Value]", value)]
    if isinstance(value, list):
        return "[" + ", ".join(inner) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(inner) + (",)" if len(inner) == 1 else ")")
    if isinstance(value, frozenset):
        return "frozenset({" + ", ".join(inner) + "})" if inner else "frozenset()"
    return "{" + ", ".join(inner) + "}" if inner else "set()"


def _instance(it: Interpreter, value: Instance, depth: int) -> str:
    method = value.cls.find("__repr__")
    if isinstance(method, (Function, Builtin)):
        got = it.call(method, [value], {})
        return got if isinstance(got, str) else "?"
    if value.cls.trait("exception"):
        args = cast("tuple[Value, ...]", value.attributes.get("args", ()))
        return value.cls.name + "(" + ", ".join(repr_of(it, a, depth + 1) for a in args) + ")"
    fields = value.cls.trait("dataclass")
    if isinstance(fields, dict):
        shown = ", ".join(f"{n}={repr_of(it, value.attributes.get(n), depth + 1)}" for n in fields)
        return f"{value.cls.name}({shown})"
    if value.cls.trait("enum") and "_name_" in value.attributes:
        shown = repr_of(it, value.attributes["_value_"], depth + 1)
        return f"<{value.cls.name}.{value.attributes['_name_']}: {shown}>"
    names = value.cls.trait("namedtuple")
    if isinstance(names, tuple) and isinstance(value.payload, tuple):
        shown = ", ".join(
            f"{n}={repr_of(it, v, depth + 1)}" for n, v in zip(names, value.payload, strict=False)
        )
        return f"{value.cls.name}({shown})"
    if value.payload is not None:
        return repr_of(it, value.payload, depth + 1)
    return f"<{value.cls.module}.{value.cls.name} object>"


def format_value(it: Interpreter, value: Value, spec: str) -> str:
    """`format(value, spec)` for numbers and texts; other values and wild specs give plain text."""
    if isinstance(value, Instance) and isinstance(value.payload, (int, float, str)):
        value = value.payload
    if (
        spec
        and _SPEC.fullmatch(spec)
        and isinstance(value, (int, float, str))
        and not isinstance(value, bool)
    ):
        return bounded(format(value, spec))
    return text_of(it, value)


def format_fields(it: Interpreter, template: str, args: list[Value], keywords: dict[str, Value]) -> str:
    """`template.format(...)` without attribute access: a field names an argument and nothing below it."""
    counter = iter(range(len(args)))

    def field(match: re.Match[str]) -> str:
        whole = match.group(0)
        if whole in ("{{", "}}"):
            return whole[0]
        name = match.group(1)
        if name == "":
            value = args[next(counter)]
        elif name.isdigit():
            value = args[int(name)]
        elif name in keywords:
            value = keywords[name]
        else:
            value = _below(it, name, args, keywords)
        if match.group(2) == "r":
            return repr_of(it, value)
        spec = match.group(3) or ""
        if "{" in spec:
            spec = _FIELD.sub(field, spec)
        return format_value(it, value, spec)

    return bounded(_FIELD.sub(field, template))


def _below(it: Interpreter, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`{0.lr}` and `{cfg[lr]}`, through the program's own attribute access."""
    first, *rest = re.findall(r"[^.\[\]]+", name)
    value = args[int(first)] if first.isdigit() else keywords[first]
    for step in rest:
        if f"[{step}]" in name:
            value = it.get_item(value, int(step) if step.isdigit() else step)
        else:
            found = it.find_attribute(value, step)
            if found is MISSING:
                raise it.error("AttributeError", step)
            value = found
    return value


def percent(it: Interpreter, template: str, value: Value) -> Value:
    """`template % value` for numbers and texts; not known where a part is not."""
    items = value if isinstance(value, tuple) else (value,)
    unknown = next(
        (v for v in cast("tuple[Value, ...]", items) if isinstance(v, (Unknown, Symbol, Tensor))), None
    )
    if unknown is not None:
        why = "the value of a tensor" if isinstance(unknown, Tensor) else unknown.why
        return Unknown(f"a text made of {why}")
    plain = tuple(
        v if isinstance(v, (int, float)) and not isinstance(v, bool) else text_of(it, v)
        for v in cast("tuple[Value, ...]", items)
    )
    if isinstance(value, dict):
        named = {
            text_of(it, k): v if isinstance(v, (int, float)) else text_of(it, v)
            for k, v in cast("dict[Value, Value]", value).items()
        }
        return bounded(template % named)
    if re.search(r"\d{4}|\*", template):
        raise TooLarge
    return bounded(template % plain)

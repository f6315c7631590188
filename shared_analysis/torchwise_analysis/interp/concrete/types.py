"""Built-in types as the program sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torchwise_analysis.interp.concrete.values import (
    Arguments,
    BoundMethod,
    Builtin,
    Class,
    ClassMethod,
    Function,
    Instance,
    Iter,
    Keywords,
    ModuleValue,
    Namespace,
    Opaque,
    Partial,
    Property,
    StaticMethod,
    Super,
    Symbol,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Construct: TypeAlias = "Callable[[Interpreter, Class, Arguments, Keywords], Value]"

# name -> bases, in an order in which bases come first (the hierarchy of the language reference)
_EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "BaseException": ("object",),
    "Exception": ("BaseException",),
    "KeyboardInterrupt": ("BaseException",),
    "SystemExit": ("BaseException",),
    "GeneratorExit": ("BaseException",),
    "ArithmeticError": ("Exception",),
    "ZeroDivisionError": ("ArithmeticError",),
    "OverflowError": ("ArithmeticError",),
    "FloatingPointError": ("ArithmeticError",),
    "AssertionError": ("Exception",),
    "AttributeError": ("Exception",),
    "BufferError": ("Exception",),
    "EOFError": ("Exception",),
    "ImportError": ("Exception",),
    "ModuleNotFoundError": ("ImportError",),
    "LookupError": ("Exception",),
    "IndexError": ("LookupError",),
    "KeyError": ("LookupError",),
    "MemoryError": ("Exception",),
    "NameError": ("Exception",),
    "UnboundLocalError": ("NameError",),
    "OSError": ("Exception",),
    "FileNotFoundError": ("OSError",),
    "FileExistsError": ("OSError",),
    "PermissionError": ("OSError",),
    "ConnectionError": ("OSError",),
    "TimeoutError": ("OSError",),
    "ReferenceError": ("Exception",),
    "RuntimeError": ("Exception",),
    "NotImplementedError": ("RuntimeError",),
    "RecursionError": ("RuntimeError",),
    "StopIteration": ("Exception",),
    "StopAsyncIteration": ("Exception",),
    "SyntaxError": ("Exception",),
    "SystemError": ("Exception",),
    "TypeError": ("Exception",),
    "ValueError": ("Exception",),
    "UnicodeError": ("ValueError",),
    "UnicodeDecodeError": ("UnicodeError",),
    "UnicodeEncodeError": ("UnicodeError",),
    "Warning": ("Exception",),
    "DeprecationWarning": ("Warning",),
    "FutureWarning": ("Warning",),
    "PendingDeprecationWarning": ("Warning",),
    "ResourceWarning": ("Warning",),
    "RuntimeWarning": ("Warning",),
    "SyntaxWarning": ("Warning",),
    "UserWarning": ("Warning",),
    "ImportWarning": ("Warning",),
}

_PLAIN_TYPES = (
    "type",
    "int",
    "float",
    "complex",
    "str",
    "bytes",
    "bytearray",
    "memoryview",
    "list",
    "tuple",
    "dict",
    "set",
    "frozenset",
    "range",
    "slice",
    "NoneType",
    "function",
    "builtin_function_or_method",
    "method",
    "module",
    "generator",
    "property",
    "staticmethod",
    "classmethod",
    "super",
    "ellipsis",
)


class Types:
    """The built-in classes of one interpretation; nothing is shared between two programs."""

    def __init__(self) -> None:
        self.object = Class("object", ())
        self.by_name: dict[str, Class] = {"object": self.object}
        for name in _PLAIN_TYPES:
            self.add(name, self.object)
        self.add("bool", self.by_name["int"])
        for name, bases in _EXCEPTIONS.items():
            made = self.add(name, *(self.by_name[base] for base in bases))
            made.traits["exception"] = True
        self._by_host: dict[type, Class] = {
            int: self.by_name["int"],
            float: self.by_name["float"],
            complex: self.by_name["complex"],
            bool: self.by_name["bool"],
            str: self.by_name["str"],
            bytes: self.by_name["bytes"],
            list: self.by_name["list"],
            tuple: self.by_name["tuple"],
            dict: self.by_name["dict"],
            set: self.by_name["set"],
            frozenset: self.by_name["frozenset"],
            range: self.by_name["range"],
            slice: self.by_name["slice"],
            type(None): self.by_name["NoneType"],
            Function: self.by_name["function"],
            Builtin: self.by_name["builtin_function_or_method"],
            BoundMethod: self.by_name["method"],
            Class: self.by_name["type"],
            ModuleValue: self.by_name["module"],
            Namespace: self.by_name["module"],
            Iter: self.by_name["generator"],
            Property: self.by_name["property"],
            StaticMethod: self.by_name["staticmethod"],
            ClassMethod: self.by_name["classmethod"],
            Super: self.by_name["super"],
        }
        self._opaque: dict[str, Class] = {}

    def add(self, name: str, *bases: Class, construct: Construct | None = None, tag: str = "") -> Class:
        made = Class(name, bases, construct=construct, tag=tag)
        made.mro = (made, *bases[0].mro) if bases else (made,)
        self.by_name[name] = made
        return made

    def class_of(self, value: Value) -> Class | None:
        """The class of a carrier or object of ours; None for values of the memory runtime."""
        if isinstance(value, Instance):
            return value.cls
        host = value.__class__
        if host in self._by_host:
            return self._by_host[host]
        if isinstance(value, Class):
            return self.by_name["type"]
        if isinstance(value, Opaque):
            return self.named(value.kind)
        if isinstance(value, Partial):
            return self.named("partial")
        if isinstance(value, (Unknown, Symbol)):
            return self.named("unknown")
        for carrier in (bool, int, float, str):
            if isinstance(value, carrier):
                return self._by_host[carrier]
        return None

    def named(self, kind: str) -> Class:
        """A class for objects that are told apart by a word only."""
        if kind not in self._opaque:
            made = Class(kind, (self.object,), module="")
            made.mro = (made, self.object)
            self._opaque[kind] = made
        return self._opaque[kind]

"""Runs a snippet in the memory driver and gives its globals back as host values."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.errors import Raised
from torchwise_analysis.interp.concrete.interpreter import Interpreter
from torchwise_analysis.interp.concrete.values import Instance, ModuleValue, Value
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text
from torchwise_memory.allocator import Allocator
from torchwise_memory.runtime.world import World


@contextmanager
def collector_off() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def interpreter(folder: Path | None = None, fuel: int = 2_000_000) -> Interpreter:
    roots = [] if folder is None else [str(folder)]
    return Interpreter(Project(roots), World(Allocator()), fuel=fuel)


def run(source: str, it: Interpreter | None = None, path: str = "script.py") -> ModuleValue:
    """Execute `source` as `__main__`. Raises what the interpretation raises."""
    it = interpreter() if it is None else it
    return it.library.imports.run_main(lower_text(path, source))


def shown(source: str, name: str = "result") -> str:
    """`repr` of a global after the snippet ran, or the exception it ended with."""
    it = interpreter()
    try:
        module = run(source, it)
    except Raised as raised:
        return f"raised {raised.value.cls.name}: {text.text_of(it, raised.value)}"
    return text.repr_of(it, plain(module.names[name]))


def plain(value: Value) -> Value:
    return value.payload if isinstance(value, Instance) and isinstance(value.payload, (int, str)) else value

"""Which line's modules hold how much of the card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise_memory.modules.base import Module
from torchwise_memory.report import ModuleMemory, Origin
from torchwise_memory.runtime.ledger import Record

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# More lines are no help to anybody; generated code may have any number.
MAX_LINES = 2_000


@dataclass(slots=True)
class _Sum:
    modules: int = 0
    parameters: int = 0
    weight_bytes: int = 0
    alive_bytes: int | None = 0


def module_memory(it: Interpreter, alive: Iterable[Record]) -> tuple[ModuleMemory, ...]:
    """By the line that made a module and its class, for modules that are in use and still alive.

    `alive`: what the card held at the peak. Modules that a library's code made are left out: their lines are
    nobody's to change.
    """
    origins: dict[int, Origin] = {}
    for reference, origin, _ in it.library.models:
        module = reference()
        if module is not None and origin is not None and not _is_of_library(it, origin.path):
            origins[id(module)] = origin
    roots = [module for reference in it.library.called.values() if (module := reference()) is not None]
    # a path names a module only below one root
    made = _alive_below(alive) if len(roots) == 1 else None
    sums: dict[tuple[Origin, str], _Sum] = {}
    seen: set[int] = set()
    for root in roots:
        for path, module in root.walk():
            if id(module) in seen or id(module) not in origins or len(sums) >= MAX_LINES:
                continue
            seen.add(id(module))
            key = origins[id(module)], it.library.class_of(module).name
            _add(sums.setdefault(key, _Sum()), module, path, made)
    return tuple(
        ModuleMemory(origin, name, total.modules, total.parameters, total.weight_bytes, total.alive_bytes)
        for (origin, name), total in sums.items()
    )


def _add(total: _Sum, module: Module, path: str, made: dict[str, int] | None) -> None:
    total.modules += 1
    for _, parameter in module.walk_parameters():
        record = parameter.storage.record
        total.parameters += parameter.numel
        total.weight_bytes += record.block_bytes if record is not None else 0
    if made is None or not path or total.alive_bytes is None:
        total.alive_bytes = None  # what the root made is not told from what is made outside of it
    else:
        total.alive_bytes += made.get(path, 0)


def _is_of_library(it: Interpreter, path: str) -> bool:
    return path.startswith("<") or any(path.startswith(folder) for folder in it.project.libraries)


def _alive_below(alive: Iterable[Record]) -> dict[str, int]:
    """Bytes by the module whose forward made them, and by each that contains it."""
    found: dict[str, int] = {}
    for record in alive:
        path = record.module_path
        while path:
            found[path] = found.get(path, 0) + record.block_bytes
            path = path.rpartition(".")[0]
    return found

"""Names of modules: what `from ..a import b` means in a given file."""

from __future__ import annotations


def absolute_module(module: str, level: int, importer: str, importer_is_package: bool) -> str | None:
    """The dotted name that `from <level dots><module> import ...` refers to.

    `importer` is the dotted name of the importing module. None if the dots lead above its
    outermost package, where CPython raises ImportError.
    """
    if level == 0:
        return module
    parts = importer.split(".") if importer else []
    if not importer_is_package:
        parts = parts[:-1]
    drop = level - 1
    if drop and drop >= len(parts):
        return None
    parts = parts[: len(parts) - drop]
    return ".".join([*parts, module] if module else parts)

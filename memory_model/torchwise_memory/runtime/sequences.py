"""Telling sequences of the program apart, in a way that type checkers can follow."""

from __future__ import annotations

from typing import TypeGuard


def is_sequence(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """A list or tuple of whatever."""
    return isinstance(value, (list, tuple))


def is_slice(value: object) -> TypeGuard[slice[object, object, object]]:
    """A slice with bounds of whatever."""
    return isinstance(value, slice)

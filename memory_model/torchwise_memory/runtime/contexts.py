"""`with` blocks that change the world: gradient mode, inference mode, autocast.

A context is entered and left with the world as argument. Used as a decorator in the program, whoever calls
the decorated function enters and leaves around the call. Each may be entered again after it was left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .dtypes import DType

if TYPE_CHECKING:
    from .world import World


class Context(Protocol):
    """What `with` does to the world."""

    def enter(self, w: World) -> object:
        """The value that `as` binds."""
        ...

    def leave(self, w: World) -> None:
        """Undo `enter`; called on every way out."""
        ...


class GradMode:
    """`torch.no_grad`, `torch.enable_grad`, `torch.set_grad_enabled`, and `torch.inference_mode` with its
    flag.
    """

    def __init__(self, enabled: bool, inference: bool | None = None) -> None:
        self.enabled = enabled
        self.inference = inference
        self._outer: list[tuple[bool, bool]] = []

    def enter(self, w: World) -> object:
        self._outer.append((w.grad_enabled, w.inference_mode))
        w.grad_enabled = self.enabled
        if self.inference is not None:
            w.inference_mode = self.inference
        return self

    def leave(self, w: World) -> None:
        w.grad_enabled, w.inference_mode = self._outer.pop()


class Autocast:
    """`torch.autocast`. dtype: what matrix products run in, None when disabled."""

    def __init__(self, device_type: str, dtype: DType | None, cache_enabled: bool = True) -> None:
        self.device_type = device_type
        self.dtype = dtype
        self.cache_enabled = cache_enabled
        self._outer: list[tuple[DType | None, DType | None, bool]] = []

    def enter(self, w: World) -> object:
        self._outer.append((w.autocast_dtype, w.autocast_cpu_dtype, w.autocast_cache_enabled))
        if self.device_type == "cuda":
            w.autocast_dtype = self.dtype
        elif self.device_type == "cpu":
            w.autocast_cpu_dtype = self.dtype
        w.autocast_cache_enabled = self.cache_enabled
        w.autocast_depth += 1
        return self

    def leave(self, w: World) -> None:
        w.autocast_dtype, w.autocast_cpu_dtype, w.autocast_cache_enabled = self._outer.pop()
        w.autocast_depth -= 1
        if w.autocast_depth == 0:
            w.autocast_cache.clear()


class NullContext:
    """A context that changes nothing the memory depends on."""

    def enter(self, w: World) -> object:
        return self

    def leave(self, w: World) -> None:
        return None

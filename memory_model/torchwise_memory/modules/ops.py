"""How modules call operators: by the names that torch gives them."""

from __future__ import annotations

from typing import Any

from torchwise_memory.library import FUNCTIONS, METHODS
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.world import World


def functional(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    """`torch.nn.functional.<name>(*args, **kwargs)`."""
    return torch_function(w, f"torch.nn.functional.{name}", *args, **kwargs)


def torch_function(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    """A function by its qualified name."""
    function = FUNCTIONS.get(name)
    if function is None:
        raise Unsupported(name, "this operator is not modelled")
    return function.call(w, *args, **kwargs)


def method(w: World, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`tensor.<name>(*args, **kwargs)`."""
    function = METHODS.get(name)
    if function is None:
        raise Unsupported(f"torch.Tensor.{name}", "this method is not modelled")
    return function.call(w, tensor, *args, **kwargs)

"""What a script takes when a real PyTorch runs it, as far as a CPU can tell.

Births and deaths of storages are recorded as PyTorch makes them and replayed through the simulated allocator.
`device` is replaced, so scripts avoid what only CUDA kernels do: no autocast, no dropout, attention written
out, `foreach` optimizers named.
"""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

from torchwise_memory.allocator import Allocator

LOOP = "for step in range(3):"


def measured(script: str, fake: bool = True) -> tuple[int, int]:
    """Parameters, and the peak of the third step of the script.

    fake: on tensors without memory. Libraries that move modules between types need real ones, and so small
    models.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        """Storages that operators return, while anything holds them."""

        def __init__(self) -> None:
            super().__init__()
            self.allocator = Allocator()
            self.known: set[int] = set()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.note(tensor.untyped_storage())
            return result

        def note(self, storage: Any) -> None:
            key = storage._cdata
            if key in self.known:
                return
            self.known.add(key)
            block = self.allocator.malloc(storage.nbytes())
            weakref.finalize(storage, self.forget, key, block)

        def forget(self, key: int, block: Any) -> None:
            self.known.discard(key)
            self.allocator.free(block)

    # a model is on the CPU as it is; moving fake parameters would swap them
    script = script.replace('device = "cuda"', 'device = "cpu"').replace(".to(device)", "")
    before, loop = script.split(LOOP)
    watch = Watch()
    names: dict[str, Any] = {"__name__": "__main__"}
    gc.collect()
    gc.disable()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext(), watch:
            # the scripts of these tests, nothing of a user's
            exec(compile(before, "own", "exec"), names)
            step = compile("if True:" + loop, "own", "exec")
            for number in range(3):
                if number == 2:
                    watch.allocator.peak_allocated = watch.allocator.allocated
                exec(step, names)
    finally:
        gc.enable()
    count = sum(parameter.numel() for parameter in names["model"].parameters())
    return count, watch.allocator.peak_allocated

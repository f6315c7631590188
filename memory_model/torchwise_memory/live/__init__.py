"""The live guard: the real model's step, run without memory before it is run with it.

Needs PyTorch (`pip install 'torchwise[live]'`) and is the only part of torchwise that imports it. The model's
own code runs, on fake tensors; nothing is allocated and no kernel starts.

    from torchwise_memory.live import VRAMGuard

    with VRAMGuard(model, optimizer, batch=batch) as guard:
        train()
"""

from __future__ import annotations

from torchwise_memory.live.callbacks import lightning_callback, transformers_callback
from torchwise_memory.live.guard import LiveReport, VRAMGuard, WillNotFitError
from torchwise_memory.live.step import Step

__all__ = [
    "LiveReport",
    "Step",
    "VRAMGuard",
    "WillNotFitError",
    "lightning_callback",
    "transformers_callback",
]

"""From allocated to reserved: what the caching allocator keeps beside live blocks."""

from __future__ import annotations

from torchwise_memory.hardware import Gpu
from torchwise_memory.simulation import Job, Simulated

MIB = 1 << 20


def reserved_bytes(simulated: Simulated, job: Job, card: Gpu | None) -> int:
    """Live blocks and the cache. Static memory lies in segments of its own; what comes and goes fragments."""
    static = simulated.weights + simulated.optimizer
    moving = max(0, simulated.allocated - static)
    return static + int(moving * 1.12) + 20 * MIB

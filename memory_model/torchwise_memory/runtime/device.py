"""Devices. Only CUDA tensors take memory of the card; CPU tensors may carry values, meta tensors have
neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Unsupported

_KNOWN_TYPES = ("cpu", "cuda", "meta")


@dataclass(frozen=True, slots=True)
class Device:
    """`torch.device`: a type and an optional index."""

    type: str
    index: int | None = None

    @property
    def on_card(self) -> bool:
        return self.type == "cuda"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")
META = Device("meta")
CUDA = Device("cuda", 0)


def device_of(spec: object) -> Device:
    """The device that `spec` (a device, a string such as "cuda:1", or a card index) names.

    One card is simulated, the one of this process: every CUDA index is that card.
    """
    if isinstance(spec, Device):
        return CUDA if spec.type == "cuda" else spec
    if isinstance(spec, int):
        return CUDA
    if isinstance(spec, str):
        kind = spec.partition(":")[0]
        if kind == "cuda":
            return CUDA
        if kind == "cpu":
            return CPU
        if kind == "meta":
            return META
        raise Unsupported(
            "torch.device", f"device type {kind!r} is not modelled, only {', '.join(_KNOWN_TYPES)}"
        )
    raise Unsupported("torch.device", "the device is not known")

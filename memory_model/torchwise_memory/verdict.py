"""Does it fit: a peak as an interval against what a card offers, in six words."""

from __future__ import annotations

from torchwise_memory.hardware import MIB, Gpu
from torchwise_memory.report import GpuVerdict, Interval, Verdict

#: Libraries beside the context (NCCL channels and rings of one more process group), low, point and high.
NCCL_BYTES = (100 * MIB, 300 * MIB, 1200 * MIB)


def verdict(
    reserved: Interval | None,
    allocated: Interval | None,
    card: Gpu,
    gpus: int = 1,
    needed: int | None = None,
    alternatives: tuple[int, ...] = (),
) -> GpuVerdict:
    """The band for one card. `gpus` above 1 adds what NCCL takes.

    needed: what most likely must fit, in place of the middle of both peaks. alternatives: the same under
    other readings of what was not stated; a probable band needs all of them on its side.

    PyTorch gives cached memory back before it fails, so what must fit is at least the allocated peak and at
    most the reserved one, beside context and libraries.
    """
    band = Verdict.UNKNOWN
    if reserved is not None and allocated is not None:
        band = _band(_need(reserved, allocated, card, gpus, needed), card.total_bytes)
        if band in (Verdict.PROBABLY_FITS, Verdict.PROBABLY_OOM):
            beside = beside_pytorch(card, gpus)[1]
            others = {other + beside > card.total_bytes for other in alternatives}
            if (band is Verdict.PROBABLY_FITS) in others:
                band = Verdict.BORDERLINE
    return GpuVerdict(card.name, card.title, card.total_bytes, band)


def device_peak(reserved: Interval | None, card: Gpu | None, gpus: int = 1) -> Interval | None:
    """What nvidia-smi shows: reserved plus context and libraries; None while either is unknown."""
    if reserved is None or card is None:
        return None
    low, point, high = beside_pytorch(card, gpus)
    return Interval(reserved.low + low, reserved.point + point, reserved.high + high)


def beside_pytorch(card: Gpu, gpus: int = 1) -> tuple[int, int, int]:
    """Bytes of the card that this process takes outside PyTorch's allocator: low, point, high."""
    low, point, high = card.context_bytes
    if gpus < 2:
        return low, point, high
    return low + NCCL_BYTES[0], point + NCCL_BYTES[1], high + NCCL_BYTES[2]


def _need(reserved: Interval, allocated: Interval, card: Gpu, gpus: int, needed: int | None) -> Interval:
    low, point, high = beside_pytorch(card, gpus)
    # Fragmentation remains after cached memory was given back: halfway between the two peaks.
    middle = needed if needed is not None else (allocated.point + reserved.point) // 2
    return Interval(allocated.low + low, middle + point, max(reserved.high, allocated.high) + high)


def _band(need: Interval, total_bytes: int) -> Verdict:
    """Certain where the whole interval lies on one side, probable where its point does with room to spare."""
    if need.high <= total_bytes:
        return Verdict.FITS
    if need.low > total_bytes:
        return Verdict.OOM
    # Within 2 % of the total the point decides nothing: drivers differ by as much in what they leave.
    margin = total_bytes * 2 // 100
    if need.point <= total_bytes - margin:
        return Verdict.PROBABLY_FITS
    if need.point > total_bytes + margin:
        return Verdict.PROBABLY_OOM
    return Verdict.BORDERLINE

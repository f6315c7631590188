"""Bands of a verdict and the device peak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchwise_memory.hardware import MIB, find
from torchwise_memory.report import Interval, Verdict
from torchwise_memory.verdict import beside_pytorch, device_peak, verdict

CARD = find("a100-80gb")
GIB = 1024 * MIB


def band(gib: float, spread: float = 0.02) -> Verdict:
    point = int(gib * GIB)
    interval = Interval(int(point * (1 - spread)), point, int(point * (1 + spread)))
    return verdict(interval, interval, CARD).verdict


@pytest.mark.parametrize(
    ("gib", "expected"),
    [
        (10, Verdict.FITS),
        (75, Verdict.FITS),
        (78.5, Verdict.BORDERLINE),
        (82, Verdict.OOM),
        (200, Verdict.OOM),
    ],
)
def test_bands(gib: float, expected: Verdict) -> None:
    assert band(gib) is expected


def test_a_wide_interval_is_never_certain_near_the_limit() -> None:
    assert band(85, spread=0.3) is Verdict.PROBABLY_OOM
    assert band(70, spread=0.3) is Verdict.PROBABLY_FITS


def test_unknown_peaks_stay_unknown() -> None:
    assert verdict(None, None, CARD).verdict is Verdict.UNKNOWN
    assert device_peak(None, CARD) is None
    assert device_peak(Interval(1, 2, 3), None) is None


def test_cached_memory_is_not_what_must_fit() -> None:
    allocated = Interval(60 * GIB, 60 * GIB, 61 * GIB)
    reserved = Interval(70 * GIB, 80 * GIB, 82 * GIB)
    assert verdict(reserved, allocated, CARD).verdict is Verdict.PROBABLY_FITS


def test_the_device_peak_adds_context_and_on_several_cards_libraries() -> None:
    reserved = Interval(10 * GIB, 11 * GIB, 12 * GIB)
    one, two = device_peak(reserved, CARD), device_peak(reserved, CARD, gpus=2)
    assert one is not None
    assert two is not None
    assert one.point == reserved.point + beside_pytorch(CARD)[1]
    assert two.point > one.point


ORDER = [
    Verdict.FITS,
    Verdict.PROBABLY_FITS,
    Verdict.BORDERLINE,
    Verdict.PROBABLY_OOM,
    Verdict.OOM,
]


@given(st.floats(1, 200), st.floats(0, 50), st.floats(0, 0.4))
def test_more_memory_never_gives_a_better_verdict(gib: float, more: float, spread: float) -> None:
    assert ORDER.index(band(gib, spread)) <= ORDER.index(band(gib + more, spread))

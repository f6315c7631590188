"""Deep recursion on one chunk of frames."""

from __future__ import annotations

import sys

import pytest

from torchwise_analysis.interp.core.frames import with_room

resource = pytest.importorskip("resource")


def _deep(depth: int) -> int:
    return depth if depth == 0 else _deep(depth - 1)


def _up_and_down() -> int:
    # at some of these depths a chunk of the usual size ends between two calls
    return sum(_deep(depth) for depth in range(300) for _ in range(10))


def _new_pages(work: object) -> int:
    assert callable(work)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def test_gives_what_the_work_gives() -> None:
    assert with_room(lambda: 7) == 7


def test_lets_errors_pass() -> None:
    names: dict[str, int] = {}
    with pytest.raises(KeyError):
        with_room(lambda: names["absent"])


@pytest.mark.skipif(
    sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 14),
    reason="frames of other versions were not looked at",
)
def test_asks_the_system_for_memory_once() -> None:
    _up_and_down()
    assert _new_pages(lambda: with_room(_up_and_down)) * 10 < _new_pages(_up_and_down)

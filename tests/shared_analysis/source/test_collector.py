"""The garbage collector is as it was, whatever happened meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from torchwise_analysis.source.collector import collector_paused


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("before", [gc.enable, gc.disable])
@pytest.mark.parametrize("meanwhile", [gc.enable, gc.disable])
def test_it_is_restored(before: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    before()
    expected = gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        meanwhile()
    assert gc.isenabled() is expected

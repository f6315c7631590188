"""The garbage collector, run when nobody waits.

The analysis keeps hundreds of thousands of objects and makes thousands at each keystroke; none of them is
part of a cycle, and all are freed when their last reference goes. Left alone, the collector walks them at any
keystroke (0.1 s for a file of 5,000 lines). So it is off, and runs in a pause over what is new since then.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time

logger = logging.getLogger(__name__)

# A pause this long is one in which somebody reads.
_PAUSE_S = 2.0
# Objects more than at the last collection, if there is no pause. The first times they are set aside unseen:
# walking them takes longer than a keystroke may. The next pause walks everything.
_MOST_NEW = 300_000
_MOST_UNSEEN = 4
# How often everything is walked, also what was kept by an earlier collection: after a while, and when twice
# as much is kept as was left by the last time.
_EVERYTHING_S = 600.0
_MOST_KEPT_MORE = 200_000
# How often free memory is given back in a pause.
_RETURN_S = 20.0


class PauseCollector:
    """Lives on the message loop."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._walked_all = self._returned = time.monotonic()
        self._kept = 0  # objects that were left when everything was walked
        self._unseen = 1  # times that objects were set aside unseen, those of the start among them

    def start(self) -> None:
        """From now on nothing is collected but in pauses. To be called before there are threads."""
        gc.disable()
        _share_one_heap()

    def poke(self) -> None:
        """Something happened: the next pause begins now."""
        if gc.isenabled():  # nobody started us: tests, embedding
            return
        if self._timer is not None:
            self._timer.cancel()
        if gc.get_count()[0] > _MOST_NEW:
            if self._unseen == _MOST_UNSEEN:
                self._collect()
                return
            gc.freeze()
            self._unseen += 1
        self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._collect)

    def _collect(self) -> None:
        self._timer = None
        began = time.perf_counter()
        now = time.monotonic()
        is_full = gc.get_freeze_count() > 2 * self._kept + _MOST_KEPT_MORE
        everything = self._unseen > 0 or is_full or now - self._walked_all > _EVERYTHING_S
        if everything:
            gc.unfreeze()
            self._walked_all, self._unseen = now, 0
        found = gc.collect()
        gc.freeze()
        if everything:
            self._kept = gc.get_freeze_count()
        if everything or now - self._returned > _RETURN_S:
            self._returned = now
            _return_free_memory()
        logger.debug("collected %d objects in %.0f ms", found, 1000 * (time.perf_counter() - began))


_M_ARENA_MAX = -8  # of malloc.h


def _share_one_heap() -> None:
    """Let what the analysis thread frees be used by others: a heap for each thread takes a fifth more, and
    only one of them runs at a time."""
    _call_c_library("mallopt", _M_ARENA_MAX, 1)


def _return_free_memory() -> None:
    """Let the C library give free pages back: its heap never shrinks by itself."""
    _call_c_library("malloc_trim", 0)


def _call_c_library(name: str, *arguments: int) -> None:
    if sys.platform != "linux":
        return
    try:
        import ctypes

        getattr(ctypes.CDLL(None), name)(*arguments)
    except (ImportError, OSError, AttributeError):  # another C library than GNU's
        return

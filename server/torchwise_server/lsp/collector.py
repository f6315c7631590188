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
# How often everything is walked, also what was kept by an earlier collection.
_EVERYTHING_S = 600.0


class PauseCollector:
    """Lives on the message loop."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._walked_all = time.monotonic()
        self._unseen = 1  # times that objects were set aside unseen, those of the start among them

    def start(self) -> None:
        """From now on nothing is collected but in pauses."""
        gc.disable()

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
        everything = self._unseen > 0 or time.monotonic() - self._walked_all > _EVERYTHING_S
        if everything:
            gc.unfreeze()
            self._walked_all, self._unseen = time.monotonic(), 0
        found = gc.collect()
        gc.freeze()
        if everything:
            _return_free_memory()
        logger.debug("collected %d objects in %.0f ms", found, 1000 * (time.perf_counter() - began))


def _return_free_memory() -> None:
    """Let the C library give free pages back: its heap of the analysis thread never shrinks by itself."""
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):  # another C library than GNU's
        return

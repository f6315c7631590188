"""Room for the frames of deep recursion.

CPython (3.11 and later) keeps frames in chunks of 16 KiB and gives a chunk back to the system when the last
frame on it returns. An evaluator that goes up and down across such a border asks for memory and returns it at
every call: a fifth of the time of a run went there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

# In words of eight bytes. A chunk is as large as the next power of two above the frame that asks for it: one
# of a little more than half leaves the other half, 4 MiB, to the frames above. Untouched pages are free.
_WORDS = (1 << 19) + 1


def with_room(work: Callable[[], _Result]) -> _Result:
    """`work()`, with its frames on one large chunk."""
    return work()


if sys.version_info >= (3, 11):
    with_room.__code__ = with_room.__code__.replace(co_stacksize=_WORDS)

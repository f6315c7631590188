"""In which frames a thing happened, and where to point when a helper did it."""

from __future__ import annotations

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.events import Event


def call_beside(event: Event, other: Event) -> Place:
    """The place of `event`, or of the call that led to it, in the innermost frame that also ran `other`."""
    shared = 0
    while shared < min(len(event.calls), len(other.calls)) and event.calls[shared] == other.calls[shared]:
        shared += 1
    return event.calls[shared].place if shared < len(event.calls) else event.place


def is_in_construction(event: Event) -> bool:
    """A model that is being built runs its parts once, to learn their sizes or to fit itself to its data."""
    return "__init__" in (event.scene.function, *(caller.function for caller in event.calls))

"""Where to point when a helper did it: the call in the frame that both events share."""

from __future__ import annotations

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.events import Event


def call_beside(event: Event, other: Event) -> Place:
    """The place of `event`, or of the call that led to it, in the innermost frame that also ran `other`."""
    shared = 0
    while shared < min(len(event.calls), len(other.calls)) and event.calls[shared] == other.calls[shared]:
        shared += 1
    return event.calls[shared].place if shared < len(event.calls) else event.place

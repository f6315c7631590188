"""Bounds of a run. They count visits, never time, so that results repeat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one file may cost.

    visits: nodes evaluated, over all entries. entry_visits: of one entry. late_visits: of one entry
    after half of all visits are spent. forward_visits: of one forward pass. depth: nested calls.
    nesting: nested expressions. events: recorded. files: other project files run; mentions: those searched
    for what may matter. worlds: runs of one
    function for flags tested more than once. copies: facts that entries start from, over all entries.
    """

    visits: int = 200_000
    entry_visits: int = 80_000
    late_visits: int = 10_000
    forward_visits: int = 4_000
    depth: int = 14
    nesting: int = 120
    events: int = 60_000
    files: int = 80
    mentions: int = 40
    worlds: int = 4
    copies: int = 4_000_000


# What is said of a function, or of a module's own code, that the fuel did not reach.
TOO_LARGE = "too large to follow to the end"
TOO_MANY = "too many functions to run each"
TOO_DEEP = "nested too deeply"


class OutOfFuelError(Exception):
    """Visits are spent; what was recorded so far stays."""


class StoppedError(Exception):
    """The caller asked to stop."""


class DeadPathError(Exception):
    """The path ends here: a callee never returns."""

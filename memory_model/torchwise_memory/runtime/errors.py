"""What stops a run. Both are loud: a run that hits one has no estimate, only a reason."""

from __future__ import annotations


class RuntimeStop(Exception):
    """Base of everything this package raises on purpose."""


class Unsupported(RuntimeStop):
    """The program asked for something whose memory behaviour is not modelled, or that torch would reject.

    name: the qualified name of what was asked for; reason: one sentence for the user.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class OutOfFuel(RuntimeStop):
    """The program ran more operators than the world's fuel allows."""

"""How an interpretation leaves the ordinary path."""

from __future__ import annotations

from torchwise_analysis.interp.concrete.values import Instance
from torchwise_memory.report import Origin


class Raised(Exception):
    """An exception of the program, on its way to a handler of the program."""

    def __init__(self, value: Instance, origin: Origin | None = None) -> None:
        super().__init__()
        self.value = value
        self.origin = origin


class Stopped(Exception):
    """The trace cannot go on: something that decides about memory is not known. Never caught by a program."""

    def __init__(self, message: str, origin: Origin | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.origin = origin


class OutOfFuel(Stopped):
    """The bound on statements, operators or depth was reached."""


class Cancelled(Exception):
    """The caller asked to stop."""


class Finished(Exception):
    """Everything that was to be measured has been measured."""

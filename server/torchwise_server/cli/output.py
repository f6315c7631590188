"""Where a command line writes: reports to stdout, everything about the run to stderr."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """One or more lines of the report."""
    sys.stdout.write(text + "\n")


def say_bytes(data: bytes) -> None:
    """A part of the report that is a file's content, in that file's own encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def complain(text: str) -> None:
    """A message about the run; never part of a report. It may name what a workspace holds, so nothing in it
    acts on a terminal. Where it cannot be said, the exit status still says how the run went."""
    from torchwise_server.reporters.words import visible

    with contextlib.suppress(OSError):
        sys.stderr.write(f"torchwise: {visible(text)}\n")
        sys.stderr.flush()

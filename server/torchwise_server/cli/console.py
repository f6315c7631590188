"""Consoles and progress: what a terminal can show, decided in one place."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 110  # of output into files and pipes: lines of source stay whole up to the usual limits


def report_console() -> Console:
    """The console for reports on stdout: colours and links on a terminal, plain text elsewhere.

    NO_COLOR, FORCE_COLOR, TERM=dumb and COLUMNS are honoured (by rich).
    """
    from rich.console import Console

    class Report(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end with status 1, which says something else here

    keep_printing_whatever_the_encoding()
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PLAIN_WIDTH
    return Report(markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)


def plain_console(file: IO[str]) -> Console:
    """The console for a report that goes to a file: no colours, no links, a fixed width."""
    from rich.console import Console

    return Console(
        file=file, markup=False, highlight=False, emoji=False, width=_PLAIN_WIDTH, color_system=None,
        force_terminal=False,
    )  # fmt: skip


def keep_printing_whatever_the_encoding() -> None:
    """A character that stdout cannot encode becomes an escape instead of an exception."""
    out: object = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        cast("io.TextIOWrapper", out).reconfigure(errors="backslashreplace")


class Progress:
    """One line on stderr that says how far a long run is; nothing unless stderr is a terminal."""

    _DELAY_SECONDS = 0.7
    _INTERVAL_SECONDS = 0.1
    _CELLS = 20

    def __init__(self, total: int, doing: str = "checking") -> None:
        self._total = total
        self._doing = doing
        self._next = time.monotonic() + self._DELAY_SECONDS
        self._enabled = total > 1 and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def _bar(self, done: int) -> str:
        full, empty = "█░" if (sys.stderr.encoding or "").lower().startswith("utf") else "#."
        cells = self._CELLS * done // self._total
        return full * cells + empty * (self._CELLS - cells)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def advance(self, done: int, name: str) -> None:
        """`done` files are finished, `name` comes next."""
        if not self._enabled or time.monotonic() < self._next:
            return
        from torchwise_server.reporters.words import one_line

        self._next = time.monotonic() + self._INTERVAL_SECONDS
        self._shown = True
        width = shutil.get_terminal_size().columns - 1
        line = f"{self._doing} {self._bar(done)} {done + 1} of {self._total}  {one_line(name)}"
        sys.stderr.write("\r\x1b[2K" + line[:width])
        sys.stderr.flush()

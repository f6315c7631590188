"""Reads files that nobody vouched for: regular ones only, never more of them than one can use."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# The largest module that people import is smaller; what is larger is data in a .py suit.
MAX_SOURCE_BYTES = 2 << 20
# Notebooks carry pictures; their code is held to the limit above.
MAX_NOTEBOOK_BYTES = 16 << 20

# A pipe without a writer blocks who opens it, a terminal may become ours. Windows has neither flag.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The first `limit` bytes of a regular file, at the end of whatever links.

    Raises:
        OSError: it cannot be read, or is a folder, pipe, socket or device.
        ValueError: `path` holds a null character.
    """
    _require_regular(Path(path).stat())  # opening a device may already do something
    descriptor = os.open(path, _FLAGS)
    with os.fdopen(descriptor, "rb") as file:
        _require_regular(os.fstat(descriptor))  # it may have been exchanged in between
        return file.read(limit)


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")

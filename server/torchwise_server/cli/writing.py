"""Writes a file back: all of it or nothing, in its place, as it was but for its content.

The new content goes to a file of its own in the same folder, reaches the disk, and takes the name of the old
one in a single step. No link is followed that was not there when the file was read: folders are opened one by
one, none of them through a link, and the file must still be the one that was read, byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CAN_HOLD_FOLDERS = (
    os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)
# A folder may let us through that may not be listed.
_PASS = getattr(os, "O_PATH", os.O_RDONLY)


class NotWrittenError(Exception):
    """The file was left as it was; the message says why."""


@dataclass(frozen=True, slots=True)
class Original:
    """A file as it was read: `path` without links in it, its content, and which file it was."""

    path: Path
    data: bytes
    device: int
    inode: int

    @classmethod
    def read(cls, path: Path, limit: int) -> Original:
        """The regular file at the end of whatever links.

        Raises:
            OSError: it cannot be read, or is no regular file.
        """
        from torchwise_analysis.files import read_regular

        real = Path(os.path.realpath(path))
        data = read_regular(real, limit)
        status = real.stat()
        return cls(real, data, status.st_dev, status.st_ino)


def write(original: Original, data: bytes) -> None:
    """Put `data` in the place of the original.

    Raises:
        NotWrittenError: the file is no longer the one that was read, or cannot be written.
    """
    try:
        if _CAN_HOLD_FOLDERS:
            with _folder(original.path.parent) as folder:
                _replace(original, data, folder)
        else:
            _replace(original, data, None)
    except OSError as error:
        raise NotWrittenError(error.strerror or str(error)) from error


def write_new(path: Path, data: bytes) -> None:
    """Write a report to a file of whatever content, or none yet; to a pipe or device as it comes.

    Raises:
        NotWrittenError: it cannot be written; what was there is left as it was.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        real = Path(os.path.realpath(path))
        if real.is_dir():
            raise NotWrittenError("is a folder")
        temporary = real.with_name(f".{real.name[:100]}.{secrets.token_hex(6)}.torchwise")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                if real.exists():
                    _take_over(file.fileno(), real.stat())
                os.fsync(file.fileno())
            temporary.replace(real)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise NotWrittenError(error.strerror or str(error)) from error


@contextmanager
def _folder(path: Path) -> Generator[int, None, None]:
    """A handle of a folder, reached without following a link."""
    handle = os.open(path.anchor, _PASS | os.O_DIRECTORY)
    try:
        for part in path.parts[1:]:
            inner = os.open(part, _PASS | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _replace(original: Original, data: bytes, folder: int | None) -> None:
    name = original.path.name if folder is not None else str(original.path)
    status = _require_unchanged(original, name, folder)
    temporary = f".{original.path.name[:100]}.{secrets.token_hex(6)}.torchwise"
    if folder is None:
        temporary = str(original.path.with_name(temporary))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY
    handle = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            _take_over(file.fileno(), status)
            os.fsync(file.fileno())
        _require_unchanged(original, name, folder)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # an interruption as well: nothing of ours stays behind
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    if folder is not None:
        with contextlib.suppress(OSError):  # some file systems cannot; the file itself is safe
            listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
            try:
                os.fsync(listed)
            finally:
                os.close(listed)


def _require_unchanged(original: Original, name: str, folder: int | None) -> os.stat_result:
    try:
        handle = os.open(name, os.O_RDONLY | _NO_FOLLOW | _BINARY, dir_fd=folder)
    except OSError as error:
        raise NotWrittenError(f"it was exchanged while it was being fixed ({error.strerror})") from error
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        is_same = (status.st_dev, status.st_ino) == (original.device, original.inode)
        if (
            not is_same
            or not stat.S_ISREG(status.st_mode)
            or file.read(len(original.data) + 1) != original.data
        ):
            raise NotWrittenError("it was changed by something else while it was being fixed")
    if not os.access(original.path, os.W_OK):
        raise NotWrittenError("it may not be written")
    return status


def _take_over(handle: int, status: os.stat_result) -> None:
    """Mode and owner of the old file, as far as the system lets us."""
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(handle, status.st_uid, status.st_gid)
    if hasattr(os, "fchmod"):  # after the owner: a change of owner clears bits of the mode
        os.fchmod(handle, stat.S_IMODE(status.st_mode))

"""Results on disk, named by what they follow from.

An entry is a file of its own, written whole under another name first, so that runs at the same time only ever
see whole entries and may write the same one twice. An entry that is damaged is none. A folder that cannot be
written is a cache that never holds anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
_PRUNED_EVERY_SECONDS = 24 * 3600
_USED_EVERY_SECONDS = 6 * 3600
# What shows that a folder is ours to empty.
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# Results of torchwise. May be deleted at any time.\n"
)
_LARGEST_ENTRY = 64 << 20


def digest(*parts: str | bytes) -> str:
    """One name for these parts in this order."""
    whole = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()


@dataclass(slots=True)
class Cleaned:
    """What was removed."""

    entries: int = 0
    bytes: int = 0


class Store:
    """A folder of entries; `None` as the folder keeps nothing."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._is_ready: bool | None = None

    def get(self, name: str) -> object | None:
        """What was put under this name; None where nothing sound is."""
        path = self._path(name)
        if path is None:
            return None
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - thousands of times a run
                data = file.read(_LARGEST_ENTRY + 1)
        except OSError:
            return None
        head, _, body = data.partition(b"\n")
        if head.decode("ascii", "replace") != digest(name, body):
            logger.debug("damaged entry %s", path)
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            return None
        try:
            content: object = json.loads(body)
        except ValueError:
            return None
        _note_use(path)
        return content

    def put(self, name: str, content: object) -> None:
        """Keep what `json` can write; silently not, where the disk does not let us."""
        path = self._path(name)
        if path is None or not self._prepared():
            return
        body = json.dumps(content, separators=(",", ":"), ensure_ascii=True).encode("ascii")
        folder = os.path.dirname(path)  # noqa: PTH120
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(digest(name, body).encode("ascii") + b"\n" + body)
                os.replace(temporary, path)  # noqa: PTH105
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108
                raise
        except OSError as error:
            logger.debug("the cache cannot be written: %s", error)
            self._is_ready = False

    def prune(self) -> None:
        """Once a day: remove the entries that were not used for longest, until the rest is small enough."""
        if self.folder is None or not self._prepared() or not self._is_due():
            return
        entries = sorted(_entries(self.folder), key=lambda entry: entry.used)
        left = sum(entry.bytes for entry in entries)
        for entry in entries:
            if left <= self._most_bytes and not entry.is_leftover:
                continue
            with contextlib.suppress(OSError):
                os.unlink(entry.path)  # noqa: PTH108
                left -= entry.bytes

    def clean(self) -> Cleaned:
        """Remove everything, unless the folder holds no sign that it is a cache of ours."""
        cleaned = Cleaned()
        folder = self.folder
        if folder is None or not (folder / _TAG).is_file():
            return cleaned
        for entry in _entries(folder):
            cleaned.entries += not entry.is_leftover
            cleaned.bytes += entry.bytes
        for shelf in _shelves(folder):
            shutil.rmtree(shelf, ignore_errors=True)
        return cleaned

    def _path(self, name: str) -> str | None:
        return None if self.folder is None else os.path.join(self.folder, name[:2], name[2:])  # noqa: PTH118

    def _prepared(self) -> bool:
        if self._is_ready is None:
            assert self.folder is not None
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                tag = self.folder / _TAG
                if not tag.exists():
                    tag.write_text(_TAG_TEXT, encoding="ascii")
                self._is_ready = True
            except OSError as error:
                logger.debug("no cache: %s", error)
                self._is_ready = False
        return self._is_ready

    def _is_due(self) -> bool:
        assert self.folder is not None
        mark = self.folder / "pruned"
        try:
            # a mark of the future was made before the clock was set back
            if 0 <= time.time() - mark.stat().st_mtime < _PRUNED_EVERY_SECONDS:
                return False
        except OSError:
            pass
        with contextlib.suppress(OSError):
            mark.touch()
        return True


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    bytes: int
    used: float
    is_leftover: bool  # of a write that was killed


def _shelves(folder: Path) -> Iterable[Path]:
    return (one for one in folder.iterdir() if len(one.name) == 2 and one.is_dir() and not one.is_symlink())


def _entries(folder: Path) -> Iterator[_Entry]:
    now = time.time()
    with contextlib.suppress(OSError):
        for shelf in _shelves(folder):
            with contextlib.suppress(OSError), os.scandir(shelf) as found:
                for one in found:
                    status = one.stat(follow_symlinks=False)
                    leftover = one.name.startswith(".new-") and abs(now - status.st_mtime) > 3600
                    yield _Entry(one.path, status.st_size, status.st_mtime, leftover)


def _note_use(path: str) -> None:
    with contextlib.suppress(OSError):
        if abs(time.time() - os.stat(path).st_mtime) > _USED_EVERY_SECONDS:  # noqa: PTH116
            os.utime(path)

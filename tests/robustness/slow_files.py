"""A file system whose reads come back when a test says so, as of a server that is away: plain FUSE.

Only what reading needs, in one folder without folders. Needs `/dev/fuse` and the right to mount (as root);
`SlowFiles.or_skip` skips the test where that is not to be had.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pytest

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE = 1, 2, 3, 14, 15, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 25, 26, 27, 28, 29, 36, 42
_MS_READONLY, _MS_NOSUID, _MNT_DETACH = 1, 2, 2
_ROOT = 1
_PAST_PAGE_CACHE = 1
_FOREVER_S = 1 << 30
_REQUEST_BYTES = 1 << 18
WAIT_S = 60.0


class SlowFiles:
    """Mounts `files` on `folder`; a read of one of `slow` comes back after `release` only.

    A read that its reader gives up (a signal) ends with EINTR, as on a network mount with `intr`.
    """

    def __init__(self, folder: Path, files: Mapping[str, str], slow: frozenset[str]) -> None:
        self.folder = folder
        self._contents = {number: text.encode() for number, text in enumerate(files.values(), _ROOT + 1)}
        self._numbers = {name: number for number, name in enumerate(files, _ROOT + 1)}
        self._slow = {self._numbers[name] for name in slow}
        self._waiting: dict[int, bytes] = {}
        self._stalled = threading.Event()
        self._lock = threading.Lock()
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._libc = ctypes.CDLL(None, use_errno=True)

    @classmethod
    def or_skip(cls, folder: Path, files: Mapping[str, str], slow: frozenset[str]) -> SlowFiles:
        """The file system, mounted on an empty folder."""
        try:
            made = cls(folder, files, slow)
            made._mount()
        except (OSError, AttributeError) as error:
            pytest.skip(f"no file system of our own can be mounted here: {error}")
        return made

    def wait_for_a_read(self) -> None:
        """Until somebody waits for a slow file."""
        assert self._stalled.wait(WAIT_S), "nobody reads the slow file"

    def release(self) -> None:
        """Answer the reads that wait, and those to come."""
        with self._lock:
            self._slow.clear()
            waiting, self._waiting = self._waiting, {}
        for unique, data in waiting.items():
            self._answer(unique, data)

    def __enter__(self) -> SlowFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._libc.umount2(os.fsencode(self.folder), _MNT_DETACH)
        os.close(self._device)

    # ------------------------------------------------------------------ inside

    def _mount(self) -> None:
        self.folder.mkdir()
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        flags = _MS_READONLY | _MS_NOSUID
        if self._libc.mount(b"slow", os.fsencode(self.folder), b"fuse", flags, options.encode()):
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _REQUEST_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # unmounted
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            self._handle(opcode, unique, node, request[_IN.size :])

    def _handle(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if opcode == _INIT:
            # version 7.31, none of the optional features
            self._answer(unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0, 0))
        elif opcode == _LOOKUP:
            self._look_up(unique, body.rstrip(b"\0").decode())
        elif opcode == _GETATTR:
            self._answer(unique, struct.pack("<QII", _FOREVER_S, 0, 0) + self._attributes(node))
        elif opcode in (_OPEN, _OPENDIR):
            self._answer(unique, struct.pack("<QII", node, _PAST_PAGE_CACHE if opcode == _OPEN else 0, 0))
        elif opcode == _READ:
            self._read(unique, node, *struct.unpack_from("<QI", body, 8))
        elif opcode == _READDIR:
            self._answer(unique, self._entries() if struct.unpack_from("<Q", body, 8)[0] == 0 else b"")
        elif opcode == _INTERRUPT:
            (given_up,) = struct.unpack_from("<Q", body)
            if self._waiting.pop(given_up, None) is not None:
                self._fail(given_up, errno.EINTR)
        elif opcode in (_RELEASE, _RELEASEDIR, _FLUSH):
            self._answer(unique, b"")
        elif opcode not in (_FORGET, _BATCH_FORGET):
            self._fail(unique, errno.ENOSYS)

    def _look_up(self, unique: int, name: str) -> None:
        node = self._numbers.get(name)
        if node is None:
            self._fail(unique, errno.ENOENT)
        else:
            entry = struct.pack("<QQQQII", node, 0, _FOREVER_S, _FOREVER_S, 0, 0)
            self._answer(unique, entry + self._attributes(node))

    def _read(self, unique: int, node: int, offset: int, size: int) -> None:
        data = self._contents[node][offset : offset + size]
        with self._lock:
            is_slow = node in self._slow
            if is_slow:
                self._waiting[unique] = data
        if is_slow:
            self._stalled.set()
        else:
            self._answer(unique, data)

    def _attributes(self, node: int) -> bytes:
        size = len(self._contents.get(node, b""))
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
        owner = (os.getuid(), os.getgid())
        return _ATTRIBUTES.pack(node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, *owner, 0, 4096, 0)

    def _entries(self) -> bytes:
        made = b""
        for place, (name, node) in enumerate(self._numbers.items(), 1):
            entry = struct.pack("<QQII", node, place, len(name), stat.S_IFREG >> 12) + name.encode()
            made += entry + b"\0" * (-len(entry) % 8)
        return made

    def _answer(self, unique: int, data: bytes) -> None:
        self._write(_OUT.pack(_OUT.size + len(data), 0, unique) + data)

    def _fail(self, unique: int, number: int) -> None:
        self._write(_OUT.pack(_OUT.size, -number, unique))

    def _write(self, reply: bytes) -> None:
        try:
            os.write(self._device, reply)
        except OSError:  # who asked has gone
            return

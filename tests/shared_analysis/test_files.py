"""Only regular files are read, and never more of them than one can use."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from torchwise_analysis.files import read_regular

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX kinds of files")


def test_reads_as_much_as_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "a", 4) == b"0123"
    assert read_regular(str(tmp_path / "a"), 40) == b"0123456789"


@posix
def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b", 4) == b"x"


@posix
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop", "folder", "missing", "null"])
def test_everything_else_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to("x.py")
    elif kind == "folder":
        path.mkdir()
    elif kind == "null":
        path = Path("a\0b")
    with pytest.raises((OSError, ValueError)):
        read_regular(path, 4)

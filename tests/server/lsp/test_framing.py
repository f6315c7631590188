"""Whatever arrives, headers come out well-formed and bodies as long as announced."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from torchwise_server.lsp.framing import MOST_BYTES, Frames


def bodies(stream: bytes) -> list[bytes]:
    frames, found = Frames(io.BytesIO(stream)), list[bytes]()
    while header := frames.readline():
        name, _, length = header.partition(b": ")
        assert name == b"Content-Length"
        assert frames.readline() == b"\r\n"
        found.append(frames.read(int(length)))
    return found


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 2\r\n\r\n",
        b"content-length:2\r\n\r\n",
        b"Content-Length: 2\n\n",
        b"Content-Type: x\r\nContent-Length: 2\r\n\r\n",
        b"Content-Length: 2\r\nContent-Type: x\r\n\r\n",
        b"Content-Length: x\r\n\r\nContent-Length: 2\r\n\r\n",
        b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nContent-Length: 2\r\n\r\n",
        b"Content-Length: -2\r\n\r\nContent-Length: 0\r\n\r\nContent-Length: 2\r\n\r\n",
        b"\xff" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_headers_of_every_kind(header: bytes) -> None:
    assert bodies(header + b"{}" + header + b"[]") == [b"{}", b"[]"]


def test_a_body_that_is_cut_off_is_the_last() -> None:
    assert bodies(b"Content-Length: 9\r\n\r\n{}") == [b"{}"]


def test_a_body_beyond_all_measure_is_passed_over() -> None:
    assert bodies(b"Content-Length: %d\r\n\r\n{}" % (MOST_BYTES + 1)) == []


def test_a_server_outlives_headers_that_are_none() -> None:
    """With pygls' own reader each of the first two ended it."""
    ask = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "nonsense", "params": {}}).encode()
    stream = b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"
    stream += b"Content-Length: %d\r\n\r\n%b" % (len(ask), ask)
    stream += b"Content-Length: 99999999999999\r\n\r\n"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "torchwise_server.lsp"], input=stream, capture_output=True, timeout=300
    )
    assert done.returncode == 0
    assert b'"id": 7' in done.stdout

"""Cuts standard input into messages, whatever it holds.

pygls takes the announced length at its word: one header with a length beyond all memory, or of five thousand
digits, would end the server. Here names of headers may have any case, as in HTTP, lines may end without a
carriage return, a header that is none is passed over, and a body that no message has is read and forgotten.
"""

from __future__ import annotations

import logging
import re
from typing import BinaryIO

logger = logging.getLogger(__name__)

# The largest document that anybody edits is a hundredth of it.
MOST_BYTES = 256 << 20
_LONGEST_HEADER = 1 << 16
_CHUNK = 1 << 20
_LENGTH = re.compile(rb"\s*content-length\s*:\s*(\d{1,18})\s*", re.IGNORECASE)


class Frames:
    """What pygls reads from: well-formed headers, and bodies of the length they announce."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._is_announced = False

    def readline(self) -> bytes:
        """The next header line, or the empty line before a body; nothing at the end of the stream."""
        if self._is_announced:
            self._is_announced = False
            return b"\r\n"
        length = self._next_length()
        if length is None:
            return b""
        self._is_announced = True
        return b"Content-Length: %d\r\n" % length

    def read(self, length: int) -> bytes:
        """The body, shorter only where the stream ends."""
        return self._stream.read(length)

    def _next_length(self) -> int | None:
        """The length of the next body worth reading; None at the end."""
        length = 0
        while line := self._stream.readline(_LONGEST_HEADER):
            match = _LENGTH.fullmatch(line)
            if match is not None:
                length = int(match[1])
            elif not line.strip():
                if 0 < length <= MOST_BYTES:
                    return length
                self._skip(length)
                length = 0
        return None

    def _skip(self, length: int) -> None:
        if length:
            logger.error("passed over a message of %d bytes", length)
        while length > 0:
            read = self._stream.read(min(length, _CHUNK))
            if not read:
                return
            length -= len(read)

"""Bytes of a Python file -> text, as CPython's tokenizer decodes them (PEP 263)."""

from __future__ import annotations

import codecs
import io
import tokenize
from typing import NamedTuple


class Decoded(NamedTuple):
    """`text` keeps a byte order mark as its first character; `problem` says what was wrong, if anything."""

    text: str
    encoding: str
    problem: str | None


def decode(data: bytes) -> Decoded:
    """Never raises: undecodable bytes become U+FFFD and are reported."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        return Decoded(data.decode("utf-8", "replace"), "utf-8", str(error.msg))
    if encoding == "utf-8-sig":
        return _decode(data, "utf-8")
    return _decode(data, encoding)


def _decode(data: bytes, encoding: str) -> Decoded:
    # a cookie may name a codec that is none of text ("hex", "rot13")
    if not getattr(codecs.lookup(encoding), "_is_text_encoding", True):
        return Decoded(data.decode("utf-8", "replace"), "utf-8", f"unknown encoding: {encoding}")
    try:
        text = data.decode(encoding)
    except UnicodeError as error:
        return Decoded(data.decode(encoding, "replace"), encoding, f"not valid {encoding}: {error}")
    if "\0" in text:
        return Decoded(text, encoding, "source code cannot contain null bytes")
    return Decoded(text, encoding, None)

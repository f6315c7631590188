"""Bytes of a Python file -> text, as CPython's tokenizer decodes them (PEP 263)."""

from __future__ import annotations

import codecs
import io
import tokenize
from typing import NamedTuple

# Codecs of host names: they are no encoding of files, and take time by the square of the size.
_UNUSABLE = frozenset({"idna", "punycode", "undefined"})


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
    # a cookie may name a codec that is none of text ("hex", "rot13") or fails whatever it gets ("undefined")
    if encoding in _UNUSABLE or not getattr(codecs.lookup(encoding), "_is_text_encoding", True):
        return Decoded(data.decode("utf-8", "replace"), "utf-8", f"unknown encoding: {encoding}")
    try:
        text = data.decode(encoding)
    except UnicodeError as error:
        return Decoded(_replaced(data, encoding), encoding, f"not valid {encoding}: {error}")
    if "\0" in text:
        return Decoded(text, encoding, "source code cannot contain null bytes")
    return Decoded(text, encoding, None)


def _replaced(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding, "replace")
    except UnicodeError:  # a codec that knows no replacements
        return data.decode("utf-8", "replace")

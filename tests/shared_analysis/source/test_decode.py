"""Bytes become text as Python's tokenizer would decode them."""

from __future__ import annotations

import encodings
import pkgutil

import pytest

from torchwise_analysis.source.decode import decode


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        ("é = 1\n".encode(), "é = 1\n", "utf-8"),
        (b"\xef\xbb\xbfx = 1\n", "\ufeffx = 1\n", "utf-8"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "# -*- coding: latin-1 -*-\nx = 'é'\n", "iso-8859-1"),
        (b"#!/bin/sh\n# vim: set fileencoding=cp1251 :\n'\xe9'", None, "cp1251"),
        (b"x\r\ny\r", "x\r\ny\r", "utf-8"),
        (b"", "", "utf-8"),
    ],
)
def test_decodes(data: bytes, text: str | None, encoding: str) -> None:
    decoded = decode(data)
    assert decoded.problem is None
    assert decoded.encoding == encoding
    assert text is None or decoded.text == text


@pytest.mark.parametrize(
    "data",
    [
        b"x = '\xff'\n",
        b"# coding: nonsense\nx\n",
        b"# coding: hex\nx\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
        b"x = 1\0\n",
    ],
)
def test_says_what_is_wrong(data: bytes) -> None:
    decoded = decode(data)
    assert decoded.problem
    assert isinstance(decoded.text, str)


@pytest.mark.parametrize("name", ["undefined", "idna", "punycode"])
def test_codecs_that_decode_no_file_are_unknown(name: str) -> None:
    data = b"# coding: " + name.encode() + b"\nx = '\xff'\n"
    assert decode(data).problem == f"unknown encoding: {name}"


def test_no_codec_of_python_raises() -> None:
    for info in pkgutil.iter_modules(encodings.__path__):
        assert isinstance(decode(b"# coding: " + info.name.encode() + b"\nx = '\xff\xfe+'\n").text, str)

"""Lines as Python's tokenizer counts them.

Only `\\n`, `\\r\\n` and `\\r` end a line. `str.splitlines` also splits at form feeds and at U+2028,
which would move every position below.
"""

from __future__ import annotations

import re

_LINE_BREAK = re.compile(r"\r\n|\r|\n")

BYTE_ORDER_MARK = "\ufeff"


def line_starts(text: str) -> list[int]:
    """Offset of the first character of every line; a final line break starts one more line."""
    if "\r" in text:
        return [0, *(match.end() for match in _LINE_BREAK.finditer(text))]
    starts = [0]
    find = text.find
    position = find("\n")
    while position >= 0:
        starts.append(position + 1)
        position = find("\n", position + 1)
    return starts


def count_breaks(text: str) -> int:
    """Number of line breaks."""
    breaks = text.count("\n")
    if "\r" in text:
        breaks += text.count("\r") - text.count("\r\n")
    return breaks


def split_lines(text: str) -> list[str]:
    """The lines without their breaks; one more than there are breaks."""
    if "\r" in text:
        return _LINE_BREAK.split(text)
    return text.split("\n")

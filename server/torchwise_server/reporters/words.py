"""Small words of reports: sizes, counts, text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchwise_memory.report import Moment

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

# C0 without tab and line feed, DEL, C1, marks that reorder or hide text, lone surrogates (of file names)
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """`text` with every character that could act on a terminal, or hide something there, as an escape.

    Source text and file names come from a workspace that nobody vouched for.
    """
    return _HARMFUL.sub(_escaped, text)


def one_line(text: str) -> str:
    """`visible` text on a single line."""
    return " ".join(visible(text).split())


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def size(amount: int) -> str:
    """Bytes for a reader: three significant digits and a binary unit."""
    for unit, factor in _UNITS:
        if abs(amount) >= factor:
            value = amount / factor
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{amount} B"


def amount(number: int) -> str:
    """A large count for a reader: 124.4 M."""
    for unit, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= factor:
            value = number / factor
            return f"{value:.{2 if value < 9.995 else 1}f} {unit}"
    return f"{number:,}"


def count(number: int, noun: str) -> str:
    """`1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def phase_words(timeline: Sequence[Moment]) -> list[str]:
    """The phase of each moment in words: between a backward pass and the step nothing goes forward."""
    phases = [moment.phase.value for moment in timeline]
    words: list[str] = []
    for number, phase in enumerate(phases):
        later = next((one for one in phases[number:] if one != "forward"), None)
        is_between = phase == "forward" and later == "optimizer" and "backward" in words
        words.append("between" if is_between else phase)
    return words

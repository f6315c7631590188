"""Host values that exist but cannot be known: what `.item()` of a tensor on the card gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnknownScalar:
    """A number of a known kind ("bool", "int" or "float") and unknown value.

    It may be an operand of a tensor operator, where its value does not matter, and never an extent.
    """

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownItems:
    """What `.tolist()` or `.numpy()` of a tensor with unknown elements gives: nested lists of this shape."""

    shape: tuple[int, ...]
    kind: str
    reason: str


Scalar = bool | int | float | complex | UnknownScalar

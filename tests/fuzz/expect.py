"""What every target says when torchwise is at fault."""

from __future__ import annotations


def expect(holds: bool, text: str, what: object) -> None:
    if not holds:
        raise AssertionError(f"{what}\n{text}")

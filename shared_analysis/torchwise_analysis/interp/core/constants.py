"""Operators on constants, bounded.

Interpreted source may be hostile: `10 ** 10 ** 9`, `"a" * 10 ** 9` and `1 << 10 ** 9` are legal
Python. Every operation here checks the size of its result before it computes it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sized
from typing import Any, cast

MAX_INT_BITS = 4096
MAX_TEXT_LENGTH = 1 << 20
MAX_ITEMS = 1 << 20

_WIDE_FORMAT = re.compile(r"\d{5}|\*")


class TooLarge(Exception):
    """The result would exceed the bounds; the interpreter treats the value as unknown."""


# Lambdas where the stubs of `operator` say nothing of the types.
BINARY: dict[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": operator.mod,
    "**": lambda a, b: a**b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}

_COMPARE: dict[str, Callable[[Any, Any], object]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
}

_UNARY: dict[str, Callable[[Any], object]] = {
    "not": operator.not_,
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}


def binary(op: str, left: object, right: object) -> object:
    """`left op right` for built-in constants and containers of values.

    Raises TooLarge before a result out of bounds is made, and what CPython raises otherwise
    (TypeError, ZeroDivisionError, OverflowError, ValueError).
    """
    if op not in BINARY:
        raise TypeError(f"unsupported operator {op}")
    _check_size(op, left, right)
    return BINARY[op](left, right)


def unary(op: str, operand: object) -> object:
    """`op operand`; raises what CPython raises."""
    return _UNARY[op](operand)


def compare(op: str, left: object, right: object) -> bool:
    """One comparison of a chain; raises TypeError as CPython does."""
    if op == "in":
        return left in cast("list[object]", right)
    if op == "not in":
        return left not in cast("list[object]", right)
    return bool(_COMPARE[op](left, right))


def _check_size(op: str, left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_int(op, left, right)
    elif op == "*":
        _check_repeat(left, right)
        _check_repeat(right, left)
    elif op == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        if len(left) + len(right) > MAX_ITEMS:
            raise TooLarge
    elif op == "%" and isinstance(left, (str, bytes)) and _WIDE_FORMAT.search(str(left)):
        # "%999999999d" makes its text out of one number, "%*d" out of an argument
        raise TooLarge


def _check_int(op: str, left: int, right: int) -> None:
    if op == "**":
        if right > 0 and left.bit_length() * right > MAX_INT_BITS:
            raise TooLarge
    elif op == "<<":
        if right > 0 and left.bit_length() + right > MAX_INT_BITS:
            raise TooLarge
    elif op == "*" and left.bit_length() + right.bit_length() > MAX_INT_BITS:
        raise TooLarge


def _check_repeat(sequence: object, count: object) -> None:
    if isinstance(sequence, Sized) and isinstance(count, int) and len(sequence) * count > MAX_TEXT_LENGTH:
        raise TooLarge

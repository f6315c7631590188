"""Method resolution order: C3 linearisation (the Python 2.3 MRO paper), for any kind of class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

C = TypeVar("C")


class InconsistentMro(Exception):
    """The bases contradict each other; CPython raises TypeError at the class statement."""


def linearize(cls: C, bases: Sequence[C], mro_of: Callable[[C], Sequence[C]]) -> tuple[C, ...]:
    """The MRO of `cls` from its direct bases, whose own MROs `mro_of` gives.

    Classes are compared by identity. Raises InconsistentMro.
    """
    sequences = [list(mro_of(base)) for base in bases]
    sequences.append(list(bases))
    order = [cls]
    while True:
        sequences = [sequence for sequence in sequences if sequence]
        if not sequences:
            return tuple(order)
        head = _next_head(sequences)
        order.append(head)
        for sequence in sequences:
            if sequence[0] is head:
                del sequence[0]


def _next_head(sequences: list[list[C]]) -> C:
    for sequence in sequences:
        candidate = sequence[0]
        if not any(any(other is candidate for other in tail[1:]) for tail in sequences):
            return candidate
    raise InconsistentMro

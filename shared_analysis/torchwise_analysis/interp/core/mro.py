"""Method resolution order: C3 linearisation (the Python 2.3 MRO paper), for any kind of class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

C = TypeVar("C")

# Programs have tens; each class of a chain keeps the whole chain.
MAX_ANCESTORS = 200


class InconsistentMro(Exception):
    """The bases contradict each other; CPython raises TypeError at the class statement."""


def linearize(cls: C, bases: Sequence[C], mro_of: Callable[[C], Sequence[C]]) -> tuple[C, ...]:
    """The MRO of `cls` from its direct bases, whose own MROs `mro_of` gives.

    Classes are compared by identity. Raises InconsistentMro, also where there are more than MAX_ANCESTORS.
    """
    sequences = [sequence for sequence in (*map(mro_of, bases), bases) if sequence]
    if sum(map(len, sequences)) > MAX_ANCESTORS:
        raise InconsistentMro
    if len(bases) == 1:
        return (cls, *mro_of(bases[0]))
    # how often a class stands behind the first place of what is left of the sequences
    behind = Counter(id(one) for sequence in sequences for one in sequence[1:])
    left = [iter(sequence) for sequence in sequences]
    heads: dict[int, C] = {number: next(rest) for number, rest in enumerate(left)}
    order = [cls]
    while heads:
        head = next((one for one in heads.values() if not behind[id(one)]), None)
        if head is None:
            raise InconsistentMro
        order.append(head)
        for number in [number for number, one in heads.items() if one is head]:
            following = next(left[number], None)
            if following is None:
                del heads[number]
            else:
                heads[number] = following
                behind[id(following)] -= 1
    return tuple(order)

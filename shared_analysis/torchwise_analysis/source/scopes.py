"""Which names belong to which function, as Python's compiler would resolve them.

A front end reports bindings and uses to a `NameCollector` while it lowers. What a run of
statements does to names (`Names`) is a union over its statements, so a function that was lowered in
several segments is resolved from the union of theirs.

List, set and dict comprehensions run at once (Python 3.12 inlines them), so their uses are uses of
the enclosing function; a generator expression may run later and captures like an inner function.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from torchwise_analysis.source.nodes import Scope

_NONE: frozenset[str] = frozenset()


def kept(names: AbstractSet[str]) -> frozenset[str]:
    """The names as a set that stays. Most are empty, and an empty set of its own takes 216 bytes."""
    return frozenset(names) if names else _NONE


@dataclass(frozen=True, slots=True)
class Names:
    """What a run of statements does to the names of the block it stands in.

    `inner` are names that inner functions take from around them, `inner_global` those that they
    take from the module by a `global` statement, past any local of the same name.
    """

    bound: frozenset[str] = _NONE
    used: frozenset[str] = _NONE
    inner: frozenset[str] = _NONE
    inner_global: frozenset[str] = _NONE
    global_: frozenset[str] = _NONE
    nonlocal_: frozenset[str] = _NONE
    yields: bool = False


class NameCollector:
    """The names of one block while it is being lowered."""

    __slots__ = (
        "bound",
        "enclosing",
        "global_",
        "inner",
        "inner_global",
        "nonlocal_",
        "used",
        "yields",
    )

    def __init__(self, enclosing: NameCollector | None = None) -> None:
        """`enclosing` is given for a comprehension only: `:=` binds there."""
        self.enclosing = enclosing
        self.bound: set[str] = set()
        self.used: set[str] = set()
        self.inner: set[str] = set()
        self.inner_global: set[str] = set()
        self.global_: set[str] = set()
        self.nonlocal_: set[str] = set()
        self.yields = False

    def bind_walrus(self, name: str) -> None:
        """Bind the target of `:=`, which skips comprehensions."""
        block = self
        while block.enclosing is not None:
            block.used.add(name)
            block = block.enclosing
        block.bound.add(name)

    def add(self, names: Names) -> None:
        """Take in the names of another part of the same block."""
        self.bound |= names.bound
        self.used |= names.used
        self.inner |= names.inner
        self.inner_global |= names.inner_global
        self.global_ |= names.global_
        self.nonlocal_ |= names.nonlocal_
        self.yields = self.yields or names.yields

    def freeze(self) -> Names:
        return Names(
            kept(self.bound),
            kept(self.used),
            kept(self.inner),
            kept(self.inner_global),
            kept(self.global_),
            kept(self.nonlocal_),
            self.yields,
        )

    def close_function(self, params: Iterable[str], into: NameCollector) -> Scope:
        """Resolve the block as the body of a function and report what it needs to the outside."""
        self.bound.update(params)
        local = kept(self.bound - self.global_ - self.nonlocal_)
        mentioned = self.bound | self.used | self.inner | self.nonlocal_
        into.inner |= mentioned - local - self.global_
        into.inner_global |= self.global_ | self.inner_global
        return Scope(
            local=local,
            captured=kept(local & self.inner),
            free=kept((mentioned | self.global_ | self.inner_global) - local),
            global_=kept(self.global_),
            nonlocal_=kept(self.nonlocal_),
            is_generator=self.yields,
        )

    def close_class(self, into: NameCollector) -> None:
        """Report what a class body needs to the outside; its own names are invisible to methods."""
        into.used |= (self.used | self.nonlocal_) - (self.bound - self.nonlocal_) - self.global_
        into.inner |= self.inner - self.global_
        into.inner_global |= self.inner_global | self.global_

    def close_comprehension(self, is_lazy: bool, into: NameCollector) -> None:
        """Report what a comprehension (or a type parameter scope) needs to the outside."""
        (into.inner if is_lazy else into.used).update(self.used - self.bound)
        into.inner |= self.inner - self.bound
        into.inner_global |= self.inner_global
        into.yields = into.yields or self.yields

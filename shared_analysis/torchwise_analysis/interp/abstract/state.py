"""The state of one path: a flat map of facts with an undo trail.

Keys are tuples whose first item says what the fact is:

    ("v", frame, name)     variable            ("a", object, name)  attribute
    ("c", object)          contents in order   ("d", object)        contents by key
    ("mode", object)       modes               ("grad", optimizer)  gradients (atoms)
    ("freed", pass)        backward ran over it
    ("version", object)    how often its weights changed
    ("autograd",)          grad mode set by a statement

A fork is a mark in the trail; its outcome is the set of facts changed since. Forking costs nothing,
joining costs what the branches wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Key: TypeAlias = "tuple[object, ...]"
Facts: TypeAlias = "dict[Key, object]"
Join: TypeAlias = "Callable[[object, object], object]"


# What the lack of a fact says, where it says something: parameters that nobody froze learn, gradients that
# nobody unscaled are scaled.
_WITHOUT: dict[object, object] = {"frozen": frozenset([False]), "unscaled": frozenset([False])}


class Missing:
    """No fact."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


def _without(key: Key, outcome: Facts, born: set[object]) -> object:
    """What the lack of a fact says on the path of `outcome`."""
    is_there = key[1] not in born or ("mode", key[1]) in outcome
    return _WITHOUT[key[0]] if is_there else MISSING


class State:
    """Facts of the running path."""

    __slots__ = ("_trail", "facts", "lasting")

    def __init__(self) -> None:
        self.facts: Facts = {}
        self.lasting: dict[Key, None] = {}
        self._trail: list[tuple[Key, object]] = []

    def get(self, key: Key, default: object = None) -> object:
        return self.facts.get(key, default)

    def set(self, key: Key, value: object) -> None:
        self._trail.append((key, self.facts.get(key, MISSING)))
        self.facts[key] = value

    def drop(self, key: Key) -> None:
        if key in self.facts:
            self._trail.append((key, self.facts.pop(key)))

    def apart(self) -> list[tuple[Key, object]]:
        """From here to `rejoin(...)` facts are of no path: forks that are open now do not take them back."""
        trail, self._trail = self._trail, []
        return trail

    def rejoin(self, trail: list[tuple[Key, object]]) -> None:
        """The end of what `apart` began; `trail` is what that gave."""
        self.lasting.update(dict.fromkeys(key for key, _ in self._trail))
        self._trail = trail

    def settle(self, key: Key, value: object) -> None:
        """What a fact of no path turned out to be."""
        self.facts[key] = value
        self.lasting[key] = None

    def mark(self) -> int:
        return len(self._trail)

    def changes(self, mark: int) -> Facts:
        """Facts changed since the mark, with their present values (MISSING when dropped)."""
        trail = self._trail
        if len(trail) == mark:
            return {}
        present = self.facts.get
        return {key: present(key, MISSING) for key, _ in (trail[mark:] if mark else trail)}

    def rollback(self, mark: int) -> None:
        """The facts as they were at the mark."""
        facts = self.facts
        behind = self._trail[mark:]
        if not behind:
            return
        del self._trail[mark:]
        behind.reverse()
        for key, old in behind:
            if old is MISSING:
                facts.pop(key, None)
            else:
                facts[key] = old

    def apply(self, changes: Facts) -> None:
        facts, note = self.facts, self._trail.append
        for key, value in changes.items():
            if value is not MISSING:
                note((key, facts.get(key, MISSING)))
                facts[key] = value
            elif key in facts:
                note((key, facts.pop(key)))

    def merge(self, mark: int, outcomes: list[Facts], join: Join) -> None:
        """Replace what happened since the mark by the join of several outcomes."""
        self.rollback(mark)
        if len(outcomes) == 1:
            self.apply(outcomes[0])
            return
        facts, note = self.facts, self._trail.append
        keys: Facts = {}
        for outcome in outcomes:
            keys.update(outcome)
        # modules that only some of the paths made: on the others nothing is to be said of them
        born = {key[1] for key in keys if key[0] == "mode" and key not in facts}
        first, *others = outcomes
        for key in keys:
            base = facts.get(key, MISSING)
            value = first.get(key, base)
            if value is MISSING and key[0] in _WITHOUT:
                value = _without(key, first, born)
            for outcome in others:
                other = outcome.get(key, base)
                if other is MISSING and key[0] in _WITHOUT:
                    other = _without(key, outcome, born)
                if other is value or other is MISSING:
                    continue
                value = other if value is MISSING else join(value, other)
            if value is not base:
                note((key, base))
                if value is MISSING:
                    del facts[key]
                else:
                    facts[key] = value

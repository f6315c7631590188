"""The measured step as a sequence of moments, few enough to be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchwise_analysis.plan.words import breakdown
from torchwise_memory.report import Moment
from torchwise_memory.runtime.ledger import Record, StorageKind

# As many as a picture of the usual width can tell apart.
MAX_MOMENTS = 160


def timeline(lives: Iterable[Record], since: int, peak: int) -> tuple[Moment, ...]:
    """The moments of the time after event `since`, each the highest of its stretch.

    The moment just after event `peak` is always one of them. Sizes are those the allocator counts.
    """
    records = list(lives)
    births = sorted((record for record in records if record.born > since), key=lambda record: record.born)
    if not births:
        return ()
    held = _held_at(records, since)
    changes = _changes(records, since)
    bounds = _bounds([record.born for record in births], peak)
    moments: list[Moment] = []
    highest = -1
    best: tuple[dict[StorageKind, int], Record] | None = None
    number, total = 0, sum(held.values())
    for record in births:
        while number < len(changes) and changes[number][0] <= record.born:
            _, kind, by = changes[number]
            held[kind] = held.get(kind, 0) + by
            total += by
            number += 1
        if total > highest or record.born == peak:
            # the peak is the first of equal moments; nothing later in its stretch takes its place
            highest, best = (total + 1 if record.born == peak else total), (dict(held), record)
        if record.born in bounds and best is not None:
            by_kind, made = best
            named = {kind.value: size for kind, size in by_kind.items()}
            moments.append(Moment(made.phase, made.origin, breakdown(named)))
            highest, best = -1, None
    return tuple(moments)


def _held_at(records: Iterable[Record], sequence: int) -> dict[StorageKind, int]:
    held: dict[StorageKind, int] = {}
    for record in records:
        if record.born <= sequence:
            kind = record.kind_at(sequence)
            held[kind] = held.get(kind, 0) + record.block_bytes
    return held


def _changes(records: Iterable[Record], since: int) -> list[tuple[int, StorageKind, int]]:
    """(event, purpose, bytes more or less) after event `since`, in order."""
    found = [change for record in records for change in _changes_of(record) if change[0] > since]
    found.sort(key=lambda change: change[0])
    return found


def _changes_of(record: Record) -> Iterator[tuple[int, StorageKind, int]]:
    size = record.block_bytes
    last: StorageKind | None = None
    for sequence, kind in record.kinds:
        if last is not None:
            yield sequence, last, -size
        yield sequence, kind, size
        last = kind
    if record.died is not None and last is not None:
        yield record.died, last, -size


def _bounds(births: list[int], peak: int) -> set[int]:
    """The births that end a stretch."""
    step = max(1, -(-len(births) // MAX_MOMENTS))
    return {*births[step - 1 :: step], births[-1], peak}

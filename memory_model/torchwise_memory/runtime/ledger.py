"""Who holds which bytes of the card, since when, and for whom.

The ledger is the only thing a storage points back to, so that neither world nor tape can form a cycle with
storages.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from operator import attrgetter
from typing import Any, Protocol

from torchwise_memory.report import Origin, Phase


class StorageKind(Enum):
    """What a storage is for. The default follows from the phase it is born in."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    INPUT = "input"
    WORKSPACE = "workspace"

    # members are single objects; the hash of Enum is a Python function, asked for with every birth
    __hash__ = object.__hash__


class Block(Protocol):
    """A piece of card memory."""

    @property
    def size(self) -> int:
        """Bytes that the allocator counts for it (rounded)."""
        ...


class Allocator(Protocol):
    """The allocator of one card, `torchwise_memory.allocator.Allocator` or a simpler one. All figures are
    bytes.
    """

    allocated: int
    peak_allocated: int
    reserved: int
    peak_reserved: int

    def malloc(self, bytes_: int, /) -> Block:
        """A block of at least `bytes_` > 0."""
        ...

    # Any: an allocator takes back only the kind of block it hands out, which a protocol cannot say.
    def free(self, block: Any, /) -> None:
        """Give a block back; it is one this allocator handed out and that was not given back yet."""
        ...


class SummedBlock:
    """A block of `SummingAllocator`."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class SummingAllocator:
    """Counts exact bytes, no rounding and no segments. For tests, and for asking what was requested."""

    def __init__(self) -> None:
        self.allocated = 0
        self.peak_allocated = 0
        self.reserved = 0
        self.peak_reserved = 0

    def malloc(self, bytes_: int) -> SummedBlock:
        self.allocated += bytes_
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.peak_reserved = self.reserved = self.allocated
        return SummedBlock(bytes_)

    def free(self, block: SummedBlock) -> None:
        self.allocated -= block.size


class Record:
    """The life of one storage on the card.

    key: unique in the world. bytes: requested, block_bytes: counted by the allocator. born/died: sequence
    numbers of ledger events (died None: alive). kind: the latest; changes: sequence numbers at which it
    changed, each with the kind before.
    """

    __slots__ = (
        "block_bytes",
        "born",
        "bytes",
        "changes",
        "died",
        "dtype",
        "key",
        "kind",
        "module_path",
        "operator",
        "origin",
        "phase",
        "shape",
    )

    def __init__(
        self,
        key: int,
        bytes: int,
        block_bytes: int,
        kind: StorageKind,
        operator: str,
        dtype: str,
        shape: tuple[int, ...],
        phase: Phase,
        origin: Origin | None,
        module_path: str,
    ) -> None:
        self.key = key
        self.born = key
        self.died: int | None = None
        self.bytes = bytes
        self.block_bytes = block_bytes
        self.kind = kind
        self.changes: list[tuple[int, StorageKind]] | None = None
        self.operator = operator
        self.dtype = dtype
        self.shape = shape
        self.phase = phase
        self.origin = origin
        self.module_path = module_path

    @property
    def kinds(self) -> list[tuple[int, StorageKind]]:
        """(since which event, kind), the first at birth."""
        changes = self.changes or []
        since = [self.born, *(sequence for sequence, _ in changes)]
        return list(zip(since, [*(kind for _, kind in changes), self.kind], strict=True))

    def kind_at(self, sequence: int) -> StorageKind:
        """The kind the storage had just after event `sequence`."""
        if self.changes is not None:
            for until, before in self.changes:
                if sequence < until:
                    return before
        return self.kind


_DEFAULT_KIND = {
    Phase.FORWARD: StorageKind.ACTIVATION,
    Phase.BACKWARD: StorageKind.TEMPORARY,
    Phase.OPTIMIZER: StorageKind.TEMPORARY,
}


class Ledger:
    """Births and deaths of storages on the card.

    origin, module_path, phase: what newborn storages are attributed to; whoever walks the program sets them.
    While watching, the highest moment is remembered and deaths are kept, so that `alive_at(peak_sequence)`
    can be asked afterwards.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.origin: Origin | None = None
        self.module_path = ""
        self.phase = Phase.FORWARD
        self.live: dict[int, Record] = {}
        self.sequence = 0
        self.watching = False
        self.watched_from = 0
        self.peak_bytes = 0
        self.peak_sequence = 0
        self.peak_phase = Phase.FORWARD
        self._dead: list[Record] = []

    def birth(
        self,
        bytes: int,
        operator: str,
        dtype: str,
        shape: tuple[int, ...],
        kind: StorageKind | None,
    ) -> tuple[Block, Record]:
        """Take `bytes` > 0 from the allocator."""
        block = self.allocator.malloc(bytes)
        self.sequence = key = self.sequence + 1
        phase = self.phase
        record = Record(
            key,
            bytes,
            block.size,
            kind or _DEFAULT_KIND[phase],
            operator,
            dtype,
            shape,
            phase,
            self.origin,
            self.module_path,
        )
        self.live[key] = record
        if self.watching and self.allocator.allocated > self.peak_bytes:
            self.peak_bytes, self.peak_sequence, self.peak_phase = self.allocator.allocated, key, phase
        return block, record

    def death(self, block: Block, record: Record) -> None:
        """Give the block of a dead storage back."""
        self.sequence += 1
        del self.live[record.key]
        if self.watching:
            record.died = self.sequence
            self._dead.append(record)
        self.allocator.free(block)

    def change_kind(self, record: Record, kind: StorageKind) -> None:
        """From now on the storage counts as `kind` (a temporary that becomes a `.grad`, say)."""
        if record.kind is not kind:
            self.sequence += 1
            if record.changes is None:
                record.changes = []
            record.changes.append((self.sequence, record.kind))
            record.kind = kind

    def watch(self) -> None:
        """Start (again) to look for the peak; what is alive now belongs to it."""
        self.watching = True
        self._dead.clear()
        self.watched_from = self.sequence
        self.peak_bytes = self.allocator.allocated
        self.peak_sequence = self.sequence
        self.peak_phase = self.phase

    def lives(self) -> list[Record]:
        """Every storage that was alive at any moment of the watched time."""
        return [*self.live.values(), *self._dead]

    def alive_at(self, sequence: int) -> list[Record]:
        """Storages alive just after event `sequence`, which lies in the watched time; oldest first."""
        alive = [r for r in self.lives() if r.born <= sequence and (r.died is None or r.died > sequence)]
        alive.sort(key=attrgetter("born"))
        return alive

    def bytes_by_kind(self, sequence: int) -> dict[StorageKind, int]:
        """Block bytes by kind at event `sequence`; their sum is what the allocator counted as allocated."""
        return bytes_by_kind(self.alive_at(sequence), sequence)


def bytes_by_kind(alive: Iterable[Record], sequence: int) -> dict[StorageKind, int]:
    """Block bytes by kind at event `sequence` of the storages alive then."""
    totals: dict[StorageKind, int] = {}
    for record in alive:
        kind = record.kind_at(sequence)
        totals[kind] = totals.get(kind, 0) + record.block_bytes
    return totals

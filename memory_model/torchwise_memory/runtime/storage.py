"""The unit of memory: bytes on a device that live as long as something holds the storage."""

from __future__ import annotations

from .device import Device
from .ledger import Block, Ledger, Record, StorageKind


class Storage:
    """Bytes on a device, freed when the last reference dies.

    A storage on the card owns a block and a ledger record; elsewhere both are None. `values` holds the
    elements of a small CPU tensor whose contents are known, one an element of the storage, else None;
    operators that write must keep it true or drop it. `share` is the part of the elements that are not zero,
    where that much is known (one-hot encodings), else None.
    """

    __slots__ = ("__weakref__", "block", "bytes", "device", "ledger", "record", "share", "values")

    def __init__(
        self,
        ledger: Ledger,
        bytes: int,
        device: Device,
        operator: str,
        dtype: str,
        shape: tuple[int, ...],
        kind: StorageKind | None = None,
    ) -> None:
        self.ledger = ledger
        self.bytes = bytes
        self.device = device
        self.values: list[float] | None = None
        self.share: float | None = None
        self.block: Block | None = None
        self.record: Record | None = None
        if bytes > 0 and device.type == "cuda":
            self.block, self.record = ledger.birth(bytes, operator, dtype, shape, kind)

    def __del__(self) -> None:
        block, record = self.block, self.record
        if block is not None and record is not None:
            self.ledger.death(block, record)

    def mark(self, kind: StorageKind) -> None:
        """Let the storage count as `kind` from now on."""
        if self.record is not None:
            self.ledger.change_kind(self.record, kind)

    def release(self) -> None:
        """Give the block back while tensors still point here (`untyped_storage().resize_(0)`, sharding)."""
        if self.block is not None and self.record is not None:
            block, record = self.block, self.record
            self.block = self.record = None
            self.ledger.death(block, record)

    def restore(
        self, operator: str, dtype: str, shape: tuple[int, ...], kind: StorageKind | None = None
    ) -> None:
        """Take a block again after `release`."""
        if self.block is None and self.bytes > 0 and self.device.type == "cuda":
            self.block, self.record = self.ledger.birth(self.bytes, operator, dtype, shape, kind)

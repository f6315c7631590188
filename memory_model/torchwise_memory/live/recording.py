"""Births and deaths of storages while real code runs on fake tensors, and their replay through the allocator.

PyTorch's `FakeTensorMode` gives every tensor a shape, a type and a device, and no data. A dispatch mode above
it sees each operator once, as the caching allocator would: a storage is born when an operator returns it and
dies when its last owner lets go. `torch.distributed._tools.MemTracker` follows storages the same way.
"""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchwise_memory.allocator import Allocator, AllocatorSettings
from torchwise_memory.report import Phase

#: The engine calls this function of PyTorch and no other Python while it sums gradients.
_ENGINE_FRAME = "_engine_run_backward"
#: What keeps Dynamo out of a dispatch mode stands in between (torch/_compile.py and _dynamo/eval_frame.py).
_WRAPPERS = frozenset(["inner", "_fn"])
#: The storage number of the event that is none.
MARK = -1
_PRODUCTS = frozenset(["mm", "bmm", "addmm", "baddbmm", "_scaled_mm", "linear"])


class Purpose(Enum):
    """What a storage is for. What a forward made is an activation until something better is known."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    INPUT = "input"
    ACTIVATIONS = "activations"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Event:
    """A birth of `bytes_`, or a death where they are None. storage: a number that is never used again."""

    storage: int
    bytes_: int | None
    phase: Phase


class Recorder(TorchDispatchMode):
    """Lists the events of all storages on one device type.

    `phase` is set from outside. `purposes` may be corrected once it is known what a storage was for.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.phase = Phase.FORWARD
        self.events: list[Event] = []
        self.purposes: dict[int, Purpose] = {}
        self.multiplies = {Phase.FORWARD: False, Phase.BACKWARD: False}
        self._numbers: dict[int, int] = {}
        self._heirs: dict[int, int] = {}
        self._watched: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _PRODUCTS and self.phase in self.multiplies:
            self.multiplies[self.phase] = True
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                number = self.note(tensor)
                if number is not None and name == "add" and self._is_engine_sum(args):
                    self._heirs[number] = self.number_of(args[0])
        return output

    def note(self, tensor: Any, purpose: Purpose | None = None) -> int | None:
        """Its storage is alive from now on. Returns its number where it is new and on the device."""
        if tensor.device.type != self.device_type:
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return None
        number = len(self.purposes)
        self._numbers[key] = number
        self._watched[number] = weakref.ref(storage, lambda _: self._forget(key, number))
        usual = Purpose.ACTIVATIONS if self.phase is Phase.FORWARD else Purpose.TEMPORARY
        self.purposes[number] = purpose or usual
        self.events.append(Event(number, storage.nbytes(), self.phase))
        return number

    def label(self, tensors: Iterable[Any], purpose: Purpose) -> None:
        """What these tensors' storages are for."""
        for tensor in tensors:
            number = self._numbers.get(tensor.untyped_storage()._cdata)
            if number is not None:
                self.purposes[number] = purpose

    def drop(self, tensors: Iterable[Any]) -> None:
        """These live in host memory on a real run: they are not counted."""
        numbers = {self._numbers.get(tensor.untyped_storage()._cdata) for tensor in tensors}
        self.events = [event for event in self.events if event.storage not in numbers]

    def mark(self) -> None:
        """From here on peaks count."""
        self.events.append(Event(MARK, None, self.phase))

    def settled_events(self) -> list[Event]:
        """All events; a gradient sum that the engine makes in place takes over the storage of its addend.

        Fake tensors are a subclass, for which `InputBuffer::add` (torch/csrc/autograd/input_buffer.cpp) sums
        out of place; plain tensors that nobody else holds are summed in place.
        """
        owners: dict[int, int] = {}
        inherited: set[int] = set()
        settled: list[Event] = []
        for index, event in enumerate(self.events):
            addend = self._heirs.get(event.storage) if event.bytes_ is not None else None
            if addend is not None and self._dies_next(addend, index):
                owners[event.storage] = owners.get(addend, addend)
                inherited.add(addend)
            elif event.bytes_ is not None or event.storage not in inherited:
                settled.append(Event(owners.get(event.storage, event.storage), event.bytes_, event.phase))
        return settled

    def _dies_next(self, storage: int, index: int) -> bool:
        """Whether it dies before anything else is born after `index`."""
        for event in self.events[index + 1 :]:
            if event.bytes_ is not None:
                return False
            if event.storage == storage:
                return True
        return False

    def _forget(self, key: int, number: int) -> None:
        self._watched.pop(number, None)
        if self._numbers.get(key) == number:
            del self._numbers[key]
        self.events.append(Event(number, None, self.phase))

    def number_of(self, tensor: Any) -> int:
        return self._numbers.get(tensor.untyped_storage()._cdata, MARK)

    def _is_engine_sum(self, args: tuple[Any, ...]) -> bool:
        if self.phase is not Phase.BACKWARD or len(args) != 2:
            return False
        if not all(isinstance(each, torch.Tensor) for each in args) or args[0].shape != args[1].shape:
            return False
        caller = sys._getframe(2)
        while caller.f_back is not None and caller.f_code.co_name in _WRAPPERS:
            caller = caller.f_back
        return caller.f_code.co_name == _ENGINE_FRAME


@dataclass(frozen=True, slots=True)
class Replayed:
    """Peaks in bytes of what followed the mark, and what was alive at the allocated one."""

    allocated: int
    reserved: int
    phase: Phase
    by_purpose: dict[Purpose, int]


def replay(
    events: Iterable[Event],
    purposes: Mapping[int, Purpose],
    settings: AllocatorSettings,
    shares: Mapping[int, float] | None = None,
    workspace_bytes: int = 0,
) -> Replayed:
    """Runs the events through the caching allocator; peaks count from the mark on.

    shares: of a storage's bytes that one process holds (sharded parameters and what belongs to them).
    """
    allocator = Allocator(settings)
    blocks: dict[int, Any] = {}
    held = dict.fromkeys(Purpose, 0)
    peak, phase, at_peak = 0, Phase.FORWARD, dict(held)
    if workspace_bytes:
        held[Purpose.WORKSPACE] = allocator.malloc(workspace_bytes).size
    for event in events:
        if event.storage == MARK:
            allocator.reset_peaks()
            peak, phase, at_peak = allocator.allocated, event.phase, dict(held)
        elif event.bytes_ is None:
            block = blocks.pop(event.storage, None)
            if block is not None:
                held[purposes[event.storage]] -= block.size
                allocator.free(block)
        elif event.bytes_:
            share = (shares or {}).get(event.storage, 1.0)
            block = blocks[event.storage] = allocator.malloc(int(event.bytes_ * share))
            held[purposes[event.storage]] += block.size
            if allocator.allocated > peak:
                peak, phase, at_peak = allocator.allocated, event.phase, dict(held)
    at_peak = {purpose: bytes_ for purpose, bytes_ in at_peak.items() if bytes_}
    return Replayed(peak, allocator.peak_reserved, phase, at_peak)

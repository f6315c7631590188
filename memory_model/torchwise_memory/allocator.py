"""PyTorch's CUDA caching allocator, simulated for one device and one stream.

Follows `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.x: sizes and lifetimes in, allocated and reserved
bytes out. `allocated` counts whole blocks, so an unsplit remainder of up to 1 MiB counts as allocated, as it
does in `torch.cuda.memory_allocated()`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

MIB = 1 << 20

MIN_BLOCK_BYTES = 512
SMALL_LIMIT_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_SEGMENT_LIMIT_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB

_ADDRESS_SPACE = 1 << 48
_FIRST_ADDRESS = 1 << 40


class OutOfMemoryError(Exception):
    """A request did not fit the capacity even after every cached segment was given back."""

    def __init__(self, requested_bytes: int, reserved_bytes: int, capacity_bytes: int) -> None:
        super().__init__(f"{requested_bytes} B more than {reserved_bytes} B reserved of {capacity_bytes} B")
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes
        self.capacity_bytes = capacity_bytes


#: The environment variables that hold the allocator's options.
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The options of `PYTORCH_CUDA_ALLOC_CONF` (since 2.10 also `PYTORCH_ALLOC_CONF`) that change sizes.

    `backend` is kept for reports; `cudaMallocAsync` is simulated like the native one.
    `power2_divisions` holds (from this many MiB on, divisions) pairs in ascending order; empty means off.
    `unknown` keeps the keys that were written but are not modelled, so that a caller can say so.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    power2_divisions: tuple[tuple[int, int], ...] = ()
    garbage_collection_threshold: float = 0.0
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    backend: str = "native"
    unknown: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> AllocatorSettings:
        """Reads the value of the environment variable; what cannot be read lands in `unknown`."""
        settings = AllocatorSettings()
        for option in _split_options(text):
            key, _, value = (part.strip() for part in option.partition(":"))
            settings = _with_option(settings, key, value)
        return settings


class Block:
    """A piece of a segment. `size` is what counts as allocated while `used`."""

    __slots__ = ("addr", "free_since", "mapped", "next", "prev", "segment", "size", "small", "used")

    def __init__(self, addr: int, size: int, small: bool, segment: int, mapped: bool = True) -> None:
        self.addr = addr
        self.size = size
        self.small = small
        self.segment = segment
        self.mapped = mapped
        self.used = False
        self.prev: Block | None = None
        self.next: Block | None = None
        self.free_since = 0


_FreeList = list[tuple[int, int, Block]]
_DEFAULTS = AllocatorSettings()
_NOWHERE = Block(0, 0, small=False, segment=0)


class Allocator:
    """Blocks by `malloc` and `free`; counters in bytes, peaks since the start or `reset_peaks`.

    `capacity_bytes` is what `cudaMalloc` can hand to this process (card total less context and others); None
    is a card without end. `limited` says that the script set a memory fraction: garbage collection needs one.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
        limited: bool = False,
    ) -> None:
        self.settings = settings or _DEFAULTS
        self.capacity_bytes = capacity_bytes
        self.limited = limited
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.retries = 0
        self._free_small: _FreeList = []
        self._free_large: _FreeList = []
        self._heads: dict[int, Block] = {}
        self._unmapped: dict[bool, list[tuple[int, Block]]] = {True: [], False: []}
        self._next_address = _FIRST_ADDRESS
        self._searches = 0

    def malloc(self, bytes_: int) -> Block:
        """A block of at least `bytes_`. Raises OutOfMemoryError where the capacity does not allow it."""
        if self.settings is _DEFAULTS:
            # what `rounded`, `_take_free` and `_should_split` come to: asked for by every tensor of every run
            size = max(MIN_BLOCK_BYTES, -(-bytes_ // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)
            small = size <= SMALL_LIMIT_BYTES
            free = self._free_small if small else self._free_large
            self._searches += 1
            index = bisect_left(free, (size, 0, _NOWHERE))
            block = free.pop(index)[2] if index < len(free) else self._take_new(size, small)
            remaining = block.size - size
            splits = remaining >= MIN_BLOCK_BYTES if block.small else remaining > SMALL_LIMIT_BYTES
        else:
            size = self.rounded(bytes_)
            small = size <= SMALL_LIMIT_BYTES
            block = self._take_free(size, small) or self._take_new(size, small)
            splits = self._should_split(block, size)
        if splits:
            self._split(block, size)
        block.used = True
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def free(self, block: Block) -> None:
        """Gives a block back; neighbours that are free melt into one."""
        assert block.used, "block freed twice"
        block.used = False
        self.allocated -= block.size
        free = self._free_small if block.small else self._free_large
        block = self._merge_neighbours(block, free)
        block.free_since = self._searches
        insort(free, (block.size, block.addr, block))

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache()`: every segment, or mapped page, that is wholly free goes back."""
        self._release_cached()

    def reset_peaks(self) -> None:
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def rounded(self, bytes_: int) -> int:
        """The size a request is rounded to before a block is looked for."""
        divisions = self._divisions(bytes_) if self.settings.power2_divisions else 0
        if divisions > 1 and bytes_ > MIN_BLOCK_BYTES * divisions:
            return _next_power2_division(bytes_, divisions)
        return max(MIN_BLOCK_BYTES, -(-bytes_ // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)

    def segments(self) -> Iterator[list[Block]]:
        """The mapped blocks of each segment in address order. For tests and reports."""
        for head in self._heads.values():
            blocks: list[Block] = []
            block: Block | None = head
            while block is not None:
                if block.mapped:
                    blocks.append(block)
                block = block.next
            yield blocks

    def _divisions(self, bytes_: int) -> int:
        chosen = 0
        for from_mib, divisions in self.settings.power2_divisions:
            if bytes_ >= from_mib * MIB:
                chosen = divisions
        return chosen

    def _take_free(self, size: int, small: bool) -> Block | None:
        """Best fit, ties by address."""
        self._searches += 1
        free = self._free_small if small else self._free_large
        index = bisect_left(free, (size, 0, _NOWHERE))
        if index == len(free):
            return None
        if self.settings.expandable_segments:
            index = _least_expandable(free, index)
        found = free[index][2]
        limit = self.settings.max_split_bytes
        if limit is not None:
            if size < limit <= found.size:
                return None
            if size >= limit and found.size >= size + self.settings.max_non_split_rounding_bytes:
                return None
        del free[index]
        return found

    def _take_new(self, size: int, small: bool) -> Block:
        if self.limited and self.settings.garbage_collection_threshold > 0:
            self._collect_garbage()
        block = self._reserve(size, small)
        if block is not None:
            return block
        self.retries += 1
        if self.settings.max_split_bytes is not None and self._release_oversized(size, small):
            block = self._reserve(size, small)
        if block is None:
            self._release_cached()
            block = self._reserve(size, small)
        if block is None:
            raise OutOfMemoryError(size, self.reserved, self.capacity_bytes or 0)
        return block

    def _reserve(self, size: int, small: bool) -> Block | None:
        if self.settings.expandable_segments:
            return self._expand(size, small)
        segment_bytes = self._segment_bytes(size, small)
        if not self._has_room(segment_bytes):
            return None
        block = Block(self._next_address, segment_bytes, small, self._next_address)
        self._next_address += segment_bytes + MIB
        self._heads[block.segment] = block
        self._grow_reserved(segment_bytes)
        return block

    def _segment_bytes(self, size: int, small: bool) -> int:
        if small:
            return SMALL_SEGMENT_BYTES
        if size < LARGE_SEGMENT_LIMIT_BYTES:
            return self.settings.large_segment_bytes
        return -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES

    def _has_room(self, more_bytes: int) -> bool:
        return self.capacity_bytes is None or self.reserved + more_bytes <= self.capacity_bytes

    def _grow_reserved(self, more_bytes: int) -> None:
        self.reserved += more_bytes
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved

    def _should_split(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.small or self.settings.expandable_segments:
            return remaining >= MIN_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return (limit is None or size < limit) and remaining > SMALL_LIMIT_BYTES

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.addr + size, block.size - size, block.small, block.segment)
        block.size = size
        _link_after(block, rest)
        rest.free_since = self._searches
        insort(self._free_small if rest.small else self._free_large, (rest.size, rest.addr, rest))

    def _merge_neighbours(self, block: Block, free: _FreeList) -> Block:
        """Joins `block`, which is in no free list, with free mapped neighbours; returns the joined block."""
        following = block.next
        if following is not None and not following.used and following.mapped:
            del free[bisect_left(free, (following.size, following.addr, following))]
            block.size += following.size
            _unlink(following)
        preceding = block.prev
        if preceding is not None and not preceding.used and preceding.mapped:
            del free[bisect_left(free, (preceding.size, preceding.addr, preceding))]
            preceding.size += block.size
            _unlink(block)
            return preceding
        return block

    # -- expandable segments: one run of address space for each pool, mapped page by page

    def _expand(self, size: int, small: bool) -> Block | None:
        block = self._room_in_address_space(size, small)
        if not block.mapped:
            mapped = self._map(block, min(size, block.size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            beyond = block.next
            assert beyond is not None, "address space was checked"
            mapped = self._map(beyond, min(size - block.size, beyond.size))
            if mapped is None:
                return None
            block = mapped
        _discard(self._free_small if small else self._free_large, block)
        return block

    def _room_in_address_space(self, size: int, small: bool) -> Block:
        for _, unmapped in self._unmapped[small]:
            start = unmapped
            if start.prev is not None and not start.prev.used:
                start = start.prev
            if _free_run(start) >= size:
                return start
        space = Block(self._next_address, _ADDRESS_SPACE, small, self._next_address, mapped=False)
        self._next_address += _ADDRESS_SPACE + LARGE_SEGMENT_BYTES
        self._heads[space.segment] = space
        insort(self._unmapped[small], (space.addr, space))
        return space

    def _map(self, block: Block, size: int) -> Block | None:
        """Maps pages over the first `size` bytes of an unmapped block; returns the free block they joined."""
        page = self._page_bytes(block.small)
        pages = min(-(-size // page) * page, block.size)
        if not self._has_room(pages):
            return None
        unmapped = self._unmapped[block.small]
        del unmapped[bisect_left(unmapped, (block.addr, block))]
        if pages < block.size:
            rest = Block(block.addr + pages, block.size - pages, block.small, block.segment, mapped=False)
            block.size = pages
            _link_after(block, rest)
            insort(unmapped, (rest.addr, rest))
        block.mapped = True
        self._grow_reserved(pages)
        free = self._free_small if block.small else self._free_large
        block = self._merge_neighbours(block, free)
        insort(free, (block.size, block.addr, block))
        return block

    def _unmap(self, block: Block) -> None:
        """Gives back the whole pages inside a free block."""
        page = self._page_bytes(block.small)
        base = block.segment
        start = base + -(-(block.addr - base) // page) * page
        end = base + (block.addr + block.size - base) // page * page
        if start >= end:
            return
        free = self._free_small if block.small else self._free_large
        _discard(free, block)
        if end < block.addr + block.size:
            tail = Block(end, block.addr + block.size - end, block.small, block.segment)
            _link_after(block, tail)
            insort(free, (tail.size, tail.addr, tail))
        hole = block
        if start > block.addr:
            hole = Block(start, end - start, block.small, block.segment)
            block.size = start - block.addr
            _link_after(block, hole)
            insort(free, (block.size, block.addr, block))
        else:
            hole.size = end - start
        hole.mapped = False
        self.reserved -= end - start
        self._join_unmapped(hole)

    def _join_unmapped(self, hole: Block) -> None:
        unmapped = self._unmapped[hole.small]
        following, preceding = hole.next, hole.prev
        if following is not None and not following.mapped:
            del unmapped[bisect_left(unmapped, (following.addr, following))]
            hole.size += following.size
            _unlink(following)
        if preceding is not None and not preceding.mapped:
            preceding.size += hole.size
            _unlink(hole)
            return
        insort(unmapped, (hole.addr, hole))

    def _page_bytes(self, small: bool) -> int:
        return SMALL_SEGMENT_BYTES if small else self.settings.large_segment_bytes

    # -- giving cached memory back

    def _release_cached(self) -> None:
        for free in (self._free_small, self._free_large):
            for _, _, block in list(free):
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif block.prev is None and block.next is None:
                    self._release(block)

    def _release(self, block: Block) -> None:
        _discard(self._free_small if block.small else self._free_large, block)
        del self._heads[block.segment]
        self.reserved -= block.size

    def _release_oversized(self, size: int, small: bool) -> bool:
        """Gives back just enough unsplit oversized blocks for one request (only with `max_split_size_mb`)."""
        limit = self.settings.max_split_bytes
        if limit is None or self.settings.expandable_segments:
            return False
        free = self._free_small if small else self._free_large
        index = bisect_left(free, (max(size, limit), 0, _NOWHERE))
        whole = [entry[2] for entry in free if entry[2].prev is None and entry[2].next is None]
        if index < len(free) and free[index][2] in whole:
            self._release(free[index][2])
            return True
        released = 0
        for block in reversed(whole):
            if block.size < limit or released >= size:
                break
            released += block.size
            self._release(block)
        return released >= size

    def _collect_garbage(self) -> None:
        """Releases the unsplit large blocks that waited longest until use falls below the threshold."""
        if self.capacity_bytes is None:
            return
        target = self.reserved - int(self.settings.garbage_collection_threshold * self.capacity_bytes)
        idle: list[Block] = [
            entry[2] for entry in self._free_large if entry[2].prev is None and entry[2].next is None
        ]
        while target > 0 and idle:
            mean_age = sum(self._searches - block.free_since for block in idle) / len(idle)
            old: list[Block] = [block for block in idle if self._searches - block.free_since >= mean_age]
            for block in old:
                if target <= 0:
                    return
                target -= block.size
                self._release(block)
            idle = [block for block in idle if block not in old]


def _least_expandable(free: _FreeList, index: int) -> int:
    """Best fit by the size a block could expand to, so that the end of a segment is taken last."""
    while index + 1 < len(free) and _expandable_size(free[index + 1][2]) < _expandable_size(free[index][2]):
        index += 1
    return index


def _expandable_size(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _free_run(block: Block | None) -> int:
    """Bytes from here on that are free or unmapped, up to the first used block."""
    room = 0
    while block is not None and not block.used:
        room += block.size
        block = block.next
    return room


def _discard(free: _FreeList, block: Block) -> None:
    del free[bisect_left(free, (block.size, block.addr, block))]


def _link_after(block: Block, new: Block) -> None:
    new.prev, new.next = block, block.next
    if block.next is not None:
        block.next.prev = new
    block.next = new


def _unlink(block: Block) -> None:
    if block.prev is not None:
        block.prev.next = block.next
    if block.next is not None:
        block.next.prev = block.prev
    block.prev = block.next = None


def _next_power2_division(bytes_: int, divisions: int) -> int:
    if bytes_ & (bytes_ - 1) == 0:
        return bytes_
    step = (1 << (bytes_.bit_length() - 1)) // divisions
    return -(-bytes_ // step) * step if step else 1 << bytes_.bit_length()


def _split_options(text: str) -> list[str]:
    """Splits at commas outside brackets: `roundup_power2_divisions:[256:1,512:2,>:8]` is one option."""
    options: list[str] = []
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            options.append(text[start:index])
            start = index + 1
    options.append(text[start:])
    return [option for option in options if option.strip()]


def _with_option(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    try:
        if key == "expandable_segments":
            return replace(settings, expandable_segments=value.lower() == "true")
        if key == "max_split_size_mb":
            return replace(settings, max_split_bytes=max(int(value), LARGE_SEGMENT_BYTES // MIB) * MIB)
        if key == "max_non_split_rounding_mb":
            return replace(settings, max_non_split_rounding_bytes=int(value) * MIB)
        if key == "roundup_power2_divisions":
            return replace(settings, power2_divisions=_power2_divisions(value))
        if key == "garbage_collection_threshold":
            return replace(settings, garbage_collection_threshold=float(value))
        if key == "large_segment_size_mb":
            return replace(settings, large_segment_bytes=int(value) * MIB)
        if key == "backend":
            return replace(settings, backend=value)
    except ValueError:
        pass
    if key in _WITHOUT_EFFECT_ON_SIZES:
        return settings
    return replace(settings, unknown=(*settings.unknown, key))


_WITHOUT_EFFECT_ON_SIZES = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_max_register_threads",
        "graph_capture_record_stream_reuse",
    }
)


def _power2_divisions(value: str) -> tuple[tuple[int, int], ...]:
    """One number for all sizes, or `[256:1,512:2,1024:4,>:8]` where each key is a lower bound in MiB.

    PyTorch looks divisions up by the power of two below the size, so a key applies from its own size on, the
    first also below it, and `>` to everything from twice the last key.
    """
    if not value.startswith("["):
        return ((0, int(value)),)
    pairs: list[tuple[int, int]] = []
    for item in value.strip("[]").split(","):
        bound, _, divisions = item.partition(":")
        if bound.strip() == ">":
            last = pairs[-1][0] if pairs else 0
            pairs.append((last * 2, int(divisions)))
        else:
            pairs.append((int(bound) if pairs else 0, int(divisions)))
    return tuple(pairs)

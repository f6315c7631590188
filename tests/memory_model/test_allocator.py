"""The simulated caching allocator: documented sizes, and properties over random histories."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchwise_memory.allocator import MIB, Allocator, AllocatorSettings, Block, OutOfMemoryError

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(MIB - 1024, MIB + 1024),
    st.integers(9 * MIB, 11 * MIB),
    st.integers(1, 200 * MIB),
)
History = list[tuple[bool, int, int]]
HISTORIES = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1 << 30)), max_size=120)
OPTIONS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(expandable_segments=True),
        AllocatorSettings(max_split_bytes=32 * MIB),
        AllocatorSettings(power2_divisions=((0, 4),)),
    ]
)


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = Allocator()
    assert [allocator.malloc(n).size for n in (1, 512, 513, 1000)] == [512, 512, 1024, 1024]


@pytest.mark.parametrize(
    ("bytes_", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (151 * MIB, 152 * MIB),
    ],
)
def test_segment_sizes(bytes_: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.malloc(bytes_)
    assert allocator.reserved == reserved


def test_an_unsplit_remainder_of_up_to_one_mebibyte_counts_as_allocated() -> None:
    allocator = Allocator()
    assert allocator.malloc(11 * MIB).size == 12 * MIB
    assert allocator.malloc(11 * MIB - 512).size == 11 * MIB - 512
    assert allocator.allocated == 23 * MIB - 512


def test_small_requests_never_use_large_segments() -> None:
    allocator = Allocator()
    allocator.free(allocator.malloc(15 * MIB))
    allocator.malloc(1024)
    assert allocator.reserved == 16 * MIB + 2 * MIB


def test_best_fit_takes_the_smallest_block_that_is_large_enough() -> None:
    allocator = Allocator()
    large, _, middle, _ = (allocator.malloc(n * MIB) for n in (64, 30, 40, 30))
    allocator.free(large)
    allocator.free(middle)
    assert allocator.malloc(39 * MIB + 512 * 1024).addr == middle.addr


def test_expandable_segments_grow_by_pages_and_split_exactly() -> None:
    allocator = Allocator(AllocatorSettings(expandable_segments=True))
    first = allocator.malloc(21 * MIB)
    assert (first.size, allocator.reserved) == (21 * MIB, 40 * MIB)
    allocator.malloc(19 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.malloc(100 * MIB + 512)
    assert allocator.reserved == 160 * MIB
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.reserved == 140 * MIB


def test_near_the_limit_cached_segments_are_released_and_the_request_retried() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert (allocator.reserved, allocator.retries) == (80 * MIB, 1)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(30 * MIB)


def test_garbage_collection_frees_idle_blocks_above_the_threshold() -> None:
    conf = AllocatorSettings(garbage_collection_threshold=0.5)
    allocator = Allocator(conf, capacity_bytes=100 * MIB, limited=True)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(70 * MIB)
    assert (allocator.reserved, allocator.retries) == (70 * MIB, 0)


def test_oversized_blocks_are_not_split() -> None:
    allocator = Allocator(AllocatorSettings(max_split_bytes=64 * MIB))
    allocator.free(allocator.malloc(200 * MIB))
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 230 * MIB
    assert allocator.malloc(190 * MIB).size == 200 * MIB


def test_power_of_two_divisions() -> None:
    allocator = Allocator(AllocatorSettings(power2_divisions=((0, 4),)))
    assert allocator.rounded(1200 * 1024) == 1280 * 1024
    assert allocator.rounded(1024) == 1024


def test_options_are_read_and_unknown_ones_kept() -> None:
    conf = AllocatorSettings.parse(
        "expandable_segments:True, max_split_size_mb:128,"
        "roundup_power2_divisions:[256:1,512:2,>:8],colour:red"
    )
    assert conf == AllocatorSettings(
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        power2_divisions=((0, 1), (512, 2), (1024, 8)),
        unknown=("colour",),
    )
    assert AllocatorSettings.parse("max_split_size_mb:lots").unknown == ("max_split_size_mb",)


@given(HISTORIES, OPTIONS)
@settings(max_examples=150, deadline=None)
def test_bytes_are_conserved_and_blocks_never_overlap(history: History, conf: AllocatorSettings) -> None:
    allocator = Allocator(conf)
    live: list[Block] = []
    seen_allocated = seen_reserved = 0
    for is_free, bytes_, choice in history:
        if is_free and live:
            allocator.free(live.pop(choice % len(live)))
        else:
            block = allocator.malloc(bytes_)
            assert block.size >= bytes_
            live.append(block)
        seen_allocated = max(seen_allocated, allocator.allocated)
        seen_reserved = max(seen_reserved, allocator.reserved)
        assert (allocator.peak_allocated, allocator.peak_reserved) == (seen_allocated, seen_reserved)
    _check(allocator, live)
    for block in live:
        allocator.free(block)
    _check(allocator, [])
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


@given(HISTORIES)
@settings(max_examples=60, deadline=None)
def test_a_capacity_is_never_exceeded(history: History) -> None:
    allocator = Allocator(capacity_bytes=256 * MIB)
    live: list[Block] = []
    for is_free, bytes_, choice in history:
        if is_free and live:
            allocator.free(live.pop(choice % len(live)))
            continue
        try:
            live.append(allocator.malloc(bytes_))
        except OutOfMemoryError:
            break
    assert allocator.peak_reserved <= 256 * MIB
    _check(allocator, live)


def _check(allocator: Allocator, live: list[Block]) -> None:
    used, total = [], 0
    for segment in allocator.segments():
        for left, right in pairwise(segment):
            assert left.addr + left.size <= right.addr
            if left.addr + left.size == right.addr:
                assert left.used or right.used, "free neighbours were not joined"
        used += [block for block in segment if block.used]
        total += sum(block.size for block in segment)
    assert sorted(block.addr for block in used) == sorted(block.addr for block in live)
    assert allocator.allocated == sum(block.size for block in live)
    assert allocator.reserved == total

"""The caching allocator against small cases by hand, and what must hold of any order of allocations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.meters.caching_allocator import MIB, CachingAllocator, reserved_bytes


@pytest.mark.parametrize(
    ("sizes", "reserved_mib"),
    [
        ([1], 2),  # a small block's segment
        ([MIB, MIB], 2),
        ([MIB, MIB, 1], 4),
        ([MIB + 1], 20),
        ([9 * MIB, 9 * MIB], 20),
        ([9 * MIB, 9 * MIB, 9 * MIB], 40),
        ([10 * MIB], 10),
        ([11 * MIB + 1], 12),
        ([100 * MIB, 100 * MIB], 200),
    ],
)
def test_segments_by_hand(sizes: list[int], reserved_mib: int) -> None:
    assert reserved_bytes(enumerate(sizes)) == reserved_mib * MIB


def test_a_freed_block_is_taken_again_and_split_where_enough_is_left() -> None:
    hundred, ninety = 100 * MIB, 90 * MIB
    assert reserved_bytes([(1, hundred), (1, -hundred), (2, ninety)]) == hundred
    left = [(1, hundred), (1, -hundred), (2, ninety), (3, 10 * MIB)]
    assert reserved_bytes(left) == hundred  # what is left of the first
    almost = [(1, hundred), (1, -hundred), (2, hundred - MIB), (3, MIB + 512)]
    assert reserved_bytes(almost) == hundred + 20 * MIB  # 1 MiB is not split off


def test_holes_are_too_small_and_neighbours_join() -> None:
    parts = [(name, 20 * MIB) for name in range(5)]
    holes = [(1, -20 * MIB), (3, -20 * MIB)]
    assert reserved_bytes([(9, 100 * MIB), (9, -100 * MIB), *parts, *holes, (6, 40 * MIB)]) == 140 * MIB
    assert reserved_bytes([(9, 100 * MIB), (9, -100 * MIB), *parts, *holes, (2, -20 * MIB), (6, 60 * MIB)]) == 100 * MIB


def test_an_expandable_segment_grows_at_its_end() -> None:
    grown = [(1, 100 * MIB), (1, -100 * MIB), (2, 150 * MIB)]
    assert reserved_bytes(grown) == 250 * MIB and reserved_bytes(grown, expandable=True) == 160 * MIB


EVENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40 * MIB)), max_size=40)


@given(EVENTS, st.booleans())
def test_what_is_held_never_overlaps_and_fits_what_is_reserved(events: list[tuple[int, int]], expandable: bool) -> None:
    allocator = CachingAllocator(expandable)
    for name, nbytes in events:
        allocator.free(name)
        allocator.allocate(name, nbytes)
        held = sorted((block.start, block.size) for block, _ in allocator._held.values())
        assert all(start + size <= after for (start, size), (after, _) in pairwise(held))
        assert sum(size for _, size in held) <= allocator.reserved_bytes

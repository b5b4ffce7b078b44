"""Says what torch's caching allocator holds of a GPU's memory for a given order of allocations: blocks and segments.

    asked      rounded up to 512 bytes
    pools      of at most 1 MiB: from segments of 2 MiB; larger: from segments of 20 MiB, from 10 MiB on of its own
               size, rounded up to 2 MiB
    found      the smallest free block that is large enough, of the pool, the lowest of equal ones; else a new segment
    split      what is left over, where it is 512 bytes or more of a small block, more than 1 MiB of a large one
    freed      blocks join their free neighbours of the same segment; a segment is never given back

It is *reserved* bytes, those of all segments, that run out. (torch's ``c10/cuda/CUDACachingAllocator.cpp``: constants
and rules of release 2.x, no options set.) With ``expandable`` segments (``PYTORCH_CUDA_ALLOC_CONF``) each pool is one
segment that grows at its end by pages of 20 MiB, of 2 MiB for small blocks. Limits. Of one stream; what a process holds
besides (its context, libraries' workspaces) is apart. Where memory runs out the allocator frees cached segments and
tries again, so a step may run in less than this. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20
ROUNDED = 512
SMALL = MIB
"""The largest allocation of the small pool; what is left of a large block is split off where it is more."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
OWN_SEGMENT = 10 * MIB
"""From here on an allocation has a segment of its own size."""


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


@dataclass(eq=False, slots=True)
class _Span:
    start: int
    size: int
    free: bool = True
    before: _Span | None = None
    after: _Span | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.size, self.start


@dataclass(slots=True)
class _FreeSpans:
    """Holds the free blocks of a pool, the smallest first, and its segment's last block where it is one that grows."""

    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    at: dict[int, _Span] = field(default_factory=dict)
    last: _Span | None = None

    def put(self, block: _Span) -> None:
        block.free = True
        insort(self.free, block.order)
        self.at[block.start] = block

    def take(self, block: _Span) -> None:
        block.free = False
        del self.free[bisect_left(self.free, block.order)]
        del self.at[block.start]


class CachingAllocator:
    """Allocates and frees by names, as torch does on a GPU. ``reserved_bytes`` never shrinks."""

    def __init__(self, expandable: bool = False) -> None:
        self.reserved_bytes = 0
        self.expandable = expandable
        self._pools = {small: _FreeSpans(small) for small in (True, False)}
        self._held: dict[Hashable, tuple[_Span, _FreeSpans]] = {}
        self._end = 0

    def allocate(self, name: Hashable, nbytes: int) -> None:
        """Gives ``name`` a block. Nothing of none."""
        if nbytes <= 0:
            return
        size = _up(nbytes, ROUNDED)
        pool = self._pools[size <= SMALL]
        at = bisect_left(pool.free, (size, -1))
        block = pool.at[pool.free[at][1]] if at < len(pool.free) else self._grown(pool, size)
        pool.take(block)
        rest = block.size - size
        if rest >= ROUNDED if pool.small or self.expandable else rest > SMALL:
            left = _Span(block.start + size, rest, before=block, after=block.after)
            if block.after is not None:
                block.after.before = left
            block.size, block.after = size, left
            pool.put(left)
            if pool.last is block:
                pool.last = left
        self._held[name] = block, pool

    def free(self, name: Hashable) -> None:
        """Takes the block back, if it has one."""
        block, pool = self._held.pop(name, (None, None))
        if block is None or pool is None:
            return
        for other in (block.after, block.before):
            if other is not None and other.free:
                pool.take(other)
                first, second = (other, block) if other is block.before else (block, other)
                block = self._joined(first, second, pool)
        pool.put(block)

    @staticmethod
    def _joined(first: _Span, second: _Span, pool: _FreeSpans) -> _Span:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if pool.last is second:
            pool.last = first
        return first

    def _grown(self, pool: _FreeSpans, size: int) -> _Span:
        """Returns a free block of at least that size from the driver."""
        page = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        if self.expandable:
            return self._extended(pool, size, page)
        own = _up(size, 2 * MIB) if not pool.small and size >= OWN_SEGMENT else page
        block = _Span(self._end, own)
        self._end += own
        self.reserved_bytes += own
        pool.put(block)
        return block

    def _extended(self, pool: _FreeSpans, size: int, page: int) -> _Span:
        last = pool.last
        lacking = _up(size - (last.size if last is not None and last.free else 0), page)
        self.reserved_bytes += lacking
        if last is not None and last.free:
            pool.take(last)
            last.size += lacking
            pool.put(last)
            return last
        base = 0 if pool.small else 1 << 60  # each pool's addresses are its own
        block = _Span(base if last is None else last.start + last.size, lacking, before=last)
        if last is not None:
            last.after = block
        pool.last = block
        pool.put(block)
        return block


def reserved_bytes(events: Iterable[tuple[Hashable, int]], expandable: bool = False) -> int:
    """Returns what the allocator has reserved after all events: a name, and by how many bytes it grew (it is allocated
    anew) or shrank."""
    allocator = CachingAllocator(expandable)
    sizes: dict[Hashable, int] = {}
    for name, change in events:
        allocator.free(name)
        sizes[name] = sizes.get(name, 0) + change
        allocator.allocate(name, sizes[name])
    return allocator.reserved_bytes

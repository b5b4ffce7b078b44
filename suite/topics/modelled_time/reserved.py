"""Notes in which order a step allocates and frees, for what torch's caching allocator then reserves."""

from __future__ import annotations

from suite.meters.caching_allocator import reserved_bytes
from suite.meters.tensors import TensorBytes


class AllocationOrder(TensorBytes):
    """Counts as :class:`TensorBytes` does. ``reserved_bytes`` are there when its window has closed: of what existed
    before, in the order in which it was seen, and of all that came after."""

    reserved_bytes = 0

    def _settle(self) -> None:
        before: list[tuple[int, int]] = []
        after: list[tuple[int, int]] = []
        seen: set[int] = set()
        for block, change in self._log:
            first = block.existed_before and id(block) not in seen
            seen.add(id(block))
            (before if first else after).append((id(block), change))
        self.reserved_bytes = reserved_bytes([*before, *after])
        super()._settle()

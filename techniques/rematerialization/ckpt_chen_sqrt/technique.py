"""Sublinear memory (Chen, Xu, Zhang, Guestrin, 2016, section 4.2): keep the inputs of about sqrt(L) segments, recompute
the inside of one segment at a time in the backward pass.

Memory falls from L blocks to k + ceil(L / k), least near k = sqrt(L); the price is at most one more forward pass.
Gradients stay the same to the bit, dropout included, because the random state is replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from suite.contract.run import Run
from suite.contract.technique import Technique


def segments(depth: int, count: int) -> list[tuple[int, int]]:
    """``depth`` blocks in ``count`` consecutive ranges of nearly equal length, the longer ones last."""
    short, longer = divmod(depth, count)
    ends = [sum(short + (index >= count - longer) for index in range(last + 1)) for last in range(count)]
    return list(zip([0, *ends], ends, strict=False))


def peak_slots(depth: int, count: int) -> int:
    """Blocks' worth of memory at the peak: one input for each segment and the inside of one, k + ceil(L / k)."""
    return count + math.ceil(depth / count)


@dataclass
class ChenSqrt(Technique):
    """``count`` segments in every stack of blocks; None for floor(sqrt(L)), 0 for no recomputation.

    ``keep_last`` stores the last segment whole: its backward pass comes at once, so that recomputing it costs time and
    saves nothing, unless the output layer's activations outweigh a segment. ``early_stop`` lets torch leave a
    recomputation as soon as the last saved tensor is there, which makes it a little less than one forward pass.
    """

    count: int | None = None
    keep_last: bool = True
    early_stop: bool = True
    zero_strength: ClassVar[Mapping[str, Any]] = {"count": 0}

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 0:
            raise ValueError(f"count of segments is 1 or more, 0 for no recomputation or none, not {self.count}")

    def recomputed(self, depth: int) -> list[tuple[int, int]]:
        """The ranges of a stack of ``depth`` blocks that are run again in the backward pass."""
        count = math.isqrt(depth) if self.count is None else min(self.count, depth)
        ranges = segments(depth, count) if count else []
        return ranges[:-1] if self.keep_last else ranges

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        again = partial(checkpoint, use_reentrant=False)
        with ExitStack() as contexts:
            contexts.enter_context(set_checkpoint_early_stop(self.early_stop))
            for stack in run.anatomy.stacks:
                contexts.enter_context(run.anatomy.segmented(self.recomputed(stack.depth), again, stack))
            yield

    def probes(self, run: Run) -> dict[str, float]:
        depths = [stack.depth for stack in run.anatomy.stacks]
        again = sum(end - start for depth in depths for start, end in self.recomputed(depth))
        return {"recomputed_blocks": float(again), "recomputed_share": again / sum(depths)}

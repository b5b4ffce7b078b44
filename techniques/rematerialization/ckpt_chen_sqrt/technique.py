"""Implements sublinear memory (Chen, Xu, Zhang, Guestrin, 2016, section 4.2): keep the inputs of about sqrt(L)
segments, recompute the inside of one segment at a time in the backward pass.

Memory falls from L blocks to k + ceil(L / k), least near k = sqrt(L); the price is at most one more forward pass.
Gradients stay the same to the bit, dropout included, because the random state is replayed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, plain, segmented
from suite.chain.simulate import predicted
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import PLANS, Technique
from suite.model.anatomy import BlockStack
from suite.model.segments import joinable, segment_name

Range = tuple[int, int]


def segments(depth: int, count: int) -> list[Range]:
    """Divides ``depth`` blocks into ``count`` consecutive ranges of nearly equal length, the longer ones last."""
    short, longer = divmod(depth, count)
    ends = [sum(short + (index >= count - longer) for index in range(last + 1)) for last in range(count)]
    return list(zip([0, *ends], ends, strict=False))


def peak_slots(depth: int, count: int) -> int:
    """Counts blocks' worth of memory at the peak: one input for each segment and the inside of one, k + ceil(L / k)."""
    return count + math.ceil(depth / count)


def equal_segments(chain: Chain, budget_bytes: int) -> Schedule:
    """Finds the fastest of a plain pass and of 1 to L equal segments whose peak is within the budget. Raises
    Infeasible."""
    counts = range(1, chain.depth + 1)
    ways = [plain(chain.depth), *(segmented(chain.depth, segments(chain.depth, count)) for count in counts)]
    costs = [predicted(way, chain) for way in ways]
    fitting = [n for n, cost in enumerate(costs) if cost.peak_bytes <= budget_bytes]
    if not fitting:
        raise Infeasible("any number of equal segments", budget_bytes, min(cost.peak_bytes for cost in costs))
    return ways[min(fitting, key=lambda n: (costs[n].time_s, costs[n].peak_bytes))]


def recomputed(act: Act, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
    """Computes ``function(hidden)``, of which only ``hidden`` is kept; ``act`` is called when it runs again.

    Without gradients nothing runs again (the rehearsal of a compiled run): there that it runs must do.
    """
    runs = itertools.count()

    def noted(hidden: Tensor) -> Any:
        if next(runs):
            act()
        return function(hidden)

    if not torch.is_grad_enabled():
        act()
    return checkpoint(function if is_compiling() else noted, hidden, use_reentrant=False)


@dataclass
class ChenSqrt(Technique):
    """Makes ``count`` segments in every stack of blocks; None for ceil(sqrt(L)), 0 for no recomputation.

    ``keep_last`` stores the last segment whole: its backward pass comes at once, so that recomputing it costs time and
    saves nothing where the output layer's activations outweigh a segment, and elsewhere raises the peak. ``early_stop``
    lets torch leave a recomputation as soon as the last saved tensor is there, which makes it a little less than one
    forward pass. Blocks that the model calls with different arguments (T5's first) are not joined in one segment.
    """

    takes: ClassVar[str] = PLANS
    count: int | None = None
    keep_last: bool = False
    early_stop: bool = True
    zero_strength: ClassVar[Mapping[str, Any]] = {"count": 0}

    plans: dict[tuple[str, int], list[Range]] = field(init=False, repr=False, default_factory=dict)
    acts: dict[str, Act] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 0:
            raise ValueError(f"count of segments is 1 or more, 0 for no recomputation or none, not {self.count}")

    def recomputed(self, joined: Sequence[Range]) -> list[Range]:
        """Returns the ranges of a stack's blocks that are run again in the backward pass, each within one of
        ``joined``."""
        ranges: list[Range] = []
        for start, end in joined:
            depth = end - start
            count = math.ceil(math.sqrt(depth)) if self.count is None else min(self.count, depth)
            ranges += [(start + i, start + j) for i, j in (segments(depth, count) if count else [])]
        return ranges[:-1] if self.keep_last else ranges

    def plan(self, run: Run, stack: BlockStack) -> list[Range]:
        """Returns the recomputed ranges of a stack as deep as it is now."""
        key = stack.path, stack.depth
        if key not in self.plans:
            self.plans[key] = self.recomputed(joinable(run.model, stack.blocks, partial(run.trial, run.model)))
        return self.plans[key]

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        """Finds the fastest schedule of equal segments that fits, for plans of memory. Raises Infeasible."""
        return equal_segments(chain, budget_bytes)

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        with ExitStack() as contexts:
            contexts.enter_context(set_checkpoint_early_stop(self.early_stop))
            for stack in run.anatomy.stacks:
                for start, end in self.plan(run, stack):
                    act = self.acts.setdefault(segment_name(stack.path, start, end), Act())
                    contexts.enter_context(run.anatomy.segmented([(start, end)], partial(recomputed, act), stack))
            yield

    def sites(self, run: Run) -> Mapping[str, Site]:
        for stack in run.anatomy.stacks:
            for start, end in self.plan(run, stack):
                self.acts[segment_name(stack.path, start, end)] = Act()
        return self.acts

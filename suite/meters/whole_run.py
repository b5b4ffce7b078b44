"""Counts the FLOPs of a whole run, its set-up included, at a cost that a run bears.

A run's cost may change on the way, with its schedule or with its data, and its set-up may search or probe: five steps
do not say what it took. To count each step would take half as long again as the run (torch's counter looks at every
operator), so one step of each STRATUM is counted, drawn by chance: what is constant comes out exact, a change on the
way within a stratum's length, a cost that is drawn anew in each step within its own deviation over the root of the
number of strata. The set-up is counted whole.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves

from suite.meters.flops import FlopCounter

STRATUM = 8  # steps


class FlopTally:
    """Adds up the FLOPs of a run; ``seed`` decides which steps are counted. ``uncounted``: calls that were seen of
    operators that may compute and have no formula, by name; if there are any, ``total`` is a lower bound."""

    def __init__(self, seed: int) -> None:
        self.total = 0
        self.uncounted: Counter[str] = Counter()
        self._coin = random.Random(seed)

    @contextmanager
    def counting(self, times: int = 1) -> Iterator[None]:
        """Adds what runs inside, ``times`` over; also where that ends in an error."""
        counter = _OfValues()
        try:
            with counter:
                yield
        finally:
            self.total += times * counter.total
            self.uncounted.update(counter.uncounted)

    def train(
        self,
        train: Callable[[int], list[float]],
        steps: int,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> list[float]:
        """Returns what ``train(steps)`` returns, from calls with fewer steps each; ``around()`` is entered around the
        first step that is counted."""
        losses: list[float] = []
        while len(losses) < steps:
            stratum = min(STRATUM, steps - len(losses))
            counted = self._coin.randrange(stratum)
            losses += train(counted)
            with nullcontext() if len(losses) >= STRATUM else around(), self.counting(times=stratum):
                losses += train(1)
            losses += train(stratum - counted - 1)
        return losses


class _OfValues(FlopCounter):
    """Counts what computes values: a set-up may also try its steps with tensors that have none."""

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        tensors = (leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        if any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors):
            return out
        return super()._count_flops(func_packet, out, args, kwargs)

"""Runs a schedule on a stack's blocks, by the engine that can express it.

Autograd's own graph (:mod:`suite.chain.rerun`) follows every schedule that is a tree of runs, with values that leave on
the way there (:mod:`suite.chain.moving`): what leaves a block by another way than its output has its gradient. Weights
that come and go, and runs from further back than a graph that was saved since, need the executor of private graphs
(:mod:`suite.chain.execute`), which refuses such outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from suite.chain.execute import Acted, executed, unheard
from suite.chain.moving import Moving
from suite.chain.rerun import Reruns, Unwatched
from suite.chain.schedule import Schedule
from suite.chain.tiers import Tier
from suite.chain.tree import NotNested, nested


def scheduled(
    blocks: Sequence[nn.Module],
    schedule: Schedule,
    tier: Tier | None = None,
    acted: Acted = unheard,
    name: str = "the stack",
) -> AbstractContextManager[Any]:
    """While active, passes through ``blocks`` run as the schedule says; reruns go to their ends, as papers count them.

    ``tier`` takes what the schedule moves. Raises ValueError where it moves values and there is none.
    """
    if schedule.depth != len(blocks):
        raise ValueError(f"a schedule of {schedule.depth} blocks does not fit {name} of {len(blocks)}")
    if not is_tree(schedule):
        return executed(blocks, schedule, tier, acted, name)
    if schedule.moves and tier is None:
        raise ValueError("this schedule moves values to a second tier: pass one")
    moving = Moving(schedule, tier, acted) if tier is not None and schedule.moves else None
    return Reruns(blocks, nested(schedule), _Watch(acted), moving=moving, alike=True).installed()


def is_tree(schedule: Schedule) -> bool:
    """Tells whether autograd's own graph follows it."""
    try:
        nested(schedule)
    except NotNested:
        return False
    return True


class _Watch(Unwatched):
    early = False

    def __init__(self, acted: Acted) -> None:
        self.acted = acted

    def around(self, kind: str, index: int, rerun: bool) -> AbstractContextManager[None]:
        if rerun:
            self.acted()
        return nullcontext()

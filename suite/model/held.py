"""Tells which blocks of a model this process holds, where it holds a part: a rank of a pipeline has those of its
stages.

The others stay in their container, without parameters: paths and positions are the whole model's.
"""

from __future__ import annotations

from torch import nn

STAGE = "held_stage"
ELSEWHERE = -1


def hold(block: nn.Module, stage: int | None) -> None:
    """Notes that this process holds a block as one of ``stage``, or, for None, that another process has it."""
    setattr(block, STAGE, ELSEWHERE if stage is None else stage)


def is_elsewhere(block: nn.Module) -> bool:
    """Tells whether another process has the block."""
    return stage_of(block) == ELSEWHERE


def stage_of(block: nn.Module) -> int | None:
    """Returns the stage that a block belongs to; None where the process holds the whole model."""
    stage: int | None = vars(block).get(STAGE)
    return stage

"""Implements PipeDream-2BW (Narayanan et al., ICML 2021, section 3.1): one update for m micro-batches, two versions of
weights.

The pipeline never drains, as PipeDream's. But a stage accumulates the gradients of a batch of m micro-batches, m >= p,
before it makes the next version, and a batch uses the version that was there before the last update, on every stage:

    W(t+1) = W(t) - rate * grad f(W(t-1))

So all stages are late by one update, and need the newest version and the one before, whatever their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.pipeline.timetable import Kind, PipelineSchedule, steady
from techniques.parallelism.shared.pipelined import Pipelined


def double_buffered(stages: int, micro_batches: int) -> PipelineSchedule:
    """Schedules passes so that all of batch t use version t - 1."""

    def version(kind: Kind, stage: int, micro: int, step: int) -> int:
        return max(0, micro // micro_batches - 1)

    return steady(stages, micro_batches, lambda stage: stages - 1 - stage, version)


@dataclass
class PipeDream2BW(Pipelined):
    """Each stage clips by the norm of its own accumulated gradient: a norm over all would wait."""

    micro_batches: int = 4
    flushes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.micro_batches < self.ranks:
            raise ValueError(
                f"two versions are enough where a batch has as many micro-batches as there are stages: set "
                f"micro_batches to {self.ranks} or more, not {self.micro_batches}"
            )
        super().__post_init__()

    def schedule(self) -> PipelineSchedule:
        return double_buffered(self.ranks, self.micro_batches)

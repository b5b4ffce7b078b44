"""Implements PipeDream-Flush, or 1F1B (Narayanan et al., ICML 2021, section 3.2): backward passes as early as they can
be.

After a few forward passes a stage does one backward pass after each, so that stage s of p has at most p - s
micro-batches under way, whatever their number; GPipe has all m. An update ends the step, of one version of weights::

    stage 1        F0 B0 F1 B1 F2 B2 F3 B3       U
    stage 0     F0 F1    B0 F2 B1 F3 B2    B3    U
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.pipeline.timetable import Kind, PipelineSchedule, flushed
from techniques.parallelism.shared.pipelined import Pipelined


def one_forward_one_backward(stages: int, micro_batches: int) -> PipelineSchedule:
    """Schedules forward passes until the first backward pass can be there, then one of each in turn, then what is
    left."""

    def order(stage: int) -> list[tuple[Kind, int]]:
        ahead = min(stages - 1 - stage, micro_batches)
        passes: list[tuple[Kind, int]] = [("forward", place) for place in range(ahead)]
        for place in range(micro_batches):
            if place + ahead < micro_batches:
                passes.append(("forward", place + ahead))
            passes.append(("backward", place))
        return passes

    return flushed(stages, micro_batches, order)


@dataclass
class PipeDreamFlush(Pipelined):
    micro_batches: int = 4

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"a batch has 1 micro-batch or more, not {self.micro_batches}")
        super().__post_init__()

    def schedule(self) -> PipelineSchedule:
        return one_forward_one_backward(self.ranks, self.micro_batches)

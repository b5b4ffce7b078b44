"""Implements model parallelism by layers, without a pipeline: each rank has some of the blocks, and one works at a
time.

The whole batch goes through the stages one after the other, and its gradient comes back (section 2 of Huang et al.,
NeurIPS 2019, has it as what pipelines start from). A rank keeps its stage's parameters, gradients, optimizer state and
activations alone; of p ranks p - 1 wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.pipeline.timetable import PipelineSchedule, flushed
from techniques.parallelism.shared.pipelined import Pipelined


def one_at_a_time(stages: int) -> PipelineSchedule:
    """Schedules a stage's forward pass, and its backward pass."""
    return flushed(stages, 1, lambda stage: [("forward", 0), ("backward", 0)])


@dataclass
class NaiveModelParallel(Pipelined):
    """Divides the model into stages, each of which is a range of consecutive blocks; their parameters are divided as
    equally as can be."""

    def schedule(self) -> PipelineSchedule:
        return one_at_a_time(self.ranks)

"""GPipe (Huang et al., NeurIPS 2019, section 2.3): a batch's micro-batches follow each other through the stages.

All micro-batches go forward, all come back, and one update ends the step::

    stage 1        F0 F1 F2 F3 B0 B1 B2 B3       U
    stage 0     F0 F1 F2 F3       B0 B1 B2 B3    U

A stage keeps its inputs alone and runs each again for its backward pass. The ranks wait (p - 1) / (m + p - 1) of the
time (section 2.3), whatever a backward pass costs. The gradient is the batch's: the update is one process's.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.pipeline.timetable import Kind, PipelineSchedule, flushed
from techniques.parallelism.shared.pipelined import Pipelined

PASSES: tuple[Kind, Kind] = ("forward", "backward")


def fill_and_drain(stages: int, micro_batches: int) -> PipelineSchedule:
    """Schedules all forward passes, then all backward passes, in the order of the micro-batches."""
    places = range(micro_batches)
    order: list[tuple[Kind, int]] = [(kind, place) for kind in PASSES for place in places]
    return flushed(stages, micro_batches, lambda stage: order)


@dataclass
class GPipe(Pipelined):
    """``rematerialize=False`` keeps what autograd keeps of every micro-batch, as torch's ScheduleGPipe does."""

    micro_batches: int = 4
    rematerialize: bool = True

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"a batch has 1 micro-batch or more, not {self.micro_batches}")
        super().__post_init__()

    def schedule(self) -> PipelineSchedule:
        return fill_and_drain(self.ranks, self.micro_batches)

    def recomputed(self, micro: int) -> bool:
        return self.rematerialize

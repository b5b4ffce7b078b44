"""Implements torchgpipe (Kim et al., arXiv 2004.09910): GPipe by a clock, whose last micro-batch is not run twice.

At tick k of m + p - 1 the micro-batch k - s goes through stage s, for every s (section 2.2). Backward passes come in
the reverse order of the micro-batches. The last one's forward pass is followed by its backward pass, so that nothing is
saved by making it again: ``checkpoint="except_last"`` runs m - 1 of a stage's m forward passes a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suite.pipeline.timetable import Kind, PipelineSchedule, flushed
from techniques.parallelism.shared.pipelined import Pipelined

Checkpoint = Literal["always", "except_last", "never"]


def clock_cycles(stages: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Returns the (micro-batch, stage) pairs of the forward passes at each tick (section 2.2, algorithm 1)."""
    return [
        [(tick - stage, stage) for stage in range(max(1 + tick - micro_batches, 0), min(1 + tick, stages))]
        for tick in range(micro_batches + stages - 1)
    ]


def by_the_clock(stages: int, micro_batches: int) -> PipelineSchedule:
    """Schedules what each stage does at its ticks; backward the ticks are in reverse."""
    ticks = clock_cycles(stages, micro_batches)

    def order(stage: int) -> list[tuple[Kind, int]]:
        places = [place for tick in ticks for place, at in tick if at == stage]
        return [*(("forward", place) for place in places), *(("backward", place) for place in reversed(places))]

    return flushed(stages, micro_batches, order)


@dataclass
class TorchGPipe(Pipelined):
    micro_batches: int = 4
    checkpoint: Checkpoint = "except_last"

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"a batch has 1 micro-batch or more, not {self.micro_batches}")
        super().__post_init__()

    def schedule(self) -> PipelineSchedule:
        return by_the_clock(self.ranks, self.micro_batches)

    def recomputed(self, micro: int) -> bool:
        last = micro % self.micro_batches == self.micro_batches - 1
        return {"always": True, "except_last": not last, "never": False}[self.checkpoint]

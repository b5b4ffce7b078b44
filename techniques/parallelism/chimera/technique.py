"""Implements Chimera (Li and Hoefler, SC 2021, section 3.1): two pipelines in opposite directions, each with half of
the batch.

Rank r has stage r of the pipeline that goes down and stage D - 1 - r of the one that goes up, D being even. In a unit
of D micro-batches the i-th of a pipeline is at stage s, in forward passes of equal length as backward ones,

    forward at 2 i + s          backward at 2 i + 2 D - 1 - s

and the two never meet. A stage is on two ranks, whose gradients are added up before the update. So the training is
synchronous, and its update one process's; the bubble is (D - 2) / (2 N + D - 2), where 1F1B has (D - 1) / (N + D - 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.pipeline.timetable import PipelineOp, PipelineSchedule, Program
from techniques.parallelism.shared.pipelined import Pipelined


def bidirectional(stages: int, units: int = 1) -> PipelineSchedule:
    """Schedules ``units`` of ``stages`` micro-batches each, one after the other; the first half of a unit goes down."""
    half = stages // 2

    def place(stage: int, micro: int) -> int:
        return stage if micro % stages < half else stages - 1 - stage

    def step(number: int) -> Program:
        timed: list[list[tuple[int, PipelineOp]]] = [[] for _ in range(stages)]
        for unit in range(units):
            first = (number * units + unit) * stages
            for micro in range(first, first + stages):
                entered = 2 * stages * unit + 2 * (micro % half)
                for stage in range(stages):
                    ops = timed[place(stage, micro)]
                    ops.append((entered + stage, PipelineOp("forward", stage, micro, number)))
                    ops.append((entered + 2 * stages - 1 - stage, PipelineOp("backward", stage, micro, number)))
        return [
            [
                *(op for _, op in sorted(ops)),
                *(PipelineOp("update", stage, -1, number + 1) for stage in sorted({rank, stages - 1 - rank})),
            ]
            for rank, ops in enumerate(timed)
        ]

    return PipelineSchedule(stages, units * stages, step, place)


@dataclass
class Chimera(Pipelined):
    """Implements Chimera, where ``ranks`` is D, even. ``units`` of D micro-batches make a batch."""

    units: int = 2

    def __post_init__(self) -> None:
        if self.ranks % 2:
            raise ValueError(f"two pipelines in opposite directions need an even number of ranks, not {self.ranks}")
        if self.units < 1:
            raise ValueError(f"a batch has 1 unit of micro-batches or more, not {self.units}")
        super().__post_init__()

    def schedule(self) -> PipelineSchedule:
        return bidirectional(self.ranks, self.units)

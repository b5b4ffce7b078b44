"""Implements PipeDream (Narayanan et al., SOSP 2019, sections 3.2 and 3.3): a pipeline that never drains, with stashed
weights.

Minibatches follow each other without a flush. Stage s of p is p - 1 - s forward passes ahead, and updates its weights
after every backward pass::

    stage 1        F0 B0 U  F1 B1 U  F2 B2 U  F3 B3 U
    stage 0     F0 F1    B0 U  F2 B1 U  F3 B2 U  F4 B3 U

A backward pass uses the weights of its forward pass: a stage keeps p - s versions, the newest among them. So the update
is that of weights of several ages,

    w(t+1) = w(t) - rate * grad f(w_1 of t - p + 1, w_2 of t - p + 2, ..., w_p of t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.pipeline.timetable import Delay, Kind, PipelineSchedule, steady
from techniques.parallelism.shared.pipelined import Pipelined


def weight_stashing(stages: int) -> PipelineSchedule:
    """Schedules one minibatch forward, one backward at the version of its forward pass."""

    def ahead(stage: int) -> int:
        return stages - 1 - stage

    def version(kind: Kind, stage: int, minibatch: int, step: int) -> int:
        return step if kind == "forward" else max(0, minibatch - ahead(stage))

    return steady(stages, 1, ahead, version)


def delay(stages: int, stage: int) -> Delay:
    """Tells by how many updates a stage's weights are late, in both passes (section 3.3)."""
    return Delay(stages - 1 - stage, stages - 1 - stage)


@dataclass
class PipeDream(Pipelined):
    """Implements PipeDream, where a step of the run is a minibatch. Stages clip by the norms of their own gradients: a
    norm over all would wait."""

    flushes: ClassVar[bool] = False

    def schedule(self) -> PipelineSchedule:
        return weight_stashing(self.ranks)

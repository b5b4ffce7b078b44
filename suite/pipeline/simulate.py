"""When each operation of a schedule runs, where a forward pass of a stage takes one unit of time: no link, no noise.

A rank does its operations in its order, each as soon as it and what the operation waits for are done::

    F(s, i)   after F(s - 1, i)
    B(s, i)   after B(s + 1, i), on the last stage after F(s, i)
    U(s)      after what the rank did before; takes no time

The bubble is the share of the ranks' time in which they wait. Its closed forms are the papers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from suite.pipeline.schedule import Broken, PipelineOp, PipelineSchedule, Program

Time = Fraction
NO_TIME = Fraction(0)


@dataclass(frozen=True)
class PipelineSlot:
    """An operation on a rank, from ``start`` to ``end``, in forward passes of a stage."""

    rank: int
    op: PipelineOp
    start: Time
    end: Time


@dataclass(frozen=True)
class Timeline:
    """What ran when, by rank and in its order."""

    ranks: tuple[tuple[PipelineSlot, ...], ...]

    @property
    def end(self) -> Time:
        return max(slot.end for slots in self.ranks for slot in slots)

    def busy(self, since: Time = NO_TIME, until: Time | None = None) -> Time:
        """The ranks' time at work in a window, added up."""
        end = self.end if until is None else until
        spans = (min(slot.end, end) - max(slot.start, since) for slots in self.ranks for slot in slots)
        return sum((span for span in spans if span > 0), NO_TIME)

    def bubble(self, since: Time = NO_TIME, until: Time | None = None) -> Time:
        """The share of the ranks' time in a window (the whole) in which they wait."""
        end = self.end if until is None else until
        return 1 - self.busy(since, end) / (len(self.ranks) * (end - since))


def simulated(program: Program, stages: int, backward: Time | int = 2) -> Timeline:
    """Runs a program whose backward passes take ``backward`` times as long as its forward passes.

    Raises Broken where the ranks wait for each other for good.
    """
    cost: Mapping[str, Time] = {"forward": Time(1), "backward": Time(backward), "update": NO_TIME}
    ended: dict[tuple[str, int, int], Time] = {}
    free = [NO_TIME] * len(program)
    following = [0] * len(program)
    slots: list[list[PipelineSlot]] = [[] for _ in program]
    left = sum(map(len, program))
    while left:
        before = left
        for rank, ops in enumerate(program):
            while following[rank] < len(ops):
                op = ops[following[rank]]
                waits = _waits_for(op, stages)
                if waits is not None and waits not in ended:
                    break
                start = max(free[rank], ended[waits] if waits else NO_TIME)
                free[rank] = end = start + cost[op.kind]
                slots[rank].append(PipelineSlot(rank, op, start, end))
                if op.kind != "update":
                    ended[op.kind, op.stage, op.micro] = end
                following[rank] += 1
                left -= 1
        if left == before:
            stuck = [ops[at] for ops, at in zip(program, following, strict=True) if at < len(ops)]
            raise Broken(f"the ranks wait for each other for good, before {stuck}")
    return Timeline(tuple(map(tuple, slots)))


def _waits_for(op: PipelineOp, stages: int) -> tuple[str, int, int] | None:
    if op.kind == "forward":
        return ("forward", op.stage - 1, op.micro) if op.stage else None
    if op.kind == "backward":
        last = op.stage == stages - 1
        return ("forward", op.stage, op.micro) if last else ("backward", op.stage + 1, op.micro)
    return None


def bubble_of_a_step(schedule: PipelineSchedule, backward: Time | int = 2) -> Time:
    """The bubble of one training step of a schedule that flushes, from a pipeline that is empty to one that is."""
    return simulated(schedule.program(1), schedule.stages, backward).bubble()


def bubble_in_the_middle(schedule: PipelineSchedule, steps: int, backward: Time | int = 2) -> Time:
    """The bubble of the middle third of a run of ``steps`` training steps, where the pipeline is full if ever."""
    timeline = simulated(schedule.program(steps), schedule.stages, backward)
    return timeline.bubble(timeline.end / 3, 2 * timeline.end / 3)

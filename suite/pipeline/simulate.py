"""When each operation of a schedule runs: of stages whose passes take equally long, or as long as was measured.

A rank does its operations in its order, each as soon as it and what the operation waits for are done::

    F(s, i)   after F(s - 1, i)
    B(s, i)   after B(s + 1, i), on the last stage after F(s, i)
    U(s)      after what the rank did before; on ranks that update together, after what all of them did

What another rank has made is there when its message has crossed the link, an alpha-beta one: a rank sends its messages
one after the other, beta keeps the next one waiting, alpha does not, and what a limiter has saved up goes at once.
Without a link a message takes no time.

The bubble is the share of the ranks' time in which they wait. Its closed forms are the papers', where a forward pass
takes one unit of time, a message none and an update none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from suite.pipeline.link import AlphaBeta
from suite.pipeline.schedule import Broken, PipelineOp, PipelineSchedule, Program

Time = Fraction
NO_TIME = Fraction(0)
Done = tuple[str, int, int]
"""A pass: its kind, stage and micro-batch."""


@dataclass(frozen=True)
class PipelineCosts:
    """What was measured of a pipeline, in seconds and bytes.

    Attributes:
        forward, backward: of each stage, a micro-batch's pass.
        update: of each stage, without what ranks send each other.
        handed: bytes of each stage's output for a micro-batch, and of the gradient that comes back for it.
        joint: bytes that each rank sends in the all-reduces before an update, in ``reductions`` of them; with none
            of them ranks update each by itself.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float]
    handed: Sequence[int]
    joint: int = 0
    reductions: int = 0

    def of(self, op: PipelineOp) -> Time:
        """Seconds of an operation."""
        by_stage = {"forward": self.forward, "backward": self.backward, "update": self.update}[op.kind]
        return Time(by_stage[op.stage])

    def message(self, op: PipelineOp) -> int:
        """Bytes of what a pass hands on."""
        return self.handed[op.stage if op.kind == "forward" else op.stage - 1]


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
    equal = PipelineCosts([1] * stages, [backward] * stages, [0] * stages, [0] * stages)  # type: ignore[list-item]
    return _PipelineClock(program, stages, equal, None).timeline()


def on_link(program: Program, costs: PipelineCosts, link: AlphaBeta) -> Timeline:
    """Runs a program with what its operations cost and a link between ranks, in seconds. Raises Broken as
    :func:`simulated`."""
    return _PipelineClock(program, len(costs.forward), costs, link).timeline()


class _Uplink:
    """What a rank sends by: free from some moment on, with what the limiter has saved up by then."""

    def __init__(self, link: AlphaBeta) -> None:
        self.rate, self.burst = Time(link.bytes_per_s), Time(link.burst_bytes)
        self.saved, self.free = self.burst, NO_TIME

    def sent(self, size: Time, ready: Time) -> Time:
        """When the last of ``size`` bytes leaves that are ready then."""
        begins = max(self.free, ready)
        self.saved = min(self.burst, self.saved + (begins - self.free) * self.rate)
        at_once = min(self.saved, size)
        self.saved -= at_once
        self.free = begins + (size - at_once) / self.rate
        return self.free


class _PipelineClock:
    """One run of a program: what is done, what is on the link, and who is free when."""

    def __init__(self, program: Program, stages: int, costs: PipelineCosts, link: AlphaBeta | None) -> None:
        self.program, self.stages, self.costs, self.link = program, stages, costs, link
        self.ended: dict[Done, tuple[int, Time, Time]] = {}  # by which rank, when there, when elsewhere
        self.free = [NO_TIME] * len(program)
        self.uplinks = [_Uplink(link) for _ in program] if link else []
        self.following = [0] * len(program)
        self.slots: list[list[PipelineSlot]] = [[] for _ in program]

    def timeline(self) -> Timeline:
        while any(self._next(rank) for rank in range(len(self.program))):
            progress = [self._advance(rank) for rank in range(len(self.program))]
            if not any(progress) and not self._update_together():
                stuck = [op for rank in range(len(self.program)) if (op := self._next(rank))]
                raise Broken(f"the ranks wait for each other for good, before {stuck}")
        return Timeline(tuple(map(tuple, self.slots)))

    def _next(self, rank: int) -> PipelineOp | None:
        ops, at = self.program[rank], self.following[rank]
        return ops[at] if at < len(ops) else None

    def _advance(self, rank: int) -> bool:
        """Runs what a rank can do by itself; whether that was anything."""
        before = self.following[rank]
        while (op := self._next(rank)) and not (op.kind == "update" and self.costs.reductions):
            waits = _waits_for(op, self.stages)
            if waits is not None and waits not in self.ended:
                break
            there = NO_TIME
            if waits is not None:
                by, here, elsewhere = self.ended[waits]
                there = here if by == rank else elsewhere
            self._run(rank, op, max(self.free[rank], there))
        return self.following[rank] > before

    def _run(self, rank: int, op: PipelineOp, start: Time) -> None:
        end = self.free[rank] = start + self.costs.of(op)
        self.slots[rank].append(PipelineSlot(rank, op, start, end))
        self.following[rank] += 1
        if op.kind != "update":
            self.ended[op.kind, op.stage, op.micro] = rank, end, self._elsewhere(rank, op, end)

    def _elsewhere(self, rank: int, op: PipelineOp, end: Time) -> Time:
        """When what a pass has made is on another rank."""
        last = op.stage == (self.stages - 1 if op.kind == "forward" else 0)
        if self.link is None or last:  # whose result nobody waits for
            return end
        return self.uplinks[rank].sent(Time(self.costs.message(op)), end) + Time(self.link.latency_s)

    def _update_together(self) -> bool:
        """Runs the updates that all ranks have come to; whether they have."""
        following = [self._next(rank) for rank in range(len(self.program))]
        if not all(op and op.kind == "update" for op in following):
            return False
        start = max(self.free)
        if self.link:
            delays = self.costs.reductions * Time(self.link.latency_s)
            start = max(each.sent(Time(self.costs.joint), start) for each in self.uplinks) + delays
        for rank in range(len(self.program)):
            self.free[rank] = start
            while (op := self._next(rank)) and op.kind == "update":
                self._run(rank, op, self.free[rank])
        return True


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

"""Tells when each operation of a schedule runs: of stages whose passes take equally long, or as long as was measured.

A rank does its operations in its order, each as soon as it and what the operation waits for are done::

    F(s, i)   after F(s - 1, i)
    B(s, i)   after B(s + 1, i), on the last stage after F(s, i)
    U(s)      after what the rank did before; on ranks that update together, after what all of them did

What another rank has made is there when its message has crossed the link, an alpha-beta one: a rank sends its messages
one after the other, beta keeps the next one waiting, alpha does not, and what a limiter has saved up goes at once. A
message leaves when it is made and its receiver expects it: gloo sends nothing before. Without a link a message takes no
time.

The bubble is the share of the ranks' time in which they wait. Its closed forms are the papers', where a forward pass
takes one unit of time, a message none and an update none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from heapq import heappop, heappush
from itertools import count, takewhile

from suite.pipeline.link import AlphaBeta
from suite.pipeline.timetable import Broken, PipelineOp, PipelineSchedule, Program

Time = Fraction
NO_TIME = Fraction(0)
Done = tuple[str, int, int]
"""A pass: its kind, stage and micro-batch."""


@dataclass(frozen=True)
class PipelineCosts:
    """Holds what was measured of a pipeline, in seconds and bytes.

    Attributes:
        forward, backward: of each stage, a micro-batch's pass, by its place in the batch: the first of a batch draws
            it, and makes room for gradients. One value is that of all places.
        update: of each stage, without what ranks send each other.
        handed: bytes of each stage's output for a micro-batch, and of the gradient that comes back for it.
        joint: bytes that each rank sends in the all-reduces before an update, in ``reductions`` of them; with none
            of them ranks update each by itself.
        reduction_s: what each of these all-reduces takes the ranks besides its bytes and hops.
        ahead: of how many operations from its next one on a rank expects the messages; of all where None.
    """

    forward: Sequence[Sequence[float]]
    backward: Sequence[Sequence[float]]
    update: Sequence[float]
    handed: Sequence[int]
    joint: int = 0
    reductions: int = 0
    reduction_s: float = 0.0
    ahead: int | None = None

    def of(self, op: PipelineOp) -> Time:
        """Returns the seconds of an operation."""
        if op.kind == "update":
            return Time(self.update[op.stage])
        places = (self.forward if op.kind == "forward" else self.backward)[op.stage]
        return Time(places[op.micro % len(places)])

    def message(self, done: Done) -> int:
        """Returns the bytes of what a pass hands on."""
        kind, stage, _ = done
        return self.handed[stage if kind == "forward" else stage - 1]


@dataclass(frozen=True)
class PipelineSlot:
    """Places an operation on a rank, from ``start`` to ``end``, in forward passes of a stage."""

    rank: int
    op: PipelineOp
    start: Time
    end: Time


@dataclass(frozen=True)
class Timeline:
    """Records what ran when, by rank and in its order."""

    ranks: tuple[tuple[PipelineSlot, ...], ...]

    @property
    def end(self) -> Time:
        return max(slot.end for slots in self.ranks for slot in slots)

    def busy(self, since: Time = NO_TIME, until: Time | None = None) -> Time:
        """Returns the ranks' time at work in a window, added up."""
        end = self.end if until is None else until
        spans = (min(slot.end, end) - max(slot.start, since) for slots in self.ranks for slot in slots)
        return sum((span for span in spans if span > 0), NO_TIME)

    def bubble(self, since: Time = NO_TIME, until: Time | None = None) -> Time:
        """Returns the share of the ranks' time in a window (the whole) in which they wait."""
        end = self.end if until is None else until
        return 1 - self.busy(since, end) / (len(self.ranks) * (end - since))


def simulated(program: Program, stages: int, backward: Time | int = 2) -> Timeline:
    """Runs a program whose backward passes take ``backward`` times as long as its forward passes.

    Raises Broken where the ranks wait for each other for good.
    """
    equal = PipelineCosts([[1]] * stages, [[backward]] * stages, [0] * stages, [0] * stages)  # type: ignore[list-item]
    return _PipelineClock(program, stages, equal, None).timeline()


def on_link(program: Program, costs: PipelineCosts, link: AlphaBeta) -> Timeline:
    """Runs a program with what its operations cost and a link between ranks, in seconds. Raises Broken as
    :func:`simulated`."""
    return _PipelineClock(program, len(costs.forward), costs, link).timeline()


class _Uplink:
    """Describes what a rank sends by: free from some moment on, with what the limiter has saved up by then."""

    def __init__(self, link: AlphaBeta) -> None:
        self.rate, self.burst = Time(link.bytes_per_s), Time(link.burst_bytes)
        self.saved, self.free = self.burst, NO_TIME

    def sent(self, size: Time, ready: Time) -> Time:
        """Returns when the last of ``size`` bytes leaves that are ready then."""
        begins = max(self.free, ready)
        self.saved = min(self.burst, self.saved + (begins - self.free) * self.rate)
        at_once = min(self.saved, size)
        self.saved -= at_once
        self.free = begins + (size - at_once) / self.rate
        return self.free


class _PipelineClock:
    """Makes one run of a program, from event to event: a rank ends an operation, or a message comes."""

    def __init__(self, program: Program, stages: int, costs: PipelineCosts, link: AlphaBeta | None) -> None:
        self.program, self.stages, self.costs, self.link = program, stages, costs, link
        self.now = NO_TIME
        self.events: list[tuple[Time, int, Callable[[], None]]] = []
        self.numbers = count()  # of events at one time the first comes first
        self.slots: list[list[PipelineSlot]] = [[] for _ in program]
        self.following = [0] * len(program)
        self.busy = [False] * len(program)
        self.may_update = [0] * len(program)  # operations that a rank need not wait with any more
        self.uplinks = [_Uplink(link) for _ in program] if link else []
        self.makers: dict[Done, int] = {}
        self.takers = {done: rank for rank, ops in enumerate(program) for op in ops if (done := self._needed(op))}
        self.there: set[Done] = set()
        self.expected = {done for ops in program for op in ops[: costs.ahead] if (done := self._needed(op))}

    def timeline(self) -> Timeline:
        for rank in range(len(self.program)):
            self._go_on(rank)
        while self.events:
            self.now, _, action = heappop(self.events)
            action()
        if stuck := [op for rank in range(len(self.program)) if (op := self._next(rank))]:
            raise Broken(f"the ranks wait for each other for good, before {stuck}")
        return Timeline(tuple(map(tuple, self.slots)))

    def _at(self, moment: Time, action: Callable[[], None]) -> None:
        heappush(self.events, (moment, next(self.numbers), action))

    def _needed(self, op: PipelineOp) -> Done | None:
        return _waits_for(op, self.stages)

    def _next(self, rank: int) -> PipelineOp | None:
        ops, at = self.program[rank], self.following[rank]
        return ops[at] if at < len(ops) else None

    def _go_on(self, rank: int) -> None:
        """Begins a rank's next operation, if nothing is in its way."""
        op = self._next(rank)
        if op is None or self.busy[rank]:
            return
        if op.kind == "update" and self.costs.reductions and not self.may_update[rank]:
            self._update_together()
            return
        needed = self._needed(op)
        if needed is not None and needed not in self.there:
            return
        self.busy[rank] = True
        self.slots[rank].append(PipelineSlot(rank, op, self.now, self.now + self.costs.of(op)))
        self._at(self.slots[rank][-1].end, partial(self._end, rank, op))

    def _end(self, rank: int, op: PipelineOp) -> None:
        self.busy[rank] = False
        self.following[rank] += 1
        self.may_update[rank] = max(0, self.may_update[rank] - 1)
        if op.kind != "update":
            self.makers[op.kind, op.stage, op.micro] = rank
            self._hand_on((op.kind, op.stage, op.micro))
        if self.costs.ahead is not None:
            for later in self.program[rank][self.following[rank] :][self.costs.ahead - 1 : self.costs.ahead]:
                if (needed := self._needed(later)) is not None:
                    self.expected.add(needed)
                    self._hand_on(needed)
        self._go_on(rank)

    def _hand_on(self, done: Done) -> None:
        """Sends what a pass has made, once that is there and expected, to who takes it."""
        maker, taker = self.makers.get(done), self.takers.get(done)
        if maker is None or taker is None:
            return
        if maker == taker:
            self.there.add(done)
        elif done in self.expected:
            arrives = self.now
            if self.link:
                arrives = self.uplinks[maker].sent(Time(self.costs.message(done)), self.now)
                arrives += Time(self.link.latency_s)
            self._at(arrives, partial(self._arrive, taker, done))

    def _arrive(self, taker: int, done: Done) -> None:
        self.there.add(done)
        self._go_on(taker)

    def _update_together(self) -> None:
        """Lets all ranks update that have come to it, if all have: after their all-reduces, in a ring."""
        following = [self._next(rank) for rank in range(len(self.program))]
        if any(self.busy) or not all(op and op.kind == "update" for op in following):
            return
        start = self.now
        if self.link:
            hops = self.costs.reductions * 2 * (len(self.program) - 1)
            start = max(uplink.sent(Time(self.costs.joint), start) for uplink in self.uplinks)
            start += hops * Time(self.link.latency_s) + self.costs.reductions * Time(self.costs.reduction_s)
        for rank, ops in enumerate(self.program):
            updates = takewhile(lambda op: op.kind == "update", ops[self.following[rank] :])
            self.may_update[rank] = sum(1 for _ in updates)
            self.busy[rank] = True
            self._at(start, partial(self._begin_update, rank))

    def _begin_update(self, rank: int) -> None:
        self.busy[rank] = False
        self._go_on(rank)


def _waits_for(op: PipelineOp, stages: int) -> tuple[str, int, int] | None:
    if op.kind == "forward":
        return ("forward", op.stage - 1, op.micro) if op.stage else None
    if op.kind == "backward":
        last = op.stage == stages - 1
        return ("forward", op.stage, op.micro) if last else ("backward", op.stage + 1, op.micro)
    return None


def bubble_of_a_step(schedule: PipelineSchedule, backward: Time | int = 2) -> Time:
    """Returns the bubble of one training step of a schedule that flushes, from a pipeline that is empty to one that
    is."""
    return simulated(schedule.program(1), schedule.stages, backward).bubble()


def bubble_in_the_middle(schedule: PipelineSchedule, steps: int, backward: Time | int = 2) -> Time:
    """Returns the bubble of the middle third of a run of ``steps`` training steps, where the pipeline is full if
    ever."""
    timeline = simulated(schedule.program(steps), schedule.stages, backward)
    return timeline.bubble(timeline.end / 3, 2 * timeline.end / 3)

"""Predicts what a schedule costs: an event simulation of one compute stream and a link each way.

Computation is serial. A transfer starts when its operation comes and the link its way is free; an offloaded value
leaves the device when its transfer ends, a prefetched one takes its place there when its transfer is asked for. An
operation that needs a value waits for it. Bytes that leave the device during an operation count until its end. Weights
that a schedule loads count from the load to the free, and block the computation that needs them until they are there;
the free moves their gradients.

Limits. An activation that runs again while a graph still holds the first counts once, though it is there twice. A
block's backward pass waits for all of its graph; autograd begins with the first tensor that comes back, so that where
the link is the limit a real pass was seen up to 17 % faster. What asking for a transfer costs is in no time. Where
weights are loaded BERT's peak was seen 1.6 % above the prediction: its first blocks hold 8 KiB that no chain has.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Op, Schedule, ScheduleError, Value
from suite.chain.tree import NotNested, Span, nested

KEPT = -1  # holds what no graph does


@dataclass(frozen=True)
class Instant:
    """Records an operation of a simulated schedule: when it ran, in seconds, and the bytes alive at its start and its
    peak."""

    op: Op
    start_s: float
    end_s: float
    live_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Prediction:
    """Holds a schedule's cost on a chain.

    Attributes:
        time_s: of the whole pass. ``compute_s`` of it is computation, the rest waits for transfers.
        peak_bytes: most bytes alive on the device, of weights those that the schedule loads.
        turn_bytes: what the chain holds during the turn.
        out_bytes, in_bytes: transferred each way.
        moments: every operation.
    """

    time_s: float
    compute_s: float
    peak_bytes: int
    turn_bytes: int
    out_bytes: int
    in_bytes: int
    moments: tuple[Instant, ...]

    @property
    def stalled_s(self) -> float:
        """Returns the seconds in which computation waits."""
        return self.time_s - self.compute_s


@dataclass
class _Held:
    """Describes one storage: who holds it, and where it is."""

    nbytes: int
    holders: set[int] = field(default_factory=set)
    on_device: bool = True
    leaves_s: float = math.inf  # when its way out ends
    arrives_s: float = 0.0  # when its way in ends


def predicted(schedule: Schedule, chain: Chain, link: Link | None = None) -> Prediction:
    """Simulates the schedule. Raises ScheduleError for moves without a link, or of what is not on the device."""
    if schedule.depth != chain.depth:
        raise ScheduleError(f"a schedule of {schedule.depth} blocks does not fit a chain of {chain.depth}")
    return _Simulation(chain, link).of(schedule)


class _Simulation:
    def __init__(self, chain: Chain, link: Link | None) -> None:
        self.chain, self.link = chain, link
        self.now = self.compute_s = self.out_free_s = self.in_free_s = 0.0
        self.out_bytes = self.in_bytes = 0
        self.values: dict[Value, _Held] = {}
        self.graphs: dict[int, list[Value]] = {}
        self.leaving: list[_Held] = []
        self.resident = 0  # bytes of values on the device
        self._hold(Value(0), chain.input_bytes, KEPT)
        self.gradients = 0  # of activations and weights
        self.beside = chain.beside[0].forward_bytes if chain.beside else chain.forward_bytes
        self.due, self.turned, self.cached = 0, False, 0
        self.weights: dict[int, float] = {}  # of which blocks loaded ones are there, and from which second on
        self.gone_back: set[int] = set()
        self.moments: list[Instant] = []
        self.turn_bytes = 0
        self.run_of: dict[int, int] = {}  # the first block of the run that a block is of, where these are known
        self.states: Counter[int] = Counter()  # bytes of random states by that block, whose way back ends them

    def of(self, schedule: Schedule) -> Prediction:
        if any(stage.state_bytes for stage in self.chain.stages):
            with suppress(NotNested):
                spans = [item for item in nested(schedule) if isinstance(item, Span)]
                self.run_of = {block: span.start for span in spans for block in range(span.start, span.end)}
        computing = [op for op in schedule.ops if op.computes]
        next_computing = iter([*computing[1:], None])
        for op in schedule.ops:
            after = next(next_computing) if op.computes else None
            self._bring(op)
            self._release()
            start, live = self.now, self.live()
            between = self._come_to(op)
            start_bytes, live = live, self.live()
            above = max(self._do(op, after), start_bytes + between - live)
            self._release()
            self.moments.append(Instant(op, start, self.now, live, max(live + above, self.live())))
        return Prediction(
            time_s=max(self.now, self.out_free_s if self.out_bytes else 0.0),
            compute_s=self.compute_s,
            peak_bytes=max(self.chain.outside_bytes, *(moment.peak_bytes for moment in self.moments)),
            turn_bytes=self.turn_bytes,
            out_bytes=self.out_bytes,
            in_bytes=self.in_bytes,
            moments=tuple(self.moments),
        )

    def live(self) -> int:
        return self.resident + self.gradients + self.beside + self.cached

    def _bring(self, op: Op) -> None:
        """Waits until all that the operation computes with is on the device."""
        if op.computes:
            self._wait_until(self.weights.get(op.block, 0.0))
        if op.kind in ("run", "save"):
            self._need(Value(op.block))
        elif op.kind == "back":
            for value in self.graphs[op.block]:
                self._need(value)

    def _come_to(self, op: Op) -> int:
        """Takes what lives beside the chain where the operation is; returns the bytes above those alive on the way."""
        if not self.chain.beside or op.kind not in ("run", "save") or self.turned or op.block == self.due == 0:
            return 0
        self.due = op.block
        self.beside = self.chain.beside[op.block].forward_bytes
        return self.chain.beside[op.block].between_bytes

    def _do(self, op: Op, after: Op | None) -> int:
        """Carries the operation out, before ``after``; returns the bytes above those alive at its start."""
        chain, block = self.chain, op.block
        if op.kind in ("run", "save"):
            stage = chain.stages[block]
            seconds, save_peak_bytes = stage.run_s if op.kind == "run" else stage.save_s, stage.save_peak_bytes
            if self.turned and op.kind == "save" and stage.again_s is not None:
                last = after == Op("back", block)
                seconds = stage.again_s if last else stage.run_s
                save_peak_bytes = stage.again_peak_bytes or save_peak_bytes if last else save_peak_bytes
            self._compute(seconds)
            self._hold(Value(block + 1), stage.output_bytes, KEPT)
            if op.kind == "run":
                self._hold_state(block)
                return stage.run_peak_bytes
            self.cached += 0 if self.turned else stage.cached_bytes
            self.graphs[block] = []
            if stage.holds_input or (self.turned and stage.again_s is not None):  # a rerun's beginning is held
                self._hold(Value(block), chain.activation_bytes[block], block)
            if stage.holds_output:
                self._hold(Value(block + 1), stage.output_bytes, block)
            for item, nbytes in enumerate(stage.saved_bytes):
                self._hold(Value(block, item), nbytes, block)
            return save_peak_bytes
        if op.kind == "back":
            stage = chain.stages[block]
            for value in self.graphs.pop(block):
                self._let_go(value, block)
            self._compute(stage.back_s)
            self.gone_back.add(block)
            self.gradients += stage.gradient_bytes + chain.activation_bytes[block] - stage.output_bytes
            self._beside_back(block - 1)
            self.resident -= self.states.pop(block, 0)
            return stage.back_peak_bytes
        if op.kind == "turn":
            self.turn_bytes = self.live() - self.beside
            self._compute(chain.turn_s)
            self.turned, self.cached = True, 0
            self._beside_back(chain.depth - 1)
            self.gradients += chain.activation_bytes[-1]
            return chain.turn_peak_bytes
        if op.kind == "drop":
            self._let_go(op.value, KEPT)
        elif op.kind == "load":
            self.resident += chain.stages[block].weight_bytes
            self.weights[block] = self._over_link("in", chain.stages[block].weight_bytes)
        elif op.kind == "free":
            self._free(block)
        else:
            if op.value not in self.values:
                raise ScheduleError(f"{op}: nothing holds {op.value} any more")
            held = self.values[op.value]
            if op.kind == "offload":
                self._offload(held)
            elif op.kind == "prefetch":
                self._fetch(held)
            elif held.leaves_s < math.inf:
                self._wait_until(held.leaves_s)
        return 0

    def _hold_state(self, block: int) -> None:
        """Holds the random state of a block's first run, from which it runs again."""
        if not self.turned:
            nbytes = self.chain.stages[block].state_bytes
            self.resident += nbytes
            self.states[self.run_of.get(block, KEPT)] += nbytes

    def _beside_back(self, block: int) -> None:
        """Takes what lives beside the chain as the block's backward pass begins."""
        chain = self.chain
        self.beside = chain.beside[max(0, block)].backward_bytes if chain.beside else chain.backward_bytes

    def _hold(self, value: Value, nbytes: int, holder: int) -> None:
        """Lets ``holder`` hold the value: the block whose graph it is, or KEPT."""
        held = self.values.get(value)
        if held is None:
            held = self.values[value] = _Held(nbytes)
            self.resident += nbytes
        elif holder == KEPT and not held.on_device:  # made again
            held.on_device = True
            self.resident += nbytes
        held.holders.add(holder)
        if holder != KEPT:
            self.graphs[holder].append(value)

    def _let_go(self, value: Value, holder: int) -> None:
        held = self.values[value]
        held.holders.discard(holder)
        if not held.holders:
            del self.values[value]
            self.resident -= held.nbytes if held.on_device else 0
            held.leaves_s = math.inf

    def _free(self, block: int) -> None:
        stage = self.chain.stages[block]
        del self.weights[block]
        self.resident -= stage.weight_bytes
        if block in self.gone_back and stage.gradient_bytes:
            self.gone_back.remove(block)
            self.gradients -= stage.gradient_bytes
            self.resident += stage.gradient_bytes
            self._offload(_Held(stage.gradient_bytes))

    def _offload(self, held: _Held) -> None:
        held.leaves_s = self._over_link("out", held.nbytes)
        self.leaving.append(held)

    def _fetch(self, held: _Held) -> None:
        if held.on_device and held.leaves_s == math.inf:
            return
        begins = held.leaves_s if held.on_device else self.now
        self.resident += 0 if held.on_device else held.nbytes
        held.on_device, held.leaves_s = True, math.inf
        held.arrives_s = self._over_link("in", held.nbytes, begins)

    def _need(self, value: Value) -> None:
        held = self.values[value]
        if not held.on_device or held.leaves_s < math.inf:  # what is on its way out has left already
            self._fetch(held)
        self._wait_until(held.arrives_s)

    def _over_link(self, way: str, nbytes: int, earliest: float = 0.0) -> float:
        """Returns when a transfer that is asked for now ends."""
        if self.link is None:
            raise ScheduleError(
                "this schedule moves values to a second tier or from it: give the link's bytes per second"
            )
        if way == "out":
            self.out_bytes += nbytes
            self.out_free_s = max(self.now, self.out_free_s) + nbytes / self.link.out_bytes_per_s
            return self.out_free_s
        self.in_bytes += nbytes
        self.in_free_s = max(self.now, earliest, self.in_free_s) + nbytes / self.link.in_bytes_per_s
        return self.in_free_s

    def _compute(self, seconds: float) -> None:
        self.now += seconds
        self.compute_s += seconds

    def _wait_until(self, moment_s: float) -> None:
        self.now = max(self.now, moment_s)

    def _release(self) -> None:
        for held in self.leaving:
            if held.leaves_s <= self.now:
                held.on_device, held.leaves_s = False, math.inf
                self.resident -= held.nbytes
        self.leaving = [held for held in self.leaving if held.leaves_s < math.inf]

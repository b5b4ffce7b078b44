"""A chain's costs, measured on the model itself: one pass in which every block runs twice, watched block by block.

Bytes and FLOPs are exact, also of tensors without values. Seconds are either FLOPs over a rate, which gives the same
schedule everywhere, or those of the clock, the median of several passes.

A model may have several chains (an encoder and a decoder); the later one's whole pass lies in the earlier one's turn.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suite.chain.chain import Chain, Stage
from suite.chain.execute import Around, Pass, executed
from suite.chain.schedule import Op, every_input
from suite.chain.simulate import Prediction, predicted
from suite.meters.flops import FlopCounter
from suite.meters.live import LiveBytes
from suite.meters.storage import unique_bytes

Loss = Callable[[], Tensor]
"""Passes one batch through a model and gives its loss."""

BEGIN = -1


def profiled(stacks: Sequence[Sequence[nn.Module]], loss_of: Loss, flops_per_s: float = 1e12) -> list[Chain]:
    """The chain of each stack of blocks, in the order in which the model runs them; seconds are FLOPs over a rate.

    The pass adds to gradients, and buffers and randomness move on: call it under
    :func:`suite.model.calls.undisturbed`, and clear gradients.

    Raises SegmentError where a stack's blocks are no chain.
    """
    watch = _Watch()
    with watch.flops, watch.live:
        _pass(stacks, loss_of, watch.around, separate=True)
        watch.gap(BEGIN)
    seconds: dict[tuple[int, Op], float] = {key: cost.flops / flops_per_s for key, cost in watch.costs.items()}
    turns = {number: flops / flops_per_s for number, flops in watch.gap_flops.items()}
    chains: list[Chain] = []
    held = 0  # by the chains before
    for number, blocks in enumerate(stacks):
        bare = watch.bare_chain(number, blocks)
        alone = predicted(every_input(bare.depth), bare)
        starts = {moment.op: moment.live_bytes for moment in alone.moments}
        first, last = Op("run", 0), Op("save", bare.depth - 1)
        beside = watch.costs[number, first].before_bytes - starts[first] - held
        chain = replace(
            bare,
            forward_bytes=beside,
            backward_bytes=watch.costs[number, last].before_bytes - starts[last] - held,
            turn_peak_bytes=watch.gap_bytes[number] - held - beside - alone.turn_bytes,
            outside_bytes=0 if number else watch.gap_bytes[BEGIN],
        )
        own = {op: at for (n, op), at in seconds.items() if n == number}
        chains.append(timed(chain, own, turns[number], 0.0 if number else turns[BEGIN]))
        held += alone.turn_bytes
    return chains


def clocked(
    chains: Sequence[Chain], stacks: Sequence[Sequence[nn.Module]], loss_of: Loss, passes: int = 5
) -> list[Chain]:
    """The chains with the clock's seconds, medians over ``passes``, after one pass that does not count."""
    samples: dict[tuple[int, Op], list[float]] = defaultdict(list)
    turns: dict[int, list[float]] = defaultdict(list)
    for repetition in range(passes + 1):
        clock = _Clock(next(stacks[0][0].parameters()).device)
        _pass(stacks, loss_of, clock.around)
        clock.ended()
        if repetition:
            for key, at in clock.seconds.items():
                samples[key].append(at)
            for number, at in clock.turns.items():
                turns[number].append(at)
    return [
        timed(
            chain,
            {op: statistics.median(at) for (n, op), at in samples.items() if n == number},
            statistics.median(turns[number]),
            0.0 if number else statistics.median(turns[BEGIN]),
        )
        for number, chain in enumerate(chains)
    ]


def timed(chain: Chain, seconds: dict[Op, float], turn_s: float, outside_s: float) -> Chain:
    """The chain with these seconds of each block's three operations, of the turn, and outside of both."""
    stages = tuple(
        replace(stage, run_s=seconds[Op("run", i)], save_s=seconds[Op("save", i)], back_s=seconds[Op("back", i)])
        for i, stage in enumerate(chain.stages)
    )
    return replace(chain, stages=stages, turn_s=turn_s, outside_s=outside_s)


def step_peak_bytes(predictions: Sequence[Prediction]) -> int:
    """Most bytes alive in a pass of several chains, each under its own schedule, weights and batch left out."""
    held, most = 0, 0
    for prediction in predictions:
        most = max(most, held + prediction.peak_bytes)
        held += prediction.turn_bytes
    return most


def _pass(
    stacks: Sequence[Sequence[nn.Module]], loss_of: Loss, around: Callable[[int], Around], separate: bool = False
) -> None:
    with ExitStack() as running:
        for number, blocks in enumerate(stacks):
            running.enter_context(executed(blocks, every_input(len(blocks)), None, around(number), separate))
        loss_of().backward()


@dataclass(frozen=True)
class _Cost:
    """An operation: bytes alive at its start, most of them in it, its FLOPs."""

    before_bytes: int
    high_bytes: int
    flops: int

    @property
    def peak_bytes(self) -> int:
        return self.high_bytes - self.before_bytes


class _Watch:
    """Meters around every operation of a pass, and in the gaps: before and after the chains, and between two ends."""

    def __init__(self) -> None:
        self.live, self.flops = LiveBytes(), FlopCounter()
        self.costs: dict[tuple[int, Op], _Cost] = {}
        self.graphs: dict[tuple[int, int], tuple[tuple[int, ...], bool, bool]] = {}
        self.activations: dict[tuple[int, int], int] = {}
        self.gradients: dict[tuple[int, int], int] = {}
        self.gap_bytes: Counter[int] = Counter()
        self.gap_flops: Counter[int] = Counter()
        self.left_at = 0  # FLOPs at the end of the last operation

    def gap(self, number: int) -> None:
        """What ran since the last operation belongs to this chain's turn, or lies outside of all."""
        self.gap_bytes[number] = max(self.gap_bytes[number], self.live.high_bytes)
        self.gap_flops[number] += self.flops.total - self.left_at

    def around(self, number: int) -> Around:
        """Watches the chain of that number."""

        @contextmanager
        def watched(op: Op, one: Pass) -> Iterator[None]:
            if op.kind == "turn":
                self.gap(number)
            elif op == Op("run", 0):
                self.gap(number - 1)  # in the turn of the chain before, or before all
            before, flops = self.live.mark(), self.flops.total
            yield
            self.left_at = self.flops.total
            if op.computes:
                self.costs[number, op] = _Cost(before, self.live.high_bytes, self.left_at - flops)
            if op.kind == "save":
                graph = one.graphs[op.block]
                sizes = tuple(unique_bytes([slot.get()]) for slot in graph.slots)
                self.graphs[number, op.block] = sizes, graph.input is not None, graph.holds_output
            for block, slot in one.activations.items():
                self.activations[number, block] = unique_bytes([slot.get()])
            self.live.mark()

        return watched

    def bare_chain(self, number: int, blocks: Sequence[nn.Module]) -> Chain:
        """The chain without seconds, and without the rest of the model."""
        stages = []
        for i, block in enumerate(blocks):
            saved, holds_input, holds_output = self.graphs[number, i]
            trained = [weight for weight in block.parameters() if weight.requires_grad]
            peaks = {kind: self.costs[number, Op(kind, i)].peak_bytes for kind in ("run", "save", "back")}
            stages.append(
                Stage(
                    0.0, 0.0, 0.0, self.activations[number, i + 1], saved,
                    peaks["run"], peaks["save"], peaks["back"], holds_input, holds_output,
                    gradient_bytes=unique_bytes(trained), weight_bytes=unique_bytes(block.parameters()),
                )
            )  # fmt: skip
        return Chain(tuple(stages), self.activations[number, 0])


class _Clock:
    """The wall clock around every operation, in the turns, and outside of both."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[tuple[int, Op], float] = {}
        self.turns: defaultdict[int, float] = defaultdict(float)
        self.left_at = self.now()

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def ended(self) -> None:
        self.turns[BEGIN] += self.now() - self.left_at

    def around(self, number: int) -> Around:
        @contextmanager
        def watched(op: Op, _: Pass) -> Iterator[None]:
            started = self.now()
            turn = number if op.kind == "turn" else number - 1 if op == Op("run", 0) else BEGIN
            self.turns[turn] += started - self.left_at
            yield
            self.left_at = self.now()
            if op.computes:
                self.seconds[number, op] = self.left_at - started

        return watched

"""A chain's costs, measured on the model itself: one pass in which every block runs twice, watched block by block.

Bytes and FLOPs are exact, also of tensors without values. Seconds are either FLOPs over a rate, which gives the same
schedule everywhere, or those of the clock, the median of several passes.

A model may have several chains (an encoder and a decoder); the later one's whole pass lies in the earlier one's turn.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suite.chain.chain import Chain, Stage
from suite.chain.execute import Around, ModelPass, executed
from suite.chain.schedule import Op, Schedule, every_input, plain
from suite.chain.simulate import Prediction, predicted
from suite.meters.clock import Clock
from suite.meters.flops import FlopCounter
from suite.meters.live import NamedHigh
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
        _pass(stacks, loss_of, watch.around, every_input, separate=True)
        watch.gap(BEGIN, "behind the first block's backward pass")
    seconds: dict[tuple[int, Op], float] = {key: cost.flops / flops_per_s for key, cost in watch.costs.items()}
    turns = {number: flops / flops_per_s for number, flops in watch.gap_flops.items()}
    pass_s = sum(turns.values()) + sum(at for (_, op), at in seconds.items() if op.kind != "run")
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
            turn_of=watch.gap_of[number],
            outside_of=watch.gap_of[BEGIN],
        )
        chains.append(timed(chain, number, seconds, turns, pass_s))
        held += alone.turn_bytes
    return chains


def clocked(
    chains: Sequence[Chain], stacks: Sequence[Sequence[nn.Module]], loss_of: Loss, passes: int = 15
) -> list[Chain]:
    """The chains with the clock's seconds, medians over ``passes``, after one pass that does not count.

    Saves, ways back and turns are those of a pass that keeps every graph: a graph that was just made is still in the
    caches. A pass that no executor runs stands beside: what the machine's speed changes from one to the next is taken
    out.
    """
    samples: dict[tuple[int, Op], list[float]] = defaultdict(list)
    turns: dict[int, list[float]] = defaultdict(list)
    bare: list[float] = []
    device = next(stacks[0][0].parameters()).device
    for repetition in range(passes + 1):
        again, saving = (_Clock(device) for _ in range(2))
        _pass(stacks, loss_of, again.around, every_input)
        saving.restart()
        loss_of().backward()
        pass_s = saving.restart()
        _pass(stacks, loss_of, saving.around, plain)
        saving.ended()
        if repetition:
            bare.append(pass_s)
            for key, at in (again.seconds | saving.seconds).items():
                samples[key].append(at / pass_s)
            for number, at in saving.turns.items():
                turns[number].append(at / pass_s)
    pass_s = statistics.median(bare)
    seconds = {key: statistics.median(at) * pass_s for key, at in samples.items()}
    in_turns = {number: statistics.median(at) * pass_s for number, at in turns.items()}
    return [timed(chain, number, seconds, in_turns, pass_s) for number, chain in enumerate(chains)]


def timed(
    chain: Chain, number: int, seconds: Mapping[tuple[int, Op], float], turns: Mapping[int, float], pass_s: float
) -> Chain:
    """The chain of that number with the seconds of each block's three operations, and of its turn; the first one with
    those outside of both, and of a pass."""
    stages = tuple(
        replace(
            stage,
            run_s=seconds[number, Op("run", i)],
            save_s=seconds[number, Op("save", i)],
            back_s=seconds[number, Op("back", i)],
        )
        for i, stage in enumerate(chain.stages)
    )
    chain = replace(chain, stages=stages, turn_s=turns[number])
    return chain if number else replace(chain, outside_s=turns[BEGIN], pass_s=pass_s)


def step_peak_bytes(predictions: Sequence[Prediction]) -> int:
    """Most bytes alive in a pass of several chains, each under its own schedule, weights and batch left out."""
    held, most = 0, 0
    for prediction in predictions:
        most = max(most, held + prediction.peak_bytes)
        held += prediction.turn_bytes
    return most


def _pass(
    stacks: Sequence[Sequence[nn.Module]],
    loss_of: Loss,
    around: Callable[[int], Around],
    schedule_of: Callable[[int], Schedule],
    separate: bool = False,
) -> None:
    with ExitStack() as running:
        for number, blocks in enumerate(stacks):
            running.enter_context(executed(blocks, schedule_of(len(blocks)), None, around(number), separate))
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
        self.live, self.flops = NamedHigh(), FlopCounter()
        self.costs: dict[tuple[int, Op], _Cost] = {}
        self.graphs: dict[tuple[int, int], tuple[tuple[int, ...], bool, bool]] = {}
        self.activations: dict[tuple[int, int], int] = {}
        self.gradients: dict[tuple[int, int], int] = {}
        self.gap_bytes: Counter[int] = Counter()
        self.gap_of: dict[int, str] = {}
        self.gap_flops: Counter[int] = Counter()
        self.left_at = 0  # FLOPs at the end of the last operation

    def gap(self, number: int, place: str) -> None:
        """What ran since the last operation belongs to this chain's turn, or lies outside of all."""
        if self.live.high_bytes >= self.gap_bytes[number]:
            self.gap_bytes[number], self.gap_of[number] = self.live.high_bytes, place + self.live.where()
        self.gap_flops[number] += self.flops.total - self.left_at

    def around(self, number: int) -> Around:
        """Watches the chain of that number."""

        @contextmanager
        def watched(op: Op, one: ModelPass) -> Iterator[None]:
            if op.kind == "turn":
                self.gap(number, "between the last block and its backward pass")
            elif op == Op("run", 0):  # in the turn of the chain before, or before all
                self.gap(number - 1, "between two stacks of blocks" if number else "before the first block")
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
        self.clock = Clock(device)
        self.seconds: dict[tuple[int, Op], float] = {}
        self.turns: defaultdict[int, float] = defaultdict(float)
        self.left_at = self.now()

    def now(self) -> float:
        return self.clock.now_s()

    def restart(self) -> float:
        """The seconds since the beginning, which is now."""
        before, self.left_at = self.left_at, self.now()
        return self.left_at - before

    def ended(self) -> None:
        self.turns[BEGIN] += self.restart()

    def around(self, number: int) -> Around:
        @contextmanager
        def watched(op: Op, _: ModelPass) -> Iterator[None]:
            started = self.now()
            turn = number if op.kind == "turn" else number - 1 if op == Op("run", 0) else BEGIN
            self.turns[turn] += started - self.left_at
            yield
            self.left_at = self.now()
            if op.computes:
                self.seconds[number, op] = self.left_at - started

        return watched

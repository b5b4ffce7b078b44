"""Has what solvers are compared with: every persistent schedule of a short chain, one by one; and what schedules
keep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

from suite.chain.chain import Chain, Stage
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, every_input, plain, segmented, tidied
from suite.chain.simulate import Prediction, predicted

DEEPEST = 6  # 1,806 schedules
Solve = Callable[[Chain, int], Schedule]


@cache
def every_persistent(depth: int) -> tuple[Schedule, ...]:
    """Lists all persistent schedules of a chain of ``depth`` blocks: 2, 6, 22, 90, 394, 1806 of them from 1 block
    on."""
    return tuple(tidied(depth, ops) for ops in _over(0, depth, depth))


def _over(a: int, b: int, turn: int) -> Iterator[list[Op]]:
    """Yields what computes over blocks a..b, of which number ``turn`` is the turn."""
    if a == turn:
        yield [TURN]
        return
    for inner in _over(a + 1, b, turn) if a < b else [[]]:
        yield [Op("save", a), *inner, Op("back", a)]
    for split in range(a + 1, b + 1):
        for late in _over(split, b, turn):
            for early in _over(a, split - 1, turn):
                yield [*(Op("run", k) for k in range(a, split)), *late, *early]


def equal_segments(depth: int) -> list[Schedule]:
    """Lists schedules that keep the inputs of nearly equal segments, of any length: all blocks recomputed, or all but
    the last's; and the plain one."""
    ways = [plain(depth), every_input(depth)]
    for length in range(1, depth + 1):
        ranges = [(start, min(start + length, depth)) for start in range(0, depth, length)]
        ways += [segmented(depth, ranges), segmented(depth, ranges[:-1])]
    return ways


def persistent_rivals(depth: int) -> list[Schedule]:
    """Lists every persistent schedule of a short chain, the segments of Chen et al. of a long one."""
    return list(every_persistent(depth)) if depth <= DEEPEST else equal_segments(depth)


def unlike_chains(count: int = 30, depth: int = 3) -> Iterator[Chain]:
    """Yields chains of blocks that share no cost, each of which matters at some budget, as models' own rarely do."""
    draw = random.Random(0)

    def stage(input_bytes: int) -> Stage:
        output, saved, gradient = draw.randint(1, 9), draw.randint(0, 20), draw.randint(0, 20)
        return Stage(
            run_s=draw.randint(1, 9),
            save_s=draw.randint(1, 9),
            back_s=draw.randint(1, 9),
            output_bytes=output,
            saved_bytes=(saved,),
            run_peak_bytes=output + draw.randint(0, 20),
            save_peak_bytes=output + saved + draw.randint(0, 9),
            back_peak_bytes=gradient + input_bytes + draw.randint(0, 40),
            gradient_bytes=gradient,
        )

    for _ in range(count):
        stages = [stage(first := draw.randint(1, 9))]
        while len(stages) < depth:
            stages.append(stage(stages[-1].output_bytes))
        turn, forward, backward = draw.randint(0, 60), draw.randint(0, 20), draw.randint(0, 20)
        yield Chain(tuple(stages), first, forward, backward, turn_s=1.0, turn_peak_bytes=turn)


def of_any_ends(chains: Iterable[Chain]) -> Iterator[Chain]:
    """Yields the chains with graphs of which each holds its block's input, its output, both or none."""
    draw = random.Random(0)

    def ends(stage: Stage) -> Stage:
        return replace(stage, holds_input=draw.random() < 0.5, holds_output=draw.random() < 0.5)

    return (replace(chain, stages=tuple(map(ends, chain.stages))) for chain in chains)


def beside_rivals(solve: Solve, chain: Chain, rivals: Sequence[Schedule] | None = None) -> tuple[float, float]:
    """Compares with rivals at every budget at which a rival begins to be the fastest: the solver's time over that
    rival's, and its predicted peak over the budget; the largest of each. Infinite times where the solver does not fit a
    schedule in. ``rivals``: every persistent schedule of a short chain, equal segments of a long one."""
    slowest = highest = 0.0
    for best in fastest_of(chain, persistent_rivals(chain.depth) if rivals is None else rivals):
        try:
            own = predicted(solve(chain, best.peak_bytes), chain)
        except Infeasible:
            return float("inf"), highest
        slowest, highest = max(slowest, own.time_s / best.time_s), max(highest, own.peak_bytes / best.peak_bytes)
    return slowest, highest


def fastest_of(chain: Chain, rivals: Iterable[Schedule]) -> list[Prediction]:
    """Returns those that are faster than all with a lower peak, the lowest peak first."""
    frontier: list[Prediction] = []
    predictions = [predicted(schedule, chain) for schedule in rivals]
    for one in sorted(predictions, key=lambda one: (one.peak_bytes, one.time_s)):
        if not frontier or one.time_s < frontier[-1].time_s * (1 - 1e-9):
            frontier.append(one)
    return frontier


def equal_chain(blocks: int) -> Chain:
    """Builds a chain of blocks that are alike: 1 byte of output, 4 of graph, gradients of 1."""
    return Chain((Stage(1.0, 1.0, 2.0, 1, (4,), 1, 5, 1),) * blocks, 1)


@cache
def binomial_extra(steps: int, snapshots: int) -> int:
    """Computes E(n, s), the fewest runs of n steps beyond those with a graph, one at a time, by the recurrence."""
    if steps == 1:
        return 0
    if snapshots <= 1:
        return steps * (steps - 1) // 2
    splits = range(1, steps)
    return min(i + binomial_extra(i, snapshots) + binomial_extra(steps - i, snapshots - 1) for i in splits)


def kept_at_turn(schedule: Schedule) -> int:
    """Counts the activations kept for later runs at the turn, the chain's input among them."""
    activations = {0}
    for op in schedule.forward:
        if op.computes:
            activations.add(op.block + 1)
        elif op.kind == "drop":
            activations.remove(op.block)
    return len(activations)


def most_graphs(schedule: Schedule) -> int:
    """Counts the most blocks whose graphs are kept at once."""
    changes = [{"save": 1, "back": -1}.get(op.kind, 0) for op in schedule.ops]
    return max(accumulate(changes))

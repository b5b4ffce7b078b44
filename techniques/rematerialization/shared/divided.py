"""Implements divide and conquer over a chain: run to a middle, reverse what follows, then what came before (Griewank,
1992).

    reverse steps first .. first + n:   at most ``base`` steps: run them with their graphs, and back
                                        else: run l steps to a snapshot, reverse the other n - l, reverse the l

Where l is, a :data:`Split` says. The binomial one (Griewank and Walther, 2000) needs the fewest runs: with
beta(s, r) = C(s + r, s), s snapshots and at most r repetitions of any step reverse up to beta(s, r) steps, and l steps
with beta(s, r - 1) < l <= beta(s, r) take t(l, s) = r l - beta(s + 1, r - 1) runs beyond those with a graph. The first
snapshot is the input.

For revolve and ckpt_siskind_dnc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, backs, tidied
from suite.chain.simulate import predicted

Split = Callable[[int, int], int]
"""Of so many steps, with so many snapshots, the first among them: how many to run to the next one."""


def bisection(steps: int, snapshots: int) -> int:
    """Returns half of the steps, as long as there are snapshots."""
    return steps // 2 if snapshots > 1 else steps - 1


@cache
def binomial(steps: int, snapshots: int) -> int:
    """Splits so that the fewest steps run again."""
    return min(range(1, steps), key=lambda i: i + advances(i, snapshots) + advances(steps - i, snapshots - 1))


@cache
def advances(steps: int, snapshots: int) -> float:
    """Computes t(l, s): runs of steps before each runs with its graph; infinite for several steps without a
    snapshot."""
    if snapshots == 0:
        return 0 if steps == 1 else math.inf
    repetitions = 0
    while math.comb(snapshots + repetitions, snapshots) < steps:
        repetitions += 1
    return repetitions * steps - math.comb(snapshots + repetitions, snapshots + 1)


def reversal(first: int, steps: int, snapshots: int, split: Split, base: int = 1) -> Iterator[Op]:
    """Yields what computes to reverse the steps from ``first`` on, whose input is one of the ``snapshots``."""
    while steps > base:
        run = split(steps, snapshots)
        yield from (Op("run", first + i) for i in range(run))
        yield from reversal(first + run, steps - run, snapshots - 1, split, base)
        steps = run
    yield from (Op("save", first + i) for i in range(steps))
    yield from backs(range(first, first + steps))


@cache
def divided(depth: int, snapshots: int, split: Split, base: int = 1) -> Schedule:
    """Builds the schedule of a chain with at most so many snapshots, of which depth - 1 are of use."""
    ops = list(reversal(0, depth, snapshots, split, base))
    ops.insert(ops.index(Op("back", depth - 1)), TURN)
    return tidied(depth, ops)


def fastest_fitting(what: str, schedules: Iterable[Schedule], chain: Chain, budget_bytes: int) -> Schedule:
    """Finds the first of the fastest whose predicted peak is at most ``budget_bytes``. Raises Infeasible."""
    pairs = [(predicted(schedule, chain), schedule) for schedule in schedules]
    fitting = [(seen.time_s, schedule) for seen, schedule in pairs if seen.peak_bytes <= budget_bytes]
    if not fitting:
        raise Infeasible(what, budget_bytes, min(seen.peak_bytes for seen, _ in pairs))
    return min(fitting, key=lambda candidate: candidate[0])[1]

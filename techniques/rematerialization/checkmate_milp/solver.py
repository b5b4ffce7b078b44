"""Implements Checkmate (Jain et al., 2020): the fastest schedule within a budget, by an integer program or its rounded
relaxation.

Both are checked by the simulation that all solvers answer to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible, from_the_input
from suite.chain.schedule import Schedule, every_input, plain, segmented
from suite.chain.simulate import predicted
from techniques.rematerialization.checkmate_milp.program import Program

THRESHOLDS = tuple(n / 10 for n in range(1, 10))  # of S in the relaxation, from which on a value is kept
SEEN = 0.9  # of the budget, by the relaxation, since rounding adds to what it keeps
ROUNDS = 20  # of cover inequalities


@dataclass(frozen=True)
class Solution:
    """Holds a schedule, its predicted seconds, and seconds below which no schedule within the budget gets.

    ``proven``: the program's optimum, and within the budget as it came: no schedule within the budget is faster.
    """

    schedule: Schedule
    time_s: float
    bound_s: float
    proven: bool = False


def optimum(chain: Chain, budget_bytes: int, limit_s: float = math.inf) -> Solution:
    """Finds the fastest schedule whose predicted peak is at most ``budget_bytes``: the integer program's.

    Where ``limit_s`` seconds do not suffice to prove that, it is the best of those that the search has met, of the
    rounded ones and of :func:`checkpoints`. Raises Infeasible.
    """
    program, until_s, bound_s = Program(chain), time.monotonic() + limit_s, 0.0
    met: list[Schedule] = []
    for _ in range(ROUNDS if chain.outside_bytes <= budget_bytes else 0):
        answer = program.solved(budget_bytes, max(until_s - time.monotonic(), 0.0))
        bound_s = max(bound_s, answer.bound_s)
        if answer.values is None:
            break
        choice = answer.values > 0.5
        schedule = program.schedule(choice)
        cost = predicted(schedule, chain)
        if cost.peak_bytes <= budget_bytes:
            if answer.proven:
                return Solution(schedule, cost.time_s, min(bound_s, cost.time_s), proven=True)
            met.append(schedule)
            break
        if not program.forbid(choice, budget_bytes):
            break
    return fastest([*met, *_others(program, budget_bytes)], chain, budget_bytes, bound_s)


def rounded(chain: Chain, budget_bytes: int) -> Solution:
    """Finds the fastest within the budget of the schedules that rounding the relaxation gives (section 5.2). Raises
    Infeasible."""
    program = Program(chain)
    bound_s = program.solved(budget_bytes, whole=False).bound_s
    return fastest([*_rounded(program, budget_bytes)], chain, budget_bytes, bound_s)


def checkpoints(depth: int) -> Iterator[Schedule]:
    """Yields what needs no search: equal segments run again, the last blocks' graphs kept or not."""
    yield from (plain(depth), every_input(depth), from_the_input(depth))
    for rest in range(1, depth + 1):
        for count in range(1, rest + 1):
            yield segmented(depth, list(pairwise(rest * n // count for n in range(count + 1))))


def fastest(schedules: Sequence[Schedule], chain: Chain, budget_bytes: int, bound_s: float) -> Solution:
    """Finds the fastest of the schedules that fit the budget. Raises Infeasible with the least that is known."""
    costs = [(predicted(schedule, chain), schedule) for schedule in schedules]
    fitting = [(cost, candidate) for cost, candidate in costs if cost.peak_bytes <= budget_bytes]
    if not fitting:
        known = [cost for cost, _ in costs] + [predicted(checkpoint, chain) for checkpoint in checkpoints(chain.depth)]
        raise Infeasible("Checkmate's schedule", budget_bytes, min(cost.peak_bytes for cost in known))
    cost, schedule = min(fitting, key=lambda pair: (pair[0].time_s, pair[0].peak_bytes))
    return Solution(schedule, cost.time_s, min(bound_s, cost.time_s))


def _others(program: Program, budget_bytes: int) -> Iterator[Schedule]:
    yield from _rounded(program, budget_bytes)
    yield from checkpoints(program.chain.depth)


def _rounded(program: Program, budget_bytes: int) -> Iterator[Schedule]:
    """Yields the relaxation's S, 1 from a threshold on, with the fewest runs that make it so: the paper's two
    phases."""
    for seen in (SEEN, 1.0):
        values = program.solved(int(seen * budget_bytes), whole=False).values
        if values is not None:
            yield from (program.schedule(program.repaired(values >= threshold)) for threshold in THRESHOLDS)

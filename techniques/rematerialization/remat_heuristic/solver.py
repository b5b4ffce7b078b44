"""Plans rematerialisation by score, as compilers do it: drop what is large, lives long and is cheap to compute again.

The footprint of the whole pass is simulated; while its peak is above the budget, the value of the greatest

    bytes lifetime / recompute seconds

is dropped after its last use in the forward pass, and computed again where the backward pass needs it. A value is
dropped only while what it is computed of stays (Echo's feasibility, XLA's rule of live operands).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, plain, tidied
from suite.chain.simulate import predicted


class Kept(NamedTuple):
    """Holds what the plain pass keeps for the way back: a block's graph, or the activation that it begins with."""

    kind: Literal["graph", "input"]
    block: int


def dropping(chain: Chain, budget_bytes: int) -> Schedule:
    """Finds the plain schedule without as few values, the best scores first, as fits the budget. Raises Infeasible."""
    lives_s = lifetimes_s(chain)
    dropped: set[Kept] = set()
    lowest = math.inf
    while True:
        schedule = recomputing(chain.depth, dropped)
        peak_bytes = predicted(schedule, chain).peak_bytes
        if peak_bytes <= budget_bytes:
            return schedule
        lowest = min(lowest, peak_bytes)
        candidates = list(droppable(chain.depth, dropped))
        if not candidates:
            raise Infeasible("what scores can drop", budget_bytes, int(lowest))
        dropped.add(max(candidates, key=lambda candidate: score(chain, candidate, lives_s[candidate])))


def score(chain: Chain, candidate: Kept, lifetime_s: float) -> float:
    """Computes bytes times lifetime over the seconds of computing it again."""
    if candidate.kind == "graph":
        nbytes, seconds = sum(chain.stages[candidate.block].saved_bytes), chain.stages[candidate.block].save_s
    else:
        nbytes, seconds = chain.activation_bytes[candidate.block], chain.stages[candidate.block - 1].run_s
    return nbytes * lifetime_s / seconds if seconds else math.inf


def lifetimes_s(chain: Chain) -> dict[Kept, float]:
    """Computes the seconds between a value's making and its use on the way back, in a plain pass."""
    moments = {moment.op: moment for moment in predicted(plain(chain.depth), chain).moments}
    lives_s = {}
    for i in range(chain.depth):
        used_s = moments[Op("back", i)].start_s
        lives_s[Kept("graph", i)] = used_s - moments[Op("save", i)].end_s
        lives_s[Kept("input", i)] = used_s - (moments[Op("save", i - 1)].end_s if i else 0.0)
    return lives_s


def droppable(depth: int, dropped: AbstractSet[Kept]) -> Iterator[Kept]:
    """Yields graphs that are kept; inputs of blocks that will run again, between inputs that are kept."""
    for i in range(depth):
        if Kept("graph", i) not in dropped:
            yield Kept("graph", i)
        elif i and not dropped & {Kept("input", j) for j in (i - 1, i, i + 1)}:
            yield Kept("input", i)


def recomputing(depth: int, dropped: AbstractSet[Kept]) -> Schedule:
    """Builds the schedule that computes what is dropped again, where it is used."""
    ops = [Op("run" if Kept("graph", i) in dropped else "save", i) for i in range(depth)] + [TURN]
    for i in reversed(range(depth)):
        if Kept("input", i) in dropped:
            ops.append(Op("run", i - 1))
        if Kept("graph", i) in dropped:
            ops.append(Op("save", i))
        ops.append(Op("back", i))
    return tidied(depth, ops)

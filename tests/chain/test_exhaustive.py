"""The search over all schedules: no schedule that the language allows is faster, and its own fits."""

from __future__ import annotations

import math
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from suite.chain.chain import Chain
from suite.chain.exhaustive import fastest
from suite.chain.schedule import TURN, Op, Schedule, ScheduleError, tidied
from suite.chain.simulate import predicted
from tests.chain.chains import chains
from tests.chain.schedules import schedules


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_schedule_is_faster_within_its_own_peak(data: st.DataObject) -> None:
    chain = data.draw(chains(most=4, any_ends=True))
    cost = predicted(data.draw(schedules(chain.depth, moves=False)), chain)
    assert fastest(chain, cost.peak_bytes) <= cost.time_s


@settings(max_examples=25, deadline=None)
@given(chains(most=2, any_ends=True), st.integers(10, 150))
def test_of_two_blocks_it_is_the_fastest_of_all_written_down(chain: Chain, budget_bytes: int) -> None:
    costs = [predicted(each, chain) for each in written_down(chain.depth)]
    fitting = [cost.time_s for cost in costs if cost.peak_bytes <= budget_bytes]
    assert fastest(chain, budget_bytes) == min(fitting, default=math.inf)


def written_down(depth: int) -> list[Schedule]:
    """Each block runs with its graph or without on the way there, and before each backward pass any do again."""
    ways = []
    kinds = ("run", "save", None)
    for there, *back in product(*(product(kinds[:2] if n == 0 else kinds, repeat=depth) for n in range(depth + 1))):
        ops = [Op(kind, block) for block, kind in enumerate(there) if kind] + [TURN]
        for due, again in zip(reversed(range(depth)), back, strict=True):
            ops += [Op(kind, block) for block, kind in enumerate(again) if kind and block <= due]
            ops.append(Op("back", due))
        try:
            ways.append(tidied(depth, ops))
        except ScheduleError:
            continue
    return ways

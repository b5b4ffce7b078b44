"""Capuchin (Peng et al., ASPLOS 2020): values leave whose transfers computation hides; where these are too few, each
further step takes the cheaper of a transfer that shows and a recomputation.

    free time    of a value: from the end of its way out to the start of its way back, in the plain pass's own trace
    1            the values with most free time leave, as long as no transfer shows
    2            while the peak is above the budget: the block's values with most free time leave, too, or the block of
                 most bytes saved per second (MSPS) runs again, whichever costs less time per byte
    in-trigger   how far ahead a value comes back: the feedback of the simulation in place of that of executed steps
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import product

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Op, Schedule, Value, plain, tidied
from suite.chain.simulate import Prediction, predicted
from techniques.offloading.shared.offloaded import (
    AHEADS,
    LAGS,
    Offloaded,
    candidates,
    leaving,
    linked,
    nbytes,
    plain_fits,
)
from techniques.offloading.shared.priorities import Trace

SHOWS = 1e-6  # of a pass: less is rounding


def free_times(chain: Chain, link: Link) -> dict[Value, float]:
    """Returns the seconds between the end of a value's way out and the start of its way back; negative where they
    overlap."""
    trace = Trace.of(chain)
    return {
        value: trace.absence_s(value) - nbytes(chain, value) * (1 / link.out_bytes_per_s + 1 / link.in_bytes_per_s)
        for value in candidates(chain)
    }


def bytes_saved_per_second(chain: Chain, block: int) -> float:
    """Returns the MSPS of running a block again: its graph's own bytes over its forward pass's seconds."""
    stage = chain.stages[block]
    return sum(stage.saved_bytes) / stage.run_s if stage.run_s else float("inf")


def mixed(chain: Chain, moved: Collection[Value], again: Collection[int], lag: int, ahead: int) -> Schedule:
    """Returns the pass in which ``moved`` values leave and the blocks ``again`` run a second time."""
    stay = [value for value in moved if value.block not in again]
    ops: list[Op] = []
    turned = False
    for op in leaving(chain, stay, lag, ahead).ops:
        turned |= op.kind == "turn"
        if op.block in again and op.kind == "save" and not turned:
            ops.append(Op("run", op.block))
        elif op.block in again and op.kind == "back":
            ops += [Op("save", op.block), op]
        elif op.kind != "drop":
            ops.append(op)
    return tidied(chain.depth, ops)


@dataclass
class _Search:
    """Holds what leaves and what runs again so far."""

    chain: Chain
    link: Link
    moved: list[Value]
    again: set[int]

    def cost(self, lag: int = 1, ahead: int = 1) -> Prediction:
        return predicted(mixed(self.chain, self.moved, self.again, lag, ahead), self.chain, self.link)

    def with_values(self, block: int) -> _Search:
        values = [value for value in candidates(self.chain) if value.block == block and value not in self.moved]
        return _Search(self.chain, self.link, [*self.moved, *values], self.again)

    def with_run(self, block: int) -> _Search:
        return _Search(self.chain, self.link, self.moved, self.again | {block})

    def fastest(self, budget_bytes: int) -> Schedule | None:
        """Finds the fastest of all lags and distances that fit."""
        ways = [mixed(self.chain, self.moved, self.again, lag, ahead) for lag, ahead in product(LAGS, AHEADS)]
        costs = [(predicted(way, self.chain, self.link), way) for way in dict.fromkeys(ways)]
        fitting = [
            (cost.time_s, number, way) for number, (cost, way) in enumerate(costs) if cost.peak_bytes <= budget_bytes
        ]
        return min(fitting)[2] if fitting else None


def hidden(chain: Chain, link: Link) -> list[Value]:
    """Returns the values in the order of free time, as many as leave without a transfer that shows."""
    times = free_times(chain, link)
    order = sorted((value for value, free_s in times.items() if free_s > 0), key=lambda value: -times[value])
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if _Search(chain, link, order[:middle], set()).cost().stalled_s <= SHOWS * chain.plain_s:
            low = middle
        else:
            high = middle - 1
    return order[:low]


def capuchin(chain: Chain, budget_bytes: int, link: Link) -> Schedule:
    """Steps 1 and 2. Raises Infeasible."""
    if plain_fits(chain, budget_bytes):
        return plain(chain.depth)
    order = hidden(chain, link)
    low, high = 1, len(order) + 1
    while low < high:  # the fewest hidden values that fit
        middle = (low + high) // 2
        if _Search(chain, link, order[:middle], set()).fastest(budget_bytes):
            high = middle
        else:
            low = middle + 1
    search = _Search(chain, link, order[:low], set())
    times = free_times(chain, link)
    while (schedule := search.fastest(budget_bytes)) is None:
        options = _options(search, times)
        if not options:
            raise Infeasible("any mixture", budget_bytes, search.cost(0, 0).peak_bytes)
        now = search.cost()
        search = min(options, key=lambda option: _price(option.cost(), now))
    return schedule


def _options(search: _Search, times: dict[Value, float]) -> list[_Search]:
    """Returns two options, in which one more block's values leave, or one more block runs again: the first by free
    time, the second by MSPS."""
    chain = search.chain
    blocks = [block for block in range(chain.depth) if block not in search.again]
    here = {value.block for value in candidates(chain) if value not in search.moved} & set(blocks)
    options = []
    if here:
        free = {block: max(time for value, time in times.items() if value.block == block) for block in here}
        options.append(search.with_values(max(here, key=lambda block: (free[block], -block))))
    if blocks:
        options.append(search.with_run(max(blocks, key=lambda block: (bytes_saved_per_second(chain, block), -block))))
    return options


def _price(cost: Prediction, now: Prediction) -> float:
    """Returns the seconds for each byte that the chain no longer holds in the turn."""
    freed = now.turn_bytes - cost.turn_bytes
    return (cost.time_s - now.time_s) / freed if freed > 0 else float("inf")


@dataclass
class Capuchin(Offloaded):
    """Chooses hidden transfers first, then the cheaper of exposed transfers and recomputation. A budget of 1 is
    plain."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return capuchin(chain, budget_bytes, linked(link))

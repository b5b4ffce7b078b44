"""Implements REVOLVE (Griewank and Walther, 2000): as many snapshots of block inputs as the budget holds, placed so
that the fewest blocks run again, while one block's graph is there at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.rematerialization.shared.divided import binomial, divided, fastest_fitting
from techniques.shared.scheduled import Scheduled


def revolved(chain: Chain, budget_bytes: int) -> Schedule:
    """Finds the fastest binomial schedule, of any number of snapshots, whose peak is at most ``budget_bytes``.

    Raises Infeasible.
    """
    numbers = range(1, max(2, chain.depth))
    schedules = (divided(chain.depth, snapshots, binomial) for snapshots in numbers)
    return fastest_fitting("binomial checkpointing", schedules, chain, budget_bytes)


@dataclass
class Revolve(Scheduled):
    """Implements binomial checkpointing within the budget. A budget of 1 is the plain pass; below it no two graphs are
    kept."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return revolved(chain, budget_bytes)

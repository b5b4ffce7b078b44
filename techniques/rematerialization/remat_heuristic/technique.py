"""Implements rematerialisation by score, the compilers' way: XLA's pass and Echo (Zheng, Vijaykumar, Pekhimenko, 2020).

What is large, lives long and is cheap to compute again is dropped first, one value after the other, until the simulated
peak of the whole pass fits the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.rematerialization.remat_heuristic.solver import dropping
from techniques.shared.scheduled import Scheduled


@dataclass
class RematHeuristic(Scheduled):
    """Drops by bytes times lifetime over recompute time, and re-simulates after each drop."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return dropping(chain, budget_bytes)

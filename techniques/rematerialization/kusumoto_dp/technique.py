"""Implements lower sets (Kusumoto, Inoue, Watanabe, Akiba, Koyama, 2019): of all sequences of lower sets of a graph,
the one whose segments run again in least time within a memory budget, by dynamic programming.

For any graph: :func:`~.solver.canonical`. In training the graph is the chain of blocks, whose lower sets are prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.rematerialization.kusumoto_dp.solver import recomputed
from techniques.shared.scheduled import Scheduled


@dataclass
class LowerSets(Scheduled):
    """Follows the fastest canonical strategy within the budget: no block runs a third time. At 1 it is the plain
    pass."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return recomputed(chain, budget_bytes)

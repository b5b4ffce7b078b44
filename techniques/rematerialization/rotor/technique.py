"""Implements Rotor (Herrmann, Beaumont, Eyraud-Dubois, Joly, Shilova, 2019): the fastest memory-persistent schedule of
a chain of unlike blocks within a memory budget, by dynamic programming over ranges of blocks.

Each block is computed without saving, with its input kept, or with its whole graph kept; the three are chosen together.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, tidied
from techniques.shared.persistent import persistent
from techniques.shared.scheduled import Scheduled


def fastest(chain: Chain, budget_bytes: int) -> Schedule:
    """Finds the persistent schedule of least time whose peak is at most ``budget_bytes``. Raises Infeasible."""
    table = persistent(chain)
    if budget_bytes < table.least_bytes:
        raise Infeasible("a persistent schedule", budget_bytes, table.least_bytes)
    return tidied(chain.depth, table.ops(0, chain.depth, budget_bytes - chain.input_bytes))


@dataclass
class Rotor(Scheduled):
    """Follows the fastest persistent schedule within the budget. A budget of 1 is the plain pass."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return fastest(chain, budget_bytes)

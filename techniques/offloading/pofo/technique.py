"""Joint offloading and rematerialisation (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021): some of what is kept leaves
for the second tier, some is computed again, and between the values that leave recomputation is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.offloading.pofo.solver import jointly
from techniques.offloading.shared.offloaded import Offloaded, linked


@dataclass
class POFO(Offloaded):
    """Takes the fastest mixture within the budget. A budget of 1 is the plain pass."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return jointly(chain, budget_bytes, linked(link))

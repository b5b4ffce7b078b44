"""Implements optimal offloading (Beaumont, Eyraud-Dubois, Shilova, 2020): what leaves for the second tier so that a
pass within the budget waits least, by a dynamic programme; nothing runs again.

    a chain, a budget, a link each way  ──  which values leave  ──  when each leaves and comes back
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.offloading.offload_dp.solver import fastest_offload
from techniques.offloading.shared.offloaded import Offloaded, linked


@dataclass
class OffloadDP(Offloaded):
    """Takes the fastest plan that only offloads. A budget of 1 is the plain pass."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return fastest_offload(chain, budget_bytes, linked(link))

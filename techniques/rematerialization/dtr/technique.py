"""Implements dynamic tensor rematerialisation (Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, 2021).

Activations are a cache: where memory runs out, the tensor of the least cost(t) / (bytes(t) staleness(t)) is evicted,
and comes back when something needs it. That needs no plan and no knowledge of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.rematerialization.dtr.runtime import HEURISTICS, Name
from techniques.rematerialization.dtr.solver import played
from techniques.shared.scheduled import Scheduled


@dataclass
class DTR(Scheduled):
    """Evicts by ``heuristic``: "dtr" (h_DTR) counts the evicted tensors around one, "eq" (h_DTR^eq) estimates that by
    union-find, "local" counts the tensor alone; "lru", "size" and "msps" are other caches' rules."""

    heuristic: Name = "dtr"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heuristic not in HEURISTICS:
            raise ValueError(f"heuristic is one of {', '.join(HEURISTICS)}, not {self.heuristic!r}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return played(chain, budget_bytes, self.heuristic)

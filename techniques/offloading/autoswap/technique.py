"""AutoSwap (Zhang, Yeung, Shu, He, Wang, 2019): values leave in the order of a priority score until the peak fits.

    DOA    how long a value is not used
    AOA    DOA x its bytes
    WDOA   the integral of the memory load over its absence
    SWDOA  WDOA, of the load without the values chosen so far

The load is that of the plain pass, from its own trace. The fastest plan of the four scores is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.offloading.shared.offloaded import Offloaded
from techniques.offloading.shared.priorities import SCORES, by_priority


@dataclass
class AutoSwap(Offloaded):
    """Moves values by ``score``, or by each of the four, of which the fastest plan is taken."""

    score: Literal["best", "doa", "aoa", "wdoa", "swdoa"] = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score != "best" and self.score not in SCORES:
            raise ValueError(f"score is best or one of {', '.join(SCORES)}, not {self.score!r}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return by_priority(chain, budget_bytes, link, SCORES if self.score == "best" else (self.score,))

"""Implements Checkmate (Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez, 2020): optimal
rematerialisation.

The fastest schedule within a memory budget is the solution of an integer linear program over what is kept and what is
computed at each stage of the backward pass (section 4); rounding its linear relaxation approximates it (section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.rematerialization.checkmate_milp.solver import optimum, rounded
from techniques.shared.scheduled import Scheduled


@dataclass
class CheckmateMILP(Scheduled):
    """Follows the program's optimum (``method`` "milp"), searched for at most ``limit_s`` seconds per stack of blocks
    and budget, or the fastest schedule that rounding its relaxation gives ("rounding")."""

    method: Literal["milp", "rounding"] = "milp"
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in ("milp", "rounding"):
            raise ValueError(f"method is milp or rounding, not {self.method!r}")
        if not self.limit_s > 0:
            raise ValueError(f"limit_s is above 0 seconds, or inf for as long as it takes, not {self.limit_s}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        if self.method == "rounding":
            return rounded(chain, budget_bytes).schedule
        return optimum(chain, budget_bytes, self.limit_s).schedule

"""SwapAdvisor (Huang, Jin, Li, ASPLOS 2020): a genetic algorithm chooses which values may leave; a planner evicts the
one with the furthest next use where room is needed, and brings it back as soon as it fits; a simulation is the fitness.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.offloading.shared.offloaded import Offloaded
from techniques.offloading.swapadvisor.solver import swapped


@dataclass
class SwapAdvisor(Offloaded):
    """Takes the plan of the fittest allocation, after ``generations`` of ``population`` each. A budget of 1 is
    plain."""

    generations: int = 40
    population: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generations < 0:
            raise ValueError(f"generations is a number, 0 or more, not {self.generations}")
        if self.population < 2:
            raise ValueError(f"population is 2 or more: everything shared, and the inputs alone; not {self.population}")
        if self.seed < 0:
            raise ValueError(f"seed is a number, 0 or more, not {self.seed}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return swapped(chain, budget_bytes, link, self.seed, self.generations, self.population)

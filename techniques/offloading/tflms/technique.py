"""Large model support for TensorFlow (Le, Imai, Negishi, Kawachiya, 2018): values leave whose use lies many operations
ahead in the topological order, whatever their size.

Block i's forward pass is operation i of 2 L, its backward pass operation 2 L - 1 - i. A value of block i waits over
2 (L - i) - 1 operations; it leaves if that is more than the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, Value
from techniques.offloading.shared.offloaded import Offloaded, candidates, fastest_set, fastest_way, least_peak, linked


def distance(depth: int, value: Value) -> int:
    """Counts the operations between a value's making and its use in the backward pass."""
    return 2 * (depth - value.block) - 1


def farther_than(threshold: int, chain: Chain) -> list[Value]:
    """Returns the values whose distance is more than ``threshold``."""
    return [value for value in candidates(chain) if distance(chain.depth, value) > threshold]


def largest_threshold(chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
    """Returns the schedule of the largest threshold that fits: the fewest values leave. Raises Infeasible."""
    for threshold in range(2 * chain.depth - 1, -2, -2):  # nothing leaves, block 0's do, ..., all do
        chosen = farther_than(threshold, chain)
        if way := fastest_way(chain, chosen, budget_bytes, linked(link)):
            return way[0]
    raise Infeasible("any threshold", budget_bytes, least_peak(chain, candidates(chain), linked(link)))


@dataclass
class TFLMS(Offloaded):
    """Values that wait longer than ``threshold`` operations leave; None for the largest threshold that fits."""

    threshold: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and self.threshold < 0:
            raise ValueError(f"threshold is a number of operations, 0 or more, not {self.threshold}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        if self.threshold is None:
            return largest_threshold(chain, budget_bytes, link)
        chosen = farther_than(self.threshold, chain)
        return fastest_set(chain, [chosen], budget_bytes, link, f"what threshold {self.threshold} leaves")

"""Implements divide-and-conquer checkpointing (Siskind and Pearlmutter, 2018): a run is interrupted in its middle; what
follows is reversed first, from the capsule, then what came before.

For any program of tensors, with operators as its steps: :func:`~.program.gradients`. In training a step is a block, and
a capsule its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule
from techniques.rematerialization.ckpt_siskind_dnc.program import gradients
from techniques.rematerialization.shared.divided import binomial, bisection, divided, fastest_fitting
from techniques.shared.scheduled import Scheduled

__all__ = ["DivideAndConquer", "conquered", "gradients"]

Splitting = Literal["bisection", "binomial"]


def divisions(depth: int, splitting: Splitting) -> Iterator[Schedule]:
    """Yields schedules, where bisection ends at any number of blocks; the binomial split at one, with any number of
    capsules."""
    if splitting == "bisection":
        yield from (divided(depth, depth, bisection, base) for base in range(depth, 0, -1))
    else:
        yield from (divided(depth, capsules, binomial) for capsules in range(1, max(2, depth)))


def conquered(chain: Chain, budget_bytes: int, splitting: Splitting) -> Schedule:
    """Finds the fastest of these whose peak is at most ``budget_bytes``. Raises Infeasible."""
    what = f"divide and conquer by {splitting}"
    return fastest_fitting(what, divisions(chain.depth, splitting), chain, budget_bytes)


@dataclass
class DivideAndConquer(Scheduled):
    """Divides as ``split`` says: in the middle ("bisection"), or so that the fewest blocks run again ("binomial")."""

    split: Splitting = "bisection"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split not in ("bisection", "binomial"):
            raise ValueError(f"split is bisection or binomial, not {self.split!r}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        return conquered(chain, budget_bytes, self.split)

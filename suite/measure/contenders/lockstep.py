"""Times sides in lock-step: rounds of blocks in a random order, followed by its reverse.

::

    round 0                     round 1                     ...
    B A C | C A B               A C B | B C A
    order   its reverse         a new random order, its reverse

Every letter is a block of training steps of one side; only one computes at a time. A side's two blocks of a round lie
symmetrically about the round's centre, so a linear drift of the machine's speed cancels in the paired log ratio
d = 1/2 [(ln b1 + ln b2) - (ln a1 + ln a2)]. For two sides this is the randomised ABBA/BAAB quad.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Round(Generic[T]):
    """Records one round: the order of its first half, the seconds of both blocks of every side that ran both, and the
    seconds that passed outside of blocks."""

    number: int
    order: list[T]
    block_s: dict[T, tuple[float, float]]
    outside_s: float


def in_rounds(
    sides: Sequence[T], rounds: int, coin: random.Random, block: Callable[[T, int], float | None]
) -> Iterator[Round[T]]:
    """Runs ``block(side, number)``, which gives its seconds or None where it failed, for 2 ``rounds`` blocks a side."""
    for number in range(rounds):
        order = coin.sample(sides, len(sides))
        start_s = time.monotonic()
        first = {side: block(side, 2 * number) for side in order}
        second = {side: block(side, 2 * number + 1) for side in reversed(order)}
        both = {side: (a, b) for side, a in first.items() if a is not None and (b := second[side]) is not None}
        outside_s = time.monotonic() - start_s - sum(map(sum, both.values()))
        yield Round(number, order, both, outside_s)


def steps_of_blocks(steps: int, blocks: int) -> list[int]:
    """Returns ``steps`` in ``blocks`` nearly equal parts, in order."""
    ends = [block * steps // blocks for block in range(blocks + 1)]
    return [end - start for start, end in pairwise(ends)]

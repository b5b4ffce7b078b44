"""Tells where new blocks come from, and which candidate is best for its cost: the pure part of AutoProg."""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.model.anatomy import Block, in_features, out_features

TINY = 1e-12  # of a loss
TIE = 1e-9  # of two candidates the line goes through both: the smaller is taken


def sources(old: int, new: int) -> list[int]:
    """Tells which of ``old`` blocks each of ``new`` ones comes from: neighbours, the later ones first. 2, 3 -> [0, 1,
    1]."""
    times, further = divmod(new, old)
    return [index for index in range(old) for _ in range(times + (index >= old - further))]


def newcomers(old: int, new: int) -> list[int]:
    """Tells which of ``new`` blocks are copies, behind the block that they are copies of. 2, 4 -> [1, 3]."""
    origin = sources(old, new)
    return [index for index in range(1, new) if origin[index] == origin[index - 1]]


def best(losses: Sequence[float], costs: Sequence[float]) -> int:
    """Returns argmin L T^alpha, where L falls like T^-alpha among the candidates (least squares of logarithms), alpha
    >= 0."""
    x, y = ([math.log(max(value, TINY)) for value in values] for values in (costs, losses))
    mean = sum(x) / len(x)
    spread = sum((time - mean) ** 2 for time in x)
    slope = sum((time - mean) * loss for time, loss in zip(x, y, strict=True)) / spread if spread else 0.0
    alpha = max(-slope, 0.0)
    scores = [loss + alpha * cost for loss, cost in zip(y, x, strict=True)]
    return next((index for index, score in enumerate(scores) if score <= min(scores) + TIE), 0)  # 0 of NaN


def block_cost(block: Block, tokens: int) -> int:
    """Counts the multiplications of a block for an example of so many tokens: matrices, scores and their weighted
    sum."""
    entries = sum(in_features(part.module) * out_features(part.module) for part in block.linears)
    return tokens * entries + 2 * tokens**2 * block.width

"""Has the accelerated sequence on a function of one tensor, and its two kinds of momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from torch import Tensor


def following(t: float) -> float:
    """Computes t_{k+1} of t_k."""
    return (1 + math.sqrt(1 + 4 * t * t)) / 2


def accelerated(
    gradient: Callable[[Tensor], Tensor], start: Tensor, rate: float, momentum: float | None = None
) -> Iterator[Tensor]:
    """Yields x_1, x_2, ... from x_0 = ``start``, one gradient each; ``rate`` is 1/L. Without ``momentum``: by t_k."""
    x = y = start
    t = 1.0
    while True:
        before, x = x, y - rate * gradient(y)
        t, last = following(t), t
        y = x + ((last - 1) / t if momentum is None else momentum) * (x - before)
        yield x


def strongly_convex_momentum(condition: float) -> float:
    """Returns the constant momentum for f whose curvature lies in [mu, L], by the condition number kappa = L / mu."""
    return (math.sqrt(condition) - 1) / (math.sqrt(condition) + 1)

"""The accelerated sequence on a function of one tensor, its two kinds of momentum, and the check of its theorem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

GRADIENTS = 300  # of the theorem's check on the trained head


def following(t: float) -> float:
    """t_{k+1} of t_k."""
    return (1 + math.sqrt(1 + 4 * t * t)) / 2


def accelerated(
    gradient: Callable[[Tensor], Tensor], start: Tensor, rate: float, momentum: float | None = None
) -> Iterator[Tensor]:
    """x_1, x_2, ... from x_0 = ``start``, one gradient each; ``rate`` is 1/L. Without ``momentum``: by t_k."""
    x = y = start
    t = 1.0
    while True:
        before, x = x, y - rate * gradient(y)
        t, last = following(t), t
        y = x + ((last - 1) / t if momentum is None else momentum) * (x - before)
        yield x


def strongly_convex_momentum(condition: float) -> float:
    """The constant momentum for f whose curvature lies in [mu, L], by the condition number kappa = L / mu."""
    return (math.sqrt(condition) - 1) / (math.sqrt(condition) + 1)


def check_bound(gram: Tensor, head: Tensor) -> dict[str, float]:
    """The largest share of the bound that is used, from W = 0; and the final distance over gradient descent's."""
    smoothness = torch.linalg.eigvalsh(gram)[-1].item()
    squared_distance = head.square().sum().item()

    def value(weight: Tensor) -> float:
        return 0.5 * ((weight - head) @ gram * (weight - head)).sum().item()

    def gradient(weight: Tensor) -> Tensor:
        return (weight - head) @ gram

    start, used = torch.zeros_like(head), 0.0
    for k, x in enumerate(islice(accelerated(gradient, start, 1 / smoothness), GRADIENTS), 1):
        last = value(x)
        used = max(used, last * (k + 1) ** 2 / (2 * smoothness * squared_distance))
    descended = start
    for _ in range(GRADIENTS):
        descended = descended - gradient(descended) / smoothness
    if not value(descended):  # so well conditioned that descent ends at the minimum to the last bit
        return {"bound_used": used}
    return {"bound_used": used, "accelerated_over_gradient_descent": last / value(descended)}

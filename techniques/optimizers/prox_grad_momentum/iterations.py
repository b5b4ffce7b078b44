"""Runs APGnc on a function of one tensor, and has the proximal maps that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Penalty = Literal["l1", "group"]


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Computes the proximal map of threshold ||x||_1: towards 0 by the threshold, and exactly 0 within it."""
    return x.sign() * (x.abs() - threshold).clamp(min=0)


def group_threshold(x: Tensor, threshold: float, units: int = 0) -> Tensor:
    """Computes the proximal map of threshold times the sum of the norms of a matrix's slices along the dimension
    ``units``."""
    norms = torch.linalg.vector_norm(x, dim=1 - units, keepdim=True)
    return x * (1 - threshold / norms.clamp(min=torch.finfo(x.dtype).tiny)).clamp(min=0)


def penalty(x: Tensor, kind: Penalty, units: int = 0) -> Tensor:
    """Computes ||x||_1, or the sum of the slices' norms; a scalar."""
    return x.abs().sum() if kind == "l1" else torch.linalg.vector_norm(x, dim=1 - units).sum()


def proximal(x: Tensor, threshold: float, kind: Penalty, units: int = 0) -> Tensor:
    """Computes the proximal map of threshold times :func:`penalty`."""
    return soft_threshold(x, threshold) if kind == "l1" else group_threshold(x, threshold, units)


class Iteration(NamedTuple):
    """Holds x_k and y_{k+1} with F of each; whether y_{k+1} is the extrapolated point."""

    x: Tensor
    y: Tensor
    value_x: float
    value_y: float
    extrapolated: bool


def apgnc(
    objective: Callable[[Tensor], float],
    gradient: Callable[[Tensor], Tensor],
    prox: Callable[[Tensor, float], Tensor],
    start: Tensor,
    rate: float,
    momentum: bool = True,
) -> Iterator[Iteration]:
    """Yields iterations 1, 2, ...; ``objective`` is F, ``gradient`` that of f, ``prox(x, eta)`` the map of eta g.

    Without ``momentum`` it is the proximal gradient method.
    """
    x = y = start
    k = 0
    while True:
        k, before, x = k + 1, x, prox(y - rate * gradient(y), rate)
        v = x + k / (k + 3) * (x - before)
        values = objective(x), objective(v) if momentum else float("inf")
        extrapolated = values[1] < values[0]
        y = v if extrapolated else x
        yield Iteration(x, y, values[0], min(values), extrapolated)

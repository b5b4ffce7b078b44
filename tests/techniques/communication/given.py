"""The gradients that both the ranks and the tests know: drawn anew from the step and the rank."""

from __future__ import annotations

import torch
from torch import Tensor

RANKS = 2
STEPS = 6
SHAPES = {"matrix": (24, 16), "kernel": (8, 3, 2, 2), "vector": (17,), "thin": (2, 3)}


def gradients(step: int, rank: int) -> dict[str, Tensor]:
    """Of one rank in one step, float32. Ranks have something in common, as shares of a batch do."""
    noise = torch.Generator().manual_seed(1000 * step + rank + 1)
    common = torch.Generator().manual_seed(1000 * step)
    return {
        name: torch.randn(shape, generator=noise) + torch.randn(shape, generator=common)
        for name, shape in SHAPES.items()
    }


def mean_gradients(step: int) -> dict[str, Tensor]:
    """Over ranks, float64."""
    own = [gradients(step, rank) for rank in range(RANKS)]
    return {name: sum(each[name].double() for each in own) / RANKS for name in SHAPES}

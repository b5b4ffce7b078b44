"""The first sparsity of each layer, and random masks of it: RigL, section 3, "sparsity distribution"."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def uniform_densities(shapes: Sequence[tuple[int, int]], sparsity: float) -> list[float]:
    """The same share of kept weights for every [n, m] matrix."""
    return [1 - sparsity] * len(shapes)


def erk_densities(shapes: Sequence[tuple[int, int]], sparsity: float) -> list[float]:
    """Erdős–Rényi(-Kernel), section 3: density of an [n, m] matrix proportional to (n + m) / (n m).

    The factor solves the total; a layer that would need more than all of its weights stays dense, and the others make
    up for it.
    """
    sizes = [n * m for n, m in shapes]
    raw = [(n + m) / (n * m) for n, m in shapes]
    dense: set[int] = set()
    while True:
        sparse = [i for i in range(len(shapes)) if i not in dense]
        if not sparse:
            return [1.0] * len(shapes)
        kept = (1 - sparsity) * sum(sizes) - sum(sizes[i] for i in dense)
        factor = kept / sum(raw[i] * sizes[i] for i in sparse)
        overfull = {i for i in sparse if factor * raw[i] > 1}
        if not overfull:
            return [1.0 if i in dense else factor * raw[i] for i in range(len(shapes))]
        dense |= overfull


def random_mask(shape: torch.Size, density: float, generator: torch.Generator) -> Tensor:
    """A boolean mask with exactly round(density * size) ones at uniformly random places."""
    size = math.prod(shape)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=generator)[: round(density * size)]] = True
    return mask.view(shape)

"""Chooses which connections sparse layers have: by densities and chance, by drop and growth, or by a ranking over all
layers.

Densities are those of RigL (Evci et al., ICML 2020, section 3, "sparsity distribution"), after SET's Erdős–Rényi
graphs (Mocanu et al. 2018, equation 1). For the techniques of sparse training (``rigl``, ``set``, ``snip``, ``grasp``,
``lth_imp``, ``svite``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def uniform_densities(shapes: Sequence[tuple[int, int]], sparsity: float) -> list[float]:
    """Returns the same share of kept weights for every [n, m] matrix."""
    return [1 - sparsity] * len(shapes)


def erk_densities(shapes: Sequence[tuple[int, int]], sparsity: float) -> list[float]:
    """Computes Erdős–Rényi(-Kernel), section 3: density of an [n, m] matrix proportional to (n + m) / (n m).

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
        budget = (1 - sparsity) * sum(sizes) - sum(sizes[i] for i in dense)
        factor = budget / sum(raw[i] * sizes[i] for i in sparse)
        overfull = {i for i in sparse if factor * raw[i] > 1}
        if not overfull:
            return [1.0 if i in dense else factor * raw[i] for i in range(len(shapes))]
        dense |= overfull


def random_mask(shape: torch.Size, density: float, generator: torch.Generator) -> Tensor:
    """Draws a boolean mask with exactly round(density * size) ones at uniformly random places."""
    size = math.prod(shape)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=generator)[: round(density * size)]] = True
    return mask.view(shape)


def moved_topology(weight: Tensor, gradient: Tensor, mask: Tensor, count: int) -> Tensor:
    """Returns the mask after ``count`` drops by smallest |weight| and as many growths by largest |dense gradient|.

    A connection dropped now may be grown at once (RigL's algorithm 1 excludes only the kept ones). Shapes are equal,
    the mask is boolean; the number of ones stays.
    """
    magnitude = weight.abs().masked_fill(~mask, math.inf).flatten()
    topology = mask.flatten().clone()
    topology[magnitude.topk(count, largest=False, sorted=False).indices] = False
    candidates = gradient.abs().flatten().masked_fill(topology, -1.0)
    topology[candidates.topk(count, sorted=False).indices] = True
    return topology.view_as(mask)


def highest(importance: Sequence[Tensor], count: int) -> list[Tensor]:
    """Returns boolean masks, one for each layer, of the ``count`` highest of all layers' values."""
    flat = torch.cat([score.flatten() for score in importance])
    mask = torch.zeros_like(flat, dtype=torch.bool)
    mask[flat.topk(count, sorted=False).indices] = True
    parts = mask.split([score.numel() for score in importance])
    return [part.view_as(score) for part, score in zip(parts, importance, strict=True)]


def check_connected(masks: Mapping[str, Tensor]) -> None:
    """Raises ValueError where a layer has no connection left: no signal would pass it."""
    cut = [path for path, mask in masks.items() if not mask.any()]
    if cut:
        raise ValueError(
            f"a choice among all layers at once leaves {len(cut)} of {len(masks)} without a connection ({cut[0]} is "
            "one), and no signal passes them: choose a lower sparsity"
        )


def counted_flops(sparse: float, topology_updates: int, weight_updates: int) -> float:
    """Computes training FLOPs over dense ones of ``sparse``, the share of kept weights (RigL, section 3): the forward
    and both backward products are sparse, but on an update of the topology the weight gradient is dense."""
    spent = topology_updates * (2 * sparse + 1) + weight_updates * 3 * sparse
    return spent / (3 * (topology_updates + weight_updates))

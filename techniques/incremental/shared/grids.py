"""Resizes pictures and tables of positions by matrices in float64, from the definitions.

For probes of ``progressive_resolution``, ``progressive_patch`` and ``autoprog``, which judge torch's own by it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def triangles(old: int, new: int) -> Tensor:
    """Returns the linear resizing with a filter as wide as a new pixel, as a matrix float64 [new, old]."""
    ratio = max(1.0, old / new)
    centres = (torch.arange(new, dtype=torch.float64)[:, None] + 0.5) * old / new - 0.5
    weights = (1 - (torch.arange(old, dtype=torch.float64) - centres).abs() / ratio).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def cubics(old: int, new: int, a: float = -0.75) -> Tensor:
    """Returns the cubic convolution (Keys, 1981) between ``old`` points, the border repeated, as a matrix float64 [new,
    old]."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for row in range(new):
        centre = (row + 0.5) * old / new - 0.5
        for point in range(math.floor(centre) - 1, math.floor(centre) + 3):
            x = abs(point - centre)
            near = ((a + 2) * x - (a + 3)) * x * x + 1
            far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
            matrix[row, min(max(point, 0), old - 1)] += near if x <= 1 else far
    return matrix


def resampling(old: int, new: int) -> Tensor:
    """Returns the matrix float64 [new, old] of a table of so many rows: cubic between the patches of a grid, and the
    same rows before them (of a class token)."""
    grids = math.isqrt(old), math.isqrt(new)
    extra = old - grids[0] ** 2
    matrix = torch.zeros(new, old, dtype=torch.float64)
    matrix[:extra, :extra] = torch.eye(extra)
    matrix[extra:, extra:] = torch.kron(cubics(*grids), cubics(*grids))
    return matrix

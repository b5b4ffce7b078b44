"""The largest entries of a tensor, as values and indices. For ``topk_ef`` and ``dgc``."""

from __future__ import annotations

import math

from torch import Size, Tensor


def top_k(x: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """Values, in ``x``'s dtype, and flat indices, int32, of the ceil(ratio n) entries of the largest magnitude."""
    flat = x.reshape(-1)
    _, indices = flat.abs().topk(max(1, math.ceil(ratio * flat.numel())), sorted=False)
    return flat[indices], indices.int()


def scattered(values: Tensor, indices: Tensor, shape: Size) -> Tensor:
    """The inverse of :func:`top_k`: zeros elsewhere."""
    return values.new_zeros(shape.numel()).index_put_((indices,), values).view(shape)

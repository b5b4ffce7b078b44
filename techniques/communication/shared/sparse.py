"""Finds the largest entries of a tensor, as values and indices. For ``topk_ef`` and ``dgc``. On CUDA a kernel finds
them."""

from __future__ import annotations

import math

from torch import Size, Tensor

from techniques.communication.shared.dispatch import launchable


def count_of(x: Tensor, ratio: float) -> int:
    """Returns how many entries ``ratio`` of a tensor's are, at least one."""
    return max(1, math.ceil(ratio * x.numel()))


def top_k(x: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """Returns the values, in ``x``'s dtype, and flat indices, int32, of the ceil(ratio n) entries of the largest
    magnitude."""
    if launchable(x):
        from techniques.communication.shared import top_k_kernel as kernel

        return kernel.top_k(x, None, count_of(x, ratio))
    flat = x.reshape(-1)
    _, indices = flat.abs().topk(count_of(x, ratio), sorted=False)
    return flat[indices], indices.int()


def scattered(values: Tensor, indices: Tensor, shape: Size) -> Tensor:
    """Computes the inverse of :func:`top_k`: zeros elsewhere."""
    return values.new_zeros(shape.numel()).index_put_((indices,), values).view(shape)

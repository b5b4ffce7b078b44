"""Tells which gradients are sent as matrices of low rank, and which as they are. For ``powersgd`` and
``svd_lowrank``."""

from __future__ import annotations

from torch import Tensor


def as_matrix(x: Tensor) -> Tensor:
    """Returns [first dimension, the others] (PowerSGD, section 3: convolutions are flattened so); a view where it can
    be."""
    return x.reshape(len(x), -1)


def split(gradients: dict[str, Tensor], rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the matrices [n, m] of which ``rank`` (n + m) numbers are fewer than n m, and the other tensors, which
    are sent as they are: vectors, and matrices too small to have a rank of ``rank`` and less than all."""
    low = {
        name: as_matrix(gradient)
        for name, gradient in gradients.items()
        if gradient.ndim > 1 and rank * (len(gradient) + gradient[0].numel()) < gradient.numel()
    }
    return low, {name: gradient for name, gradient in gradients.items() if name not in low}


def with_memory(matrices: dict[str, Tensor], errors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns each matrix with what was not sent of it before."""
    return {name: matrix + as_matrix(errors[name]) if name in errors else matrix for name, matrix in matrices.items()}

"""Computes the fast Walsh-Hadamard transform: n log2 n additions in place of a product with n^2 signs (Sylvester's
order).

    H_1 = [1]        H_2n = [[H_n, H_n], [H_n, -H_n]]        H = H^T        H H = n I

H is not normalised here. As it is symmetric, the gradient of H x is H times what comes back, with no factor: a popular
implementation divides the gradient by sqrt(n) and not the transform, which Adam forgives and plain descent does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling


def walsh_hadamard(x: Tensor) -> Tensor:
    """Computes H x along the last dimension of ``x`` [..., n], in its dtype; differentiable any number of times.

    Raises ValueError unless n is a power of 2.
    """
    n = x.shape[-1] if x.ndim else 0
    if n < 1 or n & (n - 1):
        raise ValueError(f"a Walsh-Hadamard transform has a power of 2 numbers, not {n}: pad with zeros")
    transformed: Tensor = WalshHadamard.apply(x)
    return transformed


class WalshHadamard(torch.autograd.Function):
    """Computes H x, and H dy for its gradient. It saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if not launchable(x):
            return butterflies(x)
        from techniques.fine_tuning.intrinsic_dim import hadamard_kernel

        return hadamard_kernel.walsh_hadamard(x.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return walsh_hadamard(gradient)


def launchable(x: Tensor) -> bool:
    """Tells whether the kernel takes it: float32 on a GPU. The compiler fuses torch's operators by itself."""
    return x.is_cuda and x.dtype == torch.float32 and not is_compiling()


def butterflies(x: Tensor) -> Tensor:
    """Computes H x by torch's operators: log2 n times, sums and differences of numbers that are ``stride`` apart."""
    stride, y = 1, x
    while stride < x.shape[-1]:
        pairs = y.reshape(-1, 2, stride)
        one, other = pairs[:, 0], pairs[:, 1]
        y = torch.stack((one + other, one - other), 1)
        stride *= 2
    return y.reshape(x.shape)

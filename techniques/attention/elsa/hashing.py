"""Computes the signs of random orthogonal projections, by a Kronecker product of small matrices, and the angles that
they estimate.

H = H1 x H2 x H3 with orthogonal 4 x 4 matrices maps 64 numbers to 64; applied one factor after the other that takes
3 * 64 * 4 = 768 multiplications in place of 4096. Two vectors at the angle theta differ in the sign of a random
projection with probability theta / pi (Goemans & Williamson, 1995), so that pi / k times the Hamming distance of their
k signs estimates theta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, reduce

import torch
from torch import Tensor

SHARE = 0.8  # of estimates that the bias makes no larger than the angle
PAIRS = 2**16  # of Gaussian vectors, over which it is found


def sizes(width: int) -> list[int]:
    """Returns the sides of the factors for vectors of ``width``: 4s, and the primes that are left; [1] for one number.

    Raises ValueError for less.
    """
    if width < 1:
        raise ValueError(f"a vector has 1 number or more, not {width}")
    divisors, rest, divisor = [], width, 2
    while rest > 1:
        while rest % divisor:
            divisor += 1
        divisors.append(4 if rest % 4 == 0 else divisor)
        rest //= divisors[-1]
    return divisors or [1]


@cache
def factors(width: int) -> tuple[Tensor, ...]:
    """Draws orthogonal matrices, float32, once for each width."""
    random = torch.Generator().manual_seed(width)
    return tuple(torch.linalg.qr(torch.randn(size, size, generator=random))[0] for size in sizes(width))


def project(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Computes (H1 x H2 x ...) x for ``x`` [..., width], by one product for each factor."""
    shaped = x.unflatten(-1, [len(matrix) for matrix in matrices])
    for place, matrix in enumerate(matrices):
        at = shaped.ndim - len(matrices) + place
        shaped = (shaped.movedim(at, -1) @ matrix.to(x).T).movedim(-1, at)
    return shaped.flatten(-len(matrices))


@cache
def whole(width: int) -> Tensor:
    """Returns H [width, width], float32. More multiplications than by factors, and on CPUs and GPUs less time: one
    product."""
    return reduce(torch.kron, factors(width))


def multiplications(width: int) -> int:
    """Counts the multiplications that :func:`project` makes for one vector."""
    return width * sum(sizes(width))


def signs(x: Tensor) -> Tensor:
    """Returns bool [..., width]: which projections of ``x`` are not negative."""
    return project(x.float(), factors(x.shape[-1])) >= 0


def hamming(query: Tensor, key: Tensor) -> Tensor:
    """Counts the differing signs [..., queries, keys], float32: (k - sum of products of +-1) / 2, exactly."""
    k = query.shape[-1]
    one, other = (operand.float() * 2 - 1 for operand in (query, key))
    return (k - one @ other.transpose(-2, -1)) / 2


@cache
def quantile_bias(width: int) -> float:
    """Returns what is taken from estimates of ``width`` signs, so that SHARE of them are no larger than the angle: the
    quantile of their errors over Gaussian vectors. Of 64 it is the authors' 0.127."""
    random = torch.Generator().manual_seed(width)
    one, other = (torch.randn(PAIRS, width, generator=random) for _ in range(2))
    angle = torch.nn.functional.cosine_similarity(one, other).clamp(-1, 1).arccos()
    differing = (signs(one) != signs(other)).sum(-1)
    return (math.pi / width * differing - angle).quantile(SHARE).item()

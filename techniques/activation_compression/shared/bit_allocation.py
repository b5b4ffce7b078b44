"""Decides which of several tensors gets how many bits: the gradient's variance is least where each further bit buys as
much.

    minimise  sum_i C_i / (2^b_i - 1)^2      subject to  sum_i w_i b_i <= budget

Chen et al., "ActNN" (arXiv 2104.14129, section 4.2), and Liu et al., "GACT" (arXiv 2206.11357): from the widest
width on, whatever loses least for each bit that it frees goes down one. A width's bits buy less than those of the
width below, so no allocation of at most as many bits in all has a smaller sum than the one that this ends at. It may
end below the budget, by less than its last step. For ``actnn`` and ``gact``.
"""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = 32
"""Bits of a number that is not packed."""

NARROWER = {WHOLE: 8, 8: 4, 4: 2, 2: 1}


def allocated(costs: Sequence[float], weights: Sequence[int], budget: float, widest: int = 8) -> list[int]:
    """Returns the bits b_i of each, a power of two up to ``widest``, for costs C_i >= 0 and weights w_i > 0.

    Of equals the widest goes down first. Raises ValueError where even one bit for each is over the ``budget``.
    """
    if sum(weights) > budget:
        raise ValueError(f"a budget of {budget:g} bits is less than one for each of {sum(weights)} numbers")
    widths = [width for width in NARROWER if width <= widest]
    steps = sorted(
        (lost_per_bit(cost, weight, width), -width, number)
        for number, (cost, weight) in enumerate(zip(costs, weights, strict=True))
        for width in widths
    )
    bits = [widest] * len(costs)
    excess = widest * sum(weights) - budget
    for _, width, number in steps:
        if excess <= 0:
            break
        bits[number] = NARROWER[-width]
        excess -= (-width - bits[number]) * weights[number]
    return bits


def lost_per_bit(cost: float, weight: int, bits: int) -> float:
    """Computes what the sum grows by for each bit that is freed, where a tensor's ``bits`` go down a width."""
    narrower = NARROWER[bits]
    return cost * (variance(narrower) - variance(bits)) / (weight * (bits - narrower))


def variance(bits: int) -> float:
    """Computes 1 / (2^b - 1)^2; 0 of what is not packed."""
    return 0.0 if bits == WHOLE else 1 / (2**bits - 1) ** 2

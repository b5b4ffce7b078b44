"""Counts the bytes that OuterSPACE moves, and the least time that its memory's bandwidth allows. Modelled, and nothing
measured.

An element is an index of 32 bits and a value of 64. Operands are read once, each product is written in the multiply
phase and read in the merge phase, and the result is written; pointers to rows, and to lists of products, are 4 bytes.
"""

from __future__ import annotations

import math

ELEMENT_BYTES, POINTER_BYTES = 12, 4
BANDWIDTH = 128 * 2**30  # bytes a second


def traffic_bytes(rows: int, left: float, right: float, products: float, result: float) -> float:
    """Counts the bytes of C = A B with as many entries of A, B, products and entries of C; all matrices have ``rows``
    rows."""
    entries = left + right + 2 * products + result
    return ELEMENT_BYTES * entries + POINTER_BYTES * (3 * (rows + 1) + 2 * left)


def uniform(rows: int, density: float) -> tuple[float, float, float]:
    """Computes entries, products and entries of the result, on average, of a square matrix with entries anywhere,
    squared.

    Raises ValueError for a density outside (0, 1].
    """
    if not 0 < density <= 1:
        raise ValueError(f"density is the share of entries that are not 0, in (0, 1], not {density:g}")
    entries = rows * rows * density
    result = rows * rows * -math.expm1(rows * math.log1p(-(density**2))) if density < 1 else float(rows * rows)
    return entries, entries * entries / rows, result


def bound_s(rows: int, density: float) -> float:
    """Computes the least seconds for the square of such a matrix."""
    entries, products, result = uniform(rows, density)
    return traffic_bytes(rows, entries, entries, products, result) / BANDWIDTH


def outer_pays(products: float, reads: float) -> bool:
    """Tells whether writing and reading all products costs less than what Gustavson's order reads of B again: ``reads``
    elements from slow memory, all of the products where nothing of B stays in a cache."""
    return 2 * products < reads

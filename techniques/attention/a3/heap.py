"""Makes A3's candidate search as the accelerator does: two pointers in each sorted column, and a heap over the columns.

For one query; the batched form in ``technique.py`` gives the same greedy scores. Figure 6 of the paper in words: every
column of the keys is sorted once; for a query, the largest product of column i is at one end of it, the smallest at the
other; M times the largest product over all columns is taken and its pointer moves on, and M times the smallest.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from torch import Tensor


class Search(NamedTuple):
    """Holds ``greedy``: the sums of each key's products that were taken; ``products``: multiplications made for
    them."""

    greedy: list[float]
    products: int


def search(query: Tensor, key: Tensor, pops: int) -> Search:
    """Computes the greedy scores of all keys for one ``query`` [width] over ``key`` [keys, width], after ``pops`` of
    the largest products and ``pops`` of the smallest. Raises ValueError for a negative number of pops."""
    if pops < 0:
        raise ValueError(f"the number of pops is 0 or more, not {pops}")
    keys, width = key.shape
    order, columns, values = key.argsort(dim=0).T.tolist(), key.T.tolist(), query.tolist()
    greedy, products = [0.0] * keys, 0
    for sign in (1, -1):  # the largest products, then the smallest
        heap: list[tuple[float, int, int]] = []
        for column in range(width if pops and keys else 0):
            _push(heap, sign, column, 0, order, columns, values)
            products += 1
        for _ in range(min(pops, keys * width)):
            cost, column, place = heapq.heappop(heap)
            product = -cost * sign
            if product * sign > 0:
                greedy[_row(order[column], place, values[column] * sign)] += product
            if place + 1 < keys:
                _push(heap, sign, column, place + 1, order, columns, values)
                products += 1
    return Search(greedy, products)


def _row(order: list[int], place: int, value: float) -> int:
    """Returns the key whose product is the ``place``-th from its end: from the top where the query's number is
    positive."""
    return order[-1 - place] if value > 0 else order[place]


def _push(
    heap: list[tuple[float, int, int]],
    sign: int,
    column: int,
    place: int,
    order: list[list[int]],
    columns: list[list[float]],
    values: list[float],
) -> None:
    product = columns[column][_row(order[column], place, values[column] * sign)] * values[column]
    heapq.heappush(heap, (-product * sign, column, place))

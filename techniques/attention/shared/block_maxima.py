"""Finds the largest products of blocks of pairs, made a few at a time, so that they stay in the cache and never all in
memory.

Products of one turn are written where those of the last one were: fresh memory for each costs a CPU as much as the
products. Integers of 8 bits are multiplied as such where a CPU does that faster than floats, and rightly; a float32
holds every sum of theirs, so that the products are the same either way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from techniques.attention.shared.kept_pairs import BLOCK

QUERIES, KEYS = 512, 512  # whose products are made together, or those of a block
TRIES = 5
WIDEST = 2**24 // 128**2  # products of integers of 8 bits whose sum a float32 always holds


def over_queries(scores: Tensor, block: int = BLOCK) -> Tensor:
    """Maps [queries, keys] -> [ceil(queries / block), keys]: the largest score that each key gets in a row of
    blocks."""
    return _filled(scores, (0, 0, 0, -len(scores) % block)).unflatten(0, (-1, block)).amax(1)


def over_keys(scores: Tensor, block: int = BLOCK) -> Tensor:
    """Maps [queries, keys] -> [queries, ceil(keys / block)]: the largest score of each query in a block of keys."""
    return _filled(scores, (0, -scores.shape[1] % block)).unflatten(1, (-1, block)).amax(2)


def of_blocks(query: Tensor, key: Tensor, less: Tensor | None = None, block: int = BLOCK) -> Tensor:
    """Computes, as [batch, heads, ceil(queries / block), ceil(keys / block)]: the largest product of each block, of
    ``query`` and ``key`` [batch, heads, tokens, width], floats or integers of 8 bits; ``less`` [batch, heads, keys] is
    taken from the products of each key."""
    tall, wide = (max(1, most // block) * block for most in (QUERIES, KEYS))
    times, room = _products(query, key, tall * wide)
    exact = torch.int32 if query.dtype == torch.int8 else query.dtype
    sides = [[*x.flatten(0, 1)] for x in (query, key, *([] if less is None else [less]))]
    maxima = []
    for head, (queries, keys) in enumerate(zip(*sides[:2])):
        columns = []
        for first in range(0, len(keys), wide):
            part = keys[first : first + wide].T.contiguous()
            best = [over_queries(times(rows, part, room), block).to(exact) for rows in queries.split(tall)]
            of_keys = torch.cat(best) if less is None else torch.cat(best) - sides[2][head][first : first + wide]
            columns.append(over_keys(of_keys, block))
        maxima.append(torch.cat(columns, 1))
    return torch.stack(maxima).unflatten(0, query.shape[:2])


def by_rows_of_blocks(
    query: Tensor, key: Tensor, said: Callable[[Tensor, int, slice], Tensor], block: int = BLOCK
) -> Tensor:
    """Returns what ``said`` makes of the products of a row of blocks with all keys of its head, for all of them:
    [batch, heads, ceil(queries / block), ...], of ``query`` and ``key`` [batch, heads, tokens, width], floats or
    integers of 8 bits.

    ``said`` gets the products [queries, keys], which it may change, the head, counted through the batch, and which
    queries these are.
    """
    times, room = _products(query, key, block * key.shape[2])
    parts = []
    for head, (queries, keys) in enumerate(zip(query.flatten(0, 1), key.flatten(0, 1).mT.contiguous())):
        for first in range(0, len(queries), block):
            own = slice(first, min(first + block, len(queries)))
            parts.append(said(times(queries[own], keys, room), head, own))
    return torch.stack(parts).unflatten(0, (*query.shape[:2], -1))


Products = Callable[[Tensor, Tensor, Tensor], Tensor]


def _products(query: Tensor, key: Tensor, most: int) -> tuple[Products, Tensor]:
    """Returns how rows and columns are multiplied, and room for so many products. Raises ValueError where there are
    none."""
    if not query.numel() or not key.numel():
        raise ValueError(
            f"blocks are predicted of one query and one key or more, not {[*query.shape]} and {[*key.shape]}"
        )
    dtype = query.dtype
    multiply: Callable[..., Tensor] = torch.mm
    if dtype == torch.int8:
        width = query.shape[3]
        whole = width > WIDEST or (query.device.type == "cpu" and integers_are_faster(width, torch.get_num_threads()))
        dtype, multiply = (torch.int32, torch._int_mm) if whole else (torch.float32, torch.mm)

    def times(rows: Tensor, columns: Tensor, room: Tensor) -> Tensor:
        shape = len(rows), columns.shape[1]
        if dtype == torch.float32:
            rows, columns = rows.float(), columns.float()
        product: Tensor = multiply(rows, columns, out=room[: shape[0] * shape[1]].view(shape))
        return product

    return times, torch.empty(most, dtype=dtype, device=query.device)


@cache
def integers_are_faster(width: int, threads: int) -> bool:
    """Tells whether this CPU multiplies integers of 8 bits faster than the floats that they are, and rightly, by
    ``threads``: each is tried a few times, once a process. Without an instruction for them (VNNI) it takes many times
    as long, and sums of large ones saturate."""
    rows = torch.full((QUERIES, width), 127, dtype=torch.int8)
    columns = rows[:KEYS].T.contiguous()
    ways = (lambda: torch._int_mm(rows, columns), lambda: rows.float() @ columns.float())
    if not torch.equal(ways[0](), ways[1]().int()):
        return False
    least = [math.inf, math.inf]
    for _ in range(TRIES):
        for number, way in enumerate(ways):
            start_s = time.perf_counter()
            way()
            least[number] = min(least[number], time.perf_counter() - start_s)
    return least[0] < least[1]


def _filled(scores: Tensor, amounts: tuple[int, ...]) -> Tensor:
    lowest = -math.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    return F.pad(scores, amounts, value=lowest) if any(amounts) else scores

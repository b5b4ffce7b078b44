"""Largest scores of blocks of pairs, made a few rows of blocks at a time, so that all scores never stand in memory.

Scores of one turn are written where those of the last one were: fresh memory for each costs a CPU as much as the
products.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from techniques.attention.shared.kept_pairs import BLOCK

ROWS = 4  # of blocks that are scored together


def over_queries(scores: Tensor, block: int = BLOCK) -> Tensor:
    """[queries, keys] -> [ceil(queries / block), keys]: the largest score that each key gets in a row of blocks."""
    return _filled(scores, (0, 0, 0, -len(scores) % block)).unflatten(0, (-1, block)).amax(1)


def over_keys(scores: Tensor, block: int = BLOCK) -> Tensor:
    """[queries, keys] -> [queries, ceil(keys / block)]: the largest score of each query in a block of keys."""
    return _filled(scores, (0, -scores.shape[1] % block)).unflatten(1, (-1, block)).amax(2)


def by_rows_of_blocks(
    query: Tensor, key: Tensor, said: Callable[[Tensor, int, slice], Tensor], block: int = BLOCK
) -> Tensor:
    """What ``said`` of the products of some queries with all keys of a head, for all of them: [batch, heads,
    ceil(queries / block), ...], of ``query`` and ``key`` [batch, heads, tokens, width], floats or integers of 8 bits.

    ``said`` gets the products [queries, keys], which it may change, the head, counted through the batch, and which
    queries these are.
    """
    step, exact = ROWS * block, query.dtype == torch.int8
    room = torch.empty(step, key.shape[2], dtype=torch.int32 if exact else query.dtype, device=query.device)
    times = torch._int_mm if exact else torch.mm
    parts = []
    for head, (queries, keys) in enumerate(zip(query.flatten(0, 1), key.flatten(0, 1).mT.contiguous())):
        for first in range(0, len(queries), step):
            own = slice(first, min(first + step, len(queries)))
            products = times(queries[own], keys, out=room[: own.stop - first])
            parts.append(said(products, head, own))
    return torch.cat(parts).unflatten(0, (*query.shape[:2], -1))


def _filled(scores: Tensor, amounts: tuple[int, ...]) -> Tensor:
    lowest = -math.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    return F.pad(scores, amounts, value=lowest) if any(amounts) else scores

"""Sanger's prediction for blocks: those that hold a pair whose predicted probability is above the threshold.

Levels of 4 bits are multiplied as integers of 8. A probability p is above T where the predicted score is above the
row's log-sum plus ln T, so that a row needs its sum, and of each block its largest score, and no probability stands in
memory. All queries see all keys: the model is no causal one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from techniques.attention.sanger.technique import TINY, unit
from techniques.attention.shared.block_maxima import ROWS, by_rows_of_blocks, over_keys
from techniques.attention.shared.kept_pairs import BLOCK


def predicted_blocks(
    query: Tensor, key: Tensor, largest: Tensor, bits: int, threshold: float, scale: float, block: int = BLOCK
) -> Tensor:
    """bool [batch, heads, blocks, blocks] of ``query`` and ``key`` [batch, heads, tokens, width], one token or more;
    ``largest`` [2] is of unit queries and keys, ``bits`` at most 8. A query that would keep no pair keeps all, as the
    authors' code has it."""
    levels = 2 ** (bits - 1) - 1
    of = [(x, levels / each.clamp(min=TINY)) for x, each in zip((query, key), largest, strict=True)]
    queries, keys = ((unit(x) * one).round().clamp(-levels, levels).to(torch.int8) for x, one in of)
    of_queries, of_keys = ((x.float().norm(dim=-1) / one).flatten(0, 1) for x, one in of)
    room = torch.empty(ROWS * block, key.shape[2], device=key.device)

    def above(products: Tensor, head: int, own: slice) -> Tensor:
        scores = torch.mul(products, of_keys[head] * scale, out=room[: len(products)])
        lengths = of_queries[head, own, None]
        best = over_keys(scores, block) * lengths
        most = best.amax(1, keepdim=True)
        total = scores.mul_(lengths).sub_(most).exp_().sum(1, keepdim=True)
        kept = best > most + total.log() + math.log(threshold)
        kept |= ~kept.any(1, keepdim=True)
        return torch.stack([part.any(0) for part in kept.split(block)])

    return by_rows_of_blocks(queries, keys, above, block)

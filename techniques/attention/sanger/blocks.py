"""Implements Sanger's prediction for blocks: those that hold a pair whose predicted probability is above the threshold.

Levels of 4 bits are multiplied as integers of 8, a row of blocks at a time: the probabilities of all never stand in
memory. All queries see all keys: the model is no causal one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from techniques.attention.sanger.technique import TINY, unit
from techniques.attention.shared.block_maxima import by_rows_of_blocks, over_keys, over_queries
from techniques.attention.shared.kept_pairs import BLOCK


def predicted_blocks(
    query: Tensor, key: Tensor, largest: Tensor, bits: int, threshold: float, scale: float, block: int = BLOCK
) -> Tensor:
    """Returns bool [batch, heads, blocks, blocks] of ``query`` and ``key`` [batch, heads, tokens, width], one token or
    more; ``largest`` [2] is of unit queries and keys, ``bits`` at most 8. A query that would keep no pair keeps all, as
    the authors' code has it."""
    levels = 2 ** (bits - 1) - 1
    of = [(x, levels / peak.clamp(min=TINY)) for x, peak in zip((query, key), largest, strict=True)]
    queries, keys = ((unit(x) * one).round().clamp(-levels, levels).to(torch.int8) for x, one in of)
    of_queries, of_keys = ((x.float().norm(dim=-1) / one).flatten(0, 1) for x, one in of)
    scores, weights = (torch.empty(block, key.shape[2], device=key.device) for _ in range(2))

    def above(products: Tensor, head: int, own: slice) -> Tensor:
        predicted = torch.mul(products, of_keys[head] * scale, out=scores[: len(products)])
        predicted.mul_(of_queries[head, own, None])
        probabilities = torch.softmax(predicted, -1, out=weights[: len(products)])
        some = (probabilities.amax(1) > threshold).all()  # of each query
        return (over_keys(over_queries(probabilities, block), block) > threshold)[0] | ~some

    return by_rows_of_blocks(queries, keys, above, block)

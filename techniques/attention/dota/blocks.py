"""DOTA's detector for blocks: each row of blocks keeps as many, those with the largest detected scores.

A block counts as much as the largest of its detected pairs. All queries see all keys: the model is no causal one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from techniques.attention.dota.technique import fake_quantised
from techniques.attention.shared.block_maxima import by_rows_of_blocks, over_keys, over_queries
from techniques.attention.shared.kept_pairs import BLOCK


def detected_blocks(
    x: Tensor, projection: Tensor, query: Tensor, key: Tensor, bits: int, retention: float, block: int = BLOCK
) -> Tensor:
    """bool [batch, heads, blocks, blocks] for ``x`` [batch, tokens, model width], one token or more, by a detector of
    ``projection`` [model width, k] and ``query``, ``key`` [heads, k, k]; of each row the ``retention``, rounded, and
    one block at least."""
    narrow = (x.float() @ projection)[:, None]
    of_query, of_key = (fake_quantised(narrow @ weight, bits) for weight in (query, key))

    def best(scores: Tensor, *_: object) -> Tensor:
        return over_keys(over_queries(scores, block), block)

    scores = by_rows_of_blocks(of_query, of_key, best, block)
    count = max(1, round(retention * scores.shape[-1]))
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(count, -1).indices, True)

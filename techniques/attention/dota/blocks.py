"""Implements DOTA's detector for blocks: each row of blocks keeps as many, those with the largest detected scores.

A block counts as much as the largest of its detected pairs. Levels of 8 bits or fewer are multiplied as integers: the
products are the scores but for one factor, and without a rounding. All queries see all keys: the model is no causal
one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from techniques.attention.dota.technique import fake_quantised
from techniques.attention.shared.block_maxima import of_blocks
from techniques.attention.shared.kept_pairs import BLOCK

MOST_BITS = 8  # of an integer that a CPU multiplies faster than a float


def detected_blocks(
    x: Tensor, projection: Tensor, query: Tensor, key: Tensor, bits: int, retention: float, block: int = BLOCK
) -> Tensor:
    """Returns bool [batch, heads, blocks, blocks] for ``x`` [batch, tokens, model width], one token or more, by a
    detector of ``projection`` [model width, k] and ``query``, ``key`` [heads, k, k]; of each row the ``retention``,
    rounded, and one block at least."""
    narrow = (x.float() @ projection)[:, None]
    of_query, of_key = (_levels(fake_quantised(narrow @ weight, bits), bits) for weight in (query, key))
    scores = of_blocks(of_query, of_key, block=block)
    count = max(1, round(retention * scores.shape[-1]))
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(count, -1).indices, True)


def _levels(rounded: Tensor, bits: int) -> Tensor:
    """Returns the levels of numbers that are rounded to these, as integers where they have few bits."""
    if bits > MOST_BITS:
        return rounded
    levels = 2 ** (bits - 1) - 1
    return (rounded * (levels / rounded.abs().amax().clamp(min=1e-30))).round().to(torch.int8)

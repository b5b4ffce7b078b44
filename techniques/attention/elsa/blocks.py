"""Implements ELSA's filter for blocks: those that hold a key within the Hamming distance that it may have from a query.

Products of signs are integers of 8 bits, and the test compares them with one threshold for each key (``farthest``). A
row of blocks in which no key passes keeps the block that comes nearest. All queries see all keys: the model is no
causal one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from techniques.attention.elsa.hashing import whole
from techniques.attention.elsa.technique import farthest
from techniques.attention.shared.block_maxima import of_blocks
from techniques.attention.shared.kept_pairs import BLOCK, Pairs


def near_blocks(query: Tensor, key: Tensor, threshold: float, bias: float, block: int = BLOCK) -> Tensor:
    """Returns bool [batch, heads, blocks, blocks] of ``query`` and ``key`` [batch, heads, tokens, width], one token or
    more."""
    one = torch.ones(1, key.shape[-2], dtype=torch.bool, device=key.device)  # every query sees the same keys
    allowed = farthest(Pairs(query[..., :1, :], key, one, None, 1.0), threshold, bias)[..., 0, :]
    least = query.shape[-1] - 2 * allowed  # of the products: k less twice the distance
    matrix = whole(query.shape[-1]).to(query.device)
    queries, keys = ((x.float() @ matrix.T >= 0).to(torch.int8) * 2 - 1 for x in (query, key))
    spare = of_blocks(queries, keys, least, block)
    return (spare >= 0) | (spare == spare.amax(-1, keepdim=True)) & (spare < 0).all(-1, keepdim=True)

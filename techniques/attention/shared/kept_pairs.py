"""Computes softmax attention over the pairs of a query and a key that a mask keeps, and what such a mask is worth.

    S = scale Q K^T + bias                              all pairs that may attend: ``visible``
    P = softmax(S) over the kept pairs, 0 elsewhere     kept: a subset of the visible ones, a constant of the backward
    O = dropout(P) V

Here all scores are computed and those that are not kept are masked: nothing is skipped, and nothing saved. What an
accelerator, or a kernel that skips, would compute is counted from the mask.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EmptyRows = Literal["dense", "nothing"]


class Pairs(NamedTuple):
    """Holds the queries and keys of one attention, and which of their pairs may attend at all.

    Attributes:
        query: [batch, heads, queries, width].
        key: [batch, heads, keys, width].
        visible: bool, broadcasts to [batch, heads, queries, keys]: neither padding nor, of a causal model, the future.
        bias: added to the scores, broadcasts to them, or None.
        scale: the factor of the products.
    """

    query: Tensor
    key: Tensor
    visible: Tensor
    bias: Tensor | None
    scale: float

    @property
    def scores(self) -> Tensor:
        """Returns scale Q K^T + bias [batch, heads, queries, keys], of visible pairs and of others."""
        return scored(self.query @ self.key.transpose(-2, -1), self)

    @property
    def shape(self) -> torch.Size:
        """Returns [batch, heads, queries, keys]."""
        return torch.Size((*self.query.shape[:-1], self.key.shape[-2]))

    @property
    def longest(self) -> int:
        """Returns the number of keys of a row."""
        return self.key.shape[-2]


def pairs_of(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Pairs:
    """Returns the pairs of an attention function's arguments (:class:`suite.model.attention.AttentionFunction`). A mask
    that is added is a bias, and hides what it takes to the lower end of its type."""
    queries, keys = query.shape[-2], key.shape[-2]
    bias = None
    if mask is None:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        visible = visible.tril() if causal else visible
    elif mask.dtype == torch.bool:
        visible = mask
    else:
        visible, bias = mask > torch.finfo(mask.dtype).min / 2, mask
    return Pairs(query, key, visible, bias, scale)


def scored(products: Tensor, pairs: Pairs) -> Tensor:
    """Returns scale times ``products`` [batch, heads, queries, keys], plus the bias."""
    scores = products * pairs.scale
    return scores if pairs.bias is None else scores + pairs.bias


def softmax_over(scores: Tensor, mask: Tensor) -> Tensor:
    """Computes the softmax of each row of ``scores`` [..., queries, keys] over its pairs in ``mask``, 0 elsewhere; a
    row that keeps none is all 0, and its gradient too."""
    probabilities = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return probabilities.masked_fill(~mask, 0.0)


def with_empty_rows(mask: Tensor, visible: Tensor, rule: EmptyRows) -> Tensor:
    """Returns ``mask`` and visible; where a row would keep nothing, all of its visible pairs (``dense``) or nothing."""
    mask = mask & visible
    return mask if rule == "nothing" else mask | (~mask.any(-1, keepdim=True) & visible)


def kept_attention(pairs: Pairs, value: Tensor, mask: Tensor, dropout_p: float = 0.0) -> Tensor:
    """Computes attention over the pairs in ``mask``, bool [batch, heads, queries, keys], all of them visible.

    ``value`` [batch, heads, keys, width] -> [batch, heads, queries, width] in its dtype. Gradients go through the kept
    pairs; the mask is a constant.
    """
    probabilities = softmax_over(pairs.scores, mask)
    return F.dropout(probabilities.to(value.dtype), dropout_p) @ value


def or_best(mask: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """Returns ``mask``, and in each row that keeps nothing the visible pair with the highest of ``scores``."""
    best = scores.masked_fill(~visible, -math.inf).argmax(-1, keepdim=True)
    lone = torch.zeros_like(mask).scatter_(-1, best, True) & visible
    return mask | (~mask.any(-1, keepdim=True) & lone)


def largest_kept(scores: Tensor, visible: Tensor, count: int) -> Tensor:
    """Returns bool: the ``count`` largest ``scores`` of each row among the visible ones, all of a row that has no
    more."""
    hidden = scores.masked_fill(~visible, -math.inf)
    count = min(count, scores.shape[-1])
    mask = torch.zeros_like(hidden, dtype=torch.bool).scatter_(-1, hidden.topk(count, -1).indices, True)
    return mask & visible


# what a mask is worth -----------------------------------------------------------------------------------------------


class Worth(NamedTuple):
    """Says what one mask is worth, over all rows with a visible key.

    Attributes:
        density: kept pairs over visible ones (what Sanger's paper calls sparsity).
        mass: mean over rows of what dense attention gives to the kept pairs.
        recall: of as many largest probabilities as a row keeps, the share that is kept.
        error: ||O - O_dense|| / ||O_dense||, Frobenius.
        blocks: share of the BLOCK x BLOCK blocks that hold a kept pair, among those that hold a visible one.
    """

    density: float
    mass: float
    recall: float
    error: float
    blocks: float


BLOCK = 64  # rows and columns of a GPU kernel's tile


def worth(pairs: Pairs, value: Tensor, mask: Tensor) -> Worth:
    """Measures what ``mask`` keeps of dense attention. Raises ValueError where no pair is visible."""
    visible = pairs.visible.expand(pairs.shape)
    if not visible.any():
        raise ValueError("no query sees a key: there is no attention that a mask could keep a part of")
    scores = pairs.scores
    dense = softmax_over(scores, visible)
    rows = visible.any(-1)
    own = mask.sum(-1, keepdim=True)
    best = dense.masked_fill(~visible, -1.0).argsort(dim=-1, descending=True, stable=True).argsort(-1) < own
    output, expected = softmax_over(scores, mask) @ value.to(scores.dtype), dense @ value.to(scores.dtype)
    return Worth(
        density=mask.sum().item() / visible.sum().item(),
        mass=(dense * mask).sum(-1)[rows].mean().item(),
        recall=((best & mask).sum() / mask.sum().clamp(min=1)).item(),
        error=((output - expected).norm() / expected.norm()).item(),
        blocks=touched(mask).sum().item() / touched(visible).sum().item(),
    )


def touched(mask: Tensor, block: int = BLOCK) -> Tensor:
    """Returns bool [..., ceil(queries / block), ceil(keys / block)]: the blocks that hold a kept pair."""
    padded = F.pad(mask, (0, -mask.shape[-1] % block, 0, -mask.shape[-2] % block))
    return padded.unflatten(-1, (-1, block)).any(-1).unflatten(-2, (-1, block)).any(-2)

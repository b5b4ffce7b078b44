"""Makes fixed masks from averaged attention, and their two parts: a few columns that are nearly full, and the sparse
rest.

mask     each row: its largest averages until they hold ``information`` of the row; leading tokens always
global   a token that more than ``share`` of the queries keep; global tokens come first, in rows and columns alike
O        softmax over both parts: each part has its maximum m, sum l and output O, which are merged exactly
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from techniques.attention.shared.kept_pairs import Pairs


def informative(average: Tensor, information: float, leading: int = 0) -> Tensor:
    """Returns bool [..., tokens, tokens]: of each row of ``average`` attention the fewest largest entries that sum to
    ``information`` of it or more, and the rows and columns of the ``leading`` tokens.

    Raises ValueError for a share outside (0, 1].
    """
    if not 0 < information <= 1:
        raise ValueError(f"information is the share of attention that a row keeps, in (0, 1], not {information:g}")
    values, places = average.double().sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(-1) - values
    mask = torch.zeros_like(average, dtype=torch.bool)
    mask.scatter_(-1, places, before < information * values.sum(-1, keepdim=True))
    mask[..., :leading, :], mask[..., :, :leading] = True, True
    return mask


class Polarised(NamedTuple):
    """Describes a polarised mask by ``order`` int64 [tokens]: the global tokens, and then the others, each in their old
    order; ``columns``: how many are global."""

    order: Tensor
    columns: int


def polarised(mask: Tensor, share: float) -> Polarised:
    """Polarises one mask [tokens, tokens]. Raises ValueError for a share outside [0, 1)."""
    if not 0 <= share < 1:
        raise ValueError(f"a global token is kept by more than this share of queries, in [0, 1), not {share:g}")
    is_global = mask.sum(0) > share * len(mask)
    return Polarised((~is_global).to(torch.uint8).argsort(stable=True), int(is_global.sum()))


class Part(NamedTuple):
    """Holds the attention over some of the keys: maximum ``m`` and sum ``l`` of the exponentials [queries, 1], and the
    output ``o`` [queries, width], not divided by ``l``."""

    m: Tensor
    l: Tensor  # noqa: E741
    o: Tensor


def part(scores: Tensor, mask: Tensor, value: Tensor) -> Part:
    """Computes the attention part of ``scores`` [queries, keys] over those in ``mask``; a row without any has l = 0."""
    hidden = scores.masked_fill(~mask, -math.inf)
    m = hidden.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((len(scores), 1), -math.inf)
    weights = torch.exp(hidden - m.clamp(min=torch.finfo(scores.dtype).min))
    return Part(m, weights.sum(-1, keepdim=True), weights @ value)


def merged(one: Part, other: Part) -> Tensor:
    """Returns the output of both parts' keys together; 0 where neither has one."""
    m = torch.maximum(one.m, other.m).clamp(min=torch.finfo(one.m.dtype).min)
    weights = [torch.exp(side.m - m) for side in (one, other)]
    total = weights[0] * one.l + weights[1] * other.l
    return (weights[0] * one.o + weights[1] * other.o) / total.clamp(min=torch.finfo(one.m.dtype).tiny)


def split_attention(pairs: Pairs, value: Tensor, mask: Tensor, share: float) -> Tensor:
    """Computes the attention of one head (queries, keys and values [tokens, width]) over ``mask`` [tokens, tokens] in
    its two parts: tokens reordered, the columns of global tokens by themselves, merged, and in the old order again."""
    order, count = polarised(mask, share)
    query, key, values = pairs.query[order], pairs.key[order], value[order]
    ordered_mask = (mask & pairs.visible)[order][:, order]
    scores = query @ key.T * pairs.scale
    if pairs.bias is not None:
        scores = scores + pairs.bias[order][:, order]
    dense = part(scores[:, :count], ordered_mask[:, :count], values[:count])
    sparse = part(scores[:, count:], ordered_mask[:, count:], values[count:])
    return merged(dense, sparse)[order.argsort()]

"""Implements A3: the keys that a few of the largest and smallest products with a query point to, and of these the
near-best ones.

Ham, Jung, Kim, Oh, Park, Song, Park, Lee, Park, Lee & Jeong, "A^3: Accelerating Attention Mechanisms in Neural Networks
with Approximation" (HPCA 2020, arXiv 2002.10941), section IV, for each query q over n keys:

    g_j   the sum of q_i K_ji over those among the M largest products of all i, j (above 0) and the M smallest (below 0)
    C     the keys with g_j > 0                                      candidates, of 2 M products in place of n d
    keep  those of C with s_j >= max over C of s - ln(1 / T)         post-scoring: a weight of T or more of the largest

A trained model is approximated: training is dense. ``heap.py`` is the search with sorted columns and pointers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from techniques.attention.shared.kept_pairs import Pairs, or_best
from techniques.attention.shared.masking import KeptInEvaluation

AT_ONCE = 2**20  # products that are sorted together


def greedy_scores(query: Tensor, key: Tensor, visible: Tensor, pops: Tensor) -> Tensor:
    """Computes g [..., queries, keys]: ``query`` [..., queries, width], ``key`` [..., keys, width], ``visible`` bool
    [..., queries, keys], ``pops`` int64 [..., queries], of the largest products and of the smallest. Of equal products
    any."""
    products = (query[..., :, None, :] * key[..., None, :, :] * visible[..., None]).flatten(-2)
    taken = torch.zeros(visible.shape, dtype=query.dtype, device=query.device)
    count = min(int(pops.max()), products.shape[-1]) if pops.numel() else 0
    for sign in (1, -1):
        values, places = (products * sign).topk(count, dim=-1)
        chosen = (torch.arange(count, device=pops.device) < pops[..., None]) & (values > 0)
        taken.scatter_add_(-1, places // query.shape[-1], values * chosen * sign)
    return taken


def candidates(greedy: Tensor, visible: Tensor) -> Tensor:
    """Returns bool: keys with a positive greedy score; where a query has none, the visible key with the highest."""
    return or_best((greedy > 0) & visible, greedy, visible)


def near_best(scores: Tensor, among: Tensor, threshold: float) -> Tensor:
    """Returns bool: those ``among`` with at least ``threshold`` of the softmax weight of the best among them."""
    largest = scores.masked_fill(~among, -math.inf).amax(-1, keepdim=True)
    return among & (scores >= largest + math.log(threshold))


def multiplications(keys: int, width: int, pops: int, candidates: float, kept_keys: float) -> float:
    """Counts the multiplications of one query: the search's (the first products of 2 width columns and 2 pops), scores
    of candidates, and values; columns are sorted beforehand."""
    return 2 * min(pops + width, keys * width) * (pops > 0) + candidates * width + kept_keys * width


@dataclass
class A3(KeptInEvaluation):
    """``share`` is M over the keys that a query sees, the paper's n / 2 conservatively and n / 8 aggressively;
    ``threshold`` is T, 0.05 and 0.1. Share 0 is dense attention."""

    share: float = 0.5
    threshold: float = 0.05
    zero_strength: ClassVar[Mapping[str, Any]] = {"share": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share < 0:
            raise ValueError(f"share is the number of pops over the keys, 0 or more, not {self.share:g}")
        if not 0 < self.threshold <= 1:
            raise ValueError(
                f"threshold is a softmax weight over the largest one, above 0 and at most 1, not {self.threshold:g}"
            )

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        among = self.among(pairs)
        return near_best(pairs.scores.float(), among, self.threshold)

    def among(self, pairs: Pairs) -> Tensor:
        """Returns bool [batch, heads, queries, keys]: the candidates."""
        visible = pairs.visible.expand(pairs.shape)
        of_query = max(1, pairs.longest * pairs.query.shape[-1])  # products
        rows, heads = (max(1, AT_ONCE // length) for length in (of_query, of_query * pairs.query.shape[-2]))
        parts = zip(
            *(operand.flatten(0, 1).split(heads) for operand in (pairs.query.float(), pairs.key.float(), visible))
        )
        scores = [
            torch.cat(
                [
                    greedy_scores(some, key, own, self.pops(own.sum(-1)))
                    for some, own in zip(query.split(rows, 1), sees.split(rows, 1))
                ],
                1,
            )
            for query, key, sees in parts
        ]
        return candidates(torch.cat(scores).view(pairs.shape), visible)

    def pops(self, keys: Tensor) -> Tensor:
        """Returns M for as many visible ``keys``, int64, 1 or more where there are any."""
        return (self.share * keys).ceil().long()

    def described(self, pairs: Pairs, value: Tensor, mask: Tensor) -> Mapping[str, float]:
        """Adds the share of candidates, and the multiplications over those of dense attention."""
        visible, width = pairs.visible.expand(pairs.shape), pairs.query.shape[-1]
        keys = visible.sum(-1).float()
        among = self.among(pairs).sum().item() / visible.sum().item()
        chosen, n = mask.sum(-1).float().mean().item(), keys.mean().item()
        pops = self.pops(keys).float().mean().item()
        products = multiplications(pairs.longest, width, round(pops), among * n, chosen)
        return {**super().described(pairs, value, mask), "candidates": among, "products": products / (2 * n * width)}

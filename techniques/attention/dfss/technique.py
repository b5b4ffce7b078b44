"""DFSS: of each few consecutive scores of a row the largest are kept, and the softmax is over these.

Chen, Quan, Qu, Liu, Ding & Xie, "Dynamic N:M Fine-grained Structured Sparse Attention Mechanism" (PPoPP 2023, arXiv
2203.00091), section 3:

    S   Q K^T / sqrt(d)
    S'  of each M consecutive scores of a row the N largest: 1 of 2 in float32, 2 of 4 in 16 bits
    O   softmax(S') V

No score is predicted: on a GPU the product's epilogue writes S' and where its scores stood, S never reaches memory, and
sparse tensor cores multiply with V. A pre-trained model is fine-tuned for a few epochs through S'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from techniques.attention.shared.kept_pairs import Pairs
from techniques.attention.shared.masking import KeptPairs

Pattern = Literal["auto", "1:2", "2:4", "whole"]


def pattern_of(pattern: Pattern, dtype: torch.dtype) -> tuple[int, int]:
    """N and M; ``auto`` by the type of queries and keys, as the hardware has them."""
    if pattern == "auto":
        return (1, 2) if dtype.itemsize >= 4 else (2, 4)
    n, m = pattern.split(":")
    return int(n), int(m)


def largest_of_each(scores: Tensor, n: int, m: int) -> Tensor:
    """bool [..., keys]: of each ``m`` consecutive ``scores`` the ``n`` largest, of equal ones the first. The last group
    may be short. Raises ValueError unless 1 <= n <= m."""
    if not 1 <= n <= m:
        raise ValueError(f"of {m} scores 1 to {m} can be kept, not {n}")
    keys = scores.shape[-1]
    groups = F.pad(scores, (0, -keys % m), value=-math.inf).unflatten(-1, (-1, m))
    ranks = groups.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return (ranks < n).flatten(-2)[..., :keys]


class Packed(NamedTuple):
    """Scores as sparse tensor cores take them: ``values`` [..., keys N / M], and ``places`` uint8 [..., keys N / M],
    where in its group each stood, 2 bits on the hardware."""

    values: Tensor
    places: Tensor

    @property
    def bytes(self) -> float:
        """With 2 bits a place."""
        return self.values.numel() * (self.values.element_size() + 0.25)


def packed(scores: Tensor, n: int, m: int) -> Packed:
    """The ``n`` largest of each ``m`` consecutive ``scores`` [..., keys], in their order; m divides the keys.

    Raises ValueError where it does not.
    """
    if scores.shape[-1] % m:
        raise ValueError(f"{scores.shape[-1]} keys are no whole groups of {m}: pad them")
    kept = largest_of_each(scores, n, m).unflatten(-1, (-1, m))
    places = kept.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :n]
    values = scores.unflatten(-1, (-1, m)).gather(-1, places)
    return Packed(values.flatten(-2), places.to(torch.uint8).flatten(-2))


def unpacked(form: Packed, n: int, m: int, rest: float) -> Tensor:
    """The scores [..., keys] again, ``rest`` where none was kept."""
    values, places = (each.unflatten(-1, (-1, n)) for each in form)
    whole = torch.full((*values.shape[:-1], m), rest, dtype=values.dtype, device=values.device)
    return whole.scatter(-1, places.long(), values).flatten(-2)


@dataclass
class Dfss(KeptPairs):
    """``pattern`` auto is 1:2 for float32 and 2:4 for 16 bits; ``whole`` keeps everything."""

    pattern: Pattern = "auto"
    zero_strength: ClassVar[Mapping[str, Any]] = {"pattern": "whole"}

    def kept(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        n, m = pattern_of(self.pattern, pairs.query.dtype)
        return largest_of_each(pairs.scores.masked_fill(~pairs.visible, -math.inf), n, m) & pairs.visible

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
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from techniques.attention.shared.kept_pairs import Pairs
from techniques.attention.shared.masking import KeptPairs
from techniques.shared.sparse.n_of_m import largest_of_each

Pattern = Literal["auto", "1:2", "2:4", "whole"]


def pattern_of(pattern: Pattern, dtype: torch.dtype) -> tuple[int, int]:
    """Returns N and M; ``auto`` by the type of queries and keys, as the hardware has them."""
    if pattern == "auto":
        return (1, 2) if dtype.itemsize >= 4 else (2, 4)
    n, m = pattern.split(":")
    return int(n), int(m)


@dataclass
class Dfss(KeptPairs):
    """``pattern`` auto is 1:2 for float32 and 2:4 for 16 bits; ``whole`` keeps everything."""

    pattern: Pattern = "auto"
    zero_strength: ClassVar[Mapping[str, Any]] = {"pattern": "whole"}

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        n, m = pattern_of(self.pattern, pairs.query.dtype)
        return largest_of_each(pairs.scores.masked_fill(~pairs.visible, -math.inf), n, m) & pairs.visible

"""Top-k sparsification with error feedback: a rank sends the largest entries, and remembers the rest.

Stich, Cordonnier & Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018, arXiv 1809.07599), Algorithm 1; of N ranks:

    a_n = g_n + e_n        kept_n = the k entries of a_n with the largest magnitudes        e_n = a_n - kept_n
    mean = 1/N sum_n kept_n

A rank sends k values and k indices, 8 k bytes, to each other one. Sums of sparse vectors are no longer as sparse, so
they are gathered and not reduced: against a ring's all-reduce it pays while k / n < 1 / N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from techniques.communication.shared.dispatch import launchable
from techniques.communication.shared.exchange import Message
from techniques.communication.shared.ranks import GatheredRanks
from techniques.communication.shared.sparse import count_of, scattered, top_k


@dataclass
class TopK(GatheredRanks):
    """``ratio`` of each tensor's entries are sent, at least one; ``feedback=false`` forgets the others."""

    ratio: float = 0.01

    zero_strength: ClassVar[Mapping[str, Any]] = {"ratio": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio, the share of entries that are sent, lies in (0, 1], not {self.ratio}")

    def compress(self, x: Tensor) -> Message:
        return top_k(x, self.ratio)

    def pack(self, gradient: Tensor, error: Tensor | None) -> tuple[Message, Tensor | None]:
        if launchable(gradient):
            from techniques.communication.shared import top_k_kernel as kernel

            left = (torch.zeros_like(gradient) if error is None else error) if self.feedback else None
            return kernel.top_k(gradient, left, count_of(gradient, self.ratio)), left
        return super().pack(gradient, error)

    def decompress(self, message: Message, shape: torch.Size) -> Tensor:
        values, indices = message
        return scattered(values, indices, shape)

"""Computes the truncated singular value decomposition of each rank's gradient: the best approximation of a rank, at its
price.

The survey's "matrix rank reduction", as Wang et al., "ATOMO: Communication-efficient Learning via Atomic
Sparsification" (NeurIPS 2018, arXiv 1806.04090) have it with singular vectors as atoms, but truncated and with error
feedback, as a control for ``powersgd``; of a matrix a = g + e:

    a = U S V^T        sent: the r largest singular values and their vectors        e = a - U_r S_r V_r^T

By the theorem of Eckart, Young and Mirsky nothing of rank r is closer to a. But factors of several ranks do not add up
to factors, so that they are gathered; and a decomposition costs O(n m min(n, m)).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suite.loop.run import Run
from techniques.communication.shared.exchange import Message, mean_over_ranks
from techniques.communication.shared.matrices import as_matrix, split
from techniques.communication.shared.ranks import GatheredRanks


def truncated(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns U [n, rank], S [rank], V^T [rank, m] of the largest singular values of ``matrix`` [n, m]."""
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank], s[:rank], vt[:rank]


@dataclass
class SVDLowRank(GatheredRanks):
    """Sends the factors of a matrix at ``rank``; ``feedback=false`` forgets the rest. Vectors are reduced as they
    are."""

    rank: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank, of what is sent of a matrix, is 1 or more, not {self.rank}")

    def compress(self, x: Tensor) -> Message:
        return truncated(as_matrix(x), self.rank)

    def decompress(self, message: Message, shape: torch.Size) -> Tensor:
        u, s, vt = message
        return ((u * s) @ vt).view(shape)

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        matrices, others = split(gradients, self.rank)
        means = super().exchange({name: gradients[name] for name in matrices}, run)
        means |= mean_over_ranks(others, run.group)
        return {name: means[name] for name in gradients}

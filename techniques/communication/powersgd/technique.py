"""PowerSGD: one step of subspace iteration finds the low-rank part of the ranks' mean gradient by two all-reduces.

Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (NeurIPS
2019, arXiv 1905.13727), Algorithms 1 and 2; of a matrix G_w of each of W workers, with Q [m, r] of the step before:

    M_w = G_w + E_w
    P = mean of M_w Q          P = orthogonalise(P)          Q = mean of M_w^T P
    mean gradient = P Q^T      E_w = M_w - P P^T M_w

Linear, so that it is reduced and not gathered: r (n + m) numbers in the place of n m. With Q from the step before
(warm start) the steps together are a power iteration: P Q^T becomes the best approximation of rank r. Vectors are
reduced as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from suite.loop.data import generator
from suite.loop.run import Run
from techniques.communication.shared.dispatch import launchable
from techniques.communication.shared.exchange import mean_over_ranks
from techniques.communication.shared.matrices import split, with_memory
from techniques.communication.shared.ranks import CompressedRanks

FEW = 32  # columns that the kernel takes


def factored(matrices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the Q of each [n, r]: one batched QR for all of a shape."""
    by_shape: dict[torch.Size, list[str]] = {}
    for name, matrix in matrices.items():
        by_shape.setdefault(matrix.shape, []).append(name)
    bases: dict[str, Tensor] = {}
    for names in by_shape.values():
        bases |= zip(names, torch.linalg.qr(torch.stack([matrices[name] for name in names]))[0].unbind())
    return bases


def orthogonalised(matrices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns orthonormal columns that span those of each [n, r]; on CUDA one launch for all. Columns that depend on
    others, all zeros included, become directions of their own, so that nothing is counted twice."""
    if matrices and all(launchable(matrix) and matrix.shape[1] <= FEW for matrix in matrices.values()):
        from techniques.communication.powersgd import kernel

        return dict(zip(matrices, kernel.orthogonalised(list(matrices.values())), strict=True))
    return factored(matrices)


def projected(matrices: Mapping[str, Tensor], bases: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Computes M^T P: [m, r] of each matrix [n, m] and its basis [n, r]."""
    return {name: matrix.T @ bases[name] for name, matrix in matrices.items()}


def started(
    matrices: Mapping[str, Tensor], names: Iterable[str], rank: int, noise: torch.Generator
) -> dict[str, Tensor]:
    """Returns the first Q [m, r] of the named matrices: Gaussian, from a generator that is the same on every rank."""
    drawn = {name: torch.randn(matrices[name].shape[1], rank, generator=noise) for name in names}
    return {name: value.to(matrices[name].device) for name, value in drawn.items()}


@dataclass
class PowerSGD(CompressedRanks):
    """Sends a matrix by factors of ``rank``; ``warm_start`` goes on from the last step's Q, ``feedback`` adds what was
    not sent to the next gradient."""

    rank: int = 2
    warm_start: bool = True
    feedback: bool = True
    queries: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank, of what is sent of a matrix, is 1 or more, not {self.rank}")

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        matrices, others = split(gradients, self.rank)
        wanted = with_memory(matrices, self.errors)
        self._start(wanted, run)
        images = {name: value @ self.queries[name] for name, value in wanted.items()}
        bases = orthogonalised(mean_over_ranks(images, run.group))
        own = projected(wanted, bases)
        if self.feedback:
            lost = {name: value - bases[name] @ own[name].T for name, value in wanted.items()}
            self.errors = {name: value.view_as(gradients[name]) for name, value in lost.items()}
        means = mean_over_ranks(own | others, run.group)
        self.queries = {name: means[name].clone() for name in own}  # not the whole bucket
        low = {name: (bases[name] @ means[name].T).view_as(gradients[name]) for name in own}
        return {name: low[name] if name in low else means[name] for name in gradients}

    def _start(self, matrices: dict[str, Tensor], run: Run) -> None:
        fresh = [name for name in matrices if name not in self.queries or not self.warm_start]
        self.queries |= started(matrices, fresh, self.rank, generator(run.seed, 3, run.step))

    def state(self) -> dict[str, Any]:
        return super().state() | {"queries": dict(self.queries)}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        super().restore(state, run)
        self.queries = dict(state["queries"])

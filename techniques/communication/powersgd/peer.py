"""Checks and timings of PowerSGD's batched orthogonalisation, beside batched QR and the loop of torch's hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs
from techniques.communication.powersgd import kernel
from techniques.communication.powersgd.technique import factored

WIDTH, LAYERS, VOCABULARY = 768, 12, 50257  # of GPT-2's smallest model
HEIGHTS = [VOCABULARY, 1024, *([WIDTH, WIDTH, WIDTH, 4 * WIDTH] * LAYERS)]  # rows of its matrices
LOW = (3, 17)


def make(rank: int, sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    """Draws matrices of that many entries, at least as high as they are wide."""
    heights = [max(rank, size // rank) for size in sizes]
    drawn = [torch.randn(height * rank, device=device, generator=generator) for height in heights]
    return {"matrices": drawn}


def matrices(inputs: Inputs, rank: int) -> list[Tensor]:
    return [matrix.view(-1, rank) for matrix in inputs["matrices"]]


def reference(inputs: Inputs, rank: int) -> Inputs:
    """Computes Gram-Schmidt in float64, twice; what is not finite spoils its matrix."""
    bases = []
    for matrix in matrices(inputs, rank):
        basis = matrix.double() if matrix.isfinite().all() else torch.full_like(matrix, torch.nan, dtype=torch.float64)
        for own in range(rank):
            before, x = basis[:, :own], basis[:, own]
            for _ in range(2):
                x = x - before @ (before.T @ x)
            basis[:, own] = x / x.norm()
        bases.append(basis.flatten())
    return {"bases": bases}


def by_kernel(inputs: Inputs, rank: int) -> Callable[[], object]:
    def run() -> None:
        inputs["bases"] = [tensor.flatten() for tensor in kernel.orthogonalised(matrices(inputs, rank))]

    return run


def by_qr(inputs: Inputs, rank: int) -> Callable[[], object]:
    """Returns a run that takes one batch for each shape."""
    named = {str(number): matrix for number, matrix in enumerate(matrices(inputs, rank))}
    return lambda: factored(named)


def by_hook(inputs: Inputs, rank: int) -> Callable[[], object]:
    """Returns a run of torch's, column by column of a batch of one shape."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

    return lambda: [_orthogonalize(matrix.clone().unsqueeze(0)) for matrix in matrices(inputs, rank)]


def bench(rank: int) -> Bench:
    own = partial(by_kernel, rank=rank), partial(by_qr, rank=rank), partial(by_hook, rank=rank)
    return Bench(
        make=partial(make, rank),
        kernel=own[0],
        reference=partial(reference, rank=rank),
        tolerance=64,  # sums of some thousand products by halves; a low matrix may lean on the columns before
        bytes_per_element=8,
        flops_per_element=4 * (rank - 1) + 3,
        peers={"torch.linalg.qr": own[1], "torch's hook": own[2]},
        multi_tensor=False,
        checked_sizes=[rank * height for height in (*LOW, kernel.HELD // rank + 5)],
        timed_sizes=[rank * height for height in HEIGHTS],
    )


BENCHES = {f"rank{rank}": bench(rank) for rank in (2, 4)}

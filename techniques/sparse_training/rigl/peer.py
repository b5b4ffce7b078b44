"""Checks and timings of block-sparse products, all three of a layer in training, beside torch's with the whole matrix.

A list's elements are tokens; the layer is the first of the MLP of GPT-2's smallest model, where a step is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare
from techniques.shared.sparse.block_sparse import expanded
from techniques.shared.sparse.block_sparse_kernel import product, weight_gradient

TOKENS, TIMED, DENSITY = 8 * 1024, (768, 3072), 0.2  # RigL's 80 % sparsity
CHECKED = (3, 2)  # blocks of the layer's input and output
CHECKED_TOKENS = (1, 3, 0, 15, 127, 129, 513)
COPIED_PER_S, MULTIPLIED_PER_S = 4.3e12, 790e12  # bytes, FLOPs in bfloat16: an H200's, measured
Products = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@cache
def mask(n: int, m: int, block: int, device: torch.device) -> Tensor:
    """Returns the mask of a weight [n, m]: the timed one has its density, of the checked one half of the blocks are
    there."""
    shape = (n // block, m // block)
    count = round((DENSITY if (m, n) == TIMED else 0.5) * math.prod(shape))
    pattern = torch.zeros(math.prod(shape), dtype=torch.bool)
    pattern[torch.randperm(len(pattern), generator=torch.Generator().manual_seed(0))[:count]] = True
    return expanded(pattern.view(shape), block).to(device)


def make(block: int, dtype: torch.dtype) -> Callable[[Sequence[int], torch.device, torch.Generator], Inputs]:
    """Returns what makes ``inputs`` [tokens, m], ``gradients`` [tokens, n] of the outputs and ``weights`` [n, m],
    flat."""

    def draw(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        def normal(count: int) -> Tensor:
            return torch.randn(count, device=device, generator=generator).to(dtype)

        shapes = [(size, *(TIMED if size == TOKENS else (block * size for size in CHECKED))) for size in sizes]
        return {
            "inputs": [normal(tokens * m) for tokens, m, _ in shapes],
            "gradients": [normal(tokens * n) for tokens, _, n in shapes],
            "weights": [normal(n * m) for _, m, n in shapes],
        }

    return draw


def matrices(inputs: Inputs, block: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Returns x [tokens, m], g [tokens, n], W [n, m] and its mask, of each."""
    fours = []
    for x, g, weight in zip(*(inputs[name] for name in ("inputs", "gradients", "weights")), strict=True):
        small = tuple(block * size for size in CHECKED)
        m, n = small if weight.numel() == math.prod(small) else TIMED
        fours.append((x.view(-1, m), g.view(-1, n), weight.view(n, m), mask(n, m, block, x.device)))
    return fours


def step(products: Products, block: int) -> Prepare:
    def prepare(inputs: Inputs) -> Callable[[], object]:
        drawn = matrices(inputs, block)

        def run() -> None:
            outputs, of_inputs, of_weights = zip(*(products(*four) for four in drawn), strict=True)
            inputs.update(outputs=list(outputs), of_inputs=list(of_inputs), of_weights=list(of_weights))

        return run

    return prepare


def kernels(block: int) -> Products:
    def products(x: Tensor, g: Tensor, weight: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (
            product(x, weight, pattern, block, False),
            product(g, weight, pattern, block, True),
            weight_gradient(g, x, pattern, block),
        )

    return products


def reference(block: int) -> Callable[[Inputs], Inputs]:
    """Returns what computes block by block in float64: what is not kept is never multiplied, whatever it holds."""

    def products(inputs: Inputs) -> Inputs:
        results: Inputs = {"outputs": [], "of_inputs": [], "of_weights": []}
        for x, g, weight, pattern in matrices(inputs, block):
            x, g, weight = x.double(), g.double(), weight.double()
            y, of_x, of_weight = torch.zeros_like(g), torch.zeros_like(x), torch.zeros_like(weight)
            for row, column in pattern[::block, ::block].nonzero().mul(block).tolist():
                rows, columns = slice(row, row + block), slice(column, column + block)
                y[:, rows] += x[:, columns] @ weight[rows, columns].T
                of_x[:, columns] += g[:, rows] @ weight[rows, columns]
                of_weight[rows, columns] = g[:, rows].T @ x[:, columns]
            for name, output in zip(results, (y, of_x, of_weight), strict=True):
                results[name].append(output)
        return results

    return products


def dense(x: Tensor, g: Tensor, weight: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ weight.T, g @ weight, g.T @ x


def bench(dtype: torch.dtype, block: int, tolerance: float) -> Bench:
    m, n = TIMED
    moved = 3 * (m + n) + n * m * (1 + 2 * DENSITY) / TOKENS  # of a token: x and g twice, what they become once
    as_long = 6 * n * m * DENSITY * COPIED_PER_S / MULTIPLIED_PER_S  # bytes that are copied while FLOPs are done
    return Bench(
        make=make(block, dtype),
        kernel=step(kernels(block), block),
        reference=reference(block),
        tolerance=tolerance,
        bytes_per_element=max(moved * dtype.itemsize, as_long),
        peers={"torch.matmul, dense": step(dense, block)},
        multi_tensor=False,
        timed_sizes=(TOKENS,),
        checked_sizes=CHECKED_TOKENS,
    )


ROUNDINGS = 4 * math.sqrt(max(CHECKED_TOKENS))  # of a sum over as many tokens, which err at random
BENCHES = {
    "bfloat16_64": bench(torch.bfloat16, 64, tolerance=2),
    "bfloat16_128": bench(torch.bfloat16, 128, tolerance=2),
    "float32_64": bench(torch.float32, 64, tolerance=ROUNDINGS),
}

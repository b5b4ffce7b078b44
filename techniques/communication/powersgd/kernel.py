"""Orthogonalises all of PowerSGD's matrices at once, in one launch: a program has a matrix [n, r], r few columns.

Classical Gram-Schmidt, twice (Giraud, Langou and Rozloznik 2005: twice is enough), column by column, j-th:

    x = x - Q Q^T x,  again        x = x / |x|        Q = the columns before it

A column that depends on those before it, zeros included, has nothing left but roundings: a fixed one of noise takes its
place, made orthogonal in the same way, so that no direction counts twice and the next step can find a new one. What is
not finite spoils its whole matrix.

A program reads its matrix once from memory; the passes that follow find it in the caches, 8 bytes and 8 (r - 1) / 2 + 3
FLOPs an entry. torch.linalg.qr on a GPU takes a launch and more for each matrix of a batch whose shapes are equal.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import Budget, Manifest

HELD = 4096
"""Entries of a program at once, 16 of each of its threads."""
NUM_WARPS = 8
DEPENDENT = tl.constexpr(2.0**-40)  # of a column's square: what roundings leave of one that depends on others
INSTRUCTIONS = 210  # an entry, of all passes over a piece: latency bounds a program, and no bandwidth
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _noise(row, column):
    """Returns numbers from -1/2 to 1/2: a hash of their place (lowbias32)."""
    x = tl.add(tl.mul(row.to(tl.uint32), 0x9E3779B9, sanitize_overflow=False), column * 0x85EBCA6 + 1)
    x = tl.mul(x ^ (x >> 16), 0x21F0AAAD, sanitize_overflow=False)
    x = tl.mul(x ^ (x >> 15), 0x735A2D97, sanitize_overflow=False)
    x = x ^ (x >> 15)
    return (x >> 8).to(tl.float32) * (1.0 / 16777216) - 0.5


@triton.jit
def _piece(start, rows, RANK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Returns the rows and columns from row ``start`` on, their offsets [ROWS, COLUMNS] and which there are."""
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    offsets = row.to(tl.int64)[:, None] * RANK + column[None, :]
    return row, column, offsets, (row < rows)[:, None] & (column < RANK)[None, :]


@triton.jit
def _products(matrix, rows, own, RANK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Computes the products of the column ``own`` with all columns, [COLUMNS]."""
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, rows, ROWS):
        _, column, offsets, mask = _piece(start, rows, RANK, COLUMNS, ROWS)
        a = tl.load(matrix + offsets, mask=mask, other=0.0)
        x = tl.sum(tl.where((column == own)[None, :], a, 0.0), 1)
        total += tl.sum(a * x[:, None], 0)
    return total


@triton.jit
def _freed(matrix, rows, own, RANK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Takes from the column ``own`` its parts along those before it; the square of what it was, and of what is left."""
    products = _products(matrix, rows, own, RANK, COLUMNS, ROWS)
    every = tl.arange(0, COLUMNS)
    square = tl.sum(tl.where(every == own, products, 0.0), 0)
    earlier = tl.where(every < own, products, 0.0)
    tl.debug_barrier()
    left = 0.0
    for start in range(0, rows, ROWS):
        _, column, offsets, mask = _piece(start, rows, RANK, COLUMNS, ROWS)
        a = tl.load(matrix + offsets, mask=mask, other=0.0)
        here = (column == own)[None, :]
        x = tl.sum(tl.where(here, a, 0.0), 1) - tl.sum(a * earlier[None, :], 1)
        tl.store(matrix + offsets, tl.where(here, x[:, None], a), mask=mask & here)
        left += tl.sum(x * x, 0)
    tl.debug_barrier()
    return square, left


@triton.jit
def _drawn(matrix, rows, own, RANK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Writes noise in the place of the column ``own``."""
    for start in range(0, rows, ROWS):
        row, column, offsets, mask = _piece(start, rows, RANK, COLUMNS, ROWS)
        noise = _noise(row, own)[:, None] + tl.zeros((ROWS, COLUMNS), tl.float32)
        tl.store(matrix + offsets, noise, mask=mask & (column == own)[None, :])
    tl.debug_barrier()


@triton.jit
def _scaled(matrix, rows, own, square, RANK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Divides the column ``own`` by the root of its square."""
    length = tl.sqrt_rn(square)
    for start in range(0, rows, ROWS):
        _, column, offsets, mask = _piece(start, rows, RANK, COLUMNS, ROWS)
        here = mask & (column == own)[None, :]
        tl.store(matrix + offsets, tl.div_rn(tl.load(matrix + offsets, mask=here, other=0.0), length), mask=here)
    tl.debug_barrier()


@triton.jit
def orthogonalise_kernel(matrices, starts, heights, RANK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Orthogonalises the matrices, each by a program; ``starts``: where each of the matrices begins, int64;
    ``heights``: its rows."""
    matrix = matrices + tl.load(starts + tl.program_id(0))
    rows = tl.load(heights + tl.program_id(0))
    for own in range(RANK):
        square, _ = _freed(matrix, rows, own, RANK, COLUMNS, ROWS)
        _, left = _freed(matrix, rows, own, RANK, COLUMNS, ROWS)
        if left <= DEPENDENT * square:
            _drawn(matrix, rows, own, RANK, COLUMNS, ROWS)
            _freed(matrix, rows, own, RANK, COLUMNS, ROWS)
            _, left = _freed(matrix, rows, own, RANK, COLUMNS, ROWS)
        _scaled(matrix, rows, own, left, RANK, COLUMNS, ROWS)


def orthogonalised(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Returns orthonormal columns that span those of each [n, r], whose r is the same: float32, on one device, n at
    least r."""
    rank = matrices[0].shape[1]
    bases = torch.cat([matrix.reshape(-1) for matrix in matrices])
    heights = torch.tensor([len(matrix) for matrix in matrices])
    starts = (heights.cumsum(0) - heights) * rank
    columns = triton.next_power_of_2(rank)
    with torch.cuda.device_of(bases):
        orthogonalise_kernel[(len(matrices),)](
            bases,
            starts.to(bases.device),
            heights.to(torch.int32).to(bases.device),
            RANK=rank,
            COLUMNS=columns,
            ROWS=HELD // columns,
            num_warps=NUM_WARPS,
            **OPTIONS,
        )
    return [
        part.view_as(matrix) for part, matrix in zip(bases.split([m.numel() for m in matrices]), matrices, strict=True)
    ]


def _manifest(rank: int) -> Manifest:
    columns: Any = triton.next_power_of_2(rank)
    return Manifest(
        kernel=orthogonalise_kernel,
        signature={"matrices": "*fp32", "starts": "*i64", "heights": "*i32"},
        constants={"RANK": rank, "COLUMNS": columns, "ROWS": HELD // columns},
        elements_per_program=HELD,
        aligned=("matrices", "starts", "heights"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(registers=128, shared_bytes=16 * 1024, instructions_per_element=INSTRUCTIONS),
    )


MANIFESTS = {"rank2": _manifest(2), "rank4": _manifest(4)}

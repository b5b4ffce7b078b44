"""Computes the low-rank update of a linear layer, y <- y + s (x A^T) B^T, in one pass over x and y; and W <- W + s B A.

    add      low = x A^T            x [tokens, d_in] read once, low [tokens, r] written for the backward pass
             y <- y + s low B^T     y [tokens, d_out] read and written once
    merge    W <- W + s B A         W [d_out, d_in] read and written once

A program keeps ``low`` of its tokens in registers between the two products; in torch's operators the update is a tensor
as large as y, which is written, scaled, and read again. The base product, which fills y, stays cuBLAS's own. Sums are
float32; ``low`` is rounded to the tensors' dtype, as the result of torch's product is.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import dot, narrow

TOKENS, FEATURES = 64, 64  # of a tile
LEAST_RANK = 16  # of a tensor core's operand
MOST_RANK = {torch.float32: 64, torch.bfloat16: 128}  # that registers hold beside the tiles
NUM_WARPS = 4
PRECISION = tl.constexpr("tf32x3")  # of float32: three products of tensor cores, near enough to one of float32
OPERATORS_MOVE_AS_MUCH = True
# elsewhere `addmm` adds in the same memory: x, low and y once each, as here
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def add_kernel(
    x,
    a,
    b,
    y,
    low,
    scale,
    tokens,
    d_in,
    d_out,
    rank,
    x_stride,
    y_stride,
    TOKENS: tl.constexpr,
    FEATURES: tl.constexpr,
    RANK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column, component = tl.arange(0, FEATURES), tl.arange(0, RANK)
    inside, of_rank = row < tokens, component < rank
    sums = tl.zeros((TOKENS, RANK), dtype=tl.float32)
    for first in range(0, d_in, FEATURES):
        here = first + column < d_in
        of_x = tl.load(
            x + row[:, None] * x_stride + (first + column)[None, :], mask=inside[:, None] & here[None, :], other=0.0
        )
        of_a = tl.load(
            a + component[:, None] * d_in + (first + column)[None, :], mask=of_rank[:, None] & here[None, :], other=0.0
        )
        sums = dot(of_x, tl.trans(of_a), sums, PRECISION)
    low_tile = narrow(sums, low.dtype.element_ty)
    tl.store(low + row[:, None] * rank + component[None, :], low_tile, mask=inside[:, None] & of_rank[None, :])
    for first in range(0, d_out, FEATURES):
        here = first + column < d_out
        of_b = tl.load(
            b + (first + column)[:, None] * rank + component[None, :], mask=here[:, None] & of_rank[None, :], other=0.0
        )
        update = dot(low_tile, tl.trans(of_b), tl.zeros((TOKENS, FEATURES), dtype=tl.float32), PRECISION)
        place = y + row[:, None] * y_stride + (first + column)[None, :]
        mask = inside[:, None] & here[None, :]
        base = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        tl.store(place, narrow(base + scale * update, y.dtype.element_ty), mask=mask)


@triton.jit
def merge_kernel(
    left,
    right,
    weight,
    scale,
    rows,
    columns,
    rank,
    left_row,
    left_component,
    right_component,
    right_column,
    stride,
    TILE: tl.constexpr,
    RANK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    component = tl.arange(0, RANK)
    of_rank = component < rank
    of_left = tl.load(
        left + row[:, None] * left_row + component[None, :] * left_component,
        mask=(row < rows)[:, None] & of_rank[None, :],
        other=0.0,
    )
    of_right = tl.load(
        right + component[:, None] * right_component + column[None, :] * right_column,
        mask=of_rank[:, None] & (column < columns)[None, :],
        other=0.0,
    )
    update = dot(of_left, of_right, tl.zeros((TILE, TILE), dtype=tl.float32), PRECISION)
    place = weight + row[:, None] * stride + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    base = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, narrow(base + scale * update, weight.dtype.element_ty), mask=mask)


def launchable(*tensors: Tensor) -> bool:
    """Tells whether the kernels take these tensors, the first a factor A [r, d_in] or x, the others factors: of one
    dtype, float32 or bfloat16, with rows that lie in memory one after the other, and of a rank that fits."""
    rank = min(tensors[-1].shape)
    return rank <= MOST_RANK.get(tensors[0].dtype, 0) and all(
        tensor.dtype == tensors[0].dtype and tensor.stride(-1) == 1 for tensor in tensors
    )


def add_update(y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Adds ``scale`` x A^T B^T to y [tokens, d_out], in place; returns x A^T [tokens, r] in x's dtype.

    x is [tokens, d_in], A [r, d_in], B [d_out, r], all of one dtype; A and B are contiguous, rows of x and y are.
    """
    low = torch.empty(x.shape[0], a.shape[0], dtype=x.dtype, device=x.device)
    if x.shape[0]:
        with torch.cuda.device_of(x):
            add_kernel[(triton.cdiv(x.shape[0], TOKENS),)](
                x,
                a.contiguous(),
                b.contiguous(),
                y,
                low,
                scale,
                x.shape[0],
                x.shape[1],
                y.shape[1],
                a.shape[0],
                x.stride(0),
                y.stride(0),
                TOKENS=TOKENS,
                FEATURES=FEATURES,
                RANK=_padded(a.shape[0]),
                num_warps=NUM_WARPS,
            )
    return low


def add_to_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """Computes W += ``scale`` B A, in place, for W [d_out, d_in] or a transposed view of it, A [r, d_in], B [d_out,
    r]."""
    left, right = b, a
    if weight.stride(0) == 1:  # stored transposed: W^T += s A^T B^T has rows that lie together
        weight, left, right = weight.T, a.T, b.T
    rows, columns = weight.shape
    with torch.cuda.device_of(weight):
        merge_kernel[(triton.cdiv(rows, TOKENS), triton.cdiv(columns, TOKENS))](
            left,
            right,
            weight,
            scale,
            rows,
            columns,
            a.shape[0],
            *left.stride(),
            *right.stride(),
            weight.stride(0),
            TILE=TOKENS,
            RANK=_padded(a.shape[0]),
            num_warps=NUM_WARPS,
        )


def _padded(rank: int) -> int:
    return max(LEAST_RANK, triton.next_power_of_2(rank))


def _add_manifest(dtype: torch.dtype, rank: int) -> Manifest:
    pointers = dict.fromkeys(("x", "a", "b", "y", "low"), POINTERS[dtype])
    sizes = dict.fromkeys(("tokens", "d_in", "d_out", "rank", "x_stride", "y_stride"), "i32")
    return Manifest(
        kernel=add_kernel,
        signature={**pointers, "scale": "fp32", **sizes},
        constants={"TOKENS": TOKENS, "FEATURES": FEATURES, "RANK": rank},
        elements_per_program=TOKENS * FEATURES,
        aligned=(*pointers, "tokens", "d_in", "d_out", "rank", "x_stride", "y_stride"),
        num_warps=NUM_WARPS,
        budget=Budget(shared_bytes=100 * 1024, needs_hgmma=True),
    )


def _merge_manifest(dtype: torch.dtype, rank: int) -> Manifest:
    pointers = dict.fromkeys(("left", "right", "weight"), POINTERS[dtype])
    sizes = dict.fromkeys(
        ("rows", "columns", "rank", "left_row", "left_component", "right_component", "right_column", "stride"), "i32"
    )
    aligned = (*pointers, "rows", "columns", "rank", "left_row", "right_component", "stride")
    accesses = TOKENS * TOKENS * dtype.itemsize // (NUM_WARPS * 32 * 16)  # of a thread, 16 bytes each
    return Manifest(
        kernel=merge_kernel,
        signature={**pointers, "scale": "fp32", **sizes},
        constants={"TILE": TOKENS, "RANK": rank},
        elements_per_program=TOKENS * TOKENS,
        aligned=aligned,
        num_warps=NUM_WARPS,
        budget=Budget(registers=128, wide_stores=accesses, needs_hgmma=True),
    )


MANIFESTS = {
    f"{name}_{rank}": _add_manifest(dtype, rank)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
    for rank in (LEAST_RANK, MOST_RANK[dtype])
} | {
    f"{name}:merge": _merge_manifest(dtype, LEAST_RANK)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
}

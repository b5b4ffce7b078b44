"""Computes products with a block-sparse matrix, as kernels; :mod:`techniques.shared.sparse.block_sparse` has what they
compute.

    product            Y [tokens, out] = X W^T or X W    a program has a tile of tokens and one column of blocks of Y,
                                                         and goes through the blocks that are kept for it
    weight_gradient    L^T R at the kept blocks, else 0  a program has one block, and goes through all tokens

Which blocks are kept stands on the device: for each row of blocks how many, and their columns, the kept ones first. So
nothing waits for the host, and shapes do not depend on the mask. Sums are float32.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import dot, narrow
from techniques.shared.sparse.block_sparse import OfMask

BLOCKS = (16, 32, 64, 128)
TOKENS = {torch.float32: 64, torch.bfloat16: 128, torch.float16: 128}  # of a product's tile
DEPTH = 64  # tokens of a weight gradient's sums at once
NUM_STAGES = 3
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


class Kept(NamedTuple):
    """Says of each row of blocks [rows], or column [columns], how many are kept, and which: the first of ``places``."""

    counts: Tensor
    places: Tensor


@OfMask
def kept_blocks(mask: Tensor, block: int) -> list[Kept]:
    """Finds what ``mask`` [n, m] keeps of its rows of blocks, and of its columns."""
    blocks = mask[::block, ::block].to(torch.uint8)
    return [
        Kept(tensor.sum(1, dtype=torch.int32), tensor.argsort(dim=1, descending=True, stable=True).int())
        for tensor in (blocks.contiguous(), blocks.T.contiguous())
    ]


@triton.jit
def product_kernel(
    x,
    weight,
    counts,
    places,
    y,
    tokens,
    inner,
    outer,
    blocks,
    of_outer,
    of_inner,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiplies, where ``inner`` and ``outer`` are the widths of x and y; ``of_inner`` and ``of_outer`` the weight's
    strides by them, and ``blocks`` how many there are along the inner one."""
    column = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    within = tl.arange(0, BLOCK)
    there = token < tokens
    out = column * BLOCK + within
    of_x = x + token[:, None] * inner + within[None, :]
    of_weight = weight + out[None, :].to(tl.int64) * of_outer + within[:, None] * of_inner
    sums = tl.zeros((TOKENS, BLOCK), dtype=tl.float32)
    for number in range(0, tl.load(counts + column)):
        first = tl.load(places + column * blocks + number).to(tl.int64) * BLOCK
        left = tl.load(of_x + first, mask=there[:, None], other=0.0)
        right = tl.load(of_weight + first * of_inner)
        sums = dot(left, right, sums, PRECISION)
    tl.store(y + token[:, None] * outer + out[None, :], narrow(sums, y.dtype.element_ty), mask=there[:, None])


@triton.jit
def weight_gradient_kernel(
    left,
    right,
    mask,
    gradient,
    tokens,
    n,
    m,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    within = tl.arange(0, BLOCK)
    row, column = tl.program_id(0).to(tl.int64) * BLOCK, tl.program_id(1) * BLOCK
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    if tl.load(mask + row * m + column) != 0:
        token = tl.arange(0, DEPTH).to(tl.int64)
        of_left = left + token[None, :] * n + (row + within)[:, None]
        of_right = right + token[:, None] * m + (column + within)[None, :]
        for first in range(0, tokens, DEPTH):
            there = token < tokens - first
            a = tl.load(of_left, mask=there[None, :], other=0.0)
            b = tl.load(of_right, mask=there[:, None], other=0.0)
            sums = dot(a, b, sums, PRECISION)
            of_left += DEPTH * n
            of_right += DEPTH * m
    place = gradient + (row + within)[:, None] * m + (column + within)[None, :]
    tl.store(place, narrow(sums, gradient.dtype.element_ty))


def warps(block: int) -> int:
    """Returns the warps of a program, for blocks of this side."""
    return 8 if block == 128 else 4


def precision() -> str:
    """Says how float32 is multiplied: as torch's products are told to."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def check(block: int, *tensors: Tensor) -> None:
    """Raises ValueError where the kernels do not take blocks of this side, or these dtypes."""
    if block not in BLOCKS:
        raise ValueError(f"on a GPU blocks are {', '.join(map(str, BLOCKS))} wide, not {block}: say one of these")
    if not {tensor.dtype for tensor in tensors} <= POINTERS.keys():
        raise ValueError("block-sparse products on a GPU are of float32, bfloat16 or float16: say execution=masked")


def product(x: Tensor, weight: Tensor, mask: Tensor, block: int, transposed: bool) -> Tensor:
    """Computes the same as :func:`techniques.shared.sparse.block_sparse.product`. Raises ValueError for other blocks
    and dtypes."""
    check(block, x, weight)
    x, weight = x.contiguous(), weight.contiguous()
    n, m = weight.shape
    (inner, outer), (of_inner, of_outer) = ((n, m), (m, 1)) if transposed else ((m, n), (1, m))
    counts, places = kept_blocks(mask, block)[transposed]
    y, tile = x.new_empty(x.shape[0], outer), TOKENS[x.dtype]
    if y.numel():
        with torch.cuda.device_of(x):
            product_kernel[outer // block, triton.cdiv(x.shape[0], tile)](
                x,
                weight,
                counts,
                places,
                y,
                x.shape[0],
                inner,
                outer,
                inner // block,
                of_outer,
                of_inner,
                TOKENS=tile,
                BLOCK=block,
                PRECISION=precision(),
                num_warps=warps(block),
                num_stages=NUM_STAGES,
            )
    return y


def weight_gradient(left: Tensor, right: Tensor, mask: Tensor, block: int) -> Tensor:
    """Computes the same as :func:`techniques.shared.sparse.block_sparse.weight_gradient`. Raises ValueError as
    :func:`product` does."""
    check(block, left, right)
    left, right, (n, m) = left.contiguous(), right.contiguous(), mask.shape
    gradient = left.new_empty(n, m)
    with torch.cuda.device_of(left):
        weight_gradient_kernel[n // block, m // block](
            left,
            right,
            mask.contiguous(),
            gradient,
            left.shape[0],
            n,
            m,
            BLOCK=block,
            DEPTH=DEPTH,
            PRECISION=precision(),
            num_warps=warps(block),
            num_stages=NUM_STAGES,
        )
    return gradient


def _manifest(kernel: Any, dtype: torch.dtype, block: int, **specialised: int) -> Manifest:
    """Describes a compilation of the kernel; ``specialised``: arguments that are 1, which Triton compiles in."""
    constants = {"TOKENS": TOKENS[dtype], "BLOCK": block, "DEPTH": DEPTH, "PRECISION": "ieee", **specialised}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    streams = dict.fromkeys(("x", "weight", "y", "left", "right", "gradient"), POINTERS[dtype])
    types = {**streams, "mask": "*i1", "counts": "*i32", "places": "*i32"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names if name not in constants}
    rows = TOKENS[dtype] if kernel is product_kernel else block
    threads = warps(block) * 32
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants=constants,
        elements_per_program=rows * block,
        aligned=tuple(name for name in signature if name not in {"tokens", "blocks"}),
        num_warps=warps(block),
        num_stages=NUM_STAGES,
        budget=Budget(
            registers=168,
            shared_bytes=NUM_STAGES * (rows + block) * max(block, DEPTH) * dtype.itemsize + 1024,
            wide_stores=rows * block * dtype.itemsize // (threads * 16),
            instructions_per_element=20 if dtype != torch.float32 else None,  # with tensor cores; hundreds without
            needs_hgmma=dtype != torch.float32,  # products of float32 are no tensor core's, unless as TF32
        ),
    )


MANIFESTS = {
    f"{name}_{block}{part}": manifest
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32))
    for block in (64, 128)
    if dtype != torch.float32 or block == 64
    for part, manifest in (
        ("", _manifest(product_kernel, dtype, block, of_inner=1)),
        (":transposed", _manifest(product_kernel, dtype, block, of_outer=1)),
        (":gradient", _manifest(weight_gradient_kernel, dtype, block)),
    )
}

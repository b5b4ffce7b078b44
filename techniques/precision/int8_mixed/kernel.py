"""Computes a product of int8 matrices with its scales, y = s t (p q^T), in one kernel: the sums never leave the
registers.

    p [m, k], q [n, k] int8    s [m], t [n] float32    y [m, n] float32 or bfloat16

torch._int_mm writes the int32 sums, 4 bytes each, which are read, scaled and written again; and on a GPU it refuses
sizes that are not multiples of 8. Integer sums are exact in any order, so that y is the same bits as in torch's
operators: two products of float32.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import narrow
from suite.record.operator_counts import Operator

ROWS, COLUMNS, DEPTH = 128, 128, 128  # of a tile, of its operands' inner dimension
NEIGHBOURS = 8  # tiles of one column that run one after the other and share q in the L2 cache
NUM_WARPS, NUM_STAGES = 8, 3
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def scaled_product_kernel(
    p,
    q,
    s,
    t,
    y,
    m,
    n,
    k,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
):
    tiles_of_m, tiles_of_n = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    group = tl.program_id(0) // (NEIGHBOURS * tiles_of_n)
    within = tl.program_id(0) % (NEIGHBOURS * tiles_of_n)
    high = min(tiles_of_m - group * NEIGHBOURS, NEIGHBOURS)
    row = (group * NEIGHBOURS + within % high).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (within // high).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    in_m, in_n = row < m, column < n
    of_p = p + row[:, None] * k + inner[None, :]
    of_q = q + column[:, None] * k + inner[None, :]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    for first in range(0, k, DEPTH):
        here = inner < k - first
        left = tl.load(of_p + first, mask=in_m[:, None] & here[None, :], other=0)
        right = tl.load(of_q + first, mask=in_n[:, None] & here[None, :], other=0)
        sums = tl.dot(left, tl.trans(right), sums, out_dtype=tl.int32)
    of_rows = tl.load(s + row, mask=in_m, other=0.0)
    of_columns = tl.load(t + column, mask=in_n, other=0.0)
    scaled = sums.to(tl.float32) * of_rows[:, None] * of_columns[None, :]
    place = y + row[:, None] * n + column[None, :]
    tl.store(place, narrow(scaled, y.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


@torch.library.custom_op("leantrain::scaled_int8_product", mutates_args=())
def _scaled_product(p: Tensor, q: Tensor, s: Tensor, t: Tensor, dtype: torch.dtype) -> Tensor:
    (m, k), n = p.shape, q.shape[0]
    y = torch.empty(m, n, dtype=dtype, device=p.device)
    if y.numel():
        with torch.cuda.device_of(p):
            scaled_product_kernel[(triton.cdiv(m, ROWS) * triton.cdiv(n, COLUMNS),)](
                p,
                q,
                s,
                t,
                y,
                m,
                n,
                k,
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                DEPTH=DEPTH,
                NEIGHBOURS=NEIGHBOURS,
                num_warps=NUM_WARPS,
                num_stages=NUM_STAGES,
            )
    return y


@_scaled_product.register_fake
def _(p: Tensor, q: Tensor, s: Tensor, t: Tensor, dtype: torch.dtype) -> Tensor:
    return p.new_empty(p.shape[0], q.shape[0], dtype=dtype)


@register_flop_formula(torch.ops.leantrain.scaled_int8_product)
def _flops(p: Any, q: Any, *_: Any, **__: Any) -> int:
    return 2 * p[0] * p[1] * q[0]


def scaled_product(p: Tensor, q: Tensor, s: Tensor, t: Tensor, dtype: torch.dtype) -> Tensor:
    """Computes p q^T for int8 ``p`` [m, k] and ``q`` [n, k], times ``s`` [m, 1] and ``t`` [n, 1] float32; [m, n] in
    ``dtype``.

    float16 and float64 results are made of float32 ones. Sums are int32: k is at most 133 144 where no number is -128.
    """
    written = dtype if dtype in POINTERS else torch.float32
    y: Tensor = _scaled_product(p.contiguous(), q.contiguous(), s.contiguous(), t.contiguous(), written)
    return y.to(dtype)


def cost_of_product(operator: Operator) -> Operator:
    """Completes a traced product of int8 operands."""
    (m, k), (n, _) = operator.shapes[:2]
    return replace(operator, kind="product", dtype="int8", product=(1, m, n, k), flops=2 * m * n * k)


COSTS_OF_OPERATORS = {"scaled_int8_product": cost_of_product}


def _manifest(dtype: torch.dtype) -> Manifest:
    signature = {
        "p": "*i8",
        "q": "*i8",
        "s": "*fp32",
        "t": "*fp32",
        "y": POINTERS[dtype],
        **dict.fromkeys("mnk", "i32"),
    }
    threads = NUM_WARPS * 32
    return Manifest(
        kernel=scaled_product_kernel,
        signature=signature,
        constants={"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH, "NEIGHBOURS": NEIGHBOURS},
        elements_per_program=ROWS * COLUMNS,
        aligned=tuple(signature),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        budget=Budget(
            registers=168,
            shared_bytes=NUM_STAGES * (ROWS + COLUMNS) * DEPTH + 66 * 1024,
            wide_stores=ROWS * COLUMNS * dtype.itemsize // (threads * 16),
            instructions_per_element=20,  # with tensor cores; hundreds without
        ),
    )


MANIFESTS = {"float32": _manifest(torch.float32), "bfloat16": _manifest(torch.bfloat16)}

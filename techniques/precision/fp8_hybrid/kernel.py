"""Writes a matrix in eight bits, and its transpose, and its largest magnitude, in one pass.

    s = known, or where that is 0 (largest / amax) / 2^margin      amax by a pass before, which else does nothing
    rows[i, j] = columns[j, i] <- clip(x[i, j] s)                  x read, rows and columns written
    seen <- max(seen, |x[i, j]|)                                   one atomic for each tile

Tensor cores multiply eight bits by rows of both operands alone, so that a layer's forward and backward products need
each operand and its transpose. In torch's operators the magnitude, the scaling, the clipping, the cast and the
transpose are passes each. (Of float32 operands the transpose is torch's here, too: see :func:`turns`.) Magnitudes are
compared as the integers that their bits are: NaN is more than infinity, that more than every number.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.portable import narrow
from suite.record.operator_counts import Operator

ROWS, COLUMNS = 64, 128  # of a tile
BLOCK = 8192
MULTIPLE = 16  # what columns are filled up to: tensor cores take no other inner dimension
NUM_WARPS = 8
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}
LARGEST_SCALE = tl.constexpr(2.0**126)
INFINITY = tl.constexpr(0x7F800000)  # its bits
MAGNITUDE = tl.constexpr(0x7FFFFFFF)  # all bits but the sign


@triton.jit
def _largest_bits(x):
    return tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE)


@triton.jit
def amax_kernel(x, known, own, elements, BLOCK: tl.constexpr):
    if tl.load(known) == 0.0:
        first = tl.program_id(0).to(tl.int64) * BLOCK
        offsets = tl.arange(0, BLOCK)
        value = tl.load(x + first + offsets, mask=offsets < elements - first, other=0.0).to(tl.float32)
        tl.atomic_max(own, _largest_bits(value))


@triton.jit(do_not_specialize=["m"])  # of a single float32 row ptxas 12.8, which Triton 3.6 has, ends by a fault
def cast_kernel(
    x,
    known,
    own,
    seen,
    rows,
    columns,
    inverse,
    m,
    k,
    filled,
    largest,
    shrink,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    scale = tl.load(known)
    if scale == 0.0:
        bits = tl.load(own)
        amax = bits.to(tl.float32, bitcast=True)
        usable = (bits > 0) & (bits < INFINITY)
        asked = tl.div_rn(largest, tl.where(usable, amax, 1.0)) * shrink
        scale = tl.where(usable, tl.where(asked < LARGEST_SCALE, asked, LARGEST_SCALE), 1.0)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < m)[:, None] & (column < k)[None, :]
    value = tl.load(x + row[:, None] * k + column[None, :], mask=inside, other=0.0).to(tl.float32)
    scaled = value * scale
    scaled = tl.where(scaled > largest, largest, scaled)
    scaled = tl.where(scaled < -largest, -largest, scaled)
    finite = (value.to(tl.int32, bitcast=True) & MAGNITUDE) < INFINITY
    code = narrow(tl.where(finite, scaled, float("nan")), rows.dtype.element_ty)
    tl.store(rows + row[:, None] * k + column[None, :], code, mask=inside)
    if columns is not None:
        there = (column < k)[:, None] & (row < filled)[None, :]
        tl.store(columns + column.to(tl.int64)[:, None] * filled + row[None, :], tl.trans(code), mask=there)
    if seen is not None:
        tl.atomic_max(seen, _largest_bits(value))
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, tl.div_rn(1.0, scale))


@torch.library.custom_op("leantrain::cast_to_eight_bits", mutates_args=("seen",))
def _cast(
    x: Tensor, dtype: torch.dtype, known: Tensor, margin: int, seen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    (m, k), filled = x.shape, triton.cdiv(x.shape[0], MULTIPLE) * MULTIPLE
    rows, columns = (torch.empty(shape, dtype=dtype, device=x.device) for shape in ((m, k), (k, filled)))
    inverse, own = torch.ones((), device=x.device), torch.zeros((), dtype=torch.int32, device=x.device)
    if rows.numel():
        with torch.cuda.device_of(x):
            amax_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, known, own, x.numel(), BLOCK=BLOCK, num_warps=NUM_WARPS)
            cast_kernel[triton.cdiv(m, ROWS), triton.cdiv(k, COLUMNS)](
                x,
                known,
                own,
                None if seen is None else seen.view(torch.int32),
                rows,
                columns if turns(x.dtype) else None,
                inverse,
                m,
                k,
                filled,
                torch.finfo(dtype).max,
                2.0**-margin,
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                num_warps=NUM_WARPS,
            )
        if not turns(x.dtype):
            columns.view(torch.uint8)[:, :m] = rows.view(torch.uint8).T
            columns.view(torch.uint8)[:, m:] = 0
    return rows, columns, inverse


def turns(read: torch.dtype) -> bool:
    """Tells whether the kernel itself writes the transpose: Triton 3.6 mixed up that of float32 operands, on an
    H200."""
    return read != torch.float32


@_cast.register_fake
def _(x: Tensor, dtype: torch.dtype, known: Tensor, margin: int, seen: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    (m, k), filled = x.shape, (x.shape[0] + MULTIPLE - 1) // MULTIPLE * MULTIPLE
    return x.new_empty(m, k, dtype=dtype), x.new_empty(k, filled, dtype=dtype), known.new_empty(())


def cast_both(
    x: Tensor, dtype: torch.dtype, known: Tensor, margin: int = 0, seen: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes :func:`techniques.precision.fp8_hybrid.technique.cast` for ``x`` [m, k]: rows [m, k], columns [k, m
    filled up to a multiple of 16 by zeros] and the scale's inverse, float32 []. All are on one device.

    float16 and float64 are read as float32. Where nothing is to be cast the inverse is 1.
    """
    wide = x if x.dtype in (torch.float32, torch.bfloat16) else x.float()
    rows, columns, inverse = _cast(wide.contiguous(), dtype, known, margin, seen)
    return rows, columns, inverse


def cost_of_cast(operator: Operator) -> Operator:
    """Completes a traced cast: one that is told no magnitudes to remember looks for its own, by a pass before; of
    float32 operands the transpose is another pass, which reads what the first has written."""
    elements, wide = prod(operator.shapes[0]), operator.dtype == "float32"
    looks = len(operator.shapes) < 3  # the operand, its scale, what it has seen
    read = operator.read_bytes + looks * elements * (4 if wide else 2) + wide * elements
    return replace(operator, kind="cast", read_bytes=read, kernels=2 + wide)


COSTS_OF_OPERATORS = {"cast_to_eight_bits": cost_of_cast}


def _cast_manifest(read: torch.dtype, written: torch.dtype) -> Manifest:
    signature = {
        "x": POINTERS[read],
        "known": "*fp32",
        "own": "*i32",
        "seen": "*i32",
        "rows": POINTERS[written],
        "columns": POINTERS[written],
        "inverse": "*fp32",
        **dict.fromkeys(("m", "k", "filled"), "i32"),
        **dict.fromkeys(("largest", "shrink"), "fp32"),
    }
    thread = ROWS * COLUMNS // (NUM_WARPS * 32)
    aligned = ("x", "rows", "columns", "k", "filled") if turns(read) else ("x", "rows", "k", "filled")
    if not turns(read):
        del signature["columns"]
    return Manifest(
        kernel=cast_kernel,
        signature=signature,
        constants={"ROWS": ROWS, "COLUMNS": COLUMNS, **({} if turns(read) else {"columns": None})},
        elements_per_program=ROWS * COLUMNS,
        aligned=aligned,
        num_warps=NUM_WARPS,
        budget=Budget(
            registers=128,
            shared_bytes=ROWS * COLUMNS * 4 + 1024,
            wide_loads=thread * read.itemsize // 16,
            wide_stores=(2 if turns(read) else 1) * thread // 16,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (read.itemsize + 2),
        ),
    )


def _amax_manifest(read: torch.dtype) -> Manifest:
    return Manifest(
        kernel=amax_kernel,
        signature={"x": POINTERS[read], "known": "*fp32", "own": "*i32", "elements": "i32"},
        constants={"BLOCK": BLOCK},
        elements_per_program=BLOCK,
        aligned=("x", "elements"),
        num_warps=NUM_WARPS,
        budget=Budget(
            registers=128,
            shared_bytes=2 * 1024,
            wide_loads=BLOCK * read.itemsize // (NUM_WARPS * 32 * 16),
            wide_stores=0,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * read.itemsize,
        ),
    )


F32, BF16, E4M3, E5M2 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
MANIFESTS = {
    "delayed": _cast_manifest(BF16, E4M3),
    "gradient": _cast_manifest(BF16, E5M2),
    "weight": _cast_manifest(F32, E4M3),
    "dynamic": _cast_manifest(BF16, E4M3),
    "dynamic:amax": _amax_manifest(BF16),
}

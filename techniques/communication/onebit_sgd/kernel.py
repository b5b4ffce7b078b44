"""Makes 1-bit SGD's message and memory in one pass: a = g + e, its bits, two means a column, and what they leave out.

    read g, e ── a in registers ── means of its negative and its other entries ── write e = a - Q(a) and the bits

A program has whole columns, WIDTH of them next to each other, up to HELD entries in its registers: then 8 bytes are
read and 4.125 written an entry. Columns that are longer are read twice, for the means and for the rest: 20.125 bytes.
A vector is one column, eight entries of which are a row here.

Bits are those of :func:`techniques.communication.onebit_sgd.technique.one_bit`, first entry lowest; the means are
summed in another order. What is not finite spoils both means of its column, as it does there.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest

EIGHT = tl.constexpr(8)
HELD = 1 << 14
"""Entries that a program holds: 32 registers of each of its 512 threads. Of 64 some would be spilt."""
EACH = 32  # entries of a thread
WIDEST, MOST_ROWS = 32, HELD // EIGHT.value
LOOPED_ROWS = 1024  # of columns that are too long, at once
WIDE = 2**31 // MOST_ROWS - 1  # columns whose offsets fit 32 bits
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _place(start, rows, columns, WIDTH: tl.constexpr, ROWS: tl.constexpr, VECTOR: tl.constexpr):
    """Returns, of the program's entries from row ``start`` on: where the first is, and offsets from there and a mask,
    both [ROWS, WIDTH]. Offsets are of 32 bits: those of 64 take registers of which there are none left."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = tl.full((), start, tl.int64)
    if VECTOR:  # ``columns`` is its length
        offsets = row[:, None] * WIDTH + column[None, :]
        return here * WIDTH, offsets, offsets < columns - start * WIDTH
    first = tl.program_id(0) * WIDTH
    there = (row < rows - start)[:, None] & (column < columns - first)[None, :]
    return here * columns + first, row[:, None] * columns + column[None, :], there


@triton.jit
def _wanted(gradients, errors, place, FEEDBACK: tl.constexpr):
    first, offsets, mask = place
    a = tl.load(gradients + first + offsets, mask=mask, other=0.0)
    if FEEDBACK:
        a += tl.load(errors + first + offsets, mask=mask, other=0.0)
    return a


@triton.jit
def _sums(a, mask, VECTOR: tl.constexpr):
    """Computes, of each column: the sum of its negative and of its other entries, and how many the latter are. A
    product and no choice, so that what is not finite spoils both; what the mask leaves out is 0."""
    upper = (a >= 0.0).to(tl.float32)
    high, low = tl.sum(upper * a, 0), tl.sum((1.0 - upper) * a, 0)
    highs = tl.sum(((a >= 0.0) & mask).to(tl.int32), 0)
    if VECTOR:
        none = tl.zeros_like(high)
        high, low, highs = none + tl.sum(high, 0), none + tl.sum(low, 0), highs * 0 + tl.sum(highs, 0)
    return low, high, highs


@triton.jit
def _written(
    a,
    low,
    high,
    errors,
    bits,
    start,
    place,
    rows,
    columns,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    VECTOR: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    first, offsets, mask = place
    upper = a >= 0.0
    if FEEDBACK:
        tl.store(errors + first + offsets, a - tl.where(upper, high[None, :], low[None, :]), mask=mask)
    BYTES: tl.constexpr = WIDTH // EIGHT
    places = tl.arange(0, EIGHT)[None, None, :]
    codes = tl.reshape((upper & mask).to(tl.int32), (ROWS, BYTES, EIGHT)) << places
    row = tl.arange(0, ROWS)
    of_a_row = tl.arange(0, BYTES)
    if VECTOR:
        at = row[:, None] * BYTES + of_a_row[None, :]
        there = at * EIGHT < columns - start * WIDTH
    else:
        at = row[:, None] * (columns // EIGHT) + of_a_row[None, :]
        there = (row < rows - start)[:, None] & (of_a_row * EIGHT < columns - tl.program_id(0) * WIDTH)[None, :]
    tl.store(bits + first // EIGHT + at, tl.sum(codes, 2).to(tl.uint8), mask=there)


@triton.jit
def pack_kernel(
    gradients,
    errors,
    bits,
    means,
    rows,
    columns,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WHOLE: tl.constexpr,
    VECTOR: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    """Packs gradients and errors; ``WHOLE``: all rows are held at once. Of a VECTOR ``columns`` is the length, ``rows``
    the bytes of its bits."""
    if WHOLE:
        place = _place(0, rows, columns, WIDTH, ROWS, VECTOR)
        a = _wanted(gradients, errors, place, FEEDBACK)
        low, high, highs = _sums(a, place[2], VECTOR)
    else:
        low, high = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
        highs = tl.zeros((WIDTH,), tl.int32)
        for start in range(0, rows, ROWS):
            place = _place(start, rows, columns, WIDTH, ROWS, VECTOR)
            a = _wanted(gradients, errors, place, FEEDBACK)
            low_here, high_here, highs_here = _sums(a, place[2], VECTOR)
            low, high, highs = low + low_here, high + high_here, highs + highs_here
    low = low / tl.maximum((columns if VECTOR else rows) - highs, 1).to(tl.float32)
    high = high / tl.maximum(highs, 1).to(tl.float32)
    if WHOLE:
        _written(a, low, high, errors, bits, 0, place, rows, columns, WIDTH, ROWS, VECTOR, FEEDBACK)
    else:
        for start in range(0, rows, ROWS):
            place = _place(start, rows, columns, WIDTH, ROWS, VECTOR)
            a = _wanted(gradients, errors, place, FEEDBACK)
            _written(a, low, high, errors, bits, start, place, rows, columns, WIDTH, ROWS, VECTOR, FEEDBACK)
    column = tl.arange(0, WIDTH)
    if VECTOR:
        there, count = column < 1, 1
    else:
        column += tl.program_id(0) * WIDTH
        there, count = column < columns, columns
    tl.store(means + column, low, mask=there)
    tl.store(means + count + column, high, mask=there)


def takes(shape: torch.Size) -> bool:
    """Tells whether the kernel takes tensors of this shape: vectors, and matrices whose rows are whole bytes of
    bits."""
    columns = shape[1:].numel()
    return 0 < shape.numel() < 2**31 and (columns == 1 or (columns % EIGHT.value == 0 and columns <= WIDE))


def pack(gradient: Tensor, errors: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the means [2, columns] and bits [ceil(n / 8)] of ``gradient`` and ``errors`` together, as
    :func:`techniques.communication.onebit_sgd.technique.one_bit` has them; ``errors`` in place, none where they are
    None. Both are float32, contiguous, and of a shape that it :func:`takes`."""
    n = gradient.numel()
    columns = gradient.shape[1:].numel() if gradient.ndim else 1
    vector = columns == 1
    rows = triton.cdiv(n, EIGHT.value) if vector else n // columns
    bits = torch.empty(triton.cdiv(n, EIGHT.value), dtype=torch.uint8, device=gradient.device)
    means = torch.empty(2, columns, device=gradient.device)
    held, width = _tile(rows, columns)
    constants: dict[str, Any] = {"WIDTH": width, "ROWS": held, "WHOLE": rows <= MOST_ROWS, "VECTOR": vector}
    with torch.cuda.device_of(gradient):
        pack_kernel[(triton.cdiv(columns, width),)](
            gradient,
            errors,
            bits,
            means,
            rows,
            n if vector else columns,
            FEEDBACK=errors is not None,
            **constants,
            num_warps=_warps(held, width),
            **OPTIONS,
        )
    return means, bits


def _tile(rows: int, columns: int) -> tuple[int, int]:
    """Returns the rows and columns of a program."""
    if rows > MOST_ROWS:
        return LOOPED_ROWS, EIGHT.value
    held = triton.next_power_of_2(rows)
    width = EIGHT.value if columns == 1 else min(WIDEST, HELD // held, triton.next_power_of_2(columns))
    return held, width


def _warps(rows: int, columns: int) -> int:
    return max(1, min(16, rows * columns // (32 * EACH)))


def _manifest(rows: int, columns: int, wide: bool = True) -> Manifest:
    vector = columns == 1
    held, width = _tile(triton.cdiv(rows, EIGHT.value) if vector else rows, columns)
    whole = held * width == HELD
    warps = _warps(held, width)
    accesses = held * width * 4 // (warps * 32 * 16)  # of a thread, 16 bytes each
    types = {"bits": "*u8", "rows": "i32", "columns": "i32"}
    names = ("gradients", "errors", "bits", "means", "rows", "columns")
    aligned = tuple(name for name in names if name != "rows" and (wide or name != "columns"))
    passes = 1 if whole else 2
    return Manifest(
        kernel=pack_kernel,
        signature={name: types.get(name, "*fp32") for name in names},
        constants={"WIDTH": width, "ROWS": held, "WHOLE": whole, "VECTOR": vector, "FEEDBACK": True},
        elements_per_program=held * width,
        aligned=aligned,
        num_warps=warps,
        options=OPTIONS,
        budget=Budget(
            registers=128 if whole else 160,  # of 512 threads, of 256
            wide_loads=2 * accesses * passes if wide else None,
            wide_stores=accesses if wide else None,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (8 * passes + 4.125),
        ),
    )


MANIFESTS = {
    "matrix": _manifest(1024, 768),
    "tall": _manifest(MOST_ROWS, 768),
    "very tall": _manifest(2 * MOST_ROWS, 768),
    "vector": _manifest(HELD, 1),
}

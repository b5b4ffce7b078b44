"""Packs and unpacks (:mod:`techniques.shared.packed`), each in one pass: least value, step, random rounding, bytes.

    pack      a group is read once, 256 numbers by one warp; codes, least values and steps are written
    unpack    codes, least values and steps are read; numbers are written

In b bits that is (b + 32 / 256) / 8 bytes beside the number's own: 2.27, 2.52 and 3.02 bytes of a bfloat16 number in 2,
4 and 8 bits. In torch's operators each of the dozen steps reads and writes float32 numbers.

Noise is 23 bits of a hash for each number: a philox call would take more instructions than all else. It is what
rounding needs and no more: a number's mean is off by 2^-15 steps at most.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import optimizer_parts
from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.portable import narrow

GROUP = tl.constexpr(256)
GROUPS = 4  # of a program
NUM_WARPS = 1  # a group is one warp's: nothing goes through shared memory
OPTIONS = {"enable_fp_fusion": False}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
LEAST_STEP = tl.constexpr(2.0**-126)
AT_MOST = tl.constexpr(1 - 2.0**-21)
"""Of a group's range: else the roundings of a product would take a step that is a bfloat16 to the next one."""

PACK = 32
"""Instructions that packing a number takes, a quarter of them the noise. Memory leaves time for 33 of a float32 number
in 2 bits, and for 18 of a bfloat16 one: there packing is bound by instructions."""


@triton.jit
def _rounded_up(x):
    """Returns the least bfloat16 that is at least ``x``, as float32; NaN stays."""
    word = x.to(tl.uint32, bitcast=True)
    beyond = tl.where(x > 0.0, tl.add(word, 0xFFFF, sanitize_overflow=False), word) & 0xFFFF0000
    return tl.where(x == x, beyond.to(tl.float32, bitcast=True), x)


@triton.jit
def _bfloat16(x):
    """Returns float32 ``x`` that is a bfloat16, as one."""
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _noise(seed, before, AT_ONCE: tl.constexpr, GROUPS: tl.constexpr):
    """Draws noise, uniform in [1, 2): [GROUPS, GROUP // AT_ONCE, AT_ONCE], the same for the ``before``-th numbers of a
    ``seed``.

    A hash of each vector of numbers, and a shorter one of that for each number.
    """
    offsets = (tl.arange(0, GROUPS) * (GROUP // AT_ONCE))[:, None] + tl.arange(0, GROUP // AT_ONCE)[None, :]
    words = optimizer_parts.random_bits(seed, tl.full((), AT_ONCE, tl.int32), before // AT_ONCE, offsets)
    turn = (tl.arange(0, AT_ONCE).to(tl.uint32) * 0x9E3779B9)[None, None, :]
    words = tl.add(words[:, :, None], turn, sanitize_overflow=False)
    words = words ^ (words >> 15)
    words = tl.mul(words, 0x735A2D97, sanitize_overflow=False)
    return ((words >> 9) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _blocks(length, of_a_row, GROUPS: tl.constexpr):
    """Finds the program's place: its row, its first group in there, which of its groups there are, and numbers from its
    first."""
    blocks = (of_a_row + GROUPS - 1) // GROUPS
    row = tl.program_id(0) // blocks
    first = (tl.program_id(0) - row * blocks) * GROUPS
    there = first + tl.arange(0, GROUPS) < of_a_row
    return row.to(tl.int64), first.to(tl.int64), there, length - first.to(tl.int64) * GROUP


@triton.jit(do_not_specialize=["seed"])
def pack_kernel(
    numbers,
    codes,
    least,
    steps,
    length,
    of_a_row,
    row_bytes,
    seed,
    BITS: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Packs rows; ``WHOLE``: rows are of whole groups."""
    row, first, there, remaining = _blocks(length, of_a_row, GROUPS)
    AT_ONCE: tl.constexpr = 16 // (numbers.dtype.element_ty.primitive_bitwidth // 8)
    EACH: tl.constexpr = 8 // BITS
    vector = tl.arange(0, GROUP // AT_ONCE)[:, None] * AT_ONCE + tl.arange(0, AT_ONCE)[None, :]
    offsets = (tl.arange(0, GROUPS) * GROUP)[:, None, None] + vector[None]
    start = numbers + row * length + first * GROUP
    mask = there[:, None, None] if WHOLE else offsets < remaining
    x = tl.load(start + offsets, mask=mask, other=0.0).to(tl.float32)
    # Reductions of a GPU pass over NaN: the sum of x - x finds it, and infinity.
    spoilt = tl.sum(tl.sum(x - x, 2), 1)
    low = tl.min(tl.min(x if WHOLE else tl.where(mask, x, float("inf")), 2), 1)
    high = tl.max(tl.max(x if WHOLE else tl.where(mask, x, float("-inf")), 2), 1)
    low = -_rounded_up(-low)
    step = _rounded_up((high - low) * (AT_MOST / (2**BITS - 1)))
    sound = (spoilt == 0.0) & (step < float("inf"))
    inverse = tl.where(sound & (step >= LEAST_STEP), 1.0 / step, 0.0)
    before = row * of_a_row * GROUP + first * GROUP
    level = (x - low[:, None, None]) * inverse[:, None, None] + _noise(seed, before, AT_ONCE, GROUPS)
    code = tl.minimum(level.to(tl.int32) - 1, 2**BITS - 1)
    if EACH > 1:
        shifts = tl.arange(0, EACH) * BITS
        stored = tl.sum(tl.reshape(code, (GROUPS, GROUP // EACH, EACH)) << shifts[None, None, :], 2)
    else:
        stored = tl.reshape(code, (GROUPS, GROUP))
    at = (tl.arange(0, GROUPS) * (GROUP // EACH))[:, None] + tl.arange(0, GROUP // EACH)[None, :]
    inside = there[:, None] if WHOLE else at < row_bytes - first * (GROUP // EACH)
    tl.store(codes + row * row_bytes + first * (GROUP // EACH) + at, stored.to(tl.uint8), mask=inside)
    group = row * of_a_row + first + tl.arange(0, GROUPS)
    tl.store(least + group, _bfloat16(tl.where(sound, low, float("nan"))), mask=there)
    tl.store(steps + group, _bfloat16(step), mask=there)


@triton.jit
def unpack_kernel(
    codes,
    least,
    steps,
    numbers,
    length,
    of_a_row,
    row_bytes,
    BITS: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Unpacks rows; ``WHOLE``: rows are of whole groups."""
    row, first, there, remaining = _blocks(length, of_a_row, GROUPS)
    EACH: tl.constexpr = 8 // BITS
    at = (tl.arange(0, GROUPS) * (GROUP // EACH))[:, None] + tl.arange(0, GROUP // EACH)[None, :]
    inside = there[:, None] if WHOLE else at < row_bytes - first * (GROUP // EACH)
    stored = tl.load(codes + row * row_bytes + first * (GROUP // EACH) + at, mask=inside, other=0).to(tl.int32)
    group = row * of_a_row + first + tl.arange(0, GROUPS)
    low = tl.load(least + group, mask=there, other=0.0).to(tl.float32)
    step = tl.load(steps + group, mask=there, other=0.0).to(tl.float32)
    place = tl.arange(0, EACH)
    code = (stored[:, :, None] >> (place * BITS)[None, None, :]) & (2**BITS - 1)
    x = low[:, None, None] + step[:, None, None] * code.to(tl.float32)
    offsets = at[:, :, None] * EACH + place[None, None, :]
    mask = there[:, None, None] if WHOLE else offsets < remaining
    start = numbers + row * length + first * GROUP
    tl.store(start + offsets, narrow(x, numbers.dtype.element_ty), mask=mask)


def pack(rows: Tensor, bits: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Computes codes, least values and steps of ``rows`` [rows, length], contiguous, float32 or bfloat16, as in
    :class:`techniques.shared.packed.Packed`. ``seed`` is below 2^31."""
    of_a_row, row_bytes = _sizes(rows.shape[1], bits)
    codes = torch.empty(len(rows), row_bytes, dtype=torch.uint8, device=rows.device)
    least, steps = (torch.empty(len(rows), of_a_row, dtype=torch.bfloat16, device=rows.device) for _ in range(2))
    _launch(pack_kernel, rows, codes, least, steps, rows=len(rows), length=rows.shape[1], bits=bits, seed=seed)
    return codes, least, steps


def unpack(codes: Tensor, least: Tensor, steps: Tensor, bits: int, length: int, dtype: torch.dtype) -> Tensor:
    """Returns the rows [rows, length] in ``dtype``, float32 or bfloat16, from what :func:`pack` gave."""
    rows = torch.empty(len(codes), length, dtype=dtype, device=codes.device)
    _launch(unpack_kernel, codes, least, steps, rows, rows=len(codes), length=length, bits=bits)
    return rows


def _sizes(length: int, bits: int) -> tuple[int, int]:
    """Returns the groups and bytes of a row."""
    return math.ceil(length / GROUP.value), math.ceil(length * bits / 8)


def _launch(kernel: Any, *tensors: Tensor, rows: int, length: int, bits: int, **seed: int) -> None:
    whole = length % GROUP.value == 0
    if whole:  # all rows are one
        rows, length = 1, rows * length
    of_a_row, row_bytes = _sizes(length, bits)
    programs = rows * triton.cdiv(of_a_row, GROUPS)
    if programs:
        with torch.cuda.device_of(tensors[0]):
            kernel[(programs,)](
                *tensors,
                length,
                of_a_row,
                row_bytes,
                **seed,
                BITS=bits,
                WHOLE=whole,
                GROUPS=GROUPS,
                num_warps=NUM_WARPS,
                **OPTIONS,
            )


def _manifest(kernel: Any, dtype: torch.dtype, bits: int, whole: bool = True) -> Manifest:
    types = {"numbers": POINTERS[dtype], "codes": "*u8", "least": "*bf16", "steps": "*bf16"}
    names = [name for name in kernel.arg_names if name not in ("BITS", "WHOLE", "GROUPS")]
    elements = GROUPS * GROUP.value
    accesses = elements * dtype.itemsize // (NUM_WARPS * 32 * 16) if whole else 0  # of a thread, 16 bytes each
    back = kernel is unpack_kernel
    in_a_byte = 8 // bits
    wide = in_a_byte == 1 or in_a_byte * dtype.itemsize >= 16  # a thread writes the numbers of a byte
    ceiling = LANE_INSTRUCTIONS_PER_BYTE * (dtype.itemsize + bits / 8 + 4 / GROUP.value)
    return Manifest(
        kernel=kernel,
        signature={name: types.get(name, "i32") for name in names},
        constants={"BITS": bits, "WHOLE": whole, "GROUPS": GROUPS},
        elements_per_program=elements,
        aligned=tuple(name for name in names if name in types or (whole and name in ("length", "row_bytes"))),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=128,
            wide_loads=None if back else accesses,
            wide_stores=(accesses if wide else 0) if back else None,
            instructions_per_element=(ceiling if back else max(ceiling, PACK)) if whole else None,
        ),
    )


F32, BF16 = torch.float32, torch.bfloat16
MANIFESTS = {
    f"{name}_{bits}{part}": _manifest(kernel, dtype, bits)
    for name, dtype in (("float32", F32), ("bfloat16", BF16))
    for bits in (2, 4, 8)
    for part, kernel in (("", pack_kernel), (":back", unpack_kernel))
} | {
    "any length": _manifest(pack_kernel, F32, 2, whole=False),
    "any length:back": _manifest(unpack_kernel, F32, 2, whole=False),
}

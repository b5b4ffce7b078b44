"""Makes and reads Mesa's codes on a GPU: one pass makes them, one pass reads them.

    codes   q <- clip(floor((x - beta) s + u), 0, 255)      x read, q written        s = 255 / alpha
    back    x' <- beta + q alpha / 255                      q read, x' written

u is a hash of the element's number and of the tensor's seed, which lies on the device. In torch's operators the noise
is an array of its own, and the difference, the product, the sum, the floor and the clip are passes each. A table has
two numbers for each group: beta and s forth, beta and alpha / 255 back. Elements are [outer, groups, inner]: with the
sizes known to the compiler, an element's group takes a few multiplications and no division.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import optimizer_parts as parts
from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import narrow

BLOCK = 2048
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


@triton.jit
def _place(table, elements, GROUPS: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the program's first element, in 64 bits, its offsets, which of them are in the tensor, and their groups'
    numbers.

    The block's first position in a period of all groups is found once, so that the rest is of 32 bits."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    mask = offsets < elements - first
    start = (first % (GROUPS * INNER)).to(tl.uint32)
    group = ((start + offsets.to(tl.uint32)) // INNER) % GROUPS
    low = tl.load(table + group, mask=mask, other=0.0)
    factor = tl.load(table + GROUPS + group, mask=mask, other=0.0)
    return first, offsets, mask, low, factor


@triton.jit
def coded(value, low, factor, seed, first, offsets):
    """Computes uint8 codes of float32 values, the elements ``first + offsets`` of a tensor."""
    bits = parts.random_bits(tl.load(seed), tl.full((), 0, tl.int32), first, offsets)
    noise = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    level = tl.floor((value - low) * factor + noise)
    level = tl.where(level > 0.0, level, 0.0)  # also what is not a number, whose range is none either
    return tl.where(level < 255.0, level, 255.0).to(tl.uint8)


@triton.jit
def encode_kernel(x, table, seed, codes, elements, GROUPS: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    first, offsets, mask, low, factor = _place(table, elements, GROUPS, INNER, BLOCK)
    value = tl.load(x + first + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(codes + first + offsets, coded(value, low, factor, seed, first, offsets), mask=mask)


@triton.jit
def decode_kernel(codes, table, x, elements, GROUPS: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    first, offsets, mask, low, factor = _place(table, elements, GROUPS, INNER, BLOCK)
    level = tl.load(codes + first + offsets, mask=mask, other=0).to(tl.float32)
    tl.store(x + first + offsets, narrow(level * factor + low, x.dtype.element_ty), mask=mask)


def encode(x: Tensor, table: Tensor, seed: Tensor) -> Tensor:
    """Computes uint8 codes of ``x`` [outer, groups, inner], float32 or bfloat16, contiguous; ``table`` is float32 [2,
    groups], beta and s, ``seed`` int32 [1]. All are on one device."""
    codes = torch.empty_like(x, dtype=torch.uint8)
    _launch(encode_kernel, x.shape, x, table, seed, codes)
    return codes


def decode(codes: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what ``codes`` stand for, float32 or bfloat16; ``table`` has beta and alpha / 255."""
    x = torch.empty_like(codes, dtype=dtype)
    _launch(decode_kernel, codes.shape, codes, table, x)
    return x


def _launch(kernel: Any, shape: torch.Size, *tensors: Tensor) -> None:
    elements = shape.numel()
    if elements:
        with torch.cuda.device_of(tensors[0]):
            kernel[(triton.cdiv(elements, BLOCK),)](
                *tensors,
                elements,
                GROUPS=shape[1],
                INNER=shape[2],
                BLOCK=BLOCK,
                num_warps=parts.NUM_WARPS,
                **parts.OPTIONS,
            )


HEADS, HEAD = 12, 64  # of GPT-2's smallest model


def _manifest(kernel: Any, dtype: torch.dtype, instructions: float) -> Manifest:
    """Describes a compilation of the kernel with ``instructions`` an element. 7.8 for each byte that moves would hide
    behind them: 39 at four bytes a value and 23 at two, where codes, with a hash of ten and two look-ups, take 29 and
    so cost a quarter more than their bytes."""
    pointers = {"x": POINTERS[dtype], "codes": "*u8", "table": "*fp32", "seed": "*i32"}
    signature = {name: pointers[name] for name in kernel.arg_names if name in pointers}
    wide = BLOCK * dtype.itemsize // (parts.NUM_WARPS * 32 * 16)
    coded = BLOCK // (parts.NUM_WARPS * 32 * 16)
    loads, stores = (wide, coded) if kernel is encode_kernel else (coded, wide)
    return Manifest(
        kernel=kernel,
        signature=signature | {"elements": "i32"},
        constants={"GROUPS": HEADS, "INNER": HEAD, "BLOCK": BLOCK},
        elements_per_program=BLOCK,
        aligned=(*signature, "elements"),
        num_warps=parts.NUM_WARPS,
        options=parts.OPTIONS,
        budget=Budget(
            registers=128,
            shared_bytes=BLOCK * 4 + 1024,
            wide_loads=loads,
            wide_stores=stores,
            instructions_per_element=instructions,
        ),
    )


F32, BF16 = torch.float32, torch.bfloat16
MANIFESTS = {
    "float32": _manifest(encode_kernel, F32, 32.0),
    "float32:back": _manifest(decode_kernel, F32, 16.0),
    "bfloat16": _manifest(encode_kernel, BF16, 32.0),
    "bfloat16:back": _manifest(decode_kernel, BF16, 16.0),
}

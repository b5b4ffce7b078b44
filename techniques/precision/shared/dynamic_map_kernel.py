"""Computes the dynamic map's arithmetic (`shared.dynamic_map`) in Triton, a few instructions a number: decoding, and
encoding along the lines.

A decade has a straight line; which decade, the exponent of a float32 says. So what is looked up is a line, not a code,
in a table of which a warp touches two or three cache lines:

* a code's k, as a float32, has the decade in its exponent, and its value on the line that stands there;
* an octave holds one border of two lines at most. A word for each octave, added to the bits of a float32 in it,
  carries into the exponent from the border on, and leaves the number of the line there.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from techniques.precision.shared import dynamic_map

BELOW_TWICE = tl.constexpr(dynamic_map.BELOW_TWICE)
LINES = tl.constexpr(dynamic_map.LINES_AT)
VALUES = tl.constexpr(dynamic_map.VALUES_AT)
MAGIC = tl.constexpr(2.0**23)  # from here on float32 are whole numbers, which their lowest bits say
MAGIC_BITS = tl.constexpr(0x4B000000)


@cache
def table_on(device: torch.device, numbers: dynamic_map.DynamicMap) -> Tensor:
    return numbers.table.to(device)


@triton.jit
def _line(lines, number):
    """Loads the slope and the offset of a line, which lie side by side."""
    word = tl.load(lines.to(tl.pointer_type(tl.int64)) + number)
    return word.to(tl.int32).to(tl.float32, bitcast=True), (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def decode(codes, table, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """Returns float32 of the values, to a few units in the last place; ``codes`` are unsigned integers of ``BITS``,
    ``table`` points to `DynamicMap.table`."""
    ZERO: tl.constexpr = 2 ** (BITS - 1) - 1 if SIGNED else -1
    k = (codes.to(tl.int32) | MAGIC_BITS).to(tl.float32, bitcast=True) - (MAGIC + ZERO)
    slope, offset = _line(table + VALUES, k.to(tl.uint32, bitcast=True) >> 23)
    return tl.fma(k, slope, offset)


@triton.jit
def encode(x, table, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """Returns codes, in the lowest ``BITS`` of an int32, of float32 ``x`` in [-1, 1]; NaN gets a code, too."""
    BELOW: tl.constexpr = 0.5 if SIGNED else 1.5
    word = x.to(tl.uint32, bitcast=True)
    number = (word + tl.load(table + (word >> 23)).to(tl.uint32, bitcast=True)) >> 23
    slope, offset = _line(table + LINES, number)
    k = tl.minimum(tl.fma(x, slope, offset), tl.fma(offset, BELOW_TWICE, BELOW * (BELOW_TWICE - 1)))
    ZERO: tl.constexpr = 2 ** (BITS - 1) - 1 if SIGNED else 0
    if SIGNED:
        k = ((k.to(tl.int32, bitcast=True) & 0x7FFFFFFF) | (word.to(tl.int32, bitcast=True) & -0x80000000)).to(
            tl.float32, bitcast=True
        )
    return (k + (MAGIC + ZERO)).to(tl.int32, bitcast=True)

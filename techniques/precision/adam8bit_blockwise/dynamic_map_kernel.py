"""The dynamic map's arithmetic (`techniques.shared.dynamic_map`) in Triton: decoding, and encoding along the lines."""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from techniques.shared import dynamic_map

BELOW_TWICE = tl.constexpr(dynamic_map.BELOW_TWICE)


@triton.jit
def decode(codes, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """float32 of the values, to two units in the last place; ``codes`` are unsigned integers of 4 or 8 ``BITS``.

    2 k + 1 (signed) or k + 1/2 as a float32 has the decade in the lowest bits of its exponent, and in its mantissa
    1 + (i + 1/2) / n.
    """
    ZERO: tl.constexpr = 2 ** (BITS - 1) - 1 if SIGNED else 0
    number = codes.to(tl.float32) - ZERO
    float_code = tl.abs(number) * 2.0 + 1.0 if SIGNED else number + 1.5
    word = float_code.to(tl.int32, bitcast=True)
    fraction = ((word & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    if BITS == 8:
        power = tl.where((word & 0x2000000) != 0, 1e-2, 1e-6) * tl.where((word & 0x1000000) != 0, 100.0, 1.0)
    else:
        power = tl.where((word & 0x1000000) != 0, 1.0, 1e-2)
    power = power * tl.where((word & 0x800000) != 0, 10.0, 1.0)
    magnitude = tl.minimum(tl.fma(fraction, 0.9, -0.8) * power, 1.0)  # the one code above the last decade stands for 1
    magnitude = tl.where(number == 0, 0.0, magnitude)
    return tl.where(number < 0, -magnitude, magnitude) if SIGNED else magnitude


@triton.jit
def encode(x, LINES: tl.constexpr, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """int32 codes of float32 ``x`` in [-1, 1] by the ``LINES`` of the map; NaN gets a code, too."""
    y = tl.minimum(tl.abs(x), 1.0)
    slope = tl.full(y.shape, 0.0, tl.float32)
    offset = tl.full(y.shape, LINES[0][2], tl.float32)
    for number in tl.static_range(1, len(LINES)):
        reached = y >= LINES[number][0]
        slope = tl.where(reached, LINES[number][1], slope)
        offset = tl.where(reached, LINES[number][2], offset)
    k = tl.minimum(tl.fma(y, slope, offset), offset * BELOW_TWICE).to(tl.int32)
    ZERO: tl.constexpr = 2 ** (BITS - 1) - 1
    return tl.where(x < 0, tl.maximum(ZERO - k, 0), ZERO + k) if SIGNED else k - 1

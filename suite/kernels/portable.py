"""Has Triton primitives that mean the same under the interpreter and in machine code.

Triton's interpreter computes on bfloat16 *bit patterns* (sums, products and dot products are garbage) and truncates
where a GPU rounds. Widening a bfloat16 to float32 is exact in both, so a portable kernel

* widens at the load: ``tl.load(pointer, mask, other=0.0).to(tl.float32)``,
* narrows only through ``narrow``, just before the store,
* multiplies matrices only through ``dot``.

Both helpers compile to the plain instruction; the detours exist under the interpreter only.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

INTERPRET = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels of this process are interpreted: decided by TRITON_INTERPRET before the first kernel is imported."""

IEEE = tl.constexpr("ieee")


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr = IEEE):
    """Computes ``acc + a @ b`` for floating-point ``a`` [M, K] and ``b`` [K, N], with a float32 ``acc`` [M, N].

    ``PRECISION`` ("ieee", "tf32", "tf32x3") matters for float32 operands on a GPU only. A GPU needs M, N, K >= 16,
    which the interpreter does not enforce.
    """
    if INTERPRET:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _on_grid(x, SMALLEST: tl.constexpr, BITS: tl.constexpr):
    """Returns float32 ``x`` rounded to nearest even among numbers of ``BITS`` bits of mantissa whose smallest normal
    one is 2^``SMALLEST``."""
    bits = x.to(tl.uint32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    step = ((tl.where(exponent > SMALLEST + 127, exponent, SMALLEST + 127) - BITS) << 23).to(tl.float32, bitcast=True)
    shift = 12582912.0  # 1.5 2^23, beside which float32 has no fractions
    rounded = (tl.abs(x) / step + shift - shift) * step
    signed = (rounded.to(tl.uint32, bitcast=True) | (bits & 0x80000000)).to(tl.float32, bitcast=True)
    return tl.where(exponent < 0xFF, signed, x)


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """Returns float32 ``x`` rounded to nearest even in ``DTYPE``; NaN stays NaN, too large becomes infinite. In eight
    bits ``x`` must be within the format."""
    if INTERPRET and tl.bfloat16 == DTYPE:
        bits = x.to(tl.uint32, bitcast=True)
        # Half of the dropped range, less one where the kept part is even: the carry rounds, ties go to even.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # The carry would turn a NaN with a full mantissa into zero.
        upper = tl.where(x == x, rounded, (bits >> 16) | 0x40)
        return upper.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    elif INTERPRET and tl.float8e4nv == DTYPE:  # the interpreter loses carries, and the one NaN of this format
        code = _on_grid(x, -6, 3).to(DTYPE).to(tl.uint8, bitcast=True)
        return tl.where(x == x, code, 0x7F).to(tl.uint8).to(DTYPE, bitcast=True)
    elif INTERPRET and tl.float8e5 == DTYPE:
        return _on_grid(x, -14, 2).to(DTYPE)
    else:
        return x.to(DTYPE)

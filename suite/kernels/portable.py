"""Triton primitives that mean the same under the interpreter and in machine code.

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
    """``acc + a @ b`` for floating-point ``a`` [M, K] and ``b`` [K, N], with a float32 ``acc`` [M, N].

    ``PRECISION`` ("ieee", "tf32", "tf32x3") matters for float32 operands on a GPU only. A GPU needs M, N, K >= 16,
    which the interpreter does not enforce.
    """
    if INTERPRET:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """float32 ``x`` rounded to nearest even in ``DTYPE``; NaN stays NaN, too large becomes infinite."""
    if INTERPRET and tl.bfloat16 == DTYPE:
        bits = x.to(tl.uint32, bitcast=True)
        # Half of the dropped range, less one where the kept part is even: the carry rounds, ties go to even.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # The carry would turn a NaN with a full mantissa into zero.
        kept = tl.where(x == x, rounded, (bits >> 16) | 0x40)
        return kept.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(DTYPE)

"""Triton primitives that mean the same under the interpreter and in machine code.

Triton's interpreter computes on bfloat16 *bit patterns* (sums and products are garbage) and truncates
where a GPU rounds. Widening a bfloat16 to float32 is exact in both, so a portable kernel

* widens at the load: ``tl.load(pointer, mask, other=0.0).to(tl.float32)``,
* narrows only through ``narrow``, just before the store.

``narrow`` compiles to the plain instruction; its detour exists under the interpreter only.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

INTERPRET = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels of this process are interpreted: decided by TRITON_INTERPRET before the first kernel is imported."""


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

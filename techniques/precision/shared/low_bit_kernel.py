"""Holds what the kernels of low-bit optimizers share: Adam's arithmetic between decoding and encoding, and scales.

The quotient is a product with the fast reciprocal, and the root is the fast one, each within a unit or two in the last
place: codes and scales have no part in that.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.optimizer_parts import Number
from suite.kernels.portable import INTERPRET

SMALLEST_SCALE = tl.constexpr(2.0**-126)
INFINITY = tl.constexpr(0x7F800000)


@triton.jit
def load(pointer, offsets):
    """Loads float32 of a block that is whole."""
    return tl.load(pointer + offsets).to(tl.float32)


@triton.jit
def _root(x):
    if INTERPRET:
        return tl.sqrt(x)
    else:
        return tl.inline_asm_elementwise("sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal(x):
    if INTERPRET:
        return tl.where(x == 0.0, float("inf"), 1.0 / tl.where(x == 0.0, 1.0, x))  # numpy warns
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def second_moment(g, v, v_scales, beta2):
    """Computes ``beta2`` v + (1 - ``beta2``) g^2, the same bits in whatever kernel."""
    return tl.fma(v, v_scales * beta2[0], beta2[1] * (g * g))


@triton.jit
def adam(p, g, m, v, m_scales, v_scales, beta1, beta2, decay, step_size, inverse_root_correction, eps):
    """Computes the parameter and the moments after AdamW's step, from decoded moments before they are scaled; ``decay``
    is 1 - lr wd, and ``beta1``, ``beta2`` are (beta, 1 - beta)."""
    m = tl.fma(m, m_scales * beta1[0], beta1[1] * g)
    v = second_moment(g, v, v_scales, beta2)
    # The step's size is part of the divisor, so that no element is multiplied by it. A size of 0 divides by infinity.
    moves = step_size > 0.0
    inverse_size = tl.where(moves, 1.0 / tl.where(moves, step_size, 1.0), float("inf"))
    root = _root(tl.maximum(v, SMALLEST_SCALE))
    divisor = tl.fma(root, inverse_root_correction * inverse_size, tl.where(moves, eps * inverse_size, inverse_size))
    return tl.fma(p, decay, -m * reciprocal(divisor)), m, v


@triton.jit
def scaled(x):
    """Returns ``x`` over the largest magnitude of its row, and those: infinite where one is no number, so that it is
    seen."""
    # The bits of magnitudes are in their order, those of what is no number last.
    bits = tl.minimum(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1), INFINITY)
    scales = bits.to(tl.float32, bitcast=True)
    return x * inverse(scales)[:, None], scales


@triton.jit
def inverse(scales):
    """Computes 1 / ``scales``, and 0 for those of all-zero blocks."""
    return tl.where(scales >= SMALLEST_SCALE, 1.0 / tl.maximum(scales, SMALLEST_SCALE), 0.0)


def passed(hyper: Mapping[str, Number], device: torch.device) -> dict[str, Number]:
    """Returns hyper-parameters as kernels take them: an integer would compile another kernel, as would float64."""
    return {
        name: settings.to(device, torch.float32) if isinstance(settings, Tensor) else float(settings)
        for name, settings in hyper.items()
    }

"""Computes products of int8 matrices with exact int32 sums on any CPU, for ``int8_mixed`` and ``int_only``.

torch._int_mm is oneDNN's there. Without VNNI (AVX2, the first AVX-512) that multiplies by an instruction which adds two
products in 16 bits and saturates: 255 x 127 twice is 64 770 and becomes 32 767, and sums are wrong without a word.
float32 holds every integer up to 2^24, and 1024 products of int8 reach no farther, in any order, so that there pieces
of 1024 are multiplied as float32, rounded by nothing, and added up in int32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

PIECE = 2**24 // 128**2  # products of int8 whose sum float32 always holds


@cache
def torchs_is_exact() -> bool:
    """Tells whether torch._int_mm keeps sums here that 16 bits do not hold: the CPU and ONEDNN_MAX_CPU_ISA decide."""
    a = torch.full((64, 64), 127, dtype=torch.int8)
    return all(bool((torch._int_mm(a, b) == 64 * 127 * value).all()) for value in (127, -128) for b in [a * 0 + value])


def in_pieces(a: Tensor, b: Tensor) -> Tensor:
    """Computes ``a`` [m, k] times ``b`` [k, n], int8, as int32 [m, n]."""
    sums = torch.zeros(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    for left, right in zip(a.split(PIECE, 1), b.split(PIECE), strict=True):
        sums += (left.float() @ right.float()).int()
    return sums


@torch.library.custom_op("leantrain::integer_product", mutates_args=())
def integer_product(a: Tensor, b: Tensor) -> Tensor:
    """Computes ``a`` [m, k] times ``b`` [k, n], int8, as int32 [m, n], exact where int32 holds the sums: one operator,
    as torch._int_mm is, whose FLOPs are counted once, whichever way it takes."""
    return torch._int_mm(a, b) if torchs_is_exact() else in_pieces(a, b)


@integer_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1], dtype=torch.int32)


@register_flop_formula(torch.ops.leantrain.integer_product)
def _flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * a[0] * a[1] * b[1]

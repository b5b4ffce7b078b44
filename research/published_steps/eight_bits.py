"""Has linear layers whose three products have operands of eight floating bits, as Transformer Engine makes them: sizes
alone, to be traced.

    Y = X W^T    dX = G W    dW = G^T X        each operand cast before, by the pass or passes that its scaling takes:

    delayed    one pass reads it and writes it in eight bits; its magnitude is found on the way, for later steps
    tensor     a pass before finds its largest magnitude
    block, mx  one pass finds a scale for each 128, or 32, of a row, and writes all (scales, a 32nd, are left out)

Products read operands by rows, so that a pass writes its operand's transpose, too, where ``transposed``: on Hopper, and
everywhere where scales are of parts of a row. Tensor cores of Blackwell read the other way as well. Weights that are
kept in eight bits are not cast. (Micikevicius et al., 2209.05433; Transformer Engine's user guide, *Using FP8 with
Transformer Engine*.) An operator of the same bytes stands for each pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from research.published_steps.published_rows import EightBits

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TWO_BYTES = torch.float16


def cast(x: Tensor, dtype: torch.dtype, how: EightBits) -> tuple[Tensor, Tensor]:
    """Returns ``x`` [m, k] in eight bits by rows [m, k], and its transpose by rows [k, m]."""
    m, k = x.shape
    if how.scaling == "tensor":
        x.amax()
    if not how.transposed:
        return x.to(dtype), x.new_empty(k, m, dtype=dtype)  # the same bytes, read the other way
    both = torch.empty_like(x, dtype=TWO_BYTES).copy_(x).view(-1).view(dtype)  # one byte for each of the two
    return both[: m * k].view(m, k), both[m * k :].view(k, m)


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Computes a b^T for ``a`` [m, k] and ``b`` [n, k] in eight bits; [m, n] of that type."""
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=dtype)


class _EightBitProduct(torch.autograd.Function):
    """Computes x W^T for x [tokens, in] and a weight [out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: EightBits) -> Tensor:
        rows, columns = cast(x, E4M3, how)
        if how.weights_kept:
            of_weight = weight.new_empty(weight.shape, dtype=E4M3), weight.new_empty(weight.shape[::-1], dtype=E4M3)
        else:
            of_weight = cast(weight, E4M3, how)
        ctx.save_for_backward(columns, of_weight[1])
        ctx.how, ctx.dtypes = how, (x.dtype, weight.dtype)
        return product(rows, of_weight[0], x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight = ctx.saved_tensors
        rows, columns = cast(gradient, E5M2, ctx.how)
        return product(rows, of_weight, ctx.dtypes[0]), product(columns, of_x, gradient.dtype).to(ctx.dtypes[1]), None


class EightBitLinear(nn.Module):
    """Stands for a linear layer; ``weight`` is [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, how: EightBits) -> None:
        super().__init__()
        self.weight, self.bias, self.how = weight, bias, how

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        flat = x.reshape(-1, x.shape[-1]).to(dtype)
        y: Tensor = _EightBitProduct.apply(flat, self.weight.to(dtype), self.how)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if self.bias is None else y + self.bias.to(y.dtype)

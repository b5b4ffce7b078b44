"""Runs a linear layer whose 2:4 weight is multiplied by sparse tensor cores, forward; its two backward products are
dense.

    Y  = X W^T      W in torch's semi-structured form: half the multiplications
    dX = G W        the transpose of a 2:4 matrix is none, unless both ways were pruned for: dense
    dW = G^T X      dense; the mask is applied to it as everywhere

For CUDA tensors of 16 bits. torch compresses the weight anew for each forward pass, since every step changes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.sparse import to_sparse_semi_structured

from suite.model.anatomy import AroundLinear, in_features, out_features, weight_matrix

ROWS, COLUMNS = 32, 64  # torch's 16-bit kernels take weights of whole multiples


def unfit(layer: nn.Module, device: torch.device) -> str:
    """Says why a layer cannot be multiplied so on this device; empty where it can."""
    if device.type != "cuda":
        return f"sparse tensor cores are a GPU's, and this is {device.type}: say execution=masked"
    if out_features(layer) % ROWS or in_features(layer) % COLUMNS:
        return (
            f"a weight of {out_features(layer)} x {in_features(layer)} is not of whole multiples of {ROWS} x "
            f"{COLUMNS}: say execution=masked, or take a wider model"
        )
    return ""


class Product(torch.autograd.Function):
    """Computes by ``apply(x, weight)``: x W^T for ``x`` [tokens, in] and a 2:4 ``weight`` [out, in] of 16 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(to_sparse_semi_structured(weight), x.T).T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        return of_x, gradient.T @ x if ctx.needs_input_grad[1] else None


class SemiStructuredLinear(AroundLinear):
    """Stands around an nn.Linear or Conv1D with a 2:4 weight; [..., in] -> [..., out] in the type of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        weight = weight_matrix(self.linear).to(kind).contiguous()
        y: Tensor = Product.apply(x.reshape(-1, x.shape[-1]).to(kind), weight)
        bias = getattr(self.linear, "bias", None)
        y = y if bias is None else y + bias.to(kind)
        return y.view(*x.shape[:-1], -1)

"""Computes layer-wise trust ratios: each layer's step is as long as a function of its weights' norm.

    coefficient phi(||w||) / (||u|| + decay ||w|| + eps)          phi(z) = min(max(z, low), high)

For ``layerwise_trust``, the general strategy (You et al., arXiv 1904.00962, section 3.1), and for its two cases
``lars`` and ``lamb``. Norms are taken in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from suite.kernels.sharded import WholeNorms

Granularity = Literal["tensor", "row", "block"]  # what counts as a layer


def layer_norms(tensors: Sequence[Tensor], granularity: Granularity = "tensor", block: int = 256) -> list[Tensor]:
    """Computes the L2 norms of each tensor's layers, of a shape that broadcasts to the tensor's; float32 at least.

    ``tensor``: one norm, of shape []. ``row``: one for each index of the first dimension. ``block``: one for every
    ``block`` consecutive elements (the last block may be shorter), repeated to the tensor's own shape.
    """
    if not tensors:
        return []
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    if granularity == "tensor":
        return list(torch._foreach_norm(list(tensors), 2, dtype=wide))
    if granularity == "row":
        return [
            torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)), keepdim=True, dtype=wide)
            if tensor.ndim > 1
            else tensor.to(wide).abs()
            for tensor in tensors
        ]
    return [_block_norms(tensor, block, wide) for tensor in tensors]


def _block_norms(tensor: Tensor, block: int, dtype: torch.dtype) -> Tensor:
    flat = tensor.reshape(-1)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)
    norms = torch.linalg.vector_norm(padded, dim=1, dtype=dtype)
    return norms.repeat_interleave(block)[: flat.numel()].view_as(tensor)


def trust_ratio(
    weight_norm: Tensor,
    update_norm: Tensor,
    *,
    coefficient: float = 1.0,
    low: float = 0.0,
    high: float = math.inf,
    decay: float = 0.0,
    eps: float = 0.0,
) -> Tensor:
    """Computes coefficient phi(||w||) / (||u|| + decay ||w|| + eps), elementwise; 1 where either norm is 0 or not a
    number."""
    ratio = coefficient * weight_norm.clamp(low, high) / (update_norm + decay * weight_norm + eps)
    return torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)


def trust_ratios(
    parameters: Sequence[Tensor],
    directions: Sequence[Tensor],
    granularity: Granularity = "tensor",
    block: int = 256,
    whole: WholeNorms | None = None,
    **bounds: float,
) -> list[Tensor]:
    """Computes :func:`trust_ratio` of every layer of every tensor, each of a shape that broadcasts to its tensor's.

    Of shards ``whole`` turns the norms of the granularity ``tensor`` into those of the whole tensors.
    """
    if not parameters:
        return []
    weights, updates = (layer_norms(tensors, granularity, block) for tensors in (parameters, directions))
    if granularity == "tensor":
        norms = torch.stack([*weights, *updates])
        weight_norms, update_norms = (norms if whole is None else whole(norms)).chunk(2)
        return list(trust_ratio(weight_norms, update_norms, **bounds).unbind())
    return [trust_ratio(w, u, **bounds) for w, u in zip(weights, updates, strict=True)]


def adam_directions(
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: float,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    bias_correction: bool = True,
) -> list[Tensor]:
    """Computes m_hat / (sqrt(v_hat) + eps) of step number ``step``, from 1; without ``bias_correction`` m / (sqrt(v) +
    eps)."""
    corrections = (1 - beta1**step, math.sqrt(1 - beta2**step)) if bias_correction else (1.0, 1.0)
    firsts, seconds, grads = list(first_moments), list(second_moments), list(gradients)
    torch._foreach_lerp_(firsts, grads, 1 - beta1)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, grads, grads, 1 - beta2)
    deviations = torch._foreach_sqrt(seconds)
    torch._foreach_div_(deviations, corrections[1])
    torch._foreach_add_(deviations, eps)
    directions = torch._foreach_div(firsts, corrections[0])
    torch._foreach_div_(directions, deviations)
    return list(directions)


def with_gradients(group: dict[str, Any]) -> list[Tensor]:
    """Returns the group's parameters that have a gradient."""
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def check_phi(low: float, high: float) -> None:
    """Raises ValueError for bounds that no norm fits."""
    if not 0 <= low <= high:
        raise ValueError(f"phi_low and phi_high bound the weights' norm: 0 <= low <= high, not {low} and {high}")

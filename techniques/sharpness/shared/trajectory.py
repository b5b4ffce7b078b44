"""Computes the trajectory loss of "Sharpness-Aware Training for Free" (Du et al., NeurIPS 2022, arXiv 2205.14083).

For its two forms: ``saf``, which takes the past from stored outputs, and ``saf_mesa``, from averaged weights.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def trajectory_losses(logits: Tensor, past: Tensor, temperature: float) -> Tensor:
    """Computes tau^2 KL(softmax(past / tau) || softmax(logits / tau)) of each row of logits [rows, classes], float32
    [rows].

    No gradient flows into ``past``. Logarithms of the softmax, not of its result, which can be zero.
    """
    now, then = (F.log_softmax(tensor.float() / temperature, dim=-1) for tensor in (logits, past.detach()))
    return temperature**2 * F.kl_div(now, then, reduction="none", log_target=True).sum(-1)


def check_trajectory(strength: float, temperature: float, start: float) -> None:
    """Raises ValueError where the trajectory loss's settings make no sense."""
    if not strength >= 0:
        raise ValueError(f"strength, the weight of the trajectory loss, must be 0 or more, not {strength}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if not 0 <= start <= 1:
        raise ValueError(f"start is a share of the run in [0, 1], not {start}")

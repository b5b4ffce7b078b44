"""Implements SNIP: prune once, before training, the connections that matter least to the loss of one mini-batch.

Lee, Ajanthan & Torr, "SNIP: Single-shot Network Pruning based on Connection Sensitivity" (ICLR 2019, arXiv 1810.02340),
section 4, equations 4 to 6, algorithm 1: with a switch c_j in {0, 1} at each weight, the loss changes with it at the
rate g_j = dL(c * w) / dc_j at c = 1, and

    s_j = |g_j| / sum_k |g_k|          the kappa connections with the highest s_j stay, in all layers at once
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from techniques.shared.sparse.saliency import PrunedAtStart, first_batch


def sensitivities(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Computes each connection's share of all sensitivity, in the weights' shapes: the loss's derivative by the switch
    of w is w dL/dw, by the chain rule."""
    derivatives = [(weight.detach() * gradient).abs() for weight, gradient in zip(weights, gradients, strict=True)]
    total = torch.stack([derivative.sum() for derivative in derivatives]).sum()
    return [derivative / total for derivative in derivatives]


@dataclass
class Snip(PrunedAtStart):
    """Masks the attention and MLP matrices of all blocks, where they are trained."""

    def importance(self, model: nn.Module, weights: list[nn.Parameter], run: Run) -> list[Tensor]:
        batch = first_batch(run)
        loss = run.baseline.losses(run.baseline.forward(model, batch), batch).mean()
        return sensitivities(weights, torch.autograd.grad(loss, weights, materialize_grads=True))

"""ACClip: the momentum of each coordinate is clipped to what its gradients are typically as large as.

Zhang et al., "Why are Adaptive Methods Good for Attention Models?" (NeurIPS 2020, arXiv 1912.03194), Algorithm 2:

    m = b1 m + (1 - b1) g            tau^a = b2 tau^a + (1 - b2) |g|^a
    g_hat = min(tau / (|m| + eps), 1) m            theta = theta - eta g_hat

Heavy-tailed gradient noise has no variance: SGD's error is unbounded, and clipping makes it finite. With one threshold
and the whole gradient's norm that is GClip, g_hat = min(tau / ||g||, 1) g. The threshold kept is tau^a; what is
compared is its a-th root, and what is clipped is the momentum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.acclip.optimizer import ACClip


@dataclass
class ACClipTechnique(Technique):
    """Puts ACClip in place of AdamW and of the clipping of the gradient's norm, at ``factor`` times the learning
    rate."""

    factor: float = 300.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-5
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        ACClip([torch.zeros(1)], betas=(self.beta1, self.beta2), eps=self.eps, alpha=self.alpha)  # checks the others

    def recipe(self, recipe: Recipe) -> Recipe:
        """Keeps the product of learning rate and decay as the recipe's."""
        return replace(
            recipe,
            learning_rate=recipe.learning_rate * self.factor,
            weight_decay=recipe.weight_decay / self.factor,
            beta1=self.beta1,
            beta2=self.beta2,
            gradient_clip=0.0,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> ACClip:
        return ACClip(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=self.eps,
            alpha=self.alpha,
            compiled=recipe.compile,
        )

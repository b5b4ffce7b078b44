"""Implements LARS: SGD with momentum in which each layer's gradient is first brought to the scale of the layer's
weights.

You, Gitman & Ginsburg, "Large Batch Training of Convolutional Networks" (2017, arXiv 1708.03888), Algorithm 1, with the
learning rate gamma, the trust coefficient eta and the decay beta:

    ratio = eta ||w|| / (||g|| + beta ||w||)        v = m v + gamma ratio (g + beta w)        w = w - v

Four inequivalent forms are in use. They differ in the ratio's denominator and in whether gamma is inside the momentum,
and coincide if and only if beta = 0 and gamma is constant:

    paper   ||g|| + beta ||w||    inside           timm    ||g|| + beta ||w|| + eps   outside: w = w - gamma v
    optax   ||g + beta w||        inside           moco    ||g + beta w||             outside (MoCo v3, MAE)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.large_batch.lars.optimizer import Lars
from techniques.large_batch.lars.variants import Variant


@dataclass
class LarsTechnique(Technique):
    """Puts LARS in place of AdamW, at ``factor`` times its learning rate."""

    factor: float = 800.0
    momentum: float = 0.9
    trust_coefficient: float = 1e-3
    weight_decay: float = 5e-4
    variant: Variant = "paper"

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        if not self.trust_coefficient > 0:
            raise ValueError(f"trust_coefficient must be positive (1e-3 is the paper's), not {self.trust_coefficient}")
        if self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"weight_decay >= 0 and momentum in [0, 1), not {self.weight_decay} and {self.momentum}")
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {self.variant!r}")

    def recipe(self, recipe: Recipe) -> Recipe:
        rate = recipe.learning_rate * self.factor
        return replace(recipe, learning_rate=rate, weight_decay=self.weight_decay, beta1=self.momentum)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Lars:
        return Lars(
            parameters,
            lr=recipe.learning_rate,
            momentum=recipe.beta1,
            trust_coefficient=self.trust_coefficient,
            variant=self.variant,
        )

"""Implements LAMB: Adam's direction, given in each layer the length of the layer's weights times the learning rate.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (ICLR 2020, arXiv 1904.00962),
Algorithm 2:

    r = m_hat / (sqrt(v_hat) + eps)        u = r + lambda w        w = w - eta phi(||w||) / ||u|| u

Four inequivalent forms are in use:

    paper    as above; norms' scales and biases neither decay nor adapt
    google   no bias correction (the authors' TensorFlow code, as in ALBERT); the same exclusions
    nvlamb   all gradients first divided by max(1, ||g|| / max_norm), the norm over the whole model; every tensor adapts
    timm     nvlamb's clipping; a tensor adapts if it decays
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_args

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.large_batch.lamb.optimizer import Lamb, Variant
from techniques.large_batch.shared.trust import check_phi


@dataclass
class LambTechnique(Technique):
    """Puts LAMB in place of AdamW, at ``factor`` times its learning rate."""

    factor: float = 16.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    variant: Variant = "paper"
    max_norm: float = 1.0
    phi_low: float = 0.0
    phi_high: float = math.inf

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        if self.weight_decay < 0 or not self.eps > 0 or not self.max_norm > 0:
            raise ValueError(
                f"weight_decay >= 0 and eps, max_norm > 0, not {self.weight_decay}, {self.eps} and {self.max_norm}"
            )
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), not {self.beta1} and {self.beta2}")
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {self.variant!r}")
        check_phi(self.phi_low, self.phi_high)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            learning_rate=recipe.learning_rate * self.factor,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Lamb:
        return Lamb(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            variant=self.variant,
            max_norm=self.max_norm,
            phi=(self.phi_low, self.phi_high),
        )

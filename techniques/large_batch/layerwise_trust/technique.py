"""Layer-wise trust: whatever the base direction u, a layer's step is as long as a function of its weights' norm.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (ICLR 2020, arXiv 1904.00962),
section 3.1, the general strategy of which LARS and LAMB are two cases:

    w_i <- w_i - eta phi(||w_i||) / ||u_i|| u_i          phi(z) = min(max(z, low), high)

for each layer i. The ratio is 1 where either norm is 0. Norms are taken in float32 at least. Momentum as u is the
paper's Algorithm 1 (LARS with the ratio outside the momentum), Adam's ratio its Algorithm 2 (LAMB).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_args

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.large_batch.layerwise_trust.optimizer import Base, LayerwiseTrust
from techniques.large_batch.shared.trust import Granularity, check_phi


@dataclass
class LayerwiseTrustTechnique(Technique):
    """Every matrix moves by ``factor`` times the recipe's learning rate, relative to its own norm."""

    base: Base = "momentum"
    granularity: Granularity = "tensor"
    block: int = 256
    factor: float = 16.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    phi_low: float = 0.0
    phi_high: float = math.inf

    def __post_init__(self) -> None:
        if self.base not in get_args(Base):
            raise ValueError(f"base must be one of {', '.join(get_args(Base))}, not {self.base!r}")
        if self.granularity not in get_args(Granularity):
            choices = ", ".join(get_args(Granularity))
            raise ValueError(f"granularity must be one of {choices}, not {self.granularity!r}")
        if self.block < 1:
            raise ValueError(f"block, the elements that share a ratio, must be at least 1, not {self.block}")
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        check_phi(self.phi_low, self.phi_high)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            learning_rate=recipe.learning_rate * self.factor,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> LayerwiseTrust:
        return LayerwiseTrust(
            parameters,
            lr=recipe.learning_rate,
            base=self.base,
            betas=(recipe.beta1, recipe.beta2),
            granularity=self.granularity,
            block=self.block,
            phi=(self.phi_low, self.phi_high),
        )

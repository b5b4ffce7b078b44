"""Stochastic gradient descent with momentum: a heavy ball rolls along the sum of the past gradients.

Polyak, "Some methods of speeding up the convergence of iteration methods" (USSR Comput. Math. Math. Phys. 4, 1964);
for networks Sutskever et al., "On the importance of initialization and momentum in deep learning" (ICML 2013), eq. 1-2:

    rate inside:     v = mu v + eta g            theta = theta - v            (both papers, Caffe)
    rate outside:    v = mu v + (1 - d) g        theta = theta - eta v        (torch, optax; d is the dampening)

The two are one method until eta changes: then the form with the rate inside goes on with old steps of the old length,
unless mu is multiplied by eta_t / eta_{t-1} (Goyal et al., arXiv 1706.02677, "momentum correction"). Nesterov's form
looks ahead: theta = theta - eta (g + mu v). The first v is g, without dampening. L2 regularisation is added to g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.shared.sgd import SGD, Rate


@dataclass
class SGDMomentum(Technique):
    """Puts SGD with momentum in place of AdamW, at ``factor`` times its learning rate.

    The decay is divided so that what it takes off the weights, eta lambda / (1 - mu), stays the recipe's.
    """

    factor: float = 100.0
    momentum: float = 0.9
    dampening: float = 0.0
    rate: Rate = "outside"

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        if not 0 <= self.momentum < 1 or not 0 <= self.dampening < 1:
            raise ValueError(f"momentum and dampening must lie in [0, 1), not {self.momentum} and {self.dampening}")
        if self.rate not in get_args(Rate):
            raise ValueError(f"rate must be outside or inside, not {self.rate!r}")

    def recipe(self, recipe: Recipe) -> Recipe:
        decay = recipe.weight_decay * (1 - self.momentum) / self.factor
        return replace(recipe, learning_rate=recipe.learning_rate * self.factor, weight_decay=decay)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> SGD:
        return SGD(
            parameters,
            lr=recipe.learning_rate,
            momentum=self.momentum,
            dampening=self.dampening,
            rate=self.rate,
            fused=recipe.fused_optimizer,
        )

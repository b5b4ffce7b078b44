"""Runs SGD with momentum by torch, fused where the recipe is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.sgd_momentum.technique import SGDMomentum


@dataclass
class TorchSGD(SGDMomentum):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate != "outside":
            raise ValueError("torch's SGD multiplies by the rate outside of the momentum: leave rate out")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        return torch.optim.SGD(
            parameters,
            lr=recipe.learning_rate,
            momentum=self.momentum,
            dampening=self.dampening,
            fused=recipe.fused_optimizer,
        )


PACKAGES: Mapping[str, type[Technique]] = {"torch": TorchSGD}

"""Runs Nesterov's momentum by torch's SGD, fused where the recipe is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.nesterov_agd.technique import NesterovAGD


@dataclass
class TorchNesterov(NesterovAGD):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule != "constant":
            raise ValueError("torch's SGD has a constant momentum: leave schedule out")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        fused = recipe.fused_optimizer
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, momentum=self.momentum, nesterov=True, fused=fused)


PACKAGES: Mapping[str, type[Technique]] = {"torch": TorchNesterov}

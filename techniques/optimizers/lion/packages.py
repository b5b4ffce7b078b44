"""Runs Lion by lion-pytorch, by its update of lists, and by timm: the same update, with the same state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.lion.technique import LionTechnique


@dataclass
class LionPytorch(LionTechnique):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        from lion_pytorch import Lion

        optimizer: Optimizer = Lion(parameters, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2))
        return optimizer


@dataclass
class TimmLion(LionTechnique):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        from timm.optim import Lion

        betas = recipe.beta1, recipe.beta2
        optimizer: Optimizer = Lion(parameters, lr=recipe.learning_rate, betas=betas, foreach=True)
        return optimizer


PACKAGES: Mapping[str, type[Technique]] = {"lion_pytorch": LionPytorch, "timm": TimmLion}

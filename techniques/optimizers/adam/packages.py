"""Runs Adam by torch, fused where the recipe is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.adam.technique import AdamTechnique


@dataclass
class TorchAdam(AdamTechnique):
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bias_correction:
            raise ValueError("torch's Adam corrects the bias: leave bias_correction=false out")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        kind = torch.optim.AdamW if self.decay == "decoupled" else torch.optim.Adam
        betas = recipe.beta1, recipe.beta2
        return kind(parameters, lr=recipe.learning_rate, betas=betas, eps=recipe.eps, fused=recipe.fused_optimizer)


PACKAGES: Mapping[str, type[Technique]] = {"torch": TorchAdam}

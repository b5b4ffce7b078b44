"""Runs AdamW by torch, fused where the recipe is: what the baselines train with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.adamw.technique import AdamWTechnique


@dataclass
class TorchAdamW(AdamWTechnique):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        own = super().optimizer(parameters, recipe)
        keys = ("lr", "betas", "eps", "weight_decay", "fused")
        groups = [
            {"params": param_group["params"], **{key: param_group[key] for key in keys}}
            for param_group in own.param_groups
        ]
        return torch.optim.AdamW(groups)


PACKAGES: Mapping[str, type[Technique]] = {"torch": TorchAdamW}

"""Runs LAMB by timm, in its form: all gradients are clipped together, and a tensor adapts if it decays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.large_batch.lamb.technique import LambTechnique


@dataclass
class TimmLamb(LambTechnique):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        from timm.optim import Lamb

        betas = recipe.beta1, recipe.beta2
        return Lamb(
            parameters, lr=recipe.learning_rate, betas=betas, eps=recipe.eps, max_grad_norm=self.max_norm, foreach=True
        )


PACKAGES: Mapping[str, type[Technique]] = {"timm": TimmLamb}
FORMS = {"timm": {"variant": "timm"}}

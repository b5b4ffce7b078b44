"""Runs LARS by timm, in its form: a tensor adapts if it decays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.large_batch.lars.technique import LarsTechnique


@dataclass
class TimmLars(LarsTechnique):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        from timm.optim import Lars

        return Lars(
            parameters, lr=recipe.learning_rate, momentum=recipe.beta1, trust_coeff=self.trust_coefficient, foreach=True
        )


PACKAGES: Mapping[str, type[Technique]] = {"timm": TimmLars}
FORMS = {"timm": {"variant": "timm"}}

"""Wraps 4-bit AdamW by torchao, which has a scale for each block, none of rank 1, and no setting for embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.precision.adam4bit_rank1.technique import Adam4bit


@dataclass
class TorchaoAdam4bit(Adam4bit):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Any:
        from torchao.optim import AdamW4bit

        return AdamW4bit(parameters, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


PACKAGES: Mapping[str, type[Technique]] = {"torchao": TorchaoAdam4bit}
FORMS = {"torchao": {"keep_embeddings": "false"}}

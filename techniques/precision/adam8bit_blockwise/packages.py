"""Wraps 8-bit AdamW by torchao; bitsandbytes' is a setting of the technique itself. Both have blocks of 256, and
torchao has no setting for embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.precision.adam8bit_blockwise.technique import Adam8bit


@dataclass
class TorchaoAdam8bit(Adam8bit):
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        from torchao.optim import AdamW8bit

        betas = recipe.beta1, recipe.beta2
        optimizer: Any = AdamW8bit(parameters, lr=recipe.learning_rate, betas=betas, eps=recipe.eps)
        return optimizer


PACKAGES: Mapping[str, type[Technique]] = {"torchao": TorchaoAdam8bit}
FORMS = {"bitsandbytes": {"block": "256"}, "torchao": {"block": "256", "keep_embeddings": "false"}}

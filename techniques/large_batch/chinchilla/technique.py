"""Implements compute-optimal training: the same floating-point operations, spent on a smaller model and more tokens.

Hoffmann et al., "Training Compute-Optimal Large Language Models" (NeurIPS 2022, arXiv 2203.15556): at C = 6 N D, size
and tokens should grow in equal proportion, which most large models do not: Chinchilla has a quarter of Gopher's
parameters at Gopher's compute, at the same depth and half the width. That is the comparison here. As N goes with the
width squared, a model of ``width`` times the reference's is trained on ``compute`` / width^2 times its tokens. The
cosine's horizon is the run's own length. The study sweeps both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy

PROPORTIONAL = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")


def widened(model: nn.Module, width: float) -> nn.Module:
    """Builds a fresh Hugging Face model ``width`` times as wide: heads of the same size, as many more or fewer; equal
    depth.

    What prepares the model's input (its forward pre-hooks) stays. Raises ValueError where that gives no whole number of
    heads, or the model has no such configuration.
    """
    config = copy.deepcopy(getattr(model, "config", None))
    if not all(hasattr(config, name) for name in PROPORTIONAL[:2]):
        raise ValueError(f"{type(model).__name__} has no Hugging Face configuration with a width: use such a model")
    for name in PROPORTIONAL:
        before = getattr(config, name, None)
        if before is not None:
            if not isinstance(before, int):
                raise ValueError(f"{type(model).__name__} has several stages, each with {name} of its own: {before}")
            if before * width != round(before * width):
                raise ValueError(f"width {width:g} makes {name} {before * width:g}: choose one that keeps it whole")
            setattr(config, name, round(before * width))
    other = type(model)(config)
    for hook in model._forward_pre_hooks.values():
        other.register_forward_pre_hook(hook)
    return other


@dataclass
class Chinchilla(Technique):
    """Trains ``width`` times the width, width^2 times the parameters, and on tokens for ``compute`` times the
    operations.

    The learning rate goes with 1 / width: Chinchilla's was 2.5 times that of Gopher, of twice its width.
    """

    width: float = 0.5
    compute: float = 1.0

    spent: Act = field(init=False, repr=False, default_factory=Act)

    zero_strength: ClassVar[dict[str, Any]] = {"width": 1.0, "compute": 1.0}

    def __post_init__(self) -> None:
        if not (self.width > 0 and self.compute > 0):
            raise ValueError(f"width and compute are multiples of the reference's, not {self.width} and {self.compute}")

    def recipe(self, recipe: Recipe) -> Recipe:
        steps = max(1, round(recipe.steps * self.compute / self.width**2))
        changed = replace(recipe, steps=steps, learning_rate=recipe.learning_rate / self.width)
        if changed != recipe:
            self.spent()
        return changed

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.width == 1:
            return model
        other = widened(model, self.width)
        anatomy(other).set_fused_attention(run.recipe.fused_attention)
        return other

    def sites(self, run: Run) -> Mapping[str, Site]:
        resized = run.anatomy.every_block if self.width != 1 else ()
        return {"changes the recipe": self.spent, **{block.path: block.module for block in resized}}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns this run's N (without embeddings) and D."""
        batch, _ = run.next_batch()
        length = next(iter(batch.values())).shape[1]
        return {
            "parameters": float(sum(p.numel() for block in run.anatomy.every_block for p in block.module.parameters())),
            "tokens": float(run.position * length),
        }

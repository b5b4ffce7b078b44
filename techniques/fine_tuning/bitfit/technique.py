"""Implements BitFit (Ben Zaken, Goldberg & Ravfogel, ACL 2022, arXiv 2106.10199): train the bias terms and nothing
else.

Section 3: every linear layer of the encoder computes W x + b and every layer norm g * z + b; the vectors b are trained,
with the output layer of the task. A block of width d with four times as wide an MLP has 11 d numbers in its biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from techniques.fine_tuning.shared.frozen import freeze


def biases(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the bias terms by name: of linear layers, convolutions and norms, and of a projection's rows
    (``q_bias``)."""
    return {name: parameter for name, parameter in model.named_parameters() if name.endswith("bias")}


def train_biases(model: nn.Module) -> nn.Module:
    """Freezes all of ``model``, in place, but its bias terms and a new task's output layer; returns it.

    Raises ValueError where the blocks have no bias terms, as those of Llama.
    """
    parts = anatomy(model)
    blocks = tuple(f"{block.path}." for block in parts.every_block)
    terms = biases(model)
    if not any(name.startswith(blocks) for name in terms):
        raise ValueError(
            f"the blocks of {type(model).__name__} have no bias terms, which are all that bitfit trains; take a model "
            "whose linear layers or norms have some (BERT, GPT-2, ViT), or lora, which needs none"
        )
    freeze(parts)
    for term in terms.values():
        term.requires_grad_(True)
    return model


@dataclass
class BitFit(Technique):
    """``learning_rate_ratio`` is over the baseline's full fine-tuning."""

    learning_rate_ratio: float = 30.0

    def __post_init__(self) -> None:
        if not self.learning_rate_ratio > 0:
            raise ValueError(
                f"learning_rate_ratio, over full fine-tuning's rate, must be positive, not {self.learning_rate_ratio}"
            )

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, learning_rate=recipe.learning_rate * self.learning_rate_ratio)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        return train_biases(model)

    def sites(self, run: Run) -> Mapping[str, Site]:
        trained = run.trained_parameters()
        return {name: trained[name] for name in biases(run.model) if name in trained}

"""Implements Adam: steps by the ratio of the gradient's mean to the root of its mean square, coordinate by coordinate.

Kingma & Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015, arXiv 1412.6980), Algorithm 1:

    m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
    m_hat = m / (1 - b1^t)           v_hat = v / (1 - b2^t)          theta = theta - alpha m_hat / (sqrt(v_hat) + eps)

The paper has no weight decay (``none``). Libraries add L2 regularisation to the gradient (``coupled``: g + lambda
theta), which then passes through the statistics; ``decoupled`` is AdamW. BERT's original code leaves the bias
correction out and decouples. Its corrections are the limit of many steps, so here it is a run whose step counter starts
at infinity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.shared.adam import Adam, Decay

Form = Literal["none", "coupled", "decoupled"]


@dataclass
class AdamTechnique(Technique):
    """Runs Adam at the recipe's learning rate and betas, which are AdamW's, without decay.

    ``decay="coupled"``: the recipe's as L2 regularisation. ``decay="decoupled"`` is the reference to the bit;
    with ``bias_correction=False`` it is BERT's own optimizer.
    """

    decay: Form = "none"
    bias_correction: bool = True

    zero_strength: ClassVar[dict[str, Any]] = {"decay": "decoupled"}

    def __post_init__(self) -> None:
        if self.decay not in get_args(Form):
            raise ValueError(f"decay must be none, coupled or decoupled, not {self.decay!r}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, weight_decay=0.0) if self.decay == "none" else recipe

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Adam:
        decay: Decay = "decoupled" if self.decay == "decoupled" else "coupled"
        return Adam(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            decay=decay,
            bias_correction=self.bias_correction,
            fused=recipe.fused_optimizer,
        )

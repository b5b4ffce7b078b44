"""AdamW: weight decay acts on the weights themselves and not through Adam's gradient statistics.

Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019, arXiv 1711.05101), Algorithm 2, Appendix B.1:

    m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
    theta = theta - eta_t (alpha m_hat / (sqrt(v_hat) + eps) + lambda theta),      lambda = lambda_norm sqrt(b / (B T))

The paper's decay follows the schedule's multiplier eta_t alone; libraries (torch, optax) multiply it by the whole
learning rate eta_t alpha. The two are one update under lambda_library = lambda / alpha: the optimizer here speaks
torch's dialect, and the technique translates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import Tensor

from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.shared.adam import Adam, adam_step

adamw_step = partial(adam_step, decay="decoupled")
"""Algorithm 2 on one tensor, in place, with torch's form of the decay."""


def normalised_decay(normalised: float, steps: int) -> float:
    """Follows appendix B.1: lambda for a run of ``steps`` = B T / b updates (B examples, T epochs, batch b)."""
    return normalised / math.sqrt(steps)


class AdamW(Adam):
    """Implements AdamW with torch's hyper-parameters: Adam with decoupled decay."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        fused: bool = True,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            decay="decoupled",
            fused=fused,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
        )


@dataclass
class AdamWTechnique(Technique):
    """Applies the paper's decay: its own normalised strength, scaled by the schedule's multiplier alone.

    ``decay="learning_rate"`` keeps the recipe's decay, scaled by the whole learning rate: the reference to the bit.
    """

    decay: Literal["schedule", "learning_rate"] = "schedule"
    normalised: float = 0.025

    zero_strength: ClassVar[dict[str, Any]] = {"decay": "learning_rate"}

    def __post_init__(self) -> None:
        if self.decay not in ("schedule", "learning_rate"):
            raise ValueError(f"decay must be schedule or learning_rate, not {self.decay!r}")
        if self.normalised < 0:
            raise ValueError(f"normalised (the paper's lambda_norm) must be 0 or more, not {self.normalised}")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> AdamW:
        if self.decay == "schedule":
            strength = normalised_decay(self.normalised, recipe.steps)
            parameters = [group | {"weight_decay": library_decay(strength, group, recipe)} for group in parameters]
        return AdamW(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            fused=recipe.fused_optimizer,
        )


def library_decay(strength: float, group: dict[str, Any], recipe: Recipe) -> float:
    """Returns lambda / alpha for a group that decays: what torch's form needs to shrink the weights by eta_t lambda a
    step."""
    if not group["weight_decay"]:
        return 0.0
    return strength / (recipe.learning_rate * group.get("learning_rate_scale", 1.0))

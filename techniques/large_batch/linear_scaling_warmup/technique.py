"""The linear scaling rule with gradual warm-up: a batch k times larger takes a learning rate k times larger.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017, arXiv 1706.02677), sections 2.1 and
2.2: the rate starts at eta, grows by the same amount every step, and reaches k eta after the warm-up (5 of 90 epochs).
For Adam's family the square root of k is better founded (Malladi et al., NeurIPS 2022, arXiv 2205.10287):
``rule=sqrt``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique

Rule = Literal["linear", "sqrt", "none"]  # none: only the batch grows, which is what the rule is compared with


def scale(k: int, rule: Rule) -> float:
    """Returns the factor by which the learning rate grows when the batch grows k times."""
    return {"linear": float(k), "sqrt": math.sqrt(k), "none": 1.0}[rule]


def gradual(step: int, warmup_steps: int, scale: float) -> float:
    """Returns the learning rate of 0-based ``step`` relative to the scaled one: from 1/scale, in equal steps, to 1."""
    return 1.0 if step >= warmup_steps else (1 + (scale - 1) * step / warmup_steps) / scale


@dataclass(frozen=True)
class GraduallyScaled(Recipe):
    """Describes a recipe whose schedule is multiplied by :func:`gradual`. ``learning_rate`` is the scaled one.

    The reference's own schedule, with its own warm-up if it has one, keeps its shape; without one this is the paper's.
    """

    scale: float = 1.0
    gradual_fraction: float = 0.0

    def learning_rate_at(self, step: int) -> float:
        return super().learning_rate_at(step) * gradual(step, math.ceil(self.gradual_fraction * self.steps), self.scale)


@dataclass
class LinearScalingWarmup(Technique):
    """Takes the batch times k, the learning rate by the rule, the steps divided by k: as many examples as the reference
    sees.

    ``rate`` multiplies the learning rate throughout: ``k=1,rate=0.3`` is the reference at 0.3 times its own.
    """

    k: int = 4
    rule: Rule = "linear"
    warmup: float = 5 / 90
    rate: float = 1.0

    scaled: Act = field(init=False, repr=False, default_factory=Act)

    zero_strength: ClassVar[dict[str, Any]] = {"k": 1}

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k, by which the batch grows, must be at least 1, not {self.k}")
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, not {self.rule!r}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a fraction of the run's steps in [0, 1), not {self.warmup}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate multiplies the learning rate and must be positive, not {self.rate}")

    def recipe(self, recipe: Recipe) -> Recipe:
        if type(recipe) is not Recipe:
            raise ValueError(
                "linear_scaling_warmup multiplies the recipe's own schedule, and another technique of the stack has "
                "put one in place of it: leave one of them out"
            )
        by = scale(self.k, self.rule)
        self.scaled()
        changed = {
            "batch_size": recipe.batch_size * self.k,
            "learning_rate": recipe.learning_rate * by * self.rate,
            "steps": math.ceil(recipe.steps / self.k),
        }
        return GraduallyScaled(**recipe.as_dict() | changed, scale=by, gradual_fraction=self.warmup)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"scales batch, learning rate and steps": self.scaled}

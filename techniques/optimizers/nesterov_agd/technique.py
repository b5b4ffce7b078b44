"""Nesterov's accelerated gradient: the gradient is taken ahead, where the momentum is about to lead.

Nesterov, "A method of solving a convex programming problem with convergence rate O(1/k^2)" (Soviet Math. Dokl. 27,
1983), in the form of Beck & Teboulle (SIAM J. Imaging Sciences 2, 2009) without the proximal step:

    x_k = y_k - 1/L grad f(y_k)         t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2         t_1 = 1,  y_1 = x_0
    y_{k+1} = x_k + (t_k - 1) / t_{k+1} (x_k - x_{k-1})

For convex f with L-Lipschitz gradient f(x_k) - f* <= 2 L ||x_0 - x*||^2 / (k + 1)^2, for every k. Strongly convex f
takes the constant momentum (sqrt(kappa) - 1) / (sqrt(kappa) + 1). Networks are trained with a constant 0.9, in the form
v = mu v + g, theta = theta - eta (g + mu v), for which no theorem speaks: its theta is y, with x = theta + eta mu v.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer, rate_of
from suite.kernels.refusals import at_least_0
from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique
from techniques.optimizers.nesterov_agd.sequence import following
from techniques.shared.sgd import SGD

Schedule = Literal["constant", "convex"]


class AGD(GroupedOptimizer):
    """Follows the textbook's sequences: parameters hold y, where gradients are taken, and the state has x as
    ``iterate``.

    Without ``momentum`` it follows the schedule ``t``, for convex functions and ``lr`` <= 1/L. It then has no momentum
    that a scheduler (OneCycleLR) could write: those refuse it.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float | None = None,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        hyper = {"lr": lr, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, hyper if momentum is None else hyper | {"momentum": momentum})

    def check(self, group: dict[str, Any]) -> None:
        lr, weight_decay, momentum = group["lr"], group["weight_decay"], group.get("momentum")
        if not at_least_0(lr, weight_decay) or (momentum is not None and not 0 <= momentum < 1):
            raise ValueError(
                f"AGD needs lr, weight_decay >= 0 and momentum in [0, 1) or None; got {lr}, {weight_decay}, {momentum}"
            )

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        for parameter, value, gradient in zip(parameters, values, gradients, strict=True):
            begins = "iterate" not in self.state[parameter]
            (iterate,) = self.buffers([parameter], "iterate")
            if begins:
                iterate.copy_(value)
            momentum = group.get("momentum")
            if momentum is None:
                state = self.state[parameter]
                last = state.get("t", group.get("t", 1.0))  # older checkpoints have one for a group
                state["t"] = following(last)
                momentum = (last - 1) / state["t"]
            if group["weight_decay"]:
                gradient = gradient.add(value, alpha=group["weight_decay"])
            value.add_(gradient, alpha=-rate_of(group))  # x_k
            step = value - iterate
            iterate.copy_(value)
            value.add_(step, alpha=momentum)


@dataclass
class NesterovAGD(Technique):
    """Puts Nesterov momentum in place of AdamW, at ``factor`` times its learning rate; the decay's strength is kept.

    ``schedule="convex"`` is the theorem's own momentum, which tends to 1.
    """

    factor: float = 100.0
    momentum: float = 0.9
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum must lie in (0, 1), not {self.momentum}")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be constant or convex, not {self.schedule!r}")

    def recipe(self, recipe: Recipe) -> Recipe:
        decay = recipe.weight_decay * (1 - self.momentum) / self.factor
        return replace(recipe, learning_rate=recipe.learning_rate * self.factor, weight_decay=decay)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> torch.optim.Optimizer:
        if self.schedule == "convex":
            return AGD(parameters, lr=recipe.learning_rate)
        fused = recipe.fused_optimizer
        return SGD(parameters, lr=recipe.learning_rate, momentum=self.momentum, nesterov=True, fused=fused)

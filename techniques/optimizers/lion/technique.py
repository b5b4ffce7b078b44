"""Implements Lion: the sign of an interpolation between momentum and gradient, with one momentum buffer and decoupled
decay.

Chen et al., "Symbolic Discovery of Optimization Algorithms" (NeurIPS 2023, arXiv 2302.06675), Program 1 / Algorithm 2:

    u = sign(b1 m + (1 - b1) g)        theta = theta - lr (u + lambda theta)        m = b2 m + (1 - b2) g

The sign is taken with the old momentum and b1, and only then the momentum moves with b2: it is not the sign of one
moving average. The interpolation is computed as m + (1 - b1)(g - m), which rounds differently from the form above where
its terms cancel: there, and only there, implementations disagree about a sign.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer, compiled_over_lists, descend, rate_of
from suite.kernels.refusals import at_least_0
from suite.loop.recipe import Recipe
from suite.loop.technique import ParameterGroups, Technique


def lion_step(
    parameter: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    *,
    learning_rate: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """Updates one tensor, in place; all three have one shape, the momentum any float dtype. sign(0) is 0."""
    moved = momentum.to(gradient.dtype)
    direction = torch.lerp(moved, gradient, 1 - beta1).sign_()
    descend(parameter, direction, learning_rate, weight_decay)
    moved.lerp_(gradient, 1 - beta2)
    if moved is not momentum:
        momentum.copy_(moved)


class Lion(GroupedOptimizer):
    """Implements Lion with torch's names. Its one buffer is ``momentum``, of ``momentum_dtype``; None is the
    parameter's dtype, but float32 at least.

    The learning rate is typically 3 to 10 times smaller than AdamW's, and the weight decay as many times larger.
    On a GPU a group is updated by one kernel; elsewhere tensor by tensor or, if ``compiled``, in one pass over memory.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        compiled: bool = False,
        momentum_dtype: torch.dtype | None = None,
        *,
        maximize: bool = False,
    ) -> None:
        hyper = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, hyper | {"compiled": compiled, "momentum_dtype": momentum_dtype})

    def check(self, group: dict[str, Any]) -> None:
        lr, betas, weight_decay = (group[name] for name in ("lr", "betas", "weight_decay"))
        if not at_least_0(lr, weight_decay) or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Lion needs lr, weight_decay >= 0 and betas in [0, 1); got {lr}, {weight_decay}, {betas}")

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        momenta = self.buffers(parameters, "momentum", group["momentum_dtype"])
        if group["compiled"]:
            rate = torch.tensor(rate_of(group), dtype=torch.float64)
            compiled_over_lists(lion_step)(values, gradients, momenta, learning_rate=rate, **_rates(group))
            return
        for operands in zip(values, gradients, momenta, strict=True):
            lion_step(*operands, learning_rate=rate_of(group), **_rates(group))

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        from techniques.optimizers.lion import kernel

        momenta = self.buffers(parameters, "momentum", group["momentum_dtype"])
        tables = self.tables(parameters, kernel.launch_tables)
        kernel.lion_step(values, gradients, momenta, tables, lr=group["lr"], **_rates(group), **fused)


def _rates(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2, "weight_decay": group["weight_decay"]}


@dataclass
class LionTechnique(Technique):
    """Puts Lion in place of AdamW, with the learning rate divided and the decay multiplied by ``factor``."""

    factor: float = 10.0
    beta1: float = 0.9
    beta2: float = 0.99
    bf16_momentum: bool = False

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(
                f"factor divides the learning rate and must be positive (3 to 10 is usual), not {self.factor}"
            )
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), not {self.beta1} and {self.beta2}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            learning_rate=recipe.learning_rate / self.factor,
            weight_decay=recipe.weight_decay * self.factor,
            beta1=self.beta1,
            beta2=self.beta2,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Lion:
        betas = (recipe.beta1, recipe.beta2)
        dtype = torch.bfloat16 if self.bf16_momentum else None
        return Lion(parameters, lr=recipe.learning_rate, betas=betas, compiled=recipe.compile, momentum_dtype=dtype)

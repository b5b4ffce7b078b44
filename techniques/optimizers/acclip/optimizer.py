"""Has the update of ACClip, on one tensor, and the optimizer around it. technique.py has the paper."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer, compiled_over_lists, descend, rate_of
from suite.kernels.refusals import at_least_0


def clipped(momentum: Tensor, power: Tensor, *, eps: float, alpha: float) -> Tensor:
    """Computes min(tau / (|m| + eps), 1) m, where ``power`` is tau^alpha: nowhere larger than tau."""
    return (power.pow(1 / alpha) / (momentum.abs() + eps)).clamp_(max=1).mul_(momentum)


def acclip_step(
    parameter: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    power: Tensor,
    *,
    learning_rate: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    alpha: float,
    weight_decay: float = 0.0,
) -> None:
    """Updates one tensor, in place; all four have one shape. Decay is decoupled: it is not clipped."""
    momentum.lerp_(gradient, 1 - beta1)
    power.lerp_(gradient.abs().pow(alpha), 1 - beta2)
    direction = clipped(momentum, power, eps=eps, alpha=alpha)
    descend(parameter, direction, learning_rate, weight_decay)


class ACClip(GroupedOptimizer):
    """Implements ACClip. State: ``momentum`` and ``power`` (tau^alpha), each of the parameter's size.

    It does what a clipping of the gradient's norm is for, and does not need one before it. On a GPU a group is updated
    by one kernel; elsewhere tensor by tensor or, if ``compiled``, in one pass over memory.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-5,
        alpha: float = 1.0,
        weight_decay: float = 0.0,
        compiled: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        hyper = {"lr": lr, "betas": betas, "eps": eps, "alpha": alpha, "weight_decay": weight_decay}
        super().__init__(params, hyper | {"compiled": compiled, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        lr, betas, eps, alpha, weight_decay = (group[n] for n in ("lr", "betas", "eps", "alpha", "weight_decay"))
        if not at_least_0(lr, weight_decay) or not 0 < eps < math.inf or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"ACClip needs lr, weight_decay >= 0, eps > 0 and betas in [0, 1); "
                f"got {lr}, {weight_decay}, {eps}, {betas}"
            )
        if not 1 <= alpha <= 2:
            raise ValueError(f"alpha, the moment of the noise that is finite, lies in [1, 2], not {alpha}")

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        momenta, powers = self.buffers(parameters, "momentum"), self.buffers(parameters, "power")
        if group["compiled"]:
            rate = torch.tensor(rate_of(group), dtype=torch.float64)
            compiled_over_lists(acclip_step)(values, gradients, momenta, powers, learning_rate=rate, **_hyper(group))
            return
        for operands in zip(values, gradients, momenta, powers, strict=True):
            acclip_step(*operands, learning_rate=rate_of(group), **_hyper(group))

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        from techniques.optimizers.acclip import kernel

        momenta, powers = self.buffers(parameters, "momentum"), self.buffers(parameters, "power")
        tables = self.tables(parameters, kernel.launch_tables)
        kernel.acclip_step(values, gradients, momenta, powers, tables, lr=group["lr"], **_hyper(group), **fused)


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2} | {name: group[name] for name in ("eps", "alpha", "weight_decay")}

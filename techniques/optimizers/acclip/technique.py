"""ACClip: the momentum of each coordinate is clipped to what its gradients are typically as large as.

Zhang et al., "Why are Adaptive Methods Good for Attention Models?" (NeurIPS 2020, arXiv 1912.03194), Algorithm 2:

    m = b1 m + (1 - b1) g            tau^a = b2 tau^a + (1 - b2) |g|^a
    g_hat = min(tau / (|m| + eps), 1) m            theta = theta - eta g_hat

Heavy-tailed gradient noise has no variance: SGD's error is unbounded, and clipping makes it finite. With one threshold
and the whole gradient's norm that is GClip, g_hat = min(tau / ||g||, 1) g. The threshold kept is tau^a; what is
compared is its a-th root, and what is clipped is the momentum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
from suite.kernels.optimizer import GroupedOptimizer, compiled_over_lists, descend


def clipped(momentum: Tensor, power: Tensor, *, eps: float, alpha: float) -> Tensor:
    """min(tau / (|m| + eps), 1) m, where ``power`` is tau^alpha: nowhere larger than tau."""
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
    """The update of one tensor, in place; all four have one shape. Decay is decoupled: it is not clipped."""
    momentum.lerp_(gradient, 1 - beta1)
    power.lerp_(gradient.abs().pow(alpha), 1 - beta2)
    direction = clipped(momentum, power, eps=eps, alpha=alpha)
    descend(parameter, direction, learning_rate, weight_decay)


class ACClip(GroupedOptimizer):
    """ACClip. State: ``momentum`` and ``power`` (tau^alpha), each of the parameter's size and dtype.

    It does what a clipping of the gradient's norm is for, and does not need one before it. On a GPU a group is updated
    by one kernel; elsewhere tensor by tensor or, if ``compiled``, in one pass over memory.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-5,
        alpha: float = 1.0,
        weight_decay: float = 0.0,
        compiled: bool = False,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not eps > 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"ACClip needs lr, weight_decay >= 0, eps > 0 and betas in [0, 1); "
                f"got {lr}, {weight_decay}, {eps}, {betas}"
            )
        if not 1 <= alpha <= 2:
            raise ValueError(f"alpha, the moment of the noise that is finite, lies in [1, 2], not {alpha}")
        hyper = {"lr": lr, "betas": betas, "eps": eps, "alpha": alpha, "weight_decay": weight_decay}
        super().__init__(params, hyper | {"compiled": compiled})

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        momenta, powers = self.buffers(parameters, "momentum"), self.buffers(parameters, "power")
        if group["compiled"]:
            rate = torch.tensor(group["lr"], dtype=torch.float64)
            compiled_over_lists(acclip_step)(
                parameters, gradients, momenta, powers, learning_rate=rate, **_hyper(group)
            )
            return
        for each in zip(parameters, gradients, momenta, powers, strict=True):
            acclip_step(*each, learning_rate=group["lr"], **_hyper(group))

    def launch(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], **fused: Any) -> None:
        from techniques.optimizers.acclip import kernel

        momenta, powers = self.buffers(parameters, "momentum"), self.buffers(parameters, "power")
        tables = self.tables(parameters, kernel.launch_tables)
        kernel.acclip_step(parameters, gradients, momenta, powers, tables, lr=group["lr"], **_hyper(group), **fused)


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2} | {name: group[name] for name in ("eps", "alpha", "weight_decay")}


@dataclass
class ACClipTechnique(Technique):
    """ACClip in place of AdamW and of the clipping of the gradient's norm, at ``factor`` times the learning rate."""

    factor: float = 300.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-5
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        ACClip([torch.zeros(1)], betas=(self.beta1, self.beta2), eps=self.eps, alpha=self.alpha)  # checks the others

    def recipe(self, recipe: Recipe) -> Recipe:
        """The product of learning rate and decay stays the recipe's."""
        return replace(
            recipe,
            learning_rate=recipe.learning_rate * self.factor,
            weight_decay=recipe.weight_decay / self.factor,
            beta1=self.beta1,
            beta2=self.beta2,
            gradient_clip=0.0,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> ACClip:
        return ACClip(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=self.eps,
            alpha=self.alpha,
            compiled=recipe.compile,
        )

    def probes(self, run: Run) -> Mapping[str, float]:
        """Of the last step: the largest coordinate in units of its threshold, the share of coordinates that were
        clipped, and the root mean square in learning rates."""
        largest, cut, squares, count = 0.0, 0, 0.0, 0
        for state in run.optimizer.state.values():
            step = clipped(state["momentum"], state["power"], eps=self.eps, alpha=self.alpha)
            threshold = state["power"].pow(1 / self.alpha)
            # 0 / 0 where no gradient ever came
            largest = max(largest, torch.where(threshold > 0, step.abs() / threshold, 0.0).max().item())
            cut += int((step != state["momentum"]).sum())
            squares, count = squares + step.square().sum().item(), count + step.numel()
        if not count:
            return {}
        return {"largest_over_threshold": largest, "clipped_share": cut / count, "step_rms": math.sqrt(squares / count)}

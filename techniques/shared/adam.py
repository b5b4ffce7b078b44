"""Implements Adam's update (Kingma & Ba, arXiv 1412.6980, Algorithm 1) and the optimizer around it.

For ``adam``, whose docstring explains the forms of the decay, and ``adamw``, the same update with decoupled decay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam

from suite.kernels.optimizer import GroupedOptimizer, rate_of
from suite.kernels.refusals import at_least_0

Decay = Literal["coupled", "decoupled"]


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    step: float,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
    decay: Decay = "coupled",
) -> None:
    """Runs Algorithm 1 on one tensor, in place; ``step`` counts from 1, or is infinite for no bias correction."""
    if decay == "decoupled":
        parameter.mul_(1 - learning_rate * weight_decay)
    elif weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    first_moment.lerp_(gradient, 1 - beta1)
    second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    deviation = (second_moment.sqrt() / math.sqrt(1 - beta2**step)).add_(eps)
    parameter.addcdiv_(first_moment, deviation, value=-learning_rate / (1 - beta1**step))


class Adam(GroupedOptimizer):
    """Implements Adam with torch's hyper-parameters, all of which but AMSGrad, ``differentiable`` and complex numbers
    it has.

    ``fused``: by torch's one-kernel update or, on a GPU, `adam_kernel`; ``foreach``: by torch's update of lists.
    Otherwise :func:`adam_step` goes tensor by tensor. State: ``first_moment``, ``second_moment`` and ``step``, which is
    infinite without bias correction.
    """

    torch_names = {"exp_avg": "first_moment", "exp_avg_sq": "second_moment"}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay: Decay = "coupled",
        bias_correction: bool = True,
        fused: bool = True,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decay": decay}
        ways = {"fused": fused, "foreach": foreach, "maximize": maximize, "capturable": capturable}
        super().__init__(params, hyper | {"bias_correction": bias_correction} | ways)

    def check(self, group: dict[str, Any]) -> None:
        lr, eps, weight_decay, betas = (group[name] for name in ("lr", "eps", "weight_decay", "betas"))
        if not at_least_0(lr, eps, weight_decay) or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"{type(self).__name__} needs lr, eps, weight_decay >= 0 and betas in [0, 1); "
                f"got {lr}, {eps}, {weight_decay}, {betas}"
            )
        if group["decay"] not in get_args(Decay):
            raise ValueError(f"decay must be coupled (L2) or decoupled (AdamW's), not {group['decay']!r}")

    def counts(self, group: dict[str, Any]) -> bool:
        return True

    def first_count(self, parameter: Tensor, group: dict[str, Any]) -> float:
        return 0.0 if group["bias_correction"] else math.inf

    def counter_device(self, parameter: Tensor, group: dict[str, Any]) -> torch.device | str:
        """torch's fused kernel and ours read the step on the parameter's device; elsewhere the host does."""
        return parameter.device if _fused(group) else "cpu"

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        first, second = self._moments(parameters)
        rates, step = _rates(group), self.step_of(parameters)
        if _fused(group) or group["foreach"]:
            before = list((step - 1).repeat(len(values)).unbind())  # torch counts the step itself, for each tensor
            torch_adam(
                values,
                gradients,
                first,
                second,
                [],
                before,
                fused=_fused(group),
                foreach=bool(group["foreach"]),
                amsgrad=False,
                maximize=False,
                lr=rate_of(group),
                decoupled_weight_decay=group["decay"] == "decoupled",
                **rates,
            )
            return
        rates |= {"learning_rate": rate_of(group), "decay": group["decay"]}
        for value, gradient, m, v in zip(values, gradients, first, second, strict=True):
            adam_step(value, gradient, m, v, step.item(), **rates)

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        return _fused(group) and super().launches(group, parameters)

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        from techniques.shared import adam_kernel as kernel

        first, second = self._moments(parameters)
        kernel.adam_step(
            values,
            gradients,
            first,
            second,
            self.tables(parameters, kernel.launch_tables),
            step=self.step_of(parameters),
            lr=group["lr"],
            decoupled=group["decay"] == "decoupled",
            **_rates(group),
            **fused,
        )

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self.buffers(parameters, "first_moment"), self.buffers(parameters, "second_moment")


def _fused(group: dict[str, Any]) -> bool:
    return bool(group["fused"] and not group["foreach"])


def _rates(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"]}

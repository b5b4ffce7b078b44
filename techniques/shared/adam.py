"""Adam's update (Kingma & Ba, arXiv 1412.6980, Algorithm 1) and the optimizer around it.

For ``adam``, whose docstring explains the forms of the decay, and ``adamw``, the same update with decoupled decay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam

from suite.kernels.optimizer import GroupedOptimizer

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
    """Algorithm 1 on one tensor, in place; ``step`` counts from 1, or is infinite for no bias correction."""
    if decay == "decoupled":
        parameter.mul_(1 - learning_rate * weight_decay)
    elif weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    first_moment.lerp_(gradient, 1 - beta1)
    second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    deviation = (second_moment.sqrt() / math.sqrt(1 - beta2**step)).add_(eps)
    parameter.addcdiv_(first_moment, deviation, value=-learning_rate / (1 - beta1**step))


class Adam(GroupedOptimizer):
    """Adam with torch's hyper-parameters. ``fused``: by torch's one-kernel update or, on a GPU, `adam_kernel`.

    Otherwise :func:`adam_step` goes tensor by tensor. State: ``first_moment``, ``second_moment`` and ``step``, a number
    where `adam_kernel` counts on the host, and a tensor elsewhere.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay: Decay = "coupled",
        bias_correction: bool = True,
        fused: bool = True,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"{type(self).__name__} needs lr, eps, weight_decay >= 0 and betas in [0, 1); "
                f"got {lr}, {eps}, {weight_decay}, {betas}"
            )
        if decay not in get_args(Decay):
            raise ValueError(f"decay must be coupled (L2) or decoupled (AdamW's), not {decay!r}")
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decay": decay}
        super().__init__(params, hyper | {"bias_correction": bias_correction, "fused": fused})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for parameter in group["params"]:
                if own := self.state.get(parameter):
                    self._fit(own, parameter, group)

    def begin_step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0.0 if group["bias_correction"] else math.inf
            state["first_moment"] = torch.zeros_like(parameter)
            state["second_moment"] = torch.zeros_like(parameter)
            self._fit(state, parameter, group)

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> float | None:
        """Splits by the number of steps, which differs where a gradient came late; torch's updates look at each."""
        step = self.state[parameter]["step"]
        return None if isinstance(step, Tensor) else step

    def _fit(self, state: dict[str, Any], parameter: Tensor, group: dict[str, Any]) -> None:
        """Gives ``state``, perhaps saved on another device, the form that the parameter's update needs."""
        state["step"] = float(state["step"])
        if not (group["fused"] and super().launches(group, [parameter])):
            # torch's fused kernel reads the step on the parameter's device; elsewhere a host number spares a transfer
            device = parameter.device if group["fused"] else "cpu"
            state["step"] = torch.tensor(state["step"], dtype=torch.float32, device=device)

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        first, second, steps = self._states(parameters)
        rates = _rates(group)
        if group["fused"]:
            torch_adam(
                parameters, gradients, first, second, [], steps, fused=True, amsgrad=False, maximize=False,
                lr=group["lr"], decoupled_weight_decay=group["decay"] == "decoupled", **rates,
            )  # fmt: skip
            return
        rates |= {"learning_rate": group["lr"], "decay": group["decay"]}
        for parameter, gradient, m, v, step in zip(parameters, gradients, first, second, steps, strict=True):
            step += 1
            adam_step(parameter, gradient, m, v, step.item(), **rates)

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        return not isinstance(self.state[parameters[0]]["step"], Tensor)

    def launch(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], **fused: Any) -> None:
        """A step that is left out counts: whether it was is known on the device only."""
        from techniques.shared import adam_kernel as kernel

        first, second, steps = self._states(parameters)
        for parameter in parameters:
            self.state[parameter]["step"] += 1
        kernel.adam_step(
            parameters, gradients, first, second, self.tables(parameters, kernel.launch_tables),
            step=steps[0] + 1, lr=float(group["lr"]), decoupled=group["decay"] == "decoupled", **_rates(group), **fused,
        )  # fmt: skip

    def _states(self, parameters: list[Tensor]) -> list[list[Any]]:
        names = ("first_moment", "second_moment", "step")
        return [[self.state[parameter][name] for parameter in parameters] for name in names]


def _rates(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"]}

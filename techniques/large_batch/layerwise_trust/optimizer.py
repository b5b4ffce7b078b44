"""The base directions, and the optimizer that gives each layer's step its length. technique.py has the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer
from techniques.shared.trust import Granularity, adam_directions, trust_ratios

Base = Literal["momentum", "adam", "sign"]


# base directions; each moves its state in place and returns new tensors -----------------------------------------------


def momentum_directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], beta: float) -> list[Tensor]:
    """m = beta m + (1 - beta) g."""
    torch._foreach_lerp_(list(momenta), list(gradients), 1 - beta)
    return [momentum.clone() for momentum in momenta]


def sign_directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], beta1: float, beta2: float) -> list[Tensor]:
    """Lion's: sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g."""
    directions = list(torch._foreach_lerp(list(momenta), list(gradients), 1 - beta1))
    torch._foreach_sign_(directions)
    torch._foreach_lerp_(list(momenta), list(gradients), 1 - beta2)
    return directions


# the optimizer ------------------------------------------------------------------------------------------------------


class LayerwiseTrust(GroupedOptimizer):
    """``base`` direction plus ``weight_decay`` times w, given the length lr phi(||w||).

    Vectors (norms' scales, biases) neither decay nor adapt: their ratio is 1. ``betas`` are those of the base;
    momentum has only the first.
    """

    whole_layers = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        base: Base = "momentum",
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        granularity: Granularity = "tensor",
        block: int = 256,
        phi: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"lr, eps, weight_decay >= 0 and betas in [0, 1) are needed; got {lr}, {eps}, {weight_decay}, {betas}"
            )
        hyper = {"eps": eps, "weight_decay": weight_decay, "granularity": granularity, "block": block, "phi": phi}
        super().__init__(params, {"lr": lr, "base": base, "betas": betas, **hyper})

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        layers, directions, rest = [], [], []
        for parameter, direction in zip(parameters, self._directions(group, parameters, gradients), strict=True):
            if parameter.ndim >= 2:
                layers.append(parameter)
                directions.append(direction.add_(parameter, alpha=group["weight_decay"]))
            else:
                rest.append((parameter, direction))
        low, high = group["phi"]
        ratios = trust_ratios(layers, directions, group["granularity"], group["block"], low=low, high=high)
        for parameter, direction, ratio in zip(layers, directions, ratios, strict=True):
            parameter.sub_((direction * ratio).to(parameter.dtype), alpha=group["lr"])
        for parameter, direction in rest:
            parameter.sub_(direction, alpha=group["lr"])

    def _directions(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        beta1, beta2 = group["betas"]
        first = self.buffers(parameters, "first_moment")
        if group["base"] == "momentum":
            return momentum_directions(gradients, first, beta1)
        if group["base"] == "sign":
            return sign_directions(gradients, first, beta1, beta2)
        second, directions = self.buffers(parameters, "second_moment"), []
        hyper = {"beta1": beta1, "beta2": beta2, "eps": group["eps"]}
        for parameter, gradient, m, v in zip(parameters, gradients, first, second, strict=True):
            step = self.state[parameter].setdefault("step", torch.zeros((), dtype=torch.float32))
            step += 1
            directions += adam_directions([gradient], [m], [v], int(step), **hyper)
        return directions

"""Has the base directions, and the optimizer that gives each layer's step its length. technique.py has the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer, rate_of
from suite.kernels.refusals import at_least_0
from suite.kernels.sharded import shard_dimensions, whole_norms
from techniques.large_batch.shared.trust import Granularity, adam_directions, check_phi, trust_ratios

Base = Literal["momentum", "adam", "sign"]


# base directions; each moves its state in place and returns new tensors -----------------------------------------------


def momentum_directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], beta: float) -> list[Tensor]:
    """Computes m = beta m + (1 - beta) g."""
    torch._foreach_lerp_(list(momenta), list(gradients), 1 - beta)
    return [momentum.clone() for momentum in momenta]


def sign_directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], beta1: float, beta2: float) -> list[Tensor]:
    """Computes Lion's directions: sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g."""
    directions = list(torch._foreach_lerp(list(momenta), list(gradients), 1 - beta1))
    torch._foreach_sign_(directions)
    torch._foreach_lerp_(list(momenta), list(gradients), 1 - beta2)
    return directions


# the optimizer ------------------------------------------------------------------------------------------------------


class LayerwiseTrust(GroupedOptimizer):
    """Takes the ``base`` direction plus ``weight_decay`` times w, given the length lr phi(||w||).

    Vectors (norms' scales, biases) neither decay nor adapt: their ratio is 1. ``betas`` are those of the base;
    momentum has only the first.
    """

    whole_layers = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        base: Base = "momentum",
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        granularity: Granularity = "tensor",
        block: int = 256,
        phi: tuple[float, float] = (0.0, math.inf),
        *,
        maximize: bool = False,
    ) -> None:
        hyper = {"eps": eps, "weight_decay": weight_decay, "granularity": granularity, "block": block, "phi": phi}
        super().__init__(params, {"lr": lr, "base": base, "betas": betas, "maximize": maximize, **hyper})

    def check(self, group: dict[str, Any]) -> None:
        lr, eps, weight_decay, betas = (group[name] for name in ("lr", "eps", "weight_decay", "betas"))
        if not at_least_0(lr, eps, weight_decay) or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"lr, eps, weight_decay >= 0 and betas in [0, 1) are needed; got {lr}, {eps}, {weight_decay}, {betas}"
            )
        for name, known in (("base", Base), ("granularity", Granularity)):
            if group[name] not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, not {group[name]!r}")
        if not group["block"] >= 1:
            raise ValueError(f"block, the elements of one, must be at least 1, not {group['block']}")
        check_phi(*group["phi"])

    def counts(self, group: dict[str, Any]) -> bool:
        return bool(group["base"] == "adam")

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        granularity = group["granularity"]
        if granularity != "tensor" and shard_dimensions(parameters[0]):
            raise ValueError(
                f"layers that are a {granularity} each may be divided among ranks, and their norms with them: "
                'take granularity="tensor", or do not shard the parameters'
            )
        layers, directions, rest = [], [], []
        for value, direction in zip(values, self._directions(group, parameters, gradients), strict=True):
            if value.ndim >= 2:
                layers.append(value)
                directions.append(direction.add_(value, alpha=group["weight_decay"]))
            else:
                rest.append((value, direction))
        low, high = group["phi"]
        whole, rate = whole_norms(parameters[0]), rate_of(group)
        ratios = trust_ratios(layers, directions, granularity, group["block"], whole, low=low, high=high)
        for value, direction, ratio in zip(layers, directions, ratios, strict=True):
            value.sub_((direction * ratio).to(value.dtype), alpha=rate)
        for value, direction in rest:
            value.sub_(direction, alpha=rate)

    def _directions(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        beta1, beta2 = group["betas"]
        first = self.buffers(parameters, "first_moment")
        if group["base"] == "momentum":
            return momentum_directions(gradients, first, beta1)
        if group["base"] == "sign":
            return sign_directions(gradients, first, beta1, beta2)
        second, step = self.buffers(parameters, "second_moment"), int(self.step_of(parameters))
        return adam_directions(gradients, first, second, step, beta1=beta1, beta2=beta2, eps=group["eps"])

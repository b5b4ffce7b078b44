"""LARS: SGD with momentum in which each layer's gradient is first brought to the scale of the layer's weights.

You, Gitman & Ginsburg, "Large Batch Training of Convolutional Networks" (2017, arXiv 1708.03888), Algorithm 1, with the
learning rate gamma, the trust coefficient eta and the decay beta:

    ratio = eta ||w|| / (||g|| + beta ||w||)        v = m v + gamma ratio (g + beta w)        w = w - v

Four inequivalent forms are in use. They differ in the ratio's denominator and in whether gamma is inside the momentum,
and coincide if and only if beta = 0 and gamma is constant:

    paper   ||g|| + beta ||w||    inside           timm    ||g|| + beta ||w|| + eps   outside: w = w - gamma v
    optax   ||g + beta w||        inside           moco    ||g + beta w||             outside (MoCo v3, MAE)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
from suite.kernels.optimizer import GroupedOptimizer
from techniques.large_batch.layerwise_trust.technique import layer_norms, trust_ratio, with_gradients

Variant = Literal["paper", "timm", "moco", "optax"]
INSIDE: tuple[Variant, ...] = ("paper", "optax")  # the learning rate is inside the momentum
SEPARATE: tuple[Variant, ...] = ("paper", "timm")  # the denominator is ||g|| + beta ||w||, not ||g + beta w||
TIMM_EPS = 1e-8


def lars_ratios(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    trust_coefficient: float,
    weight_decay: float,
    variant: Variant,
) -> list[Tensor]:
    """Each layer's ratio, of shape []; 1 where the weights or what they are divided by are 0."""
    separate = variant in SEPARATE
    divided = gradients if separate else torch._foreach_add(list(gradients), list(parameters), alpha=weight_decay)
    ratios = trust_ratio(
        torch.stack(layer_norms(parameters)),
        torch.stack(layer_norms(divided)),
        coefficient=trust_coefficient,
        decay=weight_decay if separate else 0.0,
        eps=TIMM_EPS if variant == "timm" else 0.0,
    )
    return list(ratios.unbind())


def lars_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    trust_coefficient: float,
    variant: Variant,
    adapt: bool,
) -> None:
    """Algorithm 1 on tensors of one dtype, in place; without ``adapt`` it is plain SGD with momentum and decay."""
    if not parameters:
        return
    steps = torch._foreach_add(list(gradients), list(parameters), alpha=weight_decay)
    if adapt:
        coefficients = {"trust_coefficient": trust_coefficient, "weight_decay": weight_decay}
        torch._foreach_mul_(steps, lars_ratios(parameters, gradients, variant=variant, **coefficients))
    inside, outside = (learning_rate, 1.0) if variant in INSIDE else (1.0, learning_rate)
    torch._foreach_mul_(list(momenta), momentum)
    torch._foreach_add_(list(momenta), steps, alpha=inside)
    torch._foreach_add_(list(parameters), list(momenta), alpha=-outside)


class Lars(GroupedOptimizer):
    """LARS; one buffer a parameter, ``momentum``, in the parameter's dtype. On a GPU a group is two passes of a kernel.

    Vectors (norms' scales, biases) neither decay nor adapt, as in MoCo v3 and MAE. ``variant="timm"`` has timm's own
    rule: what decays adapts, whatever its shape, and everything does with ``always_adapt``.
    """

    whole_layers = True

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        variant: Variant = "paper",
        always_adapt: bool = False,
    ) -> None:
        if lr < 0 or weight_decay < 0 or trust_coefficient < 0 or not 0 <= momentum < 1:
            raise ValueError(
                "LARS needs lr, weight_decay, trust_coefficient >= 0 and momentum in [0, 1); "
                f"got {lr}, {weight_decay}, {trust_coefficient}, {momentum}"
            )
        if variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {variant!r}")
        hyper = {"momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient}
        super().__init__(params, {"lr": lr, "variant": variant, "always_adapt": always_adapt, **hyper})

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        return adapts(parameter, group)

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        lars_step(parameters, gradients, self.buffers(parameters, "momentum"), **_hyper(group, parameters))

    def launch(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], **fused: Any) -> None:
        from techniques.large_batch.lars import kernel

        momenta, tables = self.buffers(parameters, "momentum"), self.tables(parameters, kernel.launch_tables)
        kernel.lars_step(parameters, gradients, momenta, tables, **_hyper(group, parameters), **fused)


def _hyper(group: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
    """Of a step of ``parameters``, which all adapt or none."""
    adapt = adapts(parameters[0], group)
    decay = group["weight_decay"] if adapt or group["variant"] == "timm" else 0.0
    hyper = {name: group[name] for name in ("momentum", "trust_coefficient", "variant")}
    return hyper | {"learning_rate": group["lr"], "weight_decay": decay, "adapt": adapt}


def adapts(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether LARS gives this parameter a ratio of its own."""
    if group["variant"] == "timm":
        return bool(group["weight_decay"]) or group["always_adapt"]
    return parameter.ndim >= 2


@dataclass
class LarsTechnique(Technique):
    """LARS in place of AdamW, at ``factor`` times its learning rate."""

    factor: float = 800.0
    momentum: float = 0.9
    trust_coefficient: float = 1e-3
    weight_decay: float = 5e-4
    variant: Variant = "paper"

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        if not self.trust_coefficient > 0:
            raise ValueError(f"trust_coefficient must be positive (1e-3 is the paper's), not {self.trust_coefficient}")
        if self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"weight_decay >= 0 and momentum in [0, 1), not {self.weight_decay} and {self.momentum}")
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {self.variant!r}")

    def recipe(self, recipe: Recipe) -> Recipe:
        rate = recipe.learning_rate * self.factor
        return replace(recipe, learning_rate=rate, weight_decay=self.weight_decay, beta1=self.momentum)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Lars:
        return Lars(
            parameters,
            lr=recipe.learning_rate,
            momentum=recipe.beta1,
            trust_coefficient=self.trust_coefficient,
            variant=self.variant,
        )

    def probes(self, run: Run) -> Mapping[str, float]:
        """The longest first step (from v = 0) along the last gradient, in gamma eta ||w||; 1 at most in the paper's."""
        longest = 0.0
        for group in run.optimizer.param_groups:
            for weights in with_gradients(group, lambda parameter, group=group: adapts(parameter, group)):  # type: ignore[misc]
                if weights.grad is not None and weights.norm() > 0 and weights.grad.norm() > 0:
                    longest = max(longest, self._first_step(weights.detach(), weights.grad, group["weight_decay"]))
        return {"longest_first_step": longest}

    def _first_step(self, weights: Tensor, gradient: Tensor, weight_decay: float) -> float:
        (ratio,) = lars_ratios(
            [weights],
            [gradient],
            trust_coefficient=self.trust_coefficient,
            weight_decay=weight_decay,
            variant=self.variant,
        )
        moved = ratio * (gradient + weight_decay * weights)
        return (moved.norm() / (self.trust_coefficient * weights.norm())).item()

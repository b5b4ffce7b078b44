"""LAMB: Adam's direction, given in each layer the length of the layer's weights times the learning rate.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (ICLR 2020, arXiv 1904.00962),
Algorithm 2:

    r = m_hat / (sqrt(v_hat) + eps)        u = r + lambda w        w = w - eta phi(||w||) / ||u|| u

Four inequivalent forms are in use:

    paper    as above; norms' scales and biases neither decay nor adapt
    google   no bias correction (the authors' TensorFlow code, as in ALBERT); the same exclusions
    nvlamb   all gradients first divided by max(1, ||g|| / max_norm), the norm over the whole model; every tensor adapts
    timm     nvlamb's clipping; a tensor adapts if it decays
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
from suite.kernels.optimizer import GroupedOptimizer
from techniques.large_batch.layerwise_trust.technique import (
    adam_directions,
    check_phi,
    relative_step_error,
    trust_ratios,
    with_gradients,
)

Variant = Literal["paper", "google", "nvlamb", "timm"]
CLIPPED: tuple[Variant, ...] = ("nvlamb", "timm")


def lamb_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: int,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    adapt: bool,
    phi: tuple[float, float],
) -> None:
    """Algorithm 2 on tensors of one dtype, in place; ``step`` counts from 1. Without ``adapt`` the ratio is 1."""
    if not parameters:
        return
    updates = adam_directions(
        gradients,
        first_moments,
        second_moments,
        step,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        bias_correction=bias_correction,
    )
    torch._foreach_add_(updates, list(parameters), alpha=weight_decay)
    if adapt:
        torch._foreach_mul_(updates, trust_ratios(parameters, updates, low=phi[0], high=phi[1]))
    torch._foreach_add_(list(parameters), updates, alpha=-learning_rate)


class Lamb(GroupedOptimizer):
    """LAMB with torch's names; state: ``first_moment``, ``second_moment``, ``step``. On a GPU a group is two passes of
    a kernel. ``max_norm`` is nvlamb's and timm's; the other variants do not clip. ``phi`` bounds the weights' norm.
    """

    whole_layers = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        variant: Variant = "paper",
        max_norm: float = 1.0,
        phi: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"LAMB needs lr, eps, weight_decay >= 0 and betas in [0, 1); got {lr}, {eps}, {weight_decay}, {betas}"
            )
        if variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {variant!r}")
        if not max_norm > 0:
            raise ValueError(f"max_norm, to which all gradients together are clipped, must be positive, not {max_norm}")
        check_phi(*phi)
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "variant": variant, "phi": phi}
        super().__init__(params, {"lr": lr, "max_norm": max_norm, **hyper})

    def update_all(self) -> None:
        if (own := self._clipping_factor()) is not None:
            self._clip = own if self._clip is None else self._clip * own
        super().update_all()

    def _clipping_factor(self) -> Tensor | None:
        """1 / max(1, ||g|| / max_norm) over all groups, of shape [], where the variant asks for it."""
        first = self.param_groups[0]
        gradients = [p.grad for group in self.param_groups for p in with_gradients(group) if p.grad is not None]
        if first["variant"] not in CLIPPED or not gradients:
            return None
        norm = nn.utils.get_total_norm(gradients)
        if (factor := self.gradient_factor()) is not None:
            norm = norm * factor
        return (norm / first["max_norm"]).clamp(min=1.0).reciprocal()

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> tuple[bool, int]:
        """Whether it adapts, and the number of this step, which differs where some had no gradient at times."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        state["step"] += 1
        return adapts(parameter, group), int(state["step"])

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        first, second = self._moments(parameters)
        lamb_step(parameters, gradients, first, second, **self._hyper(group, parameters))

    def launch(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], **fused: Any) -> None:
        """A step that is left out counts: whether it was is known on the device only."""
        from techniques.large_batch.lamb import kernel

        first, second = self._moments(parameters)
        tables = self.tables(parameters, kernel.launch_tables)
        kernel.lamb_step(parameters, gradients, first, second, tables, **self._hyper(group, parameters), **fused)

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self.buffers(parameters, "first_moment"), self.buffers(parameters, "second_moment")

    def _hyper(self, group: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
        """Of a step of ``parameters``, which all adapt or none and are at one step."""
        adapt = adapts(parameters[0], group)
        excluded = group["variant"] not in CLIPPED and not adapt
        beta1, beta2 = group["betas"]
        return {
            "step": int(self.state[parameters[0]]["step"]),
            "learning_rate": group["lr"],
            "beta1": beta1,
            "beta2": beta2,
            "eps": group["eps"],
            "weight_decay": 0.0 if excluded else group["weight_decay"],
            "bias_correction": group["variant"] != "google",
            "adapt": adapt,
            "phi": group["phi"],
        }


def adapts(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether LAMB gives this parameter a ratio of its own."""
    if group["variant"] == "nvlamb":
        return True
    if group["variant"] == "timm":
        return bool(group["weight_decay"])
    return parameter.ndim >= 2


@dataclass
class LambTechnique(Technique):
    """LAMB in place of AdamW, at ``factor`` times its learning rate."""

    factor: float = 16.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    variant: Variant = "paper"
    max_norm: float = 1.0
    phi_low: float = 0.0
    phi_high: float = math.inf

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        if self.weight_decay < 0 or not self.eps > 0 or not self.max_norm > 0:
            raise ValueError(
                f"weight_decay >= 0 and eps, max_norm > 0, not {self.weight_decay}, {self.eps} and {self.max_norm}"
            )
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), not {self.beta1} and {self.beta2}")
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {self.variant!r}")
        check_phi(self.phi_low, self.phi_high)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            learning_rate=recipe.learning_rate * self.factor,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Lamb:
        return Lamb(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            variant=self.variant,
            max_norm=self.max_norm,
            phi=(self.phi_low, self.phi_high),
        )

    def probes(self, run: Run) -> Mapping[str, float]:
        """How far a step's length is from the learning rate times phi(||w||), relatively, at the worst such tensor."""
        adapting = {id(p) for group in run.optimizer.param_groups for p in with_gradients(group) if adapts(p, group)}
        bounds = (self.phi_low, self.phi_high)
        return {"relative_step_error": relative_step_error(run.optimizer, bounds, adapts=lambda p: id(p) in adapting)}

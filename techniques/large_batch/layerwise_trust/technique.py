"""Layer-wise trust: whatever the base direction u, a layer's step is as long as a function of its weights' norm.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (ICLR 2020, arXiv 1904.00962),
section 3.1, the general strategy of which LARS and LAMB are two cases:

    w_i <- w_i - eta phi(||w_i||) / ||u_i|| u_i          phi(z) = min(max(z, low), high)

for each layer i. The ratio is 1 where either norm is 0. Norms are taken in float32 at least. Momentum as u is the
paper's Algorithm 1 (LARS with the ratio outside the momentum), Adam's ratio its Algorithm 2 (LAMB).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
from suite.kernels.optimizer import GroupedOptimizer

Granularity = Literal["tensor", "row", "block"]  # what counts as a layer
Base = Literal["momentum", "adam", "sign"]


# the mechanism ------------------------------------------------------------------------------------------------------


def layer_norms(tensors: Sequence[Tensor], granularity: Granularity = "tensor", block: int = 256) -> list[Tensor]:
    """L2 norms of each tensor's layers, of a shape that broadcasts to the tensor's; float32 at least.

    ``tensor``: one norm, of shape []. ``row``: one for each index of the first dimension. ``block``: one for every
    ``block`` consecutive elements (the last block may be shorter), repeated to the tensor's own shape.
    """
    if not tensors:
        return []
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    if granularity == "tensor":
        return list(torch._foreach_norm(list(tensors), 2, dtype=wide))
    if granularity == "row":
        return [
            torch.linalg.vector_norm(each, dim=tuple(range(1, each.ndim)), keepdim=True, dtype=wide)
            if each.ndim > 1
            else each.to(wide).abs()
            for each in tensors
        ]
    return [_block_norms(each, block, wide) for each in tensors]


def _block_norms(tensor: Tensor, block: int, dtype: torch.dtype) -> Tensor:
    flat = tensor.reshape(-1)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)
    norms = torch.linalg.vector_norm(padded, dim=1, dtype=dtype)
    return norms.repeat_interleave(block)[: flat.numel()].view_as(tensor)


def trust_ratio(
    weight_norm: Tensor,
    update_norm: Tensor,
    *,
    coefficient: float = 1.0,
    low: float = 0.0,
    high: float = math.inf,
    decay: float = 0.0,
    eps: float = 0.0,
) -> Tensor:
    """coefficient phi(||w||) / (||u|| + decay ||w|| + eps), elementwise; 1 where either norm is 0 or not a number."""
    ratio = coefficient * weight_norm.clamp(low, high) / (update_norm + decay * weight_norm + eps)
    return torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)


def trust_ratios(
    parameters: Sequence[Tensor],
    directions: Sequence[Tensor],
    granularity: Granularity = "tensor",
    block: int = 256,
    **bounds: float,
) -> list[Tensor]:
    """:func:`trust_ratio` of every layer of every tensor, each of a shape that broadcasts to its tensor's."""
    if not parameters:
        return []
    weights, updates = (layer_norms(each, granularity, block) for each in (parameters, directions))
    if granularity == "tensor":
        return list(trust_ratio(torch.stack(weights), torch.stack(updates), **bounds).unbind())
    return [trust_ratio(w, u, **bounds) for w, u in zip(weights, updates, strict=True)]


# base directions; each moves its state in place and returns new tensors -----------------------------------------------


def momentum_directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], beta: float) -> list[Tensor]:
    """m = beta m + (1 - beta) g."""
    torch._foreach_lerp_(list(momenta), list(gradients), 1 - beta)
    return [momentum.clone() for momentum in momenta]


def adam_directions(
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: int,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    bias_correction: bool = True,
) -> list[Tensor]:
    """m_hat / (sqrt(v_hat) + eps) of step number ``step``, from 1; without ``bias_correction`` m / (sqrt(v) + eps)."""
    corrections = (1 - beta1**step, math.sqrt(1 - beta2**step)) if bias_correction else (1.0, 1.0)
    firsts, seconds, grads = list(first_moments), list(second_moments), list(gradients)
    torch._foreach_lerp_(firsts, grads, 1 - beta1)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, grads, grads, 1 - beta2)
    deviations = torch._foreach_sqrt(seconds)
    torch._foreach_div_(deviations, corrections[1])
    torch._foreach_add_(deviations, eps)
    directions = torch._foreach_div(firsts, corrections[0])
    torch._foreach_div_(directions, deviations)
    return list(directions)


def sign_directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], beta1: float, beta2: float) -> list[Tensor]:
    """Lion's: sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g."""
    directions = list(torch._foreach_lerp(list(momenta), list(gradients), 1 - beta1))
    torch._foreach_sign_(directions)
    torch._foreach_lerp_(list(momenta), list(gradients), 1 - beta2)
    return directions


# the optimizer ------------------------------------------------------------------------------------------------------


def with_gradients(group: dict[str, Any], wanted: Callable[[Tensor], bool] = lambda p: True) -> list[Tensor]:
    """The group's parameters that have a gradient, and are ``wanted``."""
    return [parameter for parameter in group["params"] if parameter.grad is not None and wanted(parameter)]


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


@dataclass
class LayerwiseTrustTechnique(Technique):
    """Every matrix moves by ``factor`` times the recipe's learning rate, relative to its own norm."""

    base: Base = "momentum"
    granularity: Granularity = "tensor"
    block: int = 256
    factor: float = 16.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    phi_low: float = 0.0
    phi_high: float = math.inf

    def __post_init__(self) -> None:
        if self.base not in get_args(Base):
            raise ValueError(f"base must be one of {', '.join(get_args(Base))}, not {self.base!r}")
        if self.granularity not in get_args(Granularity):
            choices = ", ".join(get_args(Granularity))
            raise ValueError(f"granularity must be one of {choices}, not {self.granularity!r}")
        if self.block < 1:
            raise ValueError(f"block, the elements that share a ratio, must be at least 1, not {self.block}")
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        check_phi(self.phi_low, self.phi_high)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            learning_rate=recipe.learning_rate * self.factor,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
        )

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> LayerwiseTrust:
        return LayerwiseTrust(
            parameters,
            lr=recipe.learning_rate,
            base=self.base,
            betas=(recipe.beta1, recipe.beta2),
            granularity=self.granularity,
            block=self.block,
            phi=(self.phi_low, self.phi_high),
        )

    def probes(self, run: Run) -> Mapping[str, float]:
        return {
            "relative_step_error": relative_step_error(
                run.optimizer, (self.phi_low, self.phi_high), self.granularity, self.block
            )
        }


def check_phi(low: float, high: float) -> None:
    """Raises ValueError for bounds that no norm fits."""
    if not 0 <= low <= high:
        raise ValueError(f"phi_low and phi_high bound the weights' norm: 0 <= low <= high, not {low} and {high}")


def relative_step_error(
    optimizer: torch.optim.Optimizer,
    phi: tuple[float, float],
    granularity: Granularity = "tensor",
    block: int = 256,
    adapts: Callable[[Tensor], bool] = lambda parameter: parameter.ndim >= 2,
) -> float:
    """How far a step's length is from lr phi(||w||), relatively, at the worst layer that adapts.

    Takes one more step along the gradients that are there and goes back. At the learning rate 1, where subtracting
    the weights before from those after keeps the digits; layers that stand still (a norm of 0) do not count.
    """
    before = {p: p.detach().clone() for group in optimizer.param_groups for p in with_gradients(group)}
    state = {p: {k: v.clone() for k, v in optimizer.state[p].items()} for p in before}
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    optimizer.step()
    worst = 0.0
    with torch.no_grad():
        for parameter, old in before.items():
            if adapts(parameter):
                moved, length = layer_norms([parameter - old, old], granularity, block)
                moves = (moved > 0) & (length > 0)
                error = torch.where(moves, moved / length.clamp(*phi) - 1, 0.0).abs().max().item()
                worst = max(worst, error)
            parameter.copy_(old)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, saved in state.items():
        for name, value in saved.items():
            optimizer.state[parameter][name].copy_(value)
    return worst

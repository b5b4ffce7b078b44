"""Has the update of LAMB, on lists of tensors, and the optimizer around it. technique.py has the paper and its
forms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer, rate_of
from suite.kernels.refusals import at_least_0
from suite.kernels.sharded import WholeNorms, total_norm, whole_norms
from techniques.large_batch.shared.trust import adam_directions, check_phi, trust_ratios, with_gradients

Variant = Literal["paper", "google", "nvlamb", "timm"]
CLIPPED: tuple[Variant, ...] = ("nvlamb", "timm")


def lamb_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: float,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    adapt: bool,
    phi: tuple[float, float],
    whole: WholeNorms | None = None,
) -> None:
    """Runs Algorithm 2 on tensors of one dtype, in place; ``step`` counts from 1. Without ``adapt`` the ratio is 1."""
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
        torch._foreach_mul_(updates, trust_ratios(parameters, updates, whole=whole, low=phi[0], high=phi[1]))
    torch._foreach_add_(list(parameters), updates, alpha=-learning_rate)


class Lamb(GroupedOptimizer):
    """Implements LAMB with torch's names; state: ``first_moment``, ``second_moment``, ``step``. On a GPU a group is two
    passes of a kernel. ``max_norm`` is nvlamb's and timm's; the other variants do not clip. ``phi`` bounds the weights'
    norm.
    """

    whole_layers = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        variant: Variant = "paper",
        max_norm: float = 1.0,
        phi: tuple[float, float] = (0.0, math.inf),
        *,
        maximize: bool = False,
    ) -> None:
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "variant": variant, "phi": phi}
        super().__init__(params, {"lr": lr, "max_norm": max_norm, "maximize": maximize} | hyper)

    def check(self, group: dict[str, Any]) -> None:
        lr, eps, weight_decay, betas = (group[name] for name in ("lr", "eps", "weight_decay", "betas"))
        if not at_least_0(lr, eps, weight_decay) or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"LAMB needs lr, eps, weight_decay >= 0 and betas in [0, 1); got {lr}, {eps}, {weight_decay}, {betas}"
            )
        if group["variant"] not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {group['variant']!r}")
        if not group["max_norm"] > 0:
            raise ValueError(
                f"max_norm, to which all gradients together are clipped, must be positive, not {group['max_norm']}"
            )
        check_phi(*group["phi"])

    def gradient_factor(self) -> Tensor | None:
        """Returns the factor of all optimizers times 1 / max(1, ||g|| / max_norm) over all groups, where the variant
        asks for it."""
        factor, first = super().gradient_factor(), self.param_groups[0]
        gradients = [p.grad for group in self.param_groups for p in with_gradients(group) if p.grad is not None]
        if first["variant"] not in CLIPPED or not gradients:
            return factor
        norm = total_norm(gradients)
        if factor is not None:
            norm = norm * factor.to(norm.device)
        own = (norm / first["max_norm"]).clamp(min=1.0).reciprocal()
        return own if factor is None else factor.to(norm.device) * own

    def counts(self, group: dict[str, Any]) -> bool:
        return True

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        return adapts(parameter, group)

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        first, second = self._moments(parameters)
        hyper = self._hyper(group, parameters) | {"learning_rate": rate_of(group)}
        step = int(self.step_of(parameters))
        lamb_step(values, gradients, first, second, step, whole=whole_norms(parameters[0]), **hyper)

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        from techniques.large_batch.lamb import kernel

        first, second = self._moments(parameters)
        tables = self.tables(parameters, kernel.launch_tables)
        step = self.step_of(parameters)
        kernel.lamb_step(values, gradients, first, second, tables, step=step, **self._hyper(group, parameters), **fused)

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self.buffers(parameters, "first_moment"), self.buffers(parameters, "second_moment")

    def _hyper(self, group: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
        """Returns the hyper-parameters of a step of ``parameters``, which all adapt or none and are at one step."""
        adapt = adapts(parameters[0], group)
        excluded = group["variant"] not in CLIPPED and not adapt
        beta1, beta2 = group["betas"]
        return {
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
    """Tells whether LAMB gives this parameter a ratio of its own."""
    if group["variant"] == "nvlamb":
        return True
    if group["variant"] == "timm":
        return bool(group["weight_decay"])
    return parameter.ndim >= 2

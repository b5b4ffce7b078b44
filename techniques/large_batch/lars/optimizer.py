"""Has the update of LARS, on lists of tensors, and the optimizer around it. technique.py has the paper and its
forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from suite.kernels.optimizer import GroupedOptimizer, rate_of
from suite.kernels.refusals import at_least_0
from suite.kernels.sharded import WholeNorms, whole_norms
from techniques.large_batch.lars.variants import INSIDE, SEPARATE, TIMM_EPS, Variant
from techniques.large_batch.shared.trust import layer_norms, trust_ratio


def lars_ratios(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    trust_coefficient: float,
    weight_decay: float,
    variant: Variant,
    whole: WholeNorms | None = None,
) -> list[Tensor]:
    """Returns each layer's ratio, of shape []; 1 where the weights or what they are divided by are 0. ``whole`` is for
    shards: see `trust_ratios`."""
    separate = variant in SEPARATE
    divided = gradients if separate else torch._foreach_add(list(gradients), list(parameters), alpha=weight_decay)
    norms = torch.stack([*layer_norms(parameters), *layer_norms(divided)])
    weight_norms, divided_norms = (norms if whole is None else whole(norms)).chunk(2)
    ratios = trust_ratio(
        weight_norms,
        divided_norms,
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
    whole: WholeNorms | None = None,
) -> None:
    """Runs Algorithm 1 on tensors of one dtype, in place; without ``adapt`` it is plain SGD with momentum and decay."""
    if not parameters:
        return
    steps = torch._foreach_add(list(gradients), list(parameters), alpha=weight_decay)
    if adapt:
        coefficients = {"trust_coefficient": trust_coefficient, "weight_decay": weight_decay}
        torch._foreach_mul_(steps, lars_ratios(parameters, gradients, variant=variant, whole=whole, **coefficients))
    inside, outside = (learning_rate, 1.0) if variant in INSIDE else (1.0, learning_rate)
    torch._foreach_mul_(list(momenta), momentum)
    torch._foreach_add_(list(momenta), steps, alpha=inside)
    torch._foreach_add_(list(parameters), list(momenta), alpha=-outside)


def adapts(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Tells whether LARS gives this parameter a ratio of its own."""
    if group["variant"] == "timm":
        return bool(group["weight_decay"]) or group["always_adapt"]
    return parameter.ndim >= 2


class Lars(GroupedOptimizer):
    """Implements LARS; one buffer a parameter, ``momentum``. On a GPU a group is two passes of a kernel.

    Vectors (norms' scales, biases) neither decay nor adapt, as in MoCo v3 and MAE. ``variant="timm"`` has timm's own
    rule: what decays adapts, whatever its shape, and everything does with ``always_adapt``.
    """

    whole_layers = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        variant: Variant = "paper",
        always_adapt: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        hyper = {"momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient}
        ways = {"variant": variant, "always_adapt": always_adapt, "maximize": maximize}
        super().__init__(params, {"lr": lr} | ways | hyper)

    def check(self, group: dict[str, Any]) -> None:
        names = ("lr", "weight_decay", "trust_coefficient", "momentum")
        lr, weight_decay, trust_coefficient, momentum = (group[name] for name in names)
        if not at_least_0(lr, weight_decay, trust_coefficient) or not 0 <= momentum < 1:
            raise ValueError(
                "LARS needs lr, weight_decay, trust_coefficient >= 0 and momentum in [0, 1); "
                f"got {lr}, {weight_decay}, {trust_coefficient}, {momentum}"
            )
        if group["variant"] not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {group['variant']!r}")

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        return adapts(parameter, group)

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        hyper = _hyper(group, parameters) | {"learning_rate": rate_of(group)}
        lars_step(values, gradients, self.buffers(parameters, "momentum"), whole=whole_norms(parameters[0]), **hyper)

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        from techniques.large_batch.lars import kernel

        momenta, tables = self.buffers(parameters, "momentum"), self.tables(parameters, kernel.launch_tables)
        kernel.lars_step(values, gradients, momenta, tables, **_hyper(group, parameters), **fused)


def _hyper(group: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
    """Returns the hyper-parameters of a step of ``parameters``, which all adapt or none."""
    adapt = adapts(parameters[0], group)
    decay = group["weight_decay"] if adapt or group["variant"] == "timm" else 0.0
    hyper = {name: group[name] for name in ("momentum", "trust_coefficient", "variant")}
    return hyper | {"learning_rate": group["lr"], "weight_decay": decay, "adapt": adapt}

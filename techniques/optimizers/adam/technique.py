"""Adam: steps by the ratio of the gradient's mean to the root of its mean square, coordinate by coordinate.

Kingma & Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015, arXiv 1412.6980), Algorithm 1:

    m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
    m_hat = m / (1 - b1^t)           v_hat = v / (1 - b2^t)          theta = theta - alpha m_hat / (sqrt(v_hat) + eps)

The paper has no weight decay. Libraries add L2 regularisation to the gradient (``coupled``: g + lambda theta), which
then passes through the statistics; ``decoupled`` is AdamW. BERT's original code leaves the bias correction out and
decouples. Its corrections are the limit of many steps, so here it is a run whose step counter starts at infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
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
    """Adam with torch's hyper-parameters. ``fused``: by torch's one-kernel update or, on a GPU, this technique's.

    Otherwise :func:`adam_step` goes tensor by tensor. State: ``first_moment``, ``second_moment`` and ``step``, a number
    where this technique's kernel counts on the host, and a tensor elsewhere.
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

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> float | None:
        """By the number of steps, which differs where a gradient came late; torch's updates look at each tensor's."""
        state = self.state[parameter]
        if not state:
            state["step"] = 0.0 if group["bias_correction"] else math.inf
            state["first_moment"] = torch.zeros_like(parameter)
            state["second_moment"] = torch.zeros_like(parameter)
            self._fit(state, parameter, group)
        return None if isinstance(state["step"], Tensor) else state["step"]

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
        from techniques.optimizers.adam import kernel

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


@dataclass
class AdamTechnique(Technique):
    """Adam at the recipe's learning rate, betas and decay, which are AdamW's.

    ``decay="decoupled"`` is the reference to the bit; with ``bias_correction=False`` it is BERT's own optimizer.
    """

    decay: Decay = "coupled"
    bias_correction: bool = True

    zero_strength: ClassVar[dict[str, Any]] = {"decay": "decoupled"}

    def __post_init__(self) -> None:
        if self.decay not in get_args(Decay):
            raise ValueError(f"decay must be coupled or decoupled, not {self.decay!r}")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Adam:
        return Adam(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            decay=self.decay,
            bias_correction=self.bias_correction,
            fused=recipe.fused_optimizer,
        )

    def probes(self, run: Run) -> Mapping[str, float]:
        """In learning rates: the largest coordinate of a first step along the last gradient, and of the last step; the
        latter over section 2.1's bound; the last step's root mean square."""
        beta1, beta2, eps = run.recipe.beta1, run.recipe.beta2, run.recipe.eps
        first, last, squares, count = 0.0, 0.0, 0.0, 0
        for parameter, state in run.optimizer.state.items():
            if parameter.grad is None:
                continue
            begun, m, v = torch.zeros_like(parameter), torch.zeros_like(parameter), torch.zeros_like(parameter)
            start = 1.0 if self.bias_correction else math.inf
            adam_step(begun, parameter.grad, m, v, start, learning_rate=1.0, beta1=beta1, beta2=beta2, eps=eps)
            t = float(state["step"])
            deviation = (state["second_moment"] / (1 - beta2**t)).sqrt() + eps
            moved = state["first_moment"] / (1 - beta1**t) / deviation
            first, last = max(first, begun.abs().max().item()), max(last, moved.abs().max().item())
            squares, count = squares + moved.square().sum().item(), count + moved.numel()
        bound = max(1.0, (1 - beta1) / math.sqrt(1 - beta2))
        rms = math.sqrt(squares / max(1, count))
        return {"largest_first_step": first, "largest_step": last, "step_over_bound": last / bound, "step_rms": rms}
